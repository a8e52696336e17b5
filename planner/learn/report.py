"""What `learn` and `diagnose` print."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshplan.costmodels.units import counted, format_bytes, format_seconds
from meshplan.hardware_profiles.learned import Learned
from meshplan.planner.case.learned_file import LEARNT_RANGE
from meshplan.planner.learn.cases import LoggedRun
from meshplan.planner.learn.diagnose import Diagnosis
from meshplan.planner.learn.learn import interval_width
from meshplan.planner.learn.reasons import Reason, explained
from meshplan.planner.learn.teach import Lesson
from meshplan.planner.report.evidence import with_error

SAYS_LITTLE = 0.95
SHOWN = 0.005  # of the gap: what the table tells apart


def print_learned(learned: Learned, found: Sequence[LoggedRun], console: Console) -> None:
    """The runs, the constants that moved, and what is left of doubt."""
    console.print(_runs(learned))
    for each in found:
        for note in each.notes:
            console.print(Text(f"{each.log}: {note}", style="dim"))
    console.print(_constants(learned))
    silent = [each.name for each in learned.constants if each.kept > SAYS_LITTLE]
    if silent:
        _say(console, f"the runs say little of {', '.join(silent)}: they stay near the prior")
    _say(console, f"prior: {learned.prior}")
    left = learned.left_out_error
    _say(
        console,
        f"each run predicted by the others: median {left:.1%} off" if left is not None
        else "fewer than three runs: none is left out, so the error is that of other sources",
    )  # fmt: skip
    _say(
        console,
        f"meant to hold 8 of 10 further runs: {interval_width(learned)} of the prediction "
        "(docs/learn.md: how often it did)",
    )
    _say(console, "memory is not learnt")


def print_lesson(lesson: Lesson, console: Console) -> None:
    """The two layouts to run, and what is left of doubt then."""
    for path in (lesson.first, lesson.second):
        _say(console, f"run {path}: {lesson.layouts[path]}")
    _say(
        console,
        f"doubt about the constants is {lesson.before:.1%} of a step in the mean of the "
        f"{len(lesson.layouts)} layouts, and {lesson.after:.1%} once these two are learnt from",
    )
    _say(console, "what no constant explains comes on top (docs/learn.md)")


def _say(console: Console, text: str) -> None:
    console.print(Text(text))


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _runs(learned: Learned) -> Table:
    table = _table("layout", "GPUs", "measured", "expected before", "and after")
    for run in learned.runs:
        table.add_row(
            run.layout, f"{run.gpus:,}", format_seconds(run.measured_s),
            with_error(run.before_s, run.measured_s), with_error(run.after_s, run.measured_s),
        )  # fmt: skip
    return table


def _constants(learned: Learned) -> Table:
    table = _table("constant", "before", "after", "doubt left")
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
    _say(console, f"measured {format_seconds(d.measured_s)}, {of} {entries}; "
                  f"expected {format_seconds(p.step_time_s)}: {ratio:.2f} x")  # fmt: skip
    assert p.step_time_low_s is not None
    assert p.step_time_high_s is not None
    where = "inside" if d.inside else "outside"
    _say(console, f"{where} the {format_seconds(p.step_time_low_s)} to "
                  f"{format_seconds(p.step_time_high_s)} of 8 of 10 runs")  # fmt: skip
    learnt = ("by your own runs: " + LEARNT_RANGE,) if d.found.case.engine.learned else ()
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
    table.add_row("measured beyond it", f"{sign}{format_seconds(abs(gap_s))}",
                  f"{gap_s / d.prediction.step_time_s:+.1%}")  # fmt: skip
    return table


def _print_memory(d: Diagnosis, console: Console) -> None:
    for line in d.memory:
        measured = f"{line.measured_gib:.1f} GiB" if line.measured_gib else "not in the log"
        _say(console, f"memory {line.kind}: measured {measured}, expected {line.expected_gib:.1f} "
                      "GiB on the fullest rank")  # fmt: skip
    if d.lacking_bytes is not None:
        has = format_bytes(d.prediction.gpu_memory_bytes)
        _say(console, f"that rank is expected to need {format_bytes(d.lacking_bytes)} more than "
                      f"the {has} that the GPU has: the run keeps less than its config says "
                      "(is more recomputed? --recompute), or too much is predicted")  # fmt: skip


def _print_usual(d: Diagnosis, console: Console) -> None:
    if d.mfu is None:
        _say(console, "MFU: formats are mixed, so there is no one peak to divide by")
        return
    _say(console, f"MFU {d.mfu:.1%} measured, {d.prediction.mfu or 0:.1%} expected")
    if d.usual is None:
        _say(console, "no five measured runs like it are published: what is usual is not known")
        return
    u = d.usual
    _say(console, f"usual here: {u.low:.1%} to {u.high:.1%}, median {u.median:.1%}, of {u.runs} "
                  f"measured runs of {u.sources} sources ({u.alike}); {u.below:.0%} of them are "
                  "below this run")  # fmt: skip


def _print_reasons(d: Diagnosis, console: Console) -> None:
    if d.measured_s <= d.prediction.step_time_s:
        _say(console, "the run is not slower than expected; `meshplan learn` takes it in")
        return
    if d.inside:
        _say(console, "the gap is within the model's own error: it need not have a reason below")
    if not d.reasons:
        _say(console, "no hypothesis that is priced explains a twentieth of the gap")
        return
    _say(console, _verdict(d))
    table = _table(
        "hypothesis: it would explain the gap if", "likely", "explains", "step then", "gain"
    )
    for reason in d.reasons:
        table.add_row(
            f"{reason.name} [{reason.evidence}]; to try: {reason.try_this}",
            f"{reason.probability:.0%}", f"{reason.explains:.0%}",
            format_seconds(reason.step_time_s), f"{reason.gain:.1%}",
        )  # fmt: skip
    console.print(table)
    if any(_counts_less(reason, d) for reason in d.reasons):
        _say(console, "what is so many times as slow counts less the more unusual the factor is "
                      "(1.6 is one standard deviation, assumed)")  # fmt: skip


def _verdict(d: Diagnosis) -> str:
    """The likeliest reason, or what cannot be told apart."""
    names = "; ".join(reason.name for reason in d.likeliest)
    if not names:
        return "no reason is likelier than that the model is off"
    if len(d.likeliest) == 1 and not d.may_be_off:
        return f"likeliest: {names}"
    off = "that the model is off; " if d.may_be_off else ""
    told = d.found.run.measured
    may = "" if told.reserved_gib or told.allocated_gib else ", or the peak of its memory,"
    return f"this log cannot tell apart: {off}{names}. A log of another layout{may} may"


def _counts_less(reason: Reason, d: Diagnosis) -> bool:
    """Whether it would close more of the gap than it is said to explain."""
    whole = explained(d.measured_s, d.prediction.step_time_s, reason.step_time_s)
    return reason.evidence == "priced by the cost model" and whole - reason.explains >= SHOWN


def _print_levers(d: Diagnosis, console: Console) -> None:
    for lever in d.levers:
        fits = "" if lever.fits else ", but is not predicted to fit"
        _say(console, f"the layout itself: {lever.name} would take {lever.gain:.1%} off the "
                      f"expected step{fits}")  # fmt: skip
