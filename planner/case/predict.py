"""One layout priced in full, as the plan file states it."""

from meshplan.costmodels.memory.states import Memory
from meshplan.costmodels.step.step import Setting, StepModel, StepTime
from meshplan.hardware_profiles.errors.asked import Asked
from meshplan.hardware_profiles.errors.intervals import (
    Interval,
    reserved_interval,
    reserved_range,
    step_time_interval,
)
from meshplan.hardware_profiles.errors.memory_needs import chances_of
from meshplan.planner.case.error_class import error_depends_on
from meshplan.planner.case.learned_file import learned_interval
from meshplan.planner.case.memory_limit import limit_bytes
from meshplan.planner.case.plan_file import Prediction, StageMemory
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.run_facts import facts_of
from meshplan.planner.case.trained import trained_parameters


def predicted(case: Case) -> Prediction:
    """Step time of a case with its parts, and the memory of each pipeline rank."""
    step_model = step_model_of(case)
    return prediction_of(step_model, step_model.time())


def step_model_of(case: Case) -> StepModel:
    """The layout of a case, to be asked for its memory (`stage_memory`) and its time."""
    setting = Setting.fitted(case.model, case.training, case.cluster, case.engine)
    return StepModel(setting, case.layout)


def prediction_of(step_model: StepModel, time: StepTime) -> Prediction:
    """The same of a layout that is already timed."""
    setting = step_model.setting
    cluster, training = setting.cluster, setting.training
    asked = error_depends_on(setting, step_model.layout)
    times, peaks = _time_interval(step_model, asked), reserved_interval(asked)
    memory = stage_memory(step_model)
    reserved = max(stage.reserved for stage in memory)
    least, most = reserved_range(reserved, peaks, cluster.gpu.memory_bytes)
    cost = step_model.total_cost
    gpus_per_step = time.step_time_s * step_model.layout.world_size
    # of the format that linear layers multiply in: TF32 for fp32 training where the GPU has it
    peak = cluster.gpu.peak_flops_per_s[step_model.pricer.device.recipe.matmul_dtype(cluster.gpu)]
    mixed = step_model.pricer.device.recipe.cast_bytes > 0
    return Prediction(
        step_time_s=time.step_time_s,
        compute_s=float(time.compute_s),
        exposed_comm_s=float(time.exposed_comm_s),
        bubble_s=float(time.bubble_s),
        optimizer_s=float(time.optimizer_s + time.fixed_s),
        step_time_low_s=time.step_time_s * times.low,
        step_time_high_s=time.step_time_s * times.high,
        reserved_low_bytes=least,
        reserved_high_bytes=most,
        fits_probability=fits_probability(step_model, memory),
        fits_runs=chances_of(asked.engine, cluster.gpu.name).runs,
        unmeasured=times.outside,
        trained_parameters=trained_parameters(setting) if training.lora else None,
        error_fraction=times.error_fraction,
        tokens_per_s_per_gpu=training.global_batch_tokens / gpus_per_step,
        mfu=None if mixed else float(cost.model_flops / gpus_per_step / peak),
        hfu=None if mixed else float((cost.model_flops + cost.replay_flops) / gpus_per_step / peak),
        memory=memory,
        gpu_memory_bytes=cluster.gpu.memory_bytes,
        usable_memory_bytes=limit_bytes(cluster),
        plan_memory_bytes=cluster.fillable_bytes,
    )


def fits_probability(
    step_model: StepModel, memory: tuple[StageMemory, ...] | None = None
) -> float | None:
    """How probable it is that every rank fits; None on a CPU, of which no run says anything."""
    setting = step_model.setting
    gpu = setting.cluster.gpu
    if gpu.vendor == "cpu":
        return None
    ranks = memory or stage_memory(step_model)
    needed_bytes = max(stage.needed for stage in ranks)
    chances = chances_of(setting.engine.name, gpu.name)
    return chances.probability(gpu.memory_bytes / needed_bytes)


def _time_interval(step_model: StepModel, asked: Asked) -> Interval:
    """Around the step time: by the user's own runs where they taught the constants."""
    engine, gpu = step_model.setting.engine, step_model.setting.cluster.gpu.name
    usual = step_time_interval(asked)
    if engine.learned and engine.learned.gpu == gpu:
        setting = step_model.setting
        facts = facts_of(step_model.layout, setting.training, setting.model.name)
        return learned_interval(engine.learned, asked, usual, facts)
    return usual


def stage_memory(step_model: StepModel) -> tuple[StageMemory, ...]:
    """The memory of each pipeline rank."""
    return tuple(_stage(memory, step_model) for memory in step_model.memory())


def _stage(memory: Memory, step_model: StepModel) -> StageMemory:
    slack = float(step_model.slack_bytes(memory))
    context = step_model.context_bytes
    allocated = float(memory.allocated)
    return StageMemory(
        weights=float(memory.weights), gradients=float(memory.gradients),
        optimizer=float(memory.optimizer), activations=float(memory.activations),
        transient=float(memory.transient), context=context, slack=slack, allocated=allocated,
        reserved=step_model.reserved_bytes(memory), host=float(memory.host),
    )  # fmt: skip
