"""What `learn` and `diagnose` print."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshplan.costmodels.units import counted, format_bytes, format_seconds
from meshplan.hardware_profiles.errors.intervals import WIDE
from meshplan.hardware_profiles.learned import Learned, LearnedRun
from meshplan.planner.case.learned_file import LEARNT_RANGE
from meshplan.planner.learn.cases import LoggedRun
from meshplan.planner.learn.diagnose import Diagnosis
from meshplan.planner.learn.learn import interval_width
from meshplan.planner.learn.odd_runs import ODD_TIMES
from meshplan.planner.learn.reasons import Reason, explained
from meshplan.planner.learn.teach import Lesson
from meshplan.planner.report.evidence import with_error
from meshplan.planner.report.tables import NO_MFU

SAYS_LITTLE = 0.95
SHOWN = 0.005  # of the gap: what the table tells apart
UNSTATED = (
    "what the framework fuses, overlaps and shards is assumed; an engine of your own states it "
    "(MESHPLAN_ENGINES, docs/learn.md), which for published sources was worth as much as two runs"
)
"""Of 101 sources to first order (2026-11-28): left-out layouts are 19.9 % off in the mean with the
generic engine's habits and 11.0 % with those of their own framework, before any run; 9.2 and 6.8 %
with two runs that were asked for (`python -m benchmarks.accuracy.learn --habits`).
"""


def print_learned(learned: Learned, found: Sequence[LoggedRun], console: Console) -> None:
    """The runs, the constants that moved, and what is left of doubt."""
    console.print(_runs(learned))
    for each in found:
        for note in each.notes:
            console.print(Text(f"{each.log}: {note}", style="dim"))
    for run in learned.runs:
        if not run.believed:
            _say(console, _odd(run))
    console.print(_constants(learned))
    silent = [each.name for each in learned.constants if each.kept > SAYS_LITTLE]
    if silent:
        _say(console, f"the runs say little about {', '.join(silent)}: these stay near the prior")
    _say(console, f"prior: {learned.prior}")
    if learned.engine == WIDE:
        _say(console, UNSTATED)
    left = learned.left_out_error
    _say(
        console,
        f"each run predicted from the others: median error {left:.1%}" if left is not None
        else "fewer than three runs: none can be left out, so the error is that of other sources",
    )  # fmt: skip
    _say(
        console,
        f"range for 8 of 10 further runs, of the prediction: {interval_width(learned)} "
        "(docs/learn.md: how often it held)",
    )
    if outside := list(_outside(learned)):
        _say(console, f"outside it, though learnt from: {', '.join(outside)}")
    _say(console, "only times are learnt, not memory")


def _outside(learned: Learned) -> Iterator[str]:
    """The runs that are learnt from and yet lie outside the range, measured over predicted."""
    for run in learned.runs:
        ratio = run.measured_s / run.after_s
        if run.believed and not 1 / learned.factor <= ratio <= learned.factor:
            yield f"{run.log}, measured at {ratio - 1:+.0%} of its prediction"


def print_lesson(lesson: Lesson, console: Console) -> None:
    """The two layouts to run, what is left of doubt then, and what further ones would leave."""
    for path in (lesson.first, lesson.second):
        _say(console, f"run {path}: {lesson.layouts[path]}")
    _say(
        console,
        f"uncertainty of a step time (mean of {len(lesson.layouts)} layouts): {lesson.before:.1%} "
        f"now, {lesson.after:.1%} once these two are learnt from",
    )
    for order, (path, left) in zip(("third", "fourth"), lesson.further.items(), strict=False):
        _say(console, f"a {order}, {path}: {lesson.layouts[path]}, would leave {left:.1%}")


def _say(console: Console, text: str) -> None:
    console.print(Text(text))


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _odd(run: LearnedRun) -> str:
    return (
        f"{run.log}: {run.measured_s / run.before_s:.2g} x as long as predicted, more than "
        f"{ODD_TIMES:.0f} x off, and no other run is like it: nothing is learnt from it; "
        "`meshplan diagnose` names likely reasons"
    )


def _runs(learned: Learned) -> Table:
    table = _table("layout", "GPUs", "measured", "predicted before", "predicted after")
    for run in learned.runs:
        table.add_row(
            run.layout, f"{run.gpus:,}", format_seconds(run.measured_s),
            with_error(run.before_s, run.measured_s), with_error(run.after_s, run.measured_s),
        )  # fmt: skip
    return table


def _constants(learned: Learned) -> Table:
    table = _table("constant", "before", "after", "uncertainty left")
    for each in learned.constants:
        table.add_row(each.name, f"{each.before:.3g}", f"{each.after:.3g}", f"{each.kept:.0%}")
    return table


def print_diagnosis(d: Diagnosis, console: Console) -> None:
    """The step beside the expected one, its parts, memory, what is usual, reasons, levers."""
    p, entries = d.prediction, counted(d.found.steady.entries, "logged step")
    ratio = d.measured_s / p.step_time_s
    _say(console, f"{d.found.run.layout.label} on {d.found.case.cluster.gpu.title}, priced as "
                  f"{d.found.case.engine.name} runs it; log format: {d.found.format}")  # fmt: skip
    of = "of" if d.found.steady.entries == 1 else "median of"
    _say(console, f"measured {format_seconds(d.measured_s)} ({of} {entries}), expected "
                  f"{format_seconds(p.step_time_s)}: {ratio:.2f} x as long")  # fmt: skip
    assert p.step_time_low_s is not None
    assert p.step_time_high_s is not None
    where = "inside" if d.inside else "outside"
    _say(console, f"{where} the range of 8 of 10 runs, {format_seconds(p.step_time_low_s)} to "
                  f"{format_seconds(p.step_time_high_s)}")  # fmt: skip
    learnt = (
        ("expected from your own runs: " + LEARNT_RANGE,) if d.found.case.engine.learned else ()
    )
    for note in (*d.found.notes, *learnt):
        _say(console, f"note: {note}")
    console.print(_parts(d))
    _print_memory(d, console)
    _print_usual(d, console)
    _print_reasons(d, console)
    _print_levers(d, console)


def _parts(d: Diagnosis) -> Table:
    table = _table("part", "expected", "share of the expected step")
    for name, seconds in d.parts.items():
        table.add_row(name, format_seconds(seconds), f"{seconds / d.prediction.step_time_s:.1%}")
    gap_s = d.measured_s - d.prediction.step_time_s
    sign = "-" if gap_s < 0 else "+"
    table.add_row("measured - expected", f"{sign}{format_seconds(abs(gap_s))}",
                  f"{gap_s / d.prediction.step_time_s:+.1%}")  # fmt: skip
    return table


def _print_memory(d: Diagnosis, console: Console) -> None:
    for line in d.memory:
        gib = line.measured_gib
        measured = f"measured {gib:.1f} GiB" if gib else "not in the log"
        _say(console, f"{line.kind} memory: {measured}, expected {line.expected_gib:.1f} "
                      "GiB on the fullest rank")  # fmt: skip
    if d.lacking_bytes is not None:
        has = format_bytes(d.prediction.gpu_memory_bytes)
        _say(console, f"by its config that rank needs {format_bytes(d.lacking_bytes)} more than "
                      f"the GPU's {has}: either the run keeps less than its config says (more "
                      "recompute? --recompute), or the prediction is too high")  # fmt: skip


def _print_usual(d: Diagnosis, console: Console) -> None:
    if d.mfu is None:
        _say(console, NO_MFU)
        return
    _say(console, f"MFU {d.mfu:.1%} measured, {d.prediction.mfu or 0:.1%} expected")
    if d.usual is None:
        _say(
            console, "fewer than five measured runs like it are published: the usual MFU is unknown"
        )
        return
    u = d.usual
    _say(console, f"usual MFU: {u.low:.1%} to {u.high:.1%}, median {u.median:.1%}, of {u.runs} "
                  f"measured runs from {u.sources} sources ({u.alike}); {u.below:.0%} of them are "
                  "below this run")  # fmt: skip


def _print_reasons(d: Diagnosis, console: Console) -> None:
    times = d.measured_s / d.prediction.step_time_s
    if not 1 / ODD_TIMES <= times <= ODD_TIMES:
        _say(
            console,
            f"more than {ODD_TIMES:.0f} x off: is the config that of this run (batch, sequence, "
            "GPUs, model)? `learn` does not learn from such a run alone",
        )
    if times * ODD_TIMES < 1:
        return
    if d.measured_s <= d.prediction.step_time_s:
        _say(console, "the run is not slower than expected; `meshplan learn` can learn from it")
        return
    if d.inside:
        _say(console, "the gap is within the model's own error: perhaps no reason below holds")
    if not d.reasons:
        _say(console, "no hypothesis that is priced explains 5% of the gap")
        return
    _say(console, _verdict(d))
    console.print(_hypotheses(d))
    if any(_counts_less(reason, d) for reason in d.reasons):
        _say(console, "a slowdown explains less, the larger its factor is (1.6 x is one standard "
                      "deviation, assumed)")  # fmt: skip


def _hypotheses(d: Diagnosis) -> Table:
    table = _table("hypothesis", "probability", "explains", "step if so", "gain")
    for reason in d.reasons:
        table.add_row(
            f"{reason.name} [{reason.evidence}]; to try: {reason.try_this}",
            f"{reason.probability:.0%}", f"{reason.explains:.0%}",
            format_seconds(reason.step_time_s), f"{reason.gain:.1%}",
        )  # fmt: skip
    return table


def _verdict(d: Diagnosis) -> str:
    """The likeliest reason, or what cannot be told apart."""
    names = "; ".join(reason.name for reason in d.likeliest)
    if not names:
        return "no hypothesis is likelier than an error of the model"
    if len(d.likeliest) == 1 and not d.may_be_off:
        return f"likeliest: {names}"
    off = "an error of the model; " if d.may_be_off else ""
    told = any(line.measured_gib for line in d.memory)
    may = "" if told else ", or the peak of its memory,"
    return f"this log cannot tell these apart: {off}{names}. A log of another layout{may} may"


def _counts_less(reason: Reason, d: Diagnosis) -> bool:
    """Whether it would close more of the gap than it is said to explain."""
    whole = explained(d.measured_s, d.prediction.step_time_s, reason.step_time_s)
    return reason.evidence == "priced by the cost model" and whole - reason.explains >= SHOWN


def _print_levers(d: Diagnosis, console: Console) -> None:
    for lever in d.levers:
        fits = "" if lever.fits else ", but is predicted not to fit"
        _say(console, f"one change: {lever.name} would make the expected step {lever.gain:.1%} "
                      f"shorter{fits}")  # fmt: skip
