"""What people see in the terminal: the plan in its three steps, the proof, memory and time.

The only file of the planner that knows colours. Everything prints without them too: the memory bars
are letters, one per category.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.units import (
    GIB,
    counted,
    format_bytes,
    format_probability,
    format_seconds,
)
from meshplan.hardware_profiles.layout_ratios import is_tie
from meshplan.planner.answer.explain import PART_NAMES, TimeParts, needed_bytes
from meshplan.planner.case.host_memory import host_use
from meshplan.planner.case.plan_file import Plan, Prediction, RunnerUp, SearchReport, StageMemory
from meshplan.planner.case.plan_findings import LEAST_GAIN, Bought, Choice, SpareMemory
from meshplan.planner.case.resolve import cluster_named
from meshplan.planner.report.layout_words import exchange_meanings, meanings, module_meanings
from meshplan.planner.report.output import listing
from meshplan.planner.report.terminal import Bar, Items

BAR, PARTS_BAR = 50, 40
CATEGORIES = {
    "weights": ("w", "blue"),
    "gradients": ("g", "cyan"),
    "optimizer": ("o", "magenta"),
    "activations": ("a", "green"),
    "transient": ("t", "yellow"),
    "slack": ("s", "bright_black"),
    "context": ("c", "red"),
}
"""The parts of a rank's memory in the order they are stacked, with their letter and colour."""


def step_heading(number: int, title: str) -> Text:
    """The heading of one of the three steps."""
    return Text(f"\n{number}  {title}", style="bold")


def indented(renderable: RenderableType) -> Padding:
    """`renderable` under the heading of its step."""
    return Padding(renderable, (0, 0, 0, 3))


NO_MFU = "no MFU (matrix products in several formats, each with a peak of its own)"


def time_line(prediction: Prediction, device: str = "GPU") -> Text:
    """Step time with the range of 8 in 10 runs, throughput of each `device`, and utilisation."""
    parts = [
        f"step {format_seconds(prediction.step_time_s)}{range_of(prediction)}",
        f"{prediction.tokens_per_s_per_gpu:,.0f} tokens/s per {device}",
    ]
    mfu = prediction.mfu
    parts.append(NO_MFU if mfu is None else f"MFU {mfu:.1%}")
    return Text(", ".join(parts))


def range_of(prediction: Prediction) -> str:
    """The range that 8 of 10 runs fall into, in brackets; empty if the plan file has none."""
    low, high = prediction.step_time_low_s, prediction.step_time_high_s
    if low is None or high is None:
        return ""
    return f" ({format_seconds(low)} to {format_seconds(high)} in 8 of 10 runs)"


def memory_line(prediction: Prediction) -> str:
    """Reserved memory of the fullest rank with the range of 8 in 10 runs.

    What is reserved holds caches, so the range may end at all that the GPU has and the plan still
    fit (`hardware_profiles.memory_needs` says how probably).
    """
    reserved = format_bytes(max(stage.reserved for stage in prediction.memory))
    low, high = prediction.reserved_low_bytes, prediction.reserved_high_bytes
    if low is None or high is None:
        return f"reserved {reserved}"
    ranged = f"{format_bytes(low)} to {format_bytes(high)} in 8 of 10 runs"
    if high >= prediction.gpu_memory_bytes:
        ranged += ", with caches that shrink where memory is short"
    return f"reserved {reserved} ({ranged})"


def unmeasured_line(prediction: Prediction) -> str:
    """What no measured run covers, which widens ranges; empty if runs cover everything."""
    found = ", ".join(prediction.unmeasured)
    return found and f"no measured run of this engine has {found}: ranges are wider for it"


def parts_table(parts: TimeParts) -> Table:
    """Where the step time goes, largest first, with a bar each."""
    table = listing()
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=justify == "right", overflow="fold")
    total_s = parts.total_s
    for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        share = seconds / total_s
        if share >= 0.001:
            bar = Bar((("#", share, ""),), PARTS_BAR, 1.0)
            table.add_row(PART_NAMES[name], format_seconds(seconds), f"{share:.1%}", bar)
    return table


def memory_bars(
    memory: Sequence[StageMemory], gpu_memory_bytes: float, first_rank: int = 0
) -> Table:
    """Stacked bars, one per pipeline rank (neighbours that hold the same share a line)."""
    table = listing()
    for no_wrap in (True, False, True):
        table.add_column(no_wrap=no_wrap)
    whole = max(gpu_memory_bytes, needed_bytes(memory))
    for title, stage in folded(memory, first_rank):
        parts = [(letter, getattr(stage, name), colour)
                 for name, (letter, colour) in CATEGORIES.items()]  # fmt: skip
        parts.append((".", max(0.0, gpu_memory_bytes - stage.needed), ""))
        used = f"{stage.needed / GIB:.1f} of {format_bytes(gpu_memory_bytes)}"
        table.add_row(title, Bar(tuple(parts), BAR, whole), used)
    return table


def folded(memory: Sequence[StageMemory], first_rank: int = 0) -> list[tuple[str, StageMemory]]:
    """Title and memory of each pipeline rank; neighbours alike to 0.1 GiB become one."""

    def rounded(item: tuple[int, StageMemory]) -> tuple[float, ...]:
        return tuple(round(getattr(item[1], name) / GIB, 1) for name in CATEGORIES)

    rows = []
    for _, group in groupby(enumerate(memory, first_rank), key=rounded):
        ranks = list(group)
        first, last = ranks[0][0], ranks[-1][0]
        rows.append((f"rank {first}" if first == last else f"ranks {first}-{last}", ranks[0][1]))
    return rows


def memory_legend() -> Items:
    """What the letters and colours of the bars mean."""
    return Items(
        tuple(
            Text.assemble((letter, colour), f" {name}")
            for name, (letter, colour) in CATEGORIES.items()
        )
    )


def layout_legend(layout: Layout) -> Items:
    """What the words of the layout's label mean, its exchanges, where its modules are."""
    said = (*meanings(layout), *exchange_meanings(layout), *module_meanings(layout))
    return Items(tuple(Text(f"{word}: {meaning}", style="dim") for word, meaning in said))


OTHERS = "other runs (of this engine on such GPUs we know of none out of memory)"


def fits_line(prediction: Prediction) -> str:
    """How probable it is that every rank fits; empty where no run says."""
    probable, runs = prediction.fits_probability, prediction.fits_runs
    if probable is None:
        return ""
    said = f"{runs:,} runs of this engine on such GPUs" if runs else OTHERS
    return f"fits with a probability {format_probability(probable)}, by {said}"


def spare_lines(spare: SpareMemory) -> Iterator[str]:
    """What the memory that is left free would buy the plan's degrees."""
    if spare.one_gib:
        yield f"one more GiB on each GPU would make these degrees {_faster(spare.one_gib)}"
    else:
        yield f"one more GiB on each GPU would buy these degrees {_nothing(spare.one_gib_most)}"
    if spare.all_bytes > 0:
        free = f"{format_bytes(spare.free_bytes)} of each GPU left free cost them"
        yield f"{free} {_cost(spare.all) if spare.all else _nothing(spare.all_most)}"


def _nothing(most: float | None) -> str:
    """That nothing was found, and how much is not excluded."""
    if most is None:
        return "nothing that was found"
    return "nothing" if most <= LEAST_GAIN else f"nothing that was found ({most:.1%} at most)"


def _cost(spared: Bought) -> str:
    slower = spared.faster_fraction
    said = f"{slower:.1%}: {format_seconds(spared.step_time_s)} in all the memory"
    if spared.fits_probability is None:
        return said
    fits = format_probability(spared.fits_probability)
    return f"{said}, which fits with a probability {fits} (--headroom)"


def _faster(bought: Bought) -> str:
    return (
        f"{bought.faster_fraction:.1%} faster ({format_seconds(bought.step_time_s)}: "
        f"{bought.label})"
    )


def memory_table(memory: Sequence[StageMemory]) -> Table:
    """GiB by category (as the bars' letters) and pipeline rank; narrow enough for 60 columns."""
    table = listing("rank", *(letter for letter, _ in CATEGORIES.values()), "alloc", "reserved",
                    left=("rank",))  # fmt: skip
    table.padding = (0, 1, 0, 0)
    for title, stage in folded(memory):
        values = (getattr(stage, name) for name in (*CATEGORIES, "allocated", "reserved"))
        ranks = title.removeprefix("ranks ").removeprefix("rank ")
        table.add_row(ranks, *(f"{value / GIB:.1f}" for value in values))
    return table


def host_line(plan: Plan) -> str:
    """What is kept on the host, empty where nothing is."""
    assert plan.prediction is not None
    host_bytes = [stage.host for stage in plan.prediction.memory]
    if not any(host_bytes):
        return ""
    return host_use(host_bytes, cluster_named(plan.cluster.name), plan.cluster.gpus).text


def stages_line(plan: Plan) -> str:
    """Layers of each virtual stage in model order, and how many of all recompute what."""
    stages = plan.layout.stages
    runs = [(layers, len(list(group))) for layers, group in groupby(s.layers for s in stages)]
    counts = ", ".join(
        f"{count} x {layers}" if count > 1 else str(layers) for layers, count in runs
    )
    total = sum(stage.layers for stage in stages)
    full = sum(stage.full_layers for stage in stages)
    selective = sum(stage.selective_layers for stage in stages)
    told = [f"{counts} layers"]
    most = max(stage.full_layers for stage in stages)
    if full:
        one_rule = all(stage.full_layers == min(most, stage.layers) for stage in stages)
        which = f", the first {most} of each stage" if one_rule and full < total else ""
        told.append(f"{full} of {total} recomputed{which}")
    if selective:
        modules = ", ".join(plan.layout.selective_modules)
        told.append(f"{selective} of {total} selectively recomputed: {modules}")
    return ", ".join(told)


WHEN_WRITTEN = "when the file was written"
"""Of what was found with a prediction that is no longer the plan's."""


def proof_lines(search: SearchReport, choice: Choice | None = None) -> list[str]:
    """What the search proved of the fastest layout, whether that is the plan, and what it did."""
    under = f"under the {search.price}{'' if search.price == 'event simulation' else ' prices'}"
    over = " over the listed cuts" if search.cuts == "listed" else ""
    if search.status == "OPTIMAL":
        claim = (
            f"OPTIMAL{over}: {under}, where the best takes {format_seconds(search.bound_s)}, "
            "nothing in the space is faster by more than a millionth"
        )
    else:
        which = "none of them" if over else "nothing in the space"  # moved layers may be faster
        claim = (
            f"FEASIBLE{over}: {under} {which} is faster than "
            f"{format_seconds(search.bound_s)}, {_gap(search.gap)} below the best found"
        )
    claim += _of_every_cut(search) if over else ""
    work = (
        f"{counted(search.candidates, 'layout')}, {search.priced:,} priced, "
        f"{counted(search.cpsat_solves, 'CP-SAT solve')}, {search.simulated} simulated, "
        f"{search.wall_s:.2f} s"
    )
    if choice:
        claim += _beside_fastest(choice)
    told = [choice_line(choice)] if choice else []
    return [claim, *told, *(f"space: {line}" for line in search.space), work]


def _of_every_cut(search: SearchReport) -> str:
    """What is proved however layouts are cut, where the proof is over a list of cuts."""
    bound_s, best_s = search.every_cut_bound_s, search.bound_s / (1 - search.gap)
    if not bound_s:
        return ""
    gap = _gap(1 - bound_s / best_s)
    least = f"{format_seconds(bound_s)}, {gap} below"
    return f"; however it is cut nothing in the space is faster than {least}"


def _gap(gap: float) -> str:
    """A gap that was not closed is never called 0.0%."""
    return f"{gap:.1%}" if gap >= LEAST_LOSS else "less than 0.1%"


def _beside_fastest(choice: Choice) -> str:
    """Which layout a proof speaks of, where that is not the plan."""
    if not choice.slower_fraction:
        return ""
    return f". That is {choice.fastest}, {choice.slower_fraction:.1%} faster than this plan"


LEAST_LOSS = 0.0005  # that is shown


def choice_line(choice: Choice) -> str:
    """Why the plan is this one of several."""
    many = f"{choice.candidates} simulated layouts, the best of their kinds" if choice.robust else (
        f"{choice.candidates} ties, which measured runs do not tell apart"
    )  # fmt: skip
    loses = f"loses {choice.worst_loss_fraction:.1%} at most to the others"
    where = f"where one figure is off ({choice.worst_where})"
    if not choice.slower_fraction and choice.worst_loss_fraction < LEAST_LOSS:
        return f"of {many}, the fastest stays so whichever one figure is off"
    if not choice.slower_fraction:
        return f"of {many}, the fastest {loses} {where}, none of them less by over 0.1%"
    other = f"the fastest {choice.fastest_worst_loss_fraction:.1%} ({choice.fastest_worst_where})"
    spares = choice.spares_bytes
    memory = f", and needs {format_bytes(spares)} less of a GPU" * (spares > 0.05 * GIB)
    return f"of {many}, this one {loses} {where}, {other}{memory}"


NARROW = 80
"""Below this many columns a runner-up is a sentence: its five cells would be words each."""


def runners_table(plan: Plan, width: int = NARROW) -> Table:
    """The runners-up, by how much the plan is faster and how surely, and what each lost by."""
    assert plan.prediction is not None
    if width < NARROW:
        return bullets(map(runner_sentence, runners_rows(plan)))
    headings = ("runner-up", "step", "the plan is faster", "reserved", "lost by")
    table = listing(*headings, left=("runner-up", "lost by"))
    for row in runners_rows(plan):
        table.add_row(*row)
    return table


def runner_sentence(row: tuple[str, ...]) -> str:
    """The cells of a runner-up in one line of text."""
    label, step, slower, reserved, lost = row
    slower = slower.replace("\n", ", ")
    return f"{label}: {step}, {slower}, {reserved}{lost and f'; lost by {lost}'}"


def runners_rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Layout, step, how much slower, memory, and what it lost by, of each runner-up."""
    assert plan.prediction is not None
    for other in plan.runners_up:
        yield (
            other.layout.full_label,
            format_seconds(other.step_time_s),
            slower_text(other, plan.prediction.step_time_s),
            format_bytes(other.reserved_bytes),
            lost_text(other),
        )


def slower_text(other: RunnerUp, chosen_s: float) -> str:
    """How much slower a runner-up is predicted and expected, and in how many cases the plan is the
    faster one, a line each; plans of before these were known lack them.
    """
    told = [f"{other.step_time_s / chosen_s - 1:+.1%}"]
    probability = other.faster_probability
    if other.expected_slower is not None:
        told.append(f"expected {other.expected_slower:+.1%}")
    if probability is not None:
        of_100 = round(probability * 100)
        told.append(f"faster in {of_100 if of_100 < 100 else 'more than 99'} of 100")
        told += ["a tie"] * is_tie(probability)
    return "\n".join(told)


def lost_text(other: RunnerUp, most: int = 2) -> str:
    """The parts that cost a runner-up most."""
    found = [(name, s) for name, s in other.lost_by.items() if s > 0][:most]
    return ", ".join(f"{PART_NAMES[name]} +{format_seconds(s)}" for name, s in found)


def dropped_table(dropped: dict[str, int]) -> Table:
    """How many layouts each rule dropped before pricing."""
    table = listing()
    for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
        table.add_row(f"{count:,}", reason)
    return table


def bullets(lines: Iterable[str]) -> Table:
    """One entry each with a dash, further lines indented."""
    table = listing()
    for line in lines:
        table.add_row("-", Text(line))
    return table
