"""What one-rank runs say: each rank measured beside predicted, and the plan's step put together.

    forward, backward   of all micro-batches, with what they wait for inside
    optimizer           gradient norm, update and what no other phase covers
    exposed ...         waited for messages that nothing hides, part of the above and of the
                        waits for pipeline messages; no bubble: every message is sent at once
    step of this rank   all of that
    step of the plan    the schedule played with the measured actions (`schedule.simulation`), of
                        ranks that were not measured the predicted ones

Of the ranks of a pipeline stage one stands for all: they do the same.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import end_s
from meshplan.costmodels.step.seconds import reduce_s, schedule_work, update_s
from meshplan.costmodels.step.step import StepModel
from meshplan.executor.launch.results import ComparedPart
from meshplan.executor.onerank.wire import Wire
from meshplan.hardware_profiles.frozen import Frozen

AXES = {
    "tp": "tensor-parallel", "cp": "context-parallel", "ep": "expert-parallel",
    "dp": "data-parallel", "pp": "pipeline messages",
}  # fmt: skip


class RankMeasured(Frozen):
    """One rank's step of median time, and the most bytes that it held.

    rank           global
    pipeline_rank  from 0
    micro_batches  that were run
    step_s         wall time
    step_times_s   of all timed steps
    processor_s    processor time of the process in each of them, all threads
    seconds        of its phases, and the `rest`, which no phase covers
    actions        (stage, kind, mean, median seconds) of the schedule's actions
    exposed_s      of the step, waited for messages that nothing hid, by axis; empty where a real
                   group was asked, which does not say it
    loss           of the last step
    held_bytes     the most bytes that were alive of each category, and `total` of all together, by
                   the tracker's count
    device_bytes   CUDA: `allocated` and `reserved` peaks of the caching allocator
    """

    rank: int
    pipeline_rank: int
    micro_batches: int
    step_s: float
    step_times_s: tuple[float, ...]
    processor_s: tuple[float, ...]
    seconds: dict[str, float]
    actions: tuple[tuple[int, str, float, float], ...]
    exposed_s: dict[str, float]
    loss: float
    held_bytes: dict[str, int]
    device_bytes: dict[str, int]


class OneRankRun(Frozen):
    """All ranks that were measured.

    meshplan_one_rank       version of the document
    plan                    its file
    layout                  in short
    device                  `cpu` or a GPU's name
    versions                of the packages
    date                    of the run
    micro_batches           of the plan's step
    ranks                   each as measured
    parts                   by rank, measured beside predicted
    step                    of the plan, put together from them
    estimated_pipeline_ranks
                            those of which the step of the plan holds predicted seconds
    """

    meshplan_one_rank: Literal[1] = 1
    plan: str
    layout: str
    device: str
    versions: dict[str, str]
    date: str
    micro_batches: int
    ranks: tuple[RankMeasured, ...]
    parts: dict[int, tuple[ComparedPart, ...]]
    step: ComparedPart
    estimated_pipeline_ranks: tuple[int, ...]


def parts_of(model: StepModel, found: RankMeasured) -> tuple[ComparedPart, ...]:
    """One rank, measured beside predicted: seconds, then bytes."""
    seen, told = _measured_s(model, found), _predicted_s(model, found.pipeline_rank)
    lines = [
        ComparedPart(name=name, unit="s", predicted=told.get(name), measured=seconds)
        for name, seconds in seen.items()
    ]
    return (*lines, *_bytes(model, found))


def _measured_s(model: StepModel, found: RankMeasured) -> dict[str, float]:
    """Of the whole step: what was measured of a few micro-batches, for all of them."""
    times = model.m / found.micro_batches
    seconds, actions = found.seconds, action_s(model, found)
    forward = model.m * sum(each for (_, kind), each in actions.items() if kind == "F")
    backward = model.m * sum(actions.values()) - forward
    wait = times * seconds.get("wait", 0.0)
    reduced, update = seconds.get("reduce", 0.0), seconds.get("optimizer", 0.0) + seconds["rest"]
    exposed = {
        f"  exposed {AXES[axis]}": (times if axis != "dp" else 1.0) * each
        for axis, each in found.exposed_s.items() if axis in AXES
    }  # fmt: skip
    if times > 1:  # what is reduced each micro-batch and what once per step is not told apart
        exposed.pop("  exposed data-parallel", None)
    return {
        "forward": forward, "backward": backward, "wait for messages": wait,
        "reductions after the backward": reduced, "optimizer": update, **exposed,
        "step of this rank": forward + backward + wait + reduced + update,
    }  # fmt: skip


def _predicted_s(model: StepModel, rank: int) -> Mapping[str, float]:
    work, m, (ahead_s, back_s) = schedule_work(model), model.m, model.waits_s
    stages = model.stages_of_rank[rank]
    cost = model.rank_costs[rank]
    busy = cost.forward + cost.input_grad + cost.weight_grad + cost.replay
    forward = m * sum(work.forward_s[at] - ahead_s[at] for at in stages)
    both = (work.input_grad_s[at] + work.weight_grad_s[at] - back_s[at] for at in stages)
    backward, reduced = m * sum(both), reduce_s(model, rank)
    wait = m * sum(ahead_s[at] + back_s[at] for at in stages)
    update = update_s(model, rank) + model.setting.tuning.step_s
    return {
        "forward": forward, "backward": backward, "wait for messages": wait,
        "reductions after the backward": reduced, "optimizer": update,
        "  exposed tensor-parallel": m * float(busy.tensor_s),
        "  exposed context-parallel": m * float(busy.context_s),
        "  exposed expert-parallel": m * float(busy.expert_s),
        "  exposed data-parallel": m * float(busy.data_s) + reduced,
        "  exposed pipeline messages": wait,
        "step of this rank": forward + backward + wait + reduced + update,
    }  # fmt: skip


def _bytes(model: StepModel, found: RankMeasured) -> list[ComparedPart]:
    memory = model.memory()[found.pipeline_rank]
    predicted = {
        **{name: float(getattr(memory, name)) for name in found.held_bytes if name != "total"},
        "total": float(memory.allocated),
    }
    lines = [
        ComparedPart(
            name="held at most" if name == "total" else f"  {name}", unit="bytes",
            predicted=predicted[name] if name != "transient" else None, measured=float(size),
        )
        for name, size in found.held_bytes.items()
    ]  # fmt: skip
    told = {"allocated": memory.allocated, "reserved": model.reserved_bytes(memory)}
    return lines + [
        ComparedPart(name=name, unit="bytes", predicted=float(told[name]), measured=float(size))
        for name, size in found.device_bytes.items()
    ]


def step_of(model: StepModel, ranks: Sequence[RankMeasured]) -> ComparedPart:
    """The whole plan's step."""
    la, work = model.layout, work_of(model, ranks)
    ends = end_s(la.schedule, la.pipeline_parallel, la.virtual_stages, model.m, work)
    after = {place: (reduce_s(model, place), _update_s(model, place)) for place in range(len(ends))}
    for found in ranks:
        seconds = found.seconds
        update = seconds.get("optimizer", 0.0) + seconds["rest"]
        after[found.pipeline_rank] = (seconds.get("reduce", 0.0), update)
    done = max(end + after[place][0] for place, end in enumerate(ends))
    return ComparedPart(
        name="step of the plan", unit="s", predicted=model.time().step_time_s,
        measured=done + max(update for _, update in after.values()),
    )  # fmt: skip


def action_s(model: StepModel, found: RankMeasured) -> dict[tuple[int, str], float]:
    """Mean seconds of a stage's actions of one kind over all micro-batches of the step: the typical
    one's, and what the few that ran took beyond that once per step, such as the last gradients.
    """
    ran = found.micro_batches / model.m
    return {
        (stage, kind): typical + (mean - typical) * ran
        for stage, kind, mean, typical in found.actions
    }


def _update_s(model: StepModel, place: int) -> float:
    return update_s(model, place) + model.setting.tuning.step_s


def work_of(model: StepModel, ranks: Sequence[RankMeasured]) -> Work:
    """The schedule's actions as measured, and as predicted where they were not. A message arrives
    as long after its sender is done as the profile says.
    """
    told = schedule_work(model)
    known = {key: each for found in ranks for key, each in action_s(model, found).items()}
    forward, inputs, weights = (
        list(each) for each in (told.forward_s, told.input_grad_s, told.weight_grad_s)
    )
    for stage in {stage for stage, _ in known}:
        forward[stage] = known[stage, "F"]
        inputs[stage] = known.get((stage, "I"), known.get((stage, "B"), 0.0))
        weights[stage] = known.get((stage, "W"), 0.0)
    return Work(tuple(forward), tuple(inputs), tuple(weights), float(model.hops.hop_s))


def wire_of(model: StepModel) -> Wire:
    """What answers take."""
    return Wire(model.setting.cluster, model.setting.tuning.collective_scale)
