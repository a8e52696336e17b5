"""What a training framework can run and how: legality, bytes kept, overlap, kernels, floors.

An engine file states habits, each with its source (repository file at a commit, paper section).
What was learnt from runs instead ([fitted]) lives apart, in `fits/`, with date, rows and residual.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.kernel_habits import ContextKind, KernelHabits
from meshplan.hardware_profiles.learned import Learned
from meshplan.hardware_profiles.names import Name
from meshplan.hardware_profiles.overlap import Overlap as Overlap

Axis = Literal["tp", "cp", "ep", "dp", "pp"]
Dispatcher = Literal["all_to_all", "deepep", "hybridep"]
"""What brings tokens to experts: one copy for each expert, or one for each node and rank that holds
one of them (`hardware_profiles.dispatchers`).
"""

RecomputeModule = Literal[
    "core_attention", "layernorm", "mla_up_proj", "moe_act", "mlp", "shared_experts", "moe",
    "norm", "pointwise", "linear_half", "attention", "experts",
]  # fmt: skip
"""What selective recompute replays (`costmodels.operations.replayed`). The first seven are modules
of Megatron-Core; `norm`, `pointwise` and `linear_half`, every second matrix product of a layer and
those of its routed experts, are together torchtitan's policy by operation; `attention` and
`experts` are a fork's, in no plan.
"""


class Legality(Frozen):
    """What the engine accepts.

    kv_heads_divide    tensor parallel must divide the key/value heads (no replication)
    uneven_stages      "free": any layers per stage; "ends": first and last may differ;
                       "even": all equal; "cost": the engine cuts by its own cost rule (nanotron)
    layers_count_ends  the embedding and the head may take the place of a layer in the even split
    blocks_at_ends     where the engine cuts by itself, so many blocks before and behind the layers
                       count as a layer each, and what does not divide goes to the first stages;
                       nothing: it cuts layers evenly
    modules_apart      modules of multi-token prediction, all together, may be on the stage before
                       the last, which then has the heads alone; not on the first pipeline rank.
                       Of engines with `uneven_stages` "ends", whose cuts are listed
    expert_tensor_parallel
                       ranks of tensor parallelism split each expert: "free": as many as one likes;
                       "without_ep": all of them where experts are not spread over ranks, else none
    tied_with_pipeline a model whose head reuses the embedding's weights trains in a pipeline
    pipeline_in_code   the training code builds the pipeline: no file that is exported has one
    zero_with_pipeline ZeRO stages that compose with pipeline parallelism
    zero_with_split_backward
                       those of them that compose with a schedule which computes the gradients of
                       inputs and of weights apart (zero bubble, DualPipe), None: all of them
    recompute_layers   which layers recompute: "any": each as it likes; "first": all selectively, or
                       of every virtual stage equally many of the first in full, the others not (of
                       engines whose cuts are listed); "alike": all layers in one mode
    recompute_with_split_backward
                       layers may recompute under such a schedule
    micro_batches_short_of_pp
                       so many fewer micro-batches than pipeline ranks are enough
    recompute_modules  what selective recompute chooses from; nothing: it replays core attention
    recompute_policy   it replays all of these modules, or none
    optimizer_offload  the optimizer may run on the host
    activation_offload what layers save may wait on the host: "plain": without pipeline or recompute
    precisions         the number formats that it trains in
    optimizers         the optimizers that it has
    optimizer_states   what AdamW's states and the weights that it updates can be in, its own first
    lora_targets       what LoRA can train beside (`costmodels.training.Lora`), first what its own
                       recipes do; nothing: the engine has no LoRA
    quantised_bases    in how few bits it can keep the frozen weights
    vision_tower       where the first pipeline stage trains a multimodal model's tower: "cut" by
                       tensor parallelism as layers are, "whole" on each of its ranks; "none": the
                       engine has no such models
    context_kinds      the kinds of context parallelism that it chooses from, its own default first;
                       nothing: it has the one of its `KernelHabits`
    context_kinds_with_windows, context_kinds_with_latents, context_kinds_with_chosen_latents,
    context_kinds_with_packing
                       those of them with sliding windows, with values narrower than keys (latent
                       attention), with latent attention over keys that an indexer chose, and with
                       documents packed in a sequence; None: all
    dispatchers        what brings tokens to experts, to choose from, what needs nothing installed
                       first; nothing: it has the one of its `KernelHabits`
    usual_dispatchers  those of them that its recipes use, so that they are chosen without a pin
    hides_sends        passes do not wait for all that stages send (`Overlap.pipeline` above 0), so
                       that GPipe, of engines that have it, may be faster than 1F1B
    rank_order         inner to outer
    """

    zero_stages: tuple[int, ...]
    zero_with_pipeline: tuple[int, ...]
    schedules: tuple[str, ...]
    recompute: tuple[Literal["none", "selective", "full"], ...]
    recompute_layers: Literal["any", "first", "alike"]
    sequence_parallel: Literal["always", "optional", "never"]
    kv_heads_divide: bool
    context_parallel: bool
    expert_parallel: bool
    expert_tensor_parallel: Literal["free", "never", "without_ep"]
    hybrid_shard: bool
    uneven_stages: Literal["free", "ends", "even", "cost"]
    layers_count_ends: bool
    micro_batches_at_least_pp: bool
    interleaved_needs_multiple: bool
    rank_order: tuple[Axis, ...]
    precisions: tuple[
        Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp8_experts"], ...
    ]
    tied_with_pipeline: bool = True
    pipeline_in_code: bool = False
    zero_with_split_backward: tuple[int, ...] | None = None
    recompute_with_split_backward: bool = True
    micro_batches_short_of_pp: int = Field(default=0, ge=0)
    recompute_modules: tuple[RecomputeModule, ...] = ()
    recompute_policy: bool = False
    modules_apart: bool = False
    blocks_at_ends: tuple[int, int] | None = None
    hides_sends: bool = False
    optimizer_offload: bool = False
    activation_offload: Literal["never", "plain", "any"] = "never"
    optimizers: tuple[Literal["adamw", "adamw8bit", "muon", "sgd"], ...] = (
        "adamw", "adamw8bit", "muon", "sgd",
    )  # fmt: skip
    optimizer_states: tuple[Literal["fp32", "bf16"], ...] = ("fp32",)
    lora_targets: tuple[
        Literal["qkv", "attention", "all_linear", "qv", "attention_but_key", "all_but_key"], ...
    ] = ()
    quantised_bases: tuple[Literal["int8", "nf4"], ...] = ()
    vision_tower: Literal["none", "cut", "whole"] = "none"
    context_kinds: tuple[ContextKind, ...] = ()
    context_kinds_with_windows: tuple[ContextKind, ...] | None = None
    context_kinds_with_latents: tuple[ContextKind, ...] | None = None
    context_kinds_with_chosen_latents: tuple[ContextKind, ...] | None = None
    context_kinds_with_packing: tuple[ContextKind, ...] | None = None
    dispatchers: tuple[Dispatcher, ...] = ()
    usual_dispatchers: tuple[Dispatcher, ...] = ()

    @model_validator(mode="after")
    def _one_rule_for_listed_cuts(self) -> Self:
        if self.recompute_layers == "first" and self.uneven_stages == "free":
            raise ValueError('recompute_layers "first" is searched in listed cuts, not in any')
        return self

    def experts_split_by(self, tensor_parallel: int, expert_parallel: int, chosen: int) -> int:
        """Ranks that split each expert; as `chosen` where the engine leaves that open."""
        return tensor_parallel if self.splits_experts(expert_parallel) else chosen

    def splits_experts(self, expert_parallel: Any) -> Any:
        """Whether all ranks of tensor parallelism split each expert, nobody being asked; of one
        degree or of a column of them.
        """
        return (self.expert_tensor_parallel == "without_ep") & (expert_parallel == 1)


class State(Frozen):
    """Bytes that the engine keeps per parameter, and how ZeRO shards them.

    weight_bytes        the copy that computes
    gradient_bytes      the buffer that gradients accumulate in
    master_bytes        the high-precision copy of the weights that the optimizer updates, 0 if none
    moment_bytes        both Adam moments
    bucket_bytes        extra gradient copies in communication buckets with data_parallel > 1
    gather_bytes        extra per parameter while ZeRO-1/2 gathers updated weights
    reduce_bytes        bytes per parameter that gradients are communicated in
    master_computes     under ZeRO-3 the master copy is the only resident one; what computes is
                        gathered
    pipeline_shards_gradients
                        ZeRO-2 divides gradients under a pipeline too, scattering each micro-batch's
    pipeline_keeps_gradients
                        under a pipeline ZeRO-3 keeps gradients whole too, in the reduction's
                        format, and scatters them after the last micro-batch
    sums_before_reducing
                    gradients add up whole over the micro-batches of a step, in the reduction's
                    format, and are scattered after the last (no_sync of FSDP)
    sum_bytes           of a number of such a sum, 0: as `reduce_bytes`
    experts_shard_over_tensor
                        routed experts are sharded over all that hold them, tensor-parallel ones too
    keeps_experts_whole
                        experts that are spread over ranks (expert or expert tensor parallelism) are
                        left alone by ZeRO: each rank keeps its own whole, with gradients and
                        optimizer states, and one sweep of all_reduce after the last backward adds
                        up the gradients of those that several ranks hold
    copies_each_micro_batch
                        hybrid sharding adds up copies of a shard's gradient after each micro-batch
    reduce_bucket       parameters whose gradients one collective sends; 0: all of them
    gather_bucket       ZeRO-3 gathers and scatters each weight by a collective of its own, small
                        ones together up to so many numbers; 0: those of a layer at once
    reuse_distance      under ZeRO-3 a replayed layer's weight is given back, and gathered a third
                        time for the backward, where more numbers than these are used between the
                        two; 0: never
    listed_rank_s       ZeRO-3's collectives are given a list of one tensor for each rank: seconds
                        of the host for each of them, for which the device waits
    adapter_unit_s      under ZeRO-3 each weight of an adapter is gathered by itself: seconds of the
                        host for each, for which the device waits
    ends_in_one_unit    ZeRO-3 gathers the embedding and the head together
    unpacks_gathered    ZeRO-3's gathered weights are copied out of the collective's buffer
    zero_1_reduces_late ZeRO-1 adds up whole gradients, by one all_reduce after the last backward,
                        and each rank norms and scales all of its own
    all_reduces_shards  ZeRO-1 and 2 send buckets of gradients by all_reduce, and each rank keeps
                        its shards of the sums
    offloads_master, offloads_gradients
                        what leaves the device with the moments when the optimizer runs on the host:
                        the master copy, and the shards of gradients
    host_bytes          of its memory that such a step moves beside the update, for each parameter
    frozen_shard_bytes  of a number of a frozen weight in its shard, which is gathered in 16 bits;
                        0: as in those
    frozen_8bit         in 8- and 4-bit training frozen weights are kept so, without a 16-bit copy
    quantises_experts   QLoRA's quantised weights include those of routed experts
    copies_8bit         bytes of 8-bit copies, along rows and along columns, that stay beside the
                        16-bit weight of a layer that computes in 8 bits
    gathers_8bit        in fp8 with one scale a tensor ZeRO-1 and 2 gather updated weights of such
                        layers in 8 bits
    frees_gradients     no gradient is allocated at the loss of a step's only micro-batch
    receives_apart      each micro-batch of a step has buffers of its own for what a pipeline rank
                        receives (`costmodels.memory.receive_buffers`)
    plans_buffers       a compiler places all buffers of a step before it runs, so that no allocator
                        holds more than is in use
    whole_gradient_bytes
                        of a number of a gradient before ZeRO-3 scatters it, 0: as `gradient_bytes`
    step_copies         the optimizer's step holds one more number for each of a shard's moments
    one_table_per_rank  tied first and last stages on one pipeline rank (V-shaped) share one table
    tied_in_shards      of a tied table at both ends of a pipeline the ends add up their shards of
                        the gradient, not the whole of it
    returns_held        what the allocator holds for the communication stream beside a pipeline it
                        gives back when pressed (`costmodels.ranks.queued_launches`)
    bf16_sums_bytes     DeepSpeed's BF16_Optimizer: bytes of the buffer that bf16 gradients are
                        added up in beside themselves, 0 where there is none; master and moments are
                        then sharded without ZeRO as under its first stage
    bf16_sent_bytes     what is sent of each number of that buffer, 0: `reduce_bytes`, since it is
                        cast (deepspeedai/DeepSpeed@d14baad94 runtime/engine.py allreduce_bucket,
                        communication_data_type; fp32 from @261d63708 to @d56268f37, April 2023)
    bf16_sums_always    it is the optimizer of ZeRO-0 and 1; else of a pipeline's ZeRO-0 alone
    """

    weight_bytes: float
    gradient_bytes: float
    master_bytes: float
    moment_bytes: float
    bucket_bytes: float = 0.0
    gather_bytes: float = 0.0
    reduce_bytes: float = 4.0
    master_computes: bool = False
    pipeline_shards_gradients: bool = False
    pipeline_keeps_gradients: bool = False
    sums_before_reducing: bool = False
    sum_bytes: float = Field(default=0.0, ge=0)
    experts_shard_over_tensor: bool = False
    keeps_experts_whole: bool = False
    copies_each_micro_batch: bool = False
    reduce_bucket: float = Field(default=0.0, ge=0)
    gather_bucket: float = Field(default=0.0, ge=0)
    reuse_distance: float = Field(default=0.0, ge=0)
    listed_rank_s: float = Field(default=0.0, ge=0)
    adapter_unit_s: float = Field(default=0.0, ge=0)
    ends_in_one_unit: bool = False
    unpacks_gathered: bool = False
    zero_1_reduces_late: bool = False
    all_reduces_shards: bool = False
    frees_gradients: bool = False
    receives_apart: bool = False
    step_copies: bool = False
    plans_buffers: bool = False
    whole_gradient_bytes: float = Field(default=0.0, ge=0)
    offloads_master: bool = True
    offloads_gradients: bool = False
    host_bytes: float = Field(default=0.0, ge=0)
    frozen_shard_bytes: float = Field(default=0.0, ge=0)
    frozen_8bit: bool = False
    quantises_experts: bool = False
    copies_8bit: float = Field(default=0.0, ge=0)
    gathers_8bit: bool = False
    one_table_per_rank: bool = False
    tied_in_shards: bool = False
    returns_held: bool = False
    bf16_sums_bytes: float = Field(default=0.0, ge=0)
    bf16_sent_bytes: float = Field(default=0.0, ge=0)
    bf16_sums_always: bool = False


class Engine(Frozen):
    """One training framework (or one configuration of it).

    fitted_as  the engine whose measured runs it shares its fitted constants with, "" for its own
    learned    what a user's own runs taught of it; no engine file has any
    """

    name: Name
    title: str
    fitted_as: str = ""
    aliases: tuple[str, ...] = ()
    legality: Legality
    state: State
    overlap: Overlap
    kernels: KernelHabits
    sources: dict[str, str]
    learned: Learned | None = None

    @model_validator(mode="after")
    def _sends_as_overlap_says(self) -> Self:
        hides = self.overlap.pipeline > 0
        if "gpipe" in self.legality.schedules and self.legality.hides_sends != hides:
            raise ValueError("legality.hides_sends is not what overlap.pipeline says")
        return self
