"""Seconds of one training step of one layout.

    step    = makespan of the pipeline (last rank done, gradients reduced) + update + fixed, and
              what all ranks of a pipeline wait for together (`rendezvous`)
    gradients: reduced behind the backward of the last micro-batch, as far as the engine overlaps,
               or of each micro-batch (`weight_traffic`); a rank that is done before the last one
               has that time too; of an interleaved pipeline behind the next chunk's last round of
               micro-batches, where the engine does that (`seconds.chunk_traffic`)
    update  = bytes of gradients, master weights and moments of this rank / bandwidth (or the CPUs'
              update, `host`), and the gathering of updated weights under ZeRO-1 and 2, behind the
              first micro-batch or the first rounds of chunks alike

Source: schedules as in `schedule`, overlap as in `layer`. Leaves out: data loading, checkpoints,
evaluation.
"""

from dataclasses import fields

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.ranks.rendezvous import rendezvous_s
from meshplan.costmodels.ranks.tied_table import tied_table_s
from meshplan.costmodels.schedule.actions import Work
from meshplan.costmodels.schedule.simulation import end_s
from meshplan.costmodels.seconds.chunk_traffic import exposed_beside_s
from meshplan.costmodels.seconds.cost import Pass
from meshplan.costmodels.step.stages import StageModel
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step by cause; `step_time_s` is their sum.

    compute_s       the busiest pipeline rank computing, recompute included
    tensor_s ... data_s, send_s   exposed communication of that rank
    offload_s       its exposed copies to and from the host
    bubble_s        that rank waiting for the others
    optimizer_s     update of the weights; fixed_s once per step
    """

    compute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    data_s: float
    send_s: float
    offload_s: float
    bubble_s: float
    optimizer_s: float
    fixed_s: float

    @property
    def step_time_s(self) -> float:
        """The sum of all causes."""
        return float(sum(getattr(self, f.name) for f in fields(self)))

    @property
    def exposed_comm_s(self) -> float:
        """Communication that is not hidden."""
        within = self.tensor_s + self.context_s + self.expert_s + self.data_s
        return within + self.send_s + self.offload_s


def schedule_work(model: StageModel) -> Work:
    """The schedule's actions in seconds."""
    tuning, shown = model.setting.tuning, 1.0 - model.setting.engine.overlap.pipeline
    host_s, stages = tuning.micro_batch_s / 2 / model.layout.virtual_stages, model.stage_costs
    forwards, backwards = model.waits_s
    return Work(
        tuple(
            float(c.forward.total_s) + host_s + waits_s
            for c, waits_s in zip(stages, forwards, strict=True)
        ),
        tuple(
            float(c.replay.total_s + c.input_grad.total_s) + host_s + waits_s
            for c, waits_s in zip(stages, backwards, strict=True)
        ),
        tuple(float(c.weight_grad.total_s) for c in model.stage_costs),
        float(model.hops.hop_s - shown * model.hops.hop_s),
    )


def step_time(model: StageModel) -> StepTime:
    """Seconds of one step, by cause."""
    la = model.layout
    ends = end_s(
        la.schedule, la.pipeline_parallel, la.virtual_stages, model.m, schedule_work(model)
    )
    left = model.by_rank(lambda rank: reduce_s(model, rank))
    reduced = [end + left_s for end, left_s in zip(ends, left, strict=True)]
    busy = model.by_rank(lambda rank: _busy(model, rank))
    worst = max(range(len(busy)), key=lambda rank: busy[rank].total_s)
    makespan, work = max(reduced), busy[worst]
    send = _send_s(model, worst)
    overhead = model.m * model.setting.tuning.micro_batch_s
    data = model.m * work.data_s + left[worst]
    update = max(model.by_rank(lambda rank: update_s(model, rank)))
    known = model.m * (work.total_s - work.data_s) + data + send + overhead
    bubble = float(makespan - known)
    return StepTime(
        compute_s=float(model.m * work.compute_s + overhead),
        tensor_s=float(model.m * work.tensor_s),
        context_s=float(model.m * work.context_s),
        expert_s=float(model.m * work.expert_s),
        data_s=float(data + tied_table_s(model)),
        send_s=send + float(rendezvous_s(model, model.m)),
        offload_s=float(model.m * work.offload_s),
        # Around 0 by rounding: the simulation adds in another order.
        bubble_s=bubble if bubble > 1e-12 * makespan else 0.0,
        optimizer_s=update,
        fixed_s=model.setting.tuning.step_s,
    )


def _send_s(model: StageModel, rank: int) -> float:
    """Seconds of a step in which a pipeline rank sends to the next and nothing hides it."""
    held = model.stages_of_rank[rank]
    return model.m * sum(passes[index] for passes in model.waits_s for index in held)


def _busy(model: StageModel, rank: int) -> Pass:
    """One micro-batch's work of a pipeline rank, all its stages and directions together."""
    cost = model.rank_costs[rank]
    return cost.forward + cost.input_grad + cost.weight_grad + cost.replay


def slowed_of(model: StageModel) -> Number:
    """By which fraction computing is slower beside the traffic of weights and gradients."""
    return model.traffic.interference(model.setting.tuning.interference)


def reduce_s(model: StageModel, rank: int) -> float:
    """Exposed gradient communication after the rank's last backward."""
    whole, room = model.traffic.once_s(model.rank_parameters[rank]), model.rank_costs[rank]
    overlap, slowed = model.reduce_overlap, slowed_of(model)
    return float(exposed_beside_s(whole, room.backward_room_s, overlap, slowed, model.beside))


def update_s(model: StageModel, rank: int) -> float:
    """The optimizer step of a rank, and the gathering of what it updated."""
    parameters = model.rank_parameters[rank]
    update = model.optimizer_s(parameters)
    gather = model.traffic.refresh_s(parameters)
    forward = float(model.rank_costs[rank].forward.once_room_s)
    overlap = model.setting.engine.overlap.weight_gather
    shown = exposed_beside_s(gather, forward, overlap, slowed_of(model), model.beside)
    return float(update + shown)
