"""Single legal changes of layout or precision that would shorten the expected step, priced.

These are no reasons for a gap to the expected step; they are why the expected step is not shorter.
"""

from collections.abc import Iterator
from dataclasses import replace

from meshplan.costmodels.layout import InvalidLayout, Layout
from meshplan.costmodels.stage_split import split_evenly, stages_with
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.resolve import Case, check_case
from meshplan.planner.runs.memory import holds

SMALLEST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class Lever:
    """A change.

    name  in words
    gain  fraction of the predicted step that it saves
    fits  whether it fits in memory then
    """

    name: str
    gain: float
    fits: bool


def levers(case: Case, model: StepModel) -> tuple[Lever, ...]:
    """Changes that would make the step shorter by a hundredth or more, best first."""
    now_s = model.time().step_time_s
    found = []
    for name, changed in _changes(case):
        try:
            check_case(changed)
        except InvalidLayout:
            continue
        setting = replace(model.setting, training=changed.training)
        other = StepModel(setting, changed.layout)
        gain = 1 - other.time().step_time_s / now_s
        if gain >= SMALLEST_GAIN:
            found.append(Lever(name, gain, holds(other)))
    return tuple(sorted(found, key=lambda lever: (not lever.fits, -lever.gain)))


def _changes(case: Case) -> Iterator[tuple[str, Case]]:
    layout, training = case.layout, case.training
    counts = [stage.layers for stage in layout.stages]
    doubled = replace(layout, micro_batch_size=2 * layout.micro_batch_size)
    yield f"micro_batch_size {doubled.micro_batch_size}", replace(case, layout=doubled)
    if layout.recompute != "none":
        kept = _staged(layout, counts, "none")
        yield "no activation recompute", replace(case, layout=kept)
    if layout.recompute in ("full", "mixed") and "selective" in case.engine.legality.recompute:
        some = _staged(layout, counts, "selective")
        yield "recompute of attention only", replace(case, layout=some)
    even = split_evenly(sum(counts), len(counts), ends_count=case.engine.legality.layers_count_ends)
    if layout.recompute in ("none", "selective", "full") and tuple(counts) != even:
        balanced = replace(_staged(layout, even, layout.recompute), modules_apart=False)
        yield "equal layers in all stages", replace(case, layout=balanced)
    if training.precision == "bf16" and "fp8" in case.cluster.gpu.peak_flops_per_s:
        yield "fp8 training", replace(case, training=replace(training, precision="fp8"))


def _staged(layout: Layout, counts: tuple[int, ...] | list[int], mode: str) -> Layout:
    return replace(layout, stages=stages_with(tuple(counts), mode))
