"""What the native engine cannot run, said before anything starts. Imports no torch.

Beyond `costmodels.layout.check_layout`:

    tensor parallel     sequence parallelism is on exactly when tp > 1; key/value heads and
                        the sequence divide by it; "full" query/key norms need tensor_parallel 1
    context parallel    sliding windows need context_parallel 1
    expert parallel     expert_tensor_parallel 1; the shard group's ranks divide into expert groups
    ZeRO                shard_group divides dp x cp; ZeRO-0 has none
    pipeline            interleaved_1f1b: micro-batches in multiples of pipeline_parallel
    recompute           core_attention, mlp and moe; full layers first, then selective ones
    not built           offloading, number formats other than bf16 and fp32, optimizers other than
                        AdamW, attention sinks, experts without a gate
    recurrent layers    Mamba-2 and gated DeltaNet, with context_parallel 1; tensor_parallel divides
                        the heads of their keys
"""

from collections.abc import Iterator

from meshplan.costmodels.layout import InvalidLayout, Layout
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import NATIVE, load_engine


def check_engine_layout(layout: Layout, model: Model, training: Training) -> None:
    """Raise `InvalidLayout`, in one line, unless the native engine can run the layout.

    `costmodels.layout.check_layout` is assumed to have passed.
    """
    for broken in (
        *_tensor(layout, model, training),
        *_sharding(layout, model),
        *_pipeline(layout, training),
        *_unbuilt(layout, model, training),
    ):
        raise InvalidLayout(f"native engine: {broken}")


def _tensor(layout: Layout, model: Model, training: Training) -> Iterator[str]:
    tp, cp = layout.tensor_parallel, layout.context_parallel
    if layout.sequence_parallel != (tp > 1):
        wanted = "true" if tp > 1 else "false"
        yield f"tensor_parallel {tp} runs with sequence_parallel {wanted} only; set it"
    if training.seq_len % (tp * cp):
        yield (
            f"sequence length {training.seq_len} does not divide by tensor_parallel {tp} x "
            f"context_parallel {cp}; lower one of them"
        )
    for kind in model.kinds:
        attention = kind.attention
        if not attention.is_mla and attention.kv_heads % tp:
            yield (
                f"{attention.kv_heads} key/value heads do not divide by tensor_parallel {tp}; "
                f"use a divisor of {attention.kv_heads}"
            )
        if attention.qk_norm == "full":
            yield "a norm over all query and key heads is not built"
        if cp > 1 and attention.window is not None:
            yield f"a sliding window needs context_parallel 1, not {cp}"
        if kind.experts and kind.experts.shared_ffn % tp:
            yield (
                f"shared experts of width {kind.experts.shared_ffn} do not divide by "
                f"tensor_parallel {tp}"
            )


def _sharding(layout: Layout, model: Model) -> Iterator[str]:
    ranks = layout.data_parallel * layout.context_parallel
    group, zero = layout.shard_group, layout.zero_stage
    if layout.expert_tensor_parallel > 1:
        yield f"expert_tensor_parallel {layout.expert_tensor_parallel} is not built; use 1"
    if zero == 0 and group > 1:
        yield f"shard_group {group} needs zero_stage 1, 2 or 3, not 0"
    if group and ranks % group:
        yield f"shard_group {group} does not divide data_parallel x context_parallel = {ranks}"
    held = (group or ranks) * layout.tensor_parallel
    if model.is_moe and zero and held % layout.expert_parallel:
        yield (
            f"expert_parallel {layout.expert_parallel} does not divide the shard group's "
            f"{held} ranks; use a divisor, or a larger shard_group"
        )


def _pipeline(layout: Layout, training: Training) -> Iterator[str]:
    pp, micro_batches = layout.pipeline_parallel, layout.num_micro_batches(training)
    if layout.schedule == "interleaved_1f1b" and micro_batches % pp:
        yield (
            f"schedule interleaved_1f1b needs a multiple of pipeline_parallel {pp} micro-batches, "
            f"not {micro_batches}"
        )


def _unbuilt(layout: Layout, model: Model, training: Training) -> Iterator[str]:
    """What the engine has not, in the order in which it is said."""
    yield from _unbuilt_exchanges(layout)
    yield from _untrained(training)
    yield from _unbuilt_replays(layout)
    yield from _unbuilt_parts(model)
    yield from _unbuilt_mixers(layout, model)
    for kind in model.kinds:
        rotated = int(kind.attention.head_dim * model.numerics.rotary.share)
        if rotated % 2 and not kind.attention.is_mla:
            yield f"rotary positions on {rotated} numbers of a head, which are no pairs"
        if kind.attention.sinks:
            yield "attention sinks are not built"
        if kind.experts and not model.gated:
            yield "experts without a gate are not built"


def _unbuilt_exchanges(layout: Layout) -> Iterator[str]:
    if layout.optimizer_offload or layout.activation_offload:
        yield "offloading is not built; keep optimizer and activations on the device"
    if layout.context_parallel > 1 and layout.context_kind not in ("", "all_gather"):
        yield f"context_kind {layout.context_kind} is not built; use all_gather"
    if layout.expert_parallel > 1 and layout.dispatcher not in ("", "all_to_all"):
        yield f"dispatcher {layout.dispatcher} is not built; use all_to_all"
    if layout.modules_apart:
        yield "modules_apart is not built; multi-token prediction is on the last stage"


def _untrained(training: Training) -> Iterator[str]:
    built = load_engine(NATIVE).legality.precisions
    if training.precision not in built:
        yield f"precision {training.precision} is not built; use {' or '.join(built)}"
    if training.lora:
        yield "adapters beside frozen weights are not built; export the plan to a framework"
    if training.images:
        sense = training.images.sense
        yield f"the {sense} tower is not built; export the plan's layout to a framework"
    if training.packed_mean_length:
        yield "attention within packed documents is not built; leave --packed-mean-length out"
    if training.optimizer_states == "bf16":
        yield "16-bit optimizer states are not built; leave --optimizer-states out"
    if training.optimizer != "adamw":
        yield f"optimizer {training.optimizer} is not built; use adamw"


def _unbuilt_replays(layout: Layout) -> Iterator[str]:
    built = load_engine(NATIVE).legality.recompute_modules
    selective = any(stage.selective_layers for stage in layout.stages)
    for module in layout.selective_modules if selective else ():
        if module not in built:
            yield f"selective recompute of {module} is not built; use {', '.join(built)}"


def _unbuilt_parts(model: Model) -> Iterator[str]:
    router = model.numerics.router
    if router and router.weighs_inputs:
        yield "a router that weighs the inputs of experts is not built"
    if router and router.score == "sqrtsoftplus":
        yield "a router of square roots of softplus is not built"
    for part in rare_parts(model):
        if part not in BUILT_PARTS:
            yield f"{part}: not built"


BUILT_PARTS = (
    "Mamba-2 layers", "gated DeltaNet layers",
    "a gate on the attention's output", "layers of one part alone",
)  # fmt: skip
"""Of `rare_parts`, those that the engine has."""


def _unbuilt_mixers(layout: Layout, model: Model) -> Iterator[str]:
    for kind in model.kinds:
        mixer, at = kind.recurrent, kind.attention
        if not (kind.has_mixer and kind.has_feed_forward) and model.norms_per_layer != 2:
            yield f"{model.norms_per_layer} norms in layers of one part alone: not built"
        if at.is_mla and at.gate != "none":
            yield "a gate on the output of latent attention is not built"
        if mixer is None:
            continue
        if at.heads:
            yield "attention and a recurrent state side by side are not built"
        if layout.context_parallel > 1:
            yield f"{mixer.kind} layers need context_parallel 1, not {layout.context_parallel}"
        if mixer.bias or not mixer.convolution:
            yield f"{mixer.kind} layers with biases, or without a convolution, are not built"
        tp, keys = layout.tensor_parallel, (mixer.convolved - mixer.inner) // 2 // mixer.key_dim
        if keys % tp:
            named = f"{keys} heads of keys of {mixer.kind} layers"
            yield f"{named} do not divide by tensor_parallel {tp}"
        norm = mixer.value_dim if mixer.delta_rule else mixer.inner
        if mixer.numbers != (2 if mixer.delta_rule else 3) * mixer.heads + norm:
            yield f"{mixer.kind} layers without a norm on their output are not built"
