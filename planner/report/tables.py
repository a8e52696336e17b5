"""What people see in the terminal: the plan in its three steps, the proof, memory and time.

The only file of the planner that knows colours. Everything prints without them too: the memory bars
are letters, one per category.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
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
    in_runs,
)
from meshplan.planner.answer.explain import PART_NAMES, TimeParts, needed_bytes
from meshplan.planner.case.host_memory import host_use
from meshplan.planner.case.plan_file import Plan, Prediction, StageMemory
from meshplan.planner.case.plan_findings import LEAST_GAIN, Bought, SpareMemory
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


NO_MFU = "no MFU (matrix products in several formats, each with its own peak)"


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
    fit (`hardware_profiles.errors.memory_needs` says how probably).
    """
    most_bytes = max(stage.reserved for stage in prediction.memory)
    reserved = f"reserved {format_bytes(most_bytes)} on the fullest rank"
    low, high = prediction.reserved_low_bytes, prediction.reserved_high_bytes
    if low is None or high is None:
        return reserved
    ranged = f"{format_bytes(low)} to {format_bytes(high)} in 8 of 10 runs"
    if high >= prediction.gpu_memory_bytes:
        ranged += "; caches can shrink"
    return f"{reserved} ({ranged})"


def unmeasured_line(prediction: Prediction) -> str:
    """What no measured run covers, which widens ranges; empty if runs cover everything."""
    found = ", ".join(prediction.unmeasured)
    return found and f"ranges are wider, as no measured run of this engine has {found}"


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


OTHERS = "runs of other engines or GPUs (none of this engine on this GPU family says)"


def fits_line(prediction: Prediction) -> str:
    """How probable it is that every rank fits; empty where no run says."""
    probable, runs = prediction.fits_probability, prediction.fits_runs
    if probable is None:
        return ""
    own = f"{counted(runs or 0, 'run')} of this engine on this GPU family"
    said = own if runs else OTHERS
    return f"fits with a probability {format_probability(probable)}, learnt from {said}"


def spare_lines(spare: SpareMemory) -> Iterator[str]:
    """What the memory that is left free would buy the plan's degrees."""
    one = _gained(spare.one_gib, spare.one_gib_most)
    if spare.all_bytes <= 0:
        yield f"with 1 GiB more per GPU {DEGREES} {one}"
        return
    every = _gained(spare.all, spare.all_most)
    if one == every == NOTHING:
        yield f"with 1 GiB more per GPU, or with {ALL}, {DEGREES} {NOTHING}"
        return
    yield f"with 1 GiB more per GPU {DEGREES} {one}"
    yield f"with {ALL} they {every}{_and_fit(spare.all)}"


ALL = "all the memory that a rank may use"
DEGREES = "the same parallel degrees"
NOTHING = f"would be at most {LEAST_GAIN:.1%} faster"


def _gained(bought: Bought | None, most: float | None) -> str:
    """What was found, or that nothing was and how much is not excluded."""
    if bought:
        step = f"{format_seconds(bought.step_time_s)}: {bought.label}"
        return f"would be {bought.faster_fraction:.1%} faster ({step})"
    if most is not None and most <= LEAST_GAIN:
        return NOTHING
    at_most = "" if most is None else f" ({most:.1%} at most)"
    return f"would be no faster, as far as was found{at_most}"


def _and_fit(bought: Bought | None) -> str:
    if bought is None or bought.fits_probability is None:
        return ""
    return f" and fit with a probability {format_probability(bought.fits_probability)} (--headroom)"


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


def split_line(plan: Plan) -> str:
    """The stages under their schedule; without a pipeline there is neither."""
    if plan.layout.pipeline_parallel == 1:
        return stages_line(plan)
    return f"{plan.layout.schedule}, by stage: {stages_line(plan)}"


def stages_line(plan: Plan) -> str:
    """Layers of each virtual stage in model order, and how many of all recompute what."""
    stages = plan.layout.stages
    counts = in_runs(stage.layers for stage in stages)
    total = sum(stage.layers for stage in stages)
    full = sum(stage.full_layers for stage in stages)
    selective = sum(stage.selective_layers for stage in stages)
    told = [f"{counts} layers"]
    most = max(stage.full_layers for stage in stages)
    if full:
        one_rule = all(stage.full_layers == min(most, stage.layers) for stage in stages)
        each = " of each stage" * (len(stages) > 1)
        which = f", the first {most}{each}" if one_rule and full < total else ""
        told.append(f"{full} of {total} recomputed in full{which}")
    if selective:
        modules = ", ".join(plan.layout.selective_modules)
        told.append(f"{selective} of {total} recomputed selectively ({modules})")
    return ", ".join(told)


WHEN_WRITTEN = "when the file was written"
"""Of what was found with a prediction that is no longer the plan's."""


def dropped_table(dropped: dict[str, int]) -> Table:
    """How many layouts each rule dropped before pricing."""
    table = listing()
    for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
        table.add_row(f"{count:,}", reason)
    return table


def bullets(lines: Iterable[str]) -> Table:
    """One entry each with a dash, and those of its further lines below it."""
    table = listing()
    for line in lines:
        head, *items = line.split("\n")
        table.add_row("-", Group(Text(head), bullets(items)) if items else Text(head))
    return table
