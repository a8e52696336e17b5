"""Device memory of one pipeline rank at its peak.

    weights      w P             (w / n under ZeRO-3, or nothing where the master copy is what is
                 sharded, or unsharded the 16-bit weight itself), and 8-bit copies
                 where the engine keeps them beside (`copies_8bit`)
    gradients    g P             (/ n from ZeRO-2, under a pipeline from ZeRO-3 unless the engine
                                 scatters them in each micro-batch), and whole the sums of bf16
                 gradients where they have a buffer of their own
    optimizer    (master + moments) P / n from ZeRO-1; on the host with a copy of the gradients if
                 the optimizer runs there
    experts      as without ZeRO where the engine keeps them whole
    activations  sum over chunks of micro-batches in flight x what their layers save
    transient    logits and their gradient, ZeRO-3's gathered layers, the working set of a layer's
                 backward (what it replays, and gradients where they are counted), buffers that
                 outlive their use (`kept_buffers`), weights gathered after the optimizer step
    slack        reserved by the caching allocator and not in use: a fraction of the above [fitted]

    P  parameters of the rank; dense and expert parts shard over different numbers of ranks n. Of
       frozen ones the weights alone are kept, quantised or not

The peak is the largest of the backward of the fullest micro-batch, without gradients where those
come late (`comes_late`), of the last replays there (`ranks.last_replays`), and of the optimizer
step.

Source: ZeRO (1910.02054, section 3) for the division; the bytes per parameter are habits of each
engine, `hardware_profiles/engines`. Leaves out: fragmentation beyond the slack, kernels' own
workspaces.
"""

from collections.abc import Sequence
from dataclasses import replace

from meshplan.costmodels.elementwise import Adds, Condition, Number, maximum, minimum, where
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Adds):
    """Bytes by category; adds. `allocated` is what the framework's tensors take at the peak, on the
    device: `host` is kept in the host's memory instead.
    """

    weights: Number = 0.0
    gradients: Number = 0.0
    optimizer: Number = 0.0
    activations: Number = 0.0
    transient: Number = 0.0
    host: Number = 0.0

    @property
    def allocated(self) -> Number:
        """The sum of all categories on the device."""
        return self.states + self.activations + self.transient

    @property
    def states(self) -> Number:
        """Weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How ZeRO divides: the stage, and the ranks that share dense and expert weights.

    offloaded  fraction of the optimizer's states that is on the host
    sums       1 where bf16 gradients are added up in a buffer of their own (`State`)
    whole      1 where experts are kept whole on each of their ranks (`State.keeps_experts_whole`)
    """

    zero_stage: Number
    dense_ranks: Number
    expert_ranks: Number
    pipelined: Number
    offloaded: Number = 0.0
    sums: Number = 0.0
    whole: Number = 0.0

    @property
    def of_experts(self) -> "Sharding":
        """The same for experts: no ZeRO at all where they are kept whole."""
        return replace(self, zero_stage=where(self.whole > 0, 0.0, self.zero_stage))


def expert_ranks(state: State, dense_ranks: Number, group: Number, tensor_ranks: Number) -> Number:
    """Ranks that share one expert's weights, of the `group` that holds them.

    tensor_ranks  tensor-parallel ranks over the ranks that experts are cut over: tp / (ep etp)
    """
    if state.experts_shard_over_tensor:
        return maximum(dense_ranks * tensor_ranks, 1.0)
    return minimum(group, dense_ranks)


@dataclass(frozen=True, slots=True)
class Frozen:
    """Bytes that a weight which is not trained is kept and gathered in.

    plain      as it computes
    quantised  where it is kept in fewer bits
    experts    routed experts' are among the quantised
    shard      of its fp32 shard, which is what an engine keeps beside what it gathers; 0: none
    """

    plain: float = 0.0
    quantised: float = 0.0
    shard: float = 0.0
    experts: bool = False

    def dense_bytes(self, parameters: RankParameters) -> Number:
        """Of the frozen weights that all ranks of a layout share alike."""
        plain = parameters.frozen - parameters.quantised
        return self.plain * plain + self.quantised * parameters.quantised

    def expert_bytes(self, parameters: RankParameters) -> Number:
        """Of the frozen routed experts."""
        return (self.quantised if self.experts else self.plain) * parameters.frozen_expert


NONE_FROZEN = Frozen()


def state_memory(
    state: State, parameters: RankParameters, sharding: Sharding, frozen: Frozen = NONE_FROZEN
) -> Memory:
    """Weights, gradients and optimizer state of `parameters` on one rank."""
    dense = _states(state, parameters.dense, sharding, sharding.dense_ranks)
    trained = dense + _states(state, parameters.expert, sharding.of_experts, sharding.expert_ranks)
    whole = sharding.zero_stage < 3
    kept = _frozen_bytes(parameters, sharding, frozen)
    copies = where(whole, state.copies_8bit, 0.0)  # ZeRO-3 casts anew what it gathers
    eight_bit = parameters.eight_bit + parameters.eight_bit_expert
    return trained + Memory(weights=kept + copies * eight_bit)


def _frozen_bytes(parameters: RankParameters, sharding: Sharding, frozen: Frozen) -> Number:
    """Of frozen weights: in shards under ZeRO-3; before, whole, and beside shards of another
    format where there are any and several ranks share them.
    """
    dense, expert = sharding.dense_ranks, sharding.expert_ranks
    whole = sharding.zero_stage < 3
    if not frozen.shard:
        kept = frozen.dense_bytes(parameters) / where(whole, 1.0, dense)
        return kept + frozen.expert_bytes(parameters) / where(whole, 1.0, expert)
    shared = (sharding.zero_stage >= 1) & (dense > 1)
    both = frozen.dense_bytes(parameters) + frozen.expert_bytes(parameters)
    shards = replace(frozen, plain=frozen.shard)
    kept = shards.dense_bytes(parameters) / where(shared, dense, 1.0)
    kept = kept + shards.expert_bytes(parameters) / where(shared, expert, 1.0)
    return kept + where(shared & whole, both, 0.0)


def _states(state: State, parameters: Number, sharding: Sharding, ranks: Number) -> Memory:
    zero = sharding.zero_stage
    over = where(zero >= 1, ranks, 1.0)
    over_3 = where(zero >= 3, ranks, 1.0)
    scatters, away = shards_gradients(state, sharding), sharding.offloaded
    over_gradients = where(scatters, ranks, 1.0)
    sent = away * state.offloads_gradients * where(scatters, 1.0, 0.0)
    master = away * state.offloads_master
    gone = state.master_computes and state.master_bytes > 0
    gone = gone & (master == 0)  # what is on the host cannot be gathered
    itself = (zero == 0) & (state.master_bytes == state.weight_bytes)  # no shard, no cast
    weights = where(((zero >= 3) | itself) & gone, 0.0, state.weight_bytes / over_3)
    beside = state.bucket_bytes * ((ranks > 1) & (zero < 2)) + state.bf16_sums_bytes * sharding.sums
    waits = (zero >= 2) & (sharding.pipelined > 0) & state.pipeline_keeps_gradients
    each = where(waits, max(state.gradient_bytes, state.reduce_bytes), state.gradient_bytes)
    if state.sums_before_reducing:
        each = where(zero >= 2, state.sum_bytes or state.reduce_bytes, each)
    return Memory(
        weights=weights * parameters,
        gradients=(each * (1 - sent) / over_gradients + beside) * parameters,
        optimizer=((1 - master) * state.master_bytes + (1 - away) * state.moment_bytes)
        / over * parameters,
        host=(master * state.master_bytes + away * (state.moment_bytes + state.gradient_bytes))
        / over * parameters,
    )  # fmt: skip


def shards_gradients(state: State, sharding: Sharding) -> Condition:
    """Whether gradients are kept in shards, and so reduced after each micro-batch."""
    zero, alone = sharding.zero_stage, sharding.pipelined == 0
    if state.sums_before_reducing:
        return zero > 3  # never
    third = (zero >= 3) & (alone | (not state.pipeline_keeps_gradients))
    return third | ((zero == 2) & (alone | state.pipeline_shards_gradients))


def gathered_bytes(
    state: State, parameters: RankParameters, sharding: Sharding, frozen: Frozen = NONE_FROZEN
) -> Number:
    """What ZeRO-3 holds of a layer while it computes: its weights, and in the backward the
    gradients of what is trained.
    """
    whole = state.weight_bytes + (state.whole_gradient_bytes or min(state.gradient_bytes, 4.0))
    experts = whole * parameters.expert + frozen.expert_bytes(parameters)
    held = whole * parameters.dense + frozen.dense_bytes(parameters)
    held = held + where(sharding.whole > 0, 0.0, experts)
    return where(sharding.zero_stage >= 3, held, 0.0)


def update_bytes(state: State, parameters: Number, sharding: Sharding) -> Number:
    """Scratch of the optimizer step: updated weights gathered under ZeRO-1 and 2, and one number
    more beside the two moments of each.
    """
    sharded = (sharding.zero_stage >= 1) & (sharding.zero_stage < 3) & (sharding.dense_ranks > 1)
    over = where(sharding.zero_stage >= 1, sharding.dense_ranks, 1.0)
    copies = state.step_copies * state.moment_bytes / 2 / over
    return where(sharded, state.gather_bytes * parameters, 0.0) + copies * parameters


def comes_late(state: State, micro_batches: Number, pipelined: Number) -> Condition:
    """Whether no gradient is there at the loss: then the last replays may hold most
    (`ranks.last_replays`).
    """
    return state.frees_gradients & (micro_batches == 1) & (pipelined == 1)


def activation_peak(vectors: Sequence[Sequence[int]], chunk_bytes: Sequence[float]) -> float:
    """The fullest moment of a rank: `vectors` of micro-batches held per chunk, bytes per chunk."""
    return max(
        sum(held * size for held, size in zip(vector, chunk_bytes, strict=True))
        for vector in vectors
    )


MOMENT_BYTES = {"adamw8bit": 2.0 + 2 * 4 / 256, "muon": 4.0, "sgd": 4.0}
"""Bytes of optimizer state per parameter where they are not the engine's AdamW: two 8-bit moments
with a 32-bit scale per block of 256 (2110.02861, section 2); one fp32 momentum for SGD and Muon,
whose few matrices under AdamW are left out."""

QUANTISED_BYTES = {"bf16": 2.0, "int8": 1.0, "nf4": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes of a frozen weight: 4 bits with an 8-bit scale per block of 64, and a 32-bit one for 256 of
these (double quantisation, 2305.14314 section 3); 8 bits, one scale per row left out."""


def kept_state(state: State, training: Training) -> State:
    """What the engine keeps of trained weights under this training's optimizer.

    fp32 weights are their own master copy.
    """
    if training.precision == "fp32":
        whole = {"weight_bytes": 4.0, "gradient_bytes": 4.0, "master_bytes": 0.0,
                 "reduce_bytes": 4.0}  # fmt: skip
        state = state.model_copy(update=whole)
    if training.optimizer_states == "bf16":
        master = 2.0 if state.master_computes else 0.0  # there the shards that weights are
        moments = min(4.0, MOMENT_BYTES.get(training.optimizer, 4.0))
        narrow = {"gradient_bytes": 2.0, "master_bytes": master, "moment_bytes": moments}
        return state.model_copy(update=narrow)
    moments = MOMENT_BYTES.get(training.optimizer, state.moment_bytes)
    return state.model_copy(update={"moment_bytes": moments})


NARROW_BYTES = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 1.125}
"""Of a frozen weight that is kept in the format of the training: in NVFP4 along rows and along
columns, each 4 bits and a byte of scale for 16 (NVIDIA's llama2_70b_lora of MLPerf Training,
mlcommons/training_results_v5.1@441d65f4 custom_callbacks.py _pre_quantize_model)."""


def frozen_weights(state: State, training: Training) -> Frozen:
    """What the engine keeps of weights that this training does not train."""
    tower = training.images is not None and training.images.frozen
    if training.lora is None and not tower:
        return NONE_FROZEN
    plain = 4.0 if training.precision == "fp32" else state.weight_bytes
    if state.frozen_8bit:
        plain = NARROW_BYTES.get(training.precision, plain)
    quantised = QUANTISED_BYTES[training.lora.base_precision] if training.lora else plain
    narrow = training.precision == "fp32" or training.optimizer_states == "bf16"
    shard = 0.0 if narrow else state.frozen_shard_bytes
    packs = training.lora is not None and training.lora.base_precision != "bf16"
    return Frozen(plain, quantised, shard, packs and state.quantises_experts)
