"""Step 1 of the answer: the fewest GPUs that hold a step; and what is said when nothing fits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.units import MIB, counted, format_bytes, format_probability
from meshplan.hardware_profiles.schema import Gpu
from meshplan.planner.answer.answer import case_at
from meshplan.planner.answer.fewest_gpus import SIZES_TRIED, FewestGpus, NoFewer
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.host_memory import HostUse, host_use
from meshplan.planner.case.plan_file import StageMemory, said
from meshplan.planner.case.predict import fits_probability, stage_memory, step_model_of
from meshplan.planner.check.verdicts import fullest, largest_category
from meshplan.planner.report.tables import indented, memory_bars, memory_legend, step_heading
from meshplan.planner.search.footprint import FEWER, LARGER, NEAREST, Explanation, fitting_layout
from meshplan.planner.search.least_memory import Fit, NearestMiss
from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.space.axis_rules import divisors
from meshplan.planner.space.funnel import PINNED
from meshplan.planner.space.pins import NUMBER_AXES
from meshplan.planner.space.stage_splits import lists_all
from meshplan.planner.space.words import bounds_memory

SHOWN_SAVINGS = 3
NOUNS = {"optimizer": "optimizer states", "transient": "transient buffers"}
MOST_GPUS_ASKED = 1024
"""How far to look for a number of GPUs that is enough, where the question's own is not."""
LESS_FREE = "less memory left free"
"""What a deadline may leave out beside `Explanation.ended`."""
MOST_VALUES = 12
"""Of an axis, that are shown where none of the pinned ones is legal."""
DENSE_AXES = ("data_parallel", "tensor_parallel", "context_parallel", "pipeline_parallel")
EXPERT_AXES = ("expert_parallel", "expert_tensor_parallel")
GPU_AXES = (*DENSE_AXES, *EXPERT_AXES)
"""The degrees that divide the number of GPUs."""
BATCH_AXES = ("data_parallel", "micro_batch_size")
"""What divides the sequences of a step."""


def print_fit(out: Console, question: Question, fewest: FewestGpus | NoFewer | None) -> None:
    """Step 1 on stdout; None: how many are needed was not found in time."""
    out.print(step_heading(1, "Fit the model"))
    if not isinstance(fewest, FewestGpus):
        out.print(indented(_no_fewer(question, fewest)))
        return
    gpus, prediction = fewest.gpus, fewest.prediction
    known = f"{_tried(question, gpus)} do{_but(question, fewest.unsettled)}"
    least = f"hold a training step, no fewer{known}"
    few = f"{question.counted(gpus)} {'holds a training step' if gpus == 1 else least}"
    out.print(indented(Text(f"{few}: ") + Text(fewest.label, style="bold")))
    rank, memory = fullest(prediction)
    out.print(indented(memory_bars([memory], prediction.gpu_memory_bytes, first_rank=rank)))
    out.print(indented(memory_legend()))
    out.print(indented(bound_line(fewest)))


def _no_fewer(question: Question, fewest: NoFewer | None) -> str:
    """Of a question of which no number of GPUs that was tried was found to hold a step."""
    verb = "holds" if question.gpus == 1 else "hold"
    holds = f"{question.counted(question.gpus)} {verb} a training step"
    if question.gpus == 1:
        return holds
    if fewest is None:
        return f"{holds}; whether fewer do was not looked at to the end"
    nodes = " of whole nodes" * bool(_tried(question, question.gpus))
    return f"{holds}, no smaller number{nodes} does{_but(question, fewest.unsettled)}"


def _but(question: Question, unsettled: Sequence[int]) -> str:
    """The sizes of which it is not known whether they hold a step, and where the memory of none is
    known but as a bound.
    """
    bounds = bounds_memory(question.engine.legality, question.pins)
    by_bound = ", by an upper bound of memory" * bounds
    return by_bound + (f" (not settled: {', '.join(map(str, unsettled))})" if unsettled else "")


def _tried(question: Question, found: int) -> str:
    """The unit of "no fewer": beyond one node only whole nodes were tried."""
    return " whole nodes" if found > question.cluster.gpus_per_node else ""


def bound_line(fewest: FewestGpus) -> str:
    """What fills the fullest rank, and what would free most of it."""
    rank, memory = fullest(fewest.prediction)
    alone = len(fewest.prediction.memory) == 1
    who = "" if alone else f"pipeline rank {rank} is the fullest; "
    line = f"{who}its largest part is {largest_part(memory)}"
    freed = sorted(fewest.savings, key=lambda saving: -saving[1])[:SHOWN_SAVINGS]
    if freed:
        told = "; ".join(f"{text} {format_bytes(size)}" for text, size in freed)
        line += f". What would free most: {told}"
    return line


def largest_part(memory: StageMemory) -> str:
    """What fills most of a rank, and how much."""
    category = largest_category(memory)
    size = format_bytes(getattr(memory, category))
    return f"{NOUNS.get(category, category)}, {size}"


class Fuller(NamedTuple):
    """A layout that fits with less memory left free than usual.

    layout            its own
    headroom          what `--headroom` takes for it
    fits_probability  of the layout; None: no measured run says
    """

    layout: Layout
    headroom: str
    fits_probability: float | None


def fits_fuller(asked: Asked) -> Fuller | None:
    """A layout that fits with no more left free than the profile keeps; None where none does, or
    where `--headroom` states how much is left.
    """
    if not asked.usual_headroom or asked.profile is asked.question.cluster:
        return None
    question = replace(asked.question, cluster=asked.profile)
    found = fitting_layout(question)
    if found is None:
        return None
    kept = 1 - asked.profile.capacity_bytes / asked.profile.gpu.memory_bytes
    probable = fits_probability(step_model_of(case_at(question, found.layout)))
    return Fuller(found.layout, f"{kept:.1%}", probable)


def _fuller_line(fuller: Fuller) -> str:
    told = fuller.fits_probability
    probable = "" if told is None else f", with a probability {format_probability(told)}"
    return f"with --headroom {fuller.headroom} one fits{probable}: {fuller.layout.full_label}"


def misfit_lines(question: Question, why: Explanation, fuller: Fuller | None = None) -> list[str]:
    """Why nothing fits: the nearest miss, the pins that forbid it, and what would do."""
    lines = [] if NEAREST in why.ended else list(_nearest_lines(question, why))
    if fuller:
        lines.append(_fuller_line(fuller))
    sizes_known = not {LARGER, FEWER} & set(why.ended)
    if sizes_known and not (_relaxed_here(question, why) or why.enough or why.fewer or fuller):
        lines.append(_no_number_line(question, why.unsettled))
    lines += [_relaxed_line(question, why, *each) for each in why.relaxations.items()]
    if why.on_host:
        lines.append(f"with --offload-optimizer on one fits: {why.on_host.layout.full_label}")
    if why.enough:
        lines.append(_next_size(question, why.enough))
    if why.fewer:
        fewer = question.counted(why.fewer.gpus)
        lines.append(f"one fits on {fewer}: {why.fewer.layout.full_label}")
    if why.ended:
        lines.append(f"the time limit left out: {', '.join(why.ended)}")
    return lines


def _nearest_lines(question: Question, why: Explanation) -> Iterator[str]:
    if why.beyond_host:
        yield beyond_host_line(question, why.beyond_host.layout)
    if why.nearest is None and why.beyond_host:
        return
    if why.nearest is None:
        yield _no_divisor_line(question) or _too_many_line(question) or _rule_line(why)
        return
    stages = stage_memory(step_model_of(case_at(question, why.nearest.layout)))
    part = largest_part(max(stages, key=lambda stage: stage.needed))
    fills = f"the largest part of its fullest rank is {part}"
    lacks = _lacking_host(question, why.nearest.layout)
    yield f"{miss_line(why.nearest, question.cluster.gpu)}; {fills}{lacks}"
    layout, rules = why.nearest.layout, question.engine.legality
    degrees = layout.pipeline_parallel, layout.virtual_stages
    several = layout.virtual_stages > 1 and rules.uneven_stages == "free"
    if several and not lists_all(question.model, rules, *degrees):
        yield "only listed stage splits were tried here: another split of the layers may fit"


def beyond_host_line(question: Question, layout: Layout) -> str:
    """A layout of which only the host takes too little, and how much it would have to."""
    return f"the GPUs alone hold {layout.full_label}; {host_use_of(question, layout).text}"


def host_use_of(question: Question, layout: Layout) -> HostUse:
    """What a layout keeps on the host, for each GPU."""
    stages = stage_memory(step_model_of(case_at(question, layout)))
    return host_use((stage.host for stage in stages), question.cluster, question.gpus)


def _lacking_host(question: Question, layout: Layout) -> str:
    """What a node's memory lacks too; "" where it takes all."""
    use = host_use_of(question, layout)
    return f"; {use.text}" if use.lacking_bytes > 0 else ""


def _relaxed_here(question: Question, why: Explanation) -> bool:
    """Whether lifting pins is enough on the question's own number of GPUs."""
    return any(fit.gpus == question.gpus for fit in why.relaxations.values())


def _relaxed_line(question: Question, why: Explanation, pin: str, fit: Fit) -> str:
    """What fits without a pin, or several; and on how many GPUs, if not the question's number."""
    single, here = pin in question.pins.describe(), fit.gpus == question.gpus
    listed = single and here and not why.nearest
    legal = _legal_values(question, pin.split()[0]) if listed else ""
    on = "" if here else f" on {question.counted(fit.gpus)}"
    pins = "pin" if single else "pins"
    return f"without the {pins} {pin} one fits{on}{legal}: {fit.layout.full_label}"


def _legal_values(question: Question, axis: str) -> str:
    """The values that an axis may take without its own pin, if they are few numbers of a row."""
    if axis not in NUMBER_AXES or axis == "virtual_stages":
        return ""
    free = space_of(replace(question, pins=question.pins.without(axis))).layouts
    values = [str(value) for value in np.unique(getattr(free, axis))]
    few = 0 < len(values) <= MOST_VALUES
    return f" (legal there: {', '.join(values)})" if few else ""


def _no_number_line(question: Question, unsettled: Sequence[int]) -> str:
    if question.cluster.gpu.vendor == "cpu":
        return "its processes share the memory of one machine: fewer processes have more each"
    return (
        f"no number of GPUs up to {most_asked(question):,} holds it as asked"
        f"{_but(question, unsettled)} ({SIZES_TRIED})"
    )


def _next_size(question: Question, enough: Fit) -> str:
    nodes = " in whole nodes" * bool(_tried(question, enough.gpus))
    size = question.counted(enough.gpus)
    holds = f"the next larger size{nodes} on which one fits{_but(question, enough.unsettled)}"
    return f"{holds}: {size}, {enough.layout.full_label}"


def most_asked(question: Question) -> int:
    """The most GPUs that are tried to find a number that is enough."""
    return max(4 * question.gpus, MOST_GPUS_ASKED)


def miss_line(nearest: NearestMiss, gpu: Gpu) -> str:
    """What comes closest, and the bytes that each GPU, or process of a CPU, lacks."""
    exactly = counted(math.ceil(nearest.lacking_bytes), "byte")
    few, lacks = nearest.lacking_bytes < MIB, format_bytes(nearest.lacking_bytes)
    more = exactly if few else f"{lacks} ({exactly})"
    share = "a process's share of the host" if gpu.vendor == "cpu" else "each GPU"
    return (
        f"the nearest miss, {nearest.layout.full_label}, needs {more} more than the "
        f"{format_bytes(nearest.capacity_bytes)} of {share} that a plan may fill"
    )


def _no_divisor_line(question: Question) -> str:
    """The pinned axis of which no value divides the GPUs or the batch; "" where there is none."""
    gpus, batch = question.gpus, question.training.global_batch_size
    of_gpus = ((axis, gpus, question.counted(gpus)) for axis in GPU_AXES)
    of_batch = ((axis, batch, f"a batch of {batch:,} sequences") for axis in BATCH_AXES)
    for axis, size, what in (*of_gpus, *of_batch):
        pin = question.pins.axes.get(axis)
        if pin and not any(map(pin.allows, divisors(size))):
            return f"pinned: {axis} {pin.text}, by no value of which {what} can be divided"
    return ""


def _too_many_line(question: Question) -> str:
    """The pinned axes that ask for more GPUs or sequences than there are, or for experts where the
    model has none; "" where none does.
    """
    pins = question.pins.axes
    counts = pins.keys() & {*GPU_AXES, *BATCH_AXES}
    least = {axis: min(low for low, _ in pins[axis].ranges) for axis in counts}
    for axis in EXPERT_AXES:
        if least.get(axis, 1) > 1 and not question.model.is_moe:
            return f"pinned: {axis} {pins[axis].text}, but the model has no routed experts"
    gpus, batch = question.gpus, question.training.global_batch_size
    ways: list[tuple[tuple[str, ...], int, tuple[str, ...]]] = [
        (DENSE_AXES, gpus, question.cluster.device_nouns),
        ((*EXPERT_AXES, "pipeline_parallel"), gpus, question.cluster.device_nouns),
        (BATCH_AXES, batch, ("sequence",)),
    ]
    for axes, most, nouns in ways:
        own = [axis for axis in axes if axis in least]
        needed = math.prod(least[axis] for axis in own)
        if needed > most:
            product = " x ".join(f"{axis} {pins[axis].text}" for axis in own)
            return f"pinned: {product} = {counted(needed, *nouns)} or more, but there are {most:,}"
    return ""


def _rule_line(why: Explanation) -> str:
    """The rule that excludes most; of rows that pins thin out, one that the user has not stated."""
    largest = max(why.dropped, key=lambda rule: why.dropped[rule], default="no shape divides")
    last = next(reversed(why.dropped), largest)
    if largest.startswith(PINNED) and not last.startswith(PINNED):
        return f"the rule that excludes the last that the pins leave: {last}"
    return f"the rule that excludes most of them: {largest}"


def misfit_document(
    asked: Asked, why: Explanation, fuller: Fuller | None, *, proved: bool
) -> dict[str, Any]:
    """The same as one JSON document.

    status               always `INFEASIBLE` (`UNKNOWN` of a search that was ended, with `gpus`
                         alone)
    proved               whether nothing fits; false where none was found that fits and something
                         was left open
    gpus                 asked for
    nearest              the layout that comes closest; None if none is legal, or the host alone
                         lacks memory
    relaxations.*        by pin, what fits without it; where no single one is enough, without all
                         that are listed
    enough               the smallest larger size found that fits with the same pins
    unsettled            sizes of which it is not known whether they fit
    fewer                the smallest smaller size found that fits
    on_host              what fits with the optimizer on the host
    beyond_host          what the GPUs hold, and of which the host alone takes too little
    fuller               what fits with less memory left free; None where nothing does
    dropped.*            layouts that each rule of legality dropped
    time_limit_left_out  what of this a time limit left out
    notes                what was assumed of the question
    """
    return {
        "status": "INFEASIBLE",
        "proved": proved,
        "gpus": asked.question.gpus,
        "nearest": None
        if why.nearest is None
        else {
            "layout": said(why.nearest.layout),
            "lacking_bytes": why.nearest.lacking_bytes,
            "capacity_bytes": why.nearest.capacity_bytes,
        },
        "relaxations": {pin: _fit(fit) for pin, fit in why.relaxations.items()},
        "enough": None if why.enough is None else _fit(why.enough),
        "unsettled": list(why.enough.unsettled if why.enough else why.unsettled),
        "fewer": None if why.fewer is None else _fit(why.fewer),
        "on_host": None if why.on_host is None else _fit(why.on_host),
        "beyond_host": None if why.beyond_host is None else _fit(why.beyond_host),
        "fuller": None if fuller is None else {**fuller._asdict(), "layout": said(fuller.layout)},
        "dropped": why.dropped,
        "time_limit_left_out": list(why.ended),
        "notes": list(asked.notes),
    }


def _fit(fit: Fit) -> dict[str, Any]:
    return {"gpus": fit.gpus, "layout": said(fit.layout)}
