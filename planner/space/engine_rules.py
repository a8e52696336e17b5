"""Whether an engine can run one given layout, beyond the rules of the mathematics.

`space` lists what is worth searching; this judges what somebody already runs, so it refuses only
what the engine itself would refuse, and names what the engine's profile does not price.
"""

from collections.abc import Callable

from meshplan.costmodels.layout import (
    SELECTIVE,
    InvalidLayout,
    Layout,
    RecomputeModule,
    Schedule,
    Stage,
)
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.schedule.in_flight import ZERO_BUBBLE
from meshplan.costmodels.training import Optimizer, Precision, Training
from meshplan.hardware_profiles.engine_schema import Engine, Legality
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.schema import Dtype, Gpu
from meshplan.planner.space.module_splits import FEWEST_RANKS

MIXED = {
    "any": "",
    "first": "recompute that differs so by layer (it has: all layers selectively, or the first k "
    "of each stage in full, with one k)",
    "alike": "recompute that differs by layer (it has: all layers alike)",
}
"""By `Legality.recompute_layers`."""
ON_CPU: tuple[Optimizer, ...] = ("adamw", "sgd")
"""Optimizers whose update is one pass over memory, as a host's processors can do it."""


def shards_under(schedule: Schedule, legality: Legality, zero_stage: int) -> bool:
    """Whether the engine's gradients are right in `zero_stage` under `schedule`."""
    stages = legality.zero_with_split_backward
    return stages is None or schedule not in ZERO_BUBBLE or zero_stage in stages


def recomputes_under(schedule: Schedule, legality: Legality) -> bool:
    """Whether the engine recomputes layers under `schedule`."""
    return schedule not in ZERO_BUBBLE or legality.recompute_with_split_backward


def replays(modules: tuple[RecomputeModule, ...], legality: Legality) -> bool:
    """Whether the engine's selective recompute can be of these modules."""
    known = set(legality.recompute_modules or SELECTIVE)
    return set(modules) == known if legality.recompute_policy else set(modules) <= known


def says_recompute(layout: Layout, legality: Legality) -> bool:
    """Whether the engine's options can say which layers recompute (`Legality.recompute_layers`)."""
    if layout.recompute != "mixed" or legality.recompute_layers == "any":
        return True
    most = max(stage.full_layers for stage in layout.stages)
    first = all(each == Stage(each.layers, 0, min(most, each.layers)) for each in layout.stages)
    return first and legality.recompute_layers == "first"


def check_engine(layout: Layout, model: Model, training: Training, engine: Engine) -> None:
    """Raise `InvalidLayout` where `engine` would stop with an error."""
    la, rules = layout, engine.legality
    for kind in model.kinds:
        heads = kind.attention.kv_heads
        if rules.kv_heads_divide and not kind.attention.is_mla and heads % la.tensor_parallel:
            raise InvalidLayout(
                f"{heads} key/value heads do not divide by tensor_parallel {la.tensor_parallel}, "
                f"and {engine.title} does not copy them"
            )
    if la.context_parallel > 1 and not rules.context_parallel:
        raise InvalidLayout(f"{engine.title} has no context_parallel; it must be 1")
    check_tied(la, model, engine)
    if la.pipeline_parallel > 1:
        _check_pipeline(la, training, engine)
    _check_modules(la, engine)
    _check_offload(la, training, engine)
    check_adapters(training, model, engine)
    check_states(training, engine)
    check_packed(training, engine)
    check_images(training, model, engine)
    for what, size in tower_widths(model, training, rules).items():
        if size % la.tensor_parallel:
            raise InvalidLayout(f"the {what} {size} does not divide by {la.tensor_parallel} ranks")


def _check_modules(la: Layout, engine: Engine) -> None:
    if not la.modules_apart:
        return
    if not engine.legality.modules_apart:
        able = _engines(lambda rules: rules.modules_apart)
        raise InvalidLayout(
            f"modules_apart: {engine.title} predicts several tokens on the last stage; engines "
            f"that can apart from the loss: {able}"
        )
    if la.pipeline_parallel < FEWEST_RANKS:
        raise InvalidLayout(
            f"modules_apart with pipeline_parallel {la.pipeline_parallel}: {engine.title} has "
            f"modules not on the first rank; use {FEWEST_RANKS} or more"
        )


def tower_widths(model: Model, training: Training, rules: Legality) -> dict[str, int]:
    """What of the vision tower tensor parallelism cuts and must divide, by its name."""
    trained = training.images is not None and rules.vision_tower == "cut"
    return model.tower.divided_by_tp if model.tower and trained else {}


def check_images(training: Training, model: Model, engine: Engine) -> None:
    """Raise `InvalidLayout` where `engine` cannot train on these images with this model's tower."""
    images = training.images
    if images is None:
        return
    if model.tower is None:
        raise InvalidLayout(f"images: {model.name} has no tower that is priced")
    if images.sense == "audio" and engine.legality.vision_tower != "whole":
        able = _engines(lambda rules: rules.vision_tower == "whole")
        raise InvalidLayout(
            f"sound: where {engine.title} places an audio tower is not known; engines that place "
            f"any module: {able}"
        )
    if engine.legality.vision_tower == "none":
        able = _engines(lambda rules: rules.vision_tower != "none")
        raise InvalidLayout(
            f"images: where {engine.title} places a vision tower is not known; engines of which it "
            f"is: {able}"
        )
    noun = "clip" if images.sense == "audio" else "image"
    if images.tokens > training.seq_len:
        raise InvalidLayout(
            f"{noun} tokens {images.tokens}: more than the {training.seq_len} tokens of a sequence"
        )
    each, number = model.tower.tokens_each, images.number_of(model.tower.tokens_each)
    if images.tokens % number or (each and images.tokens != each * number):
        fix = f"use {each * number}" if each else f"use a multiple of {number}"
        what = f"give {each} tokens each" if each else "give equally many tokens each"
        given = f"{number} {noun}s of {model.name} {what}"
        raise InvalidLayout(f"{noun} tokens {images.tokens}: {given}; {fix}")


def _check_pipeline(la: Layout, training: Training, engine: Engine) -> None:
    pp, count = la.pipeline_parallel, la.num_micro_batches(training)
    batch = (
        f"global batch {training.global_batch_size} / (data_parallel {la.data_parallel} x "
        f"micro_batch_size {la.micro_batch_size}) = {count} micro-batches"
    )
    least = pp - engine.legality.micro_batches_short_of_pp
    if engine.legality.micro_batches_at_least_pp and count < least:
        raise InvalidLayout(f"{batch}, fewer than the {least} of pipeline_parallel {pp}")
    interleaved = la.schedule == "interleaved_1f1b"
    if interleaved and engine.legality.interleaved_needs_multiple and count % pp:
        raise InvalidLayout(f"{batch}, which interleaving needs as a multiple of {pp}")
    if la.schedule == "dualpipe_v" and count < 2 * pp:
        raise InvalidLayout(f"{batch}, fewer than the 2 x {pp} that dualpipe_v needs")
    check_split_backward(la, engine)


def check_tied(la: Layout, model: Model, engine: Engine) -> None:
    """Raise `InvalidLayout` where `engine` cannot cut a model with tied embeddings into stages."""
    if la.pipeline_parallel > 1 and model.tied and not engine.legality.tied_with_pipeline:
        raise InvalidLayout(
            f"pipeline_parallel {la.pipeline_parallel}: the head of {model.name} reuses the "
            f"embedding's weights, which {engine.title} refuses in a pipeline; use 1"
        )


def check_split_backward(la: Layout, engine: Engine) -> None:
    """Raise `InvalidLayout` where `engine` cannot run a schedule that computes the gradients of
    inputs and of weights apart."""
    rules = engine.legality
    if la.pipeline_parallel == 1:
        return
    shards = la.data_parallel * la.context_parallel > 1
    if shards and not shards_under(la.schedule, rules, la.zero_stage):
        stages = " or ".join(map(str, rules.zero_with_split_backward or ()))
        raise InvalidLayout(
            f"schedule {la.schedule} with zero_stage {la.zero_stage}: {engine.title} gives wrong "
            f"gradients; use zero_stage {stages}, or a schedule that does not split the backward"
        )
    if la.recompute != "none" and not recomputes_under(la.schedule, rules):
        raise InvalidLayout(
            f"schedule {la.schedule} with recompute {la.recompute}: {engine.title} does not replay "
            "layers for a split backward; use recompute none, or another schedule"
        )


def _check_offload(la: Layout, training: Training, engine: Engine) -> None:
    rules = engine.legality
    if la.optimizer_offload and not rules.optimizer_offload:
        raise InvalidLayout(f"optimizer_offload: {engine.title} keeps the optimizer on the device")
    if la.optimizer_offload and training.optimizer not in ON_CPU:
        raise InvalidLayout(
            f"optimizer_offload: there is no {training.optimizer} on the host; use {ON_CPU[0]}"
        )
    if la.optimizer_offload and la.zero_stage == 0 and la.data_parallel * la.context_parallel > 1:
        raise InvalidLayout("optimizer_offload: its states are those of a rank; zero_stage 1")
    if la.activation_offload and rules.activation_offload == "never":
        raise InvalidLayout(f"activation_offload: {engine.title} keeps activations on the device")
    plain = la.pipeline_parallel == 1 and la.recompute == "none"
    if la.activation_offload and rules.activation_offload == "plain" and not plain:
        raise InvalidLayout(
            f"activation_offload: {engine.title} does it without pipeline_parallel and recompute"
        )


def check_adapters(training: Training, model: Model, engine: Engine) -> None:
    """Raise `InvalidLayout` where adapters beside frozen weights are not priced so: `engine` has
    none, or a base is quantised that cannot be.
    """
    lora = training.lora
    if lora is None:
        return
    if not engine.legality.lora_targets:
        able = _engines(lambda rules: bool(rules.lora_targets))
        raise InvalidLayout(f"LoRA: {engine.title} has none; engines that do: {able}")
    base = lora.base_precision
    if base == "bf16":
        return
    if training.precision not in ("bf16", "fp16"):
        raise InvalidLayout(
            f"base precision {base} with precision {training.precision}: quantised weights are "
            "unpacked to 16 bits; use precision bf16"
        )
    if model.is_moe:
        raise InvalidLayout(
            f"base precision {base}: routed experts that are quantised are not modelled; use bf16"
        )


def check_adapted(training: Training, model: Model, engine: Engine) -> None:
    """The same, and raise `InvalidLayout` where `engine` itself, not another that is priced by its
    profile, cannot adapt or keep what `training` says.
    """
    check_adapters(training, model, engine)
    lora = training.lora
    if lora is None:
        return
    targets, base = engine.legality.lora_targets, lora.base_precision
    if lora.targets not in targets:
        raise InvalidLayout(
            f"LoRA targets {lora.targets}: engine {engine.name} adapts {', '.join(targets)}"
        )
    if base not in ("bf16", *engine.legality.quantised_bases):
        able = _engines(lambda rules: base in rules.quantised_bases)
        raise InvalidLayout(
            f"base precision {base}: engine {engine.name} does not quantise frozen weights so; "
            f"engines that do: {able}"
        )


def check_states(training: Training, engine: Engine) -> None:
    """Raise `InvalidLayout` where AdamW's states cannot be kept as `training` says."""
    states = training.optimizer_states
    if states is None:
        return
    if states not in engine.legality.optimizer_states:
        usual = engine.legality.optimizer_states[0]
        able = _engines(lambda rules: states in rules.optimizer_states)
        raise InvalidLayout(
            f"optimizer states {states}: engine {engine.name} keeps them in {usual}; engines that "
            f"do: {able}"
        )
    adam = training.optimizer in ("adamw", "adamw8bit")
    if states == "bf16" and not (adam and training.precision == "bf16"):
        raise InvalidLayout(
            f"optimizer states bf16 with optimizer {training.optimizer} and precision "
            f"{training.precision}: they are AdamW's (of 16 or 8 bits) on bf16 weights; use both"
        )


def check_packed(training: Training, engine: Engine) -> None:
    """Raise `InvalidLayout` where documents of that length cannot attend to themselves alone."""
    mean = training.packed_mean_length
    if mean is None:
        return
    if mean > training.seq_len:
        raise InvalidLayout(
            f"packed mean length {mean}: more than the {training.seq_len} tokens of a sequence; "
            "use at most these"
        )
    if not engine.kernels.flash_attention:
        raise InvalidLayout(
            f"packed mean length {mean}: engine {engine.name} has no FlashAttention, and a mask "
            "saves no work; leave it out"
        )


def _engines(do: Callable[[Legality], bool]) -> str:
    return ", ".join(name for name in engine_names() if do(load_engine(name).legality))


def check_precision(training: Training, gpu: Gpu, engine: Engine) -> None:
    """Raise `InvalidLayout` where `gpu` has no matmuls of the training's number format, or `engine`
    does not train in it.
    """
    if lacking := lacking_format(training.precision, gpu):
        raise InvalidLayout(
            f"precision {training.precision}: {gpu.name} has no {lacking} (it has "
            f"{', '.join(gpu.peak_flops_per_s)})"
        )
    check_trained(training.precision, engine)


def check_experts_converted(training: Training, model: Model) -> None:
    """Raise `InvalidLayout` where a format is of routed experts alone and there are none."""
    if RECIPES[training.precision].experts_alone and not model.is_moe:
        raise InvalidLayout(
            f"precision {training.precision}: {model.name} has no routed experts, whose products "
            "alone it converts; use bf16 or mxfp8"
        )


def check_trained(precision: Precision, engine: Engine) -> None:
    """Raise `InvalidLayout` where `engine` has no training in `precision`."""
    has = engine.legality.precisions
    if precision not in has:
        able = _engines(lambda rules: precision in rules.precisions)
        raise InvalidLayout(
            f"precision {precision}: engine {engine.name} trains in {', '.join(has)}; engines that "
            f"do: {able}"
        )


def check_optimizer(optimizer: Optimizer, engine: Engine) -> None:
    """Raise `InvalidLayout` where `engine` itself, not a fork of it, lacks the optimizer."""
    has = engine.legality.optimizers
    if optimizer not in has:
        able = _engines(lambda rules: optimizer in rules.optimizers)
        raise InvalidLayout(
            f"optimizer {optimizer}: engine {engine.name} has {', '.join(has)}; engines that "
            f"have it: {able}"
        )


def lacking_format(precision: Precision, gpu: Gpu) -> Dtype | None:
    """A format that the recipe multiplies in and `gpu` has no rate for; None where it has all.

    No format stands in for another: Transformer Engine refuses mxfp8 below compute capability 10.0
    (NVIDIA/TransformerEngine transformer_engine/pytorch/fp8.py, `check_mxfp8_support`).
    """
    recipe, formats = RECIPES[precision], gpu.peak_flops_per_s
    if recipe.base_dtype not in formats:
        return recipe.base_dtype
    linear = recipe.linear_dtypes
    return None if set(linear) & set(formats) else linear[0]


def unpriced(layout: Layout, engine: Engine) -> tuple[str, ...]:
    """What of `layout` the engine's profile does not describe, so that its price is a guess."""
    la, rules = layout, engine.legality
    pipelined, split = la.pipeline_parallel > 1, la.tensor_parallel > 1
    sequence = {"always": True, "never": False}.get(rules.sequence_parallel, la.sequence_parallel)
    found = {
        f"zero_stage {la.zero_stage}": la.zero_stage not in rules.zero_stages,
        f"zero_stage {la.zero_stage} with a pipeline": pipelined
        and la.zero_stage not in rules.zero_with_pipeline,
        f"schedule {la.schedule}": pipelined and la.schedule not in rules.schedules,
        f"sequence_parallel {la.sequence_parallel}": split and la.sequence_parallel != sequence,
        "expert_parallel": la.expert_parallel > 1 and not rules.expert_parallel,
        "shard_group": la.shard_group > 0 and not rules.hybrid_shard,
        f"selective recompute of {', '.join(la.selective_modules)}": any(
            stage.selective_layers for stage in la.stages
        )
        and not replays(la.selective_modules, rules),
        MIXED[rules.recompute_layers]: not says_recompute(la, rules),
    }
    return tuple(f"the profile of {engine.name} does not cover {x}" for x in found if found[x])
