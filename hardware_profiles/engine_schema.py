"""What a training framework can run and how: legality, bytes kept, overlap, kernels, floors.

An engine file states habits, each with its source (repository file at a commit, paper section).
What was learnt from runs instead ([fitted]) lives apart, in `fits/`, with date, rows and residual.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from meshplan.hardware_profiles.learned import Learned
from meshplan.hardware_profiles.names import Name
from meshplan.hardware_profiles.overlap import Overlap as Overlap
from meshplan.hardware_profiles.schema import AttentionKernel, Frozen

Axis = Literal["tp", "cp", "ep", "dp", "pp"]
ContextKind = Literal["ring", "all_gather", "all_to_all", "hierarchical"]
"""How queries meet all keys of a shared sequence: keys and values go round the ranks, beside the
attention kernel of those that are there; or are gathered before it; or heads are exchanged for
tokens around it (Ulysses, 2309.14509); or that in each node, and keys and values go round nodes.
"""
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
    modules_apart      modules of multi-token prediction, all together, may be on the stage before
                       the last, which then has the heads alone; not on the first pipeline rank.
                       Of engines with `uneven_stages` "ends", whose cuts are listed
    zero_with_pipeline ZeRO stages that compose with pipeline parallelism
    zero_with_split_backward
                       those of them that compose with a schedule which computes the gradients of
                       inputs and of weights apart (zero bubble, DualPipe), None: all of them
    recompute_layers   which layers recompute: "any": each as it likes; "first": all selectively, or
                       of every virtual stage equally many of the first in full, the others not (of
                       engines whose cuts are listed); "alike": all layers in one mode
    recompute_with_split_backward
                       layers may recompute under such a schedule
    recompute_modules  what selective recompute chooses from; nothing: it replays core attention
    recompute_policy   it replays all of these modules, or none
    optimizer_offload  the optimizer may run on the host
    activation_offload what layers save may wait on the host: "plain": without pipeline or recompute
    precisions         the number formats that it trains in
    optimizer_states   what AdamW's states and the weights that it updates can be in, its own first
    lora_targets       what LoRA can train beside (`costmodels.training.Lora`), first what its own
                       recipes do; nothing: the engine has no LoRA
    quantised_bases    in how few bits it can keep the frozen weights
    vision_tower       where the first pipeline stage trains a multimodal model's tower: "cut" by
                       tensor parallelism as layers are, "whole" on each of its ranks; "none": the
                       engine has no such models
    context_kinds      the kinds of context parallelism that it chooses from, its own default first;
                       nothing: it has the one of its `KernelHabits`
    context_kinds_with_windows, context_kinds_with_latents, context_kinds_with_packing
                       those of them with sliding windows, with values narrower than keys (latent
                       attention), and with documents packed in a sequence; None: all
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
    expert_tensor_parallel: bool
    hybrid_shard: bool
    uneven_stages: Literal["free", "ends", "even", "cost"]
    layers_count_ends: bool
    micro_batches_at_least_pp: bool
    interleaved_needs_multiple: bool
    rank_order: tuple[Axis, ...]
    precisions: tuple[Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"], ...]
    zero_with_split_backward: tuple[int, ...] | None = None
    recompute_with_split_backward: bool = True
    recompute_modules: tuple[RecomputeModule, ...] = ()
    recompute_policy: bool = False
    modules_apart: bool = False
    hides_sends: bool = False
    optimizer_offload: bool = False
    activation_offload: Literal["never", "plain", "any"] = "never"
    optimizer_states: tuple[Literal["fp32", "bf16"], ...] = ("fp32",)
    lora_targets: tuple[
        Literal["qkv", "attention", "all_linear", "qv", "attention_but_key", "all_but_key"], ...
    ] = ()
    quantised_bases: tuple[Literal["int8", "nf4"], ...] = ()
    vision_tower: Literal["none", "cut", "whole"] = "none"
    context_kinds: tuple[ContextKind, ...] = ()
    context_kinds_with_windows: tuple[ContextKind, ...] | None = None
    context_kinds_with_latents: tuple[ContextKind, ...] | None = None
    context_kinds_with_packing: tuple[ContextKind, ...] | None = None
    dispatchers: tuple[Dispatcher, ...] = ()
    usual_dispatchers: tuple[Dispatcher, ...] = ()

    @model_validator(mode="after")
    def _one_rule_for_listed_cuts(self) -> Self:
        if self.recompute_layers == "first" and self.uneven_stages == "free":
            raise ValueError('recompute_layers "first" is searched in listed cuts, not in any')
        return self


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
    experts_shard_over_tensor
                        routed experts are sharded over all that hold them, tensor-parallel ones too
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
    ends_in_one_unit    ZeRO-3 gathers the embedding and the head together
    unpacks_gathered    ZeRO-3's gathered weights are copied out of the collective's buffer
    zero_1_reduces_late ZeRO-1 adds up whole gradients, by one all_reduce after the last backward
    offloads_master, offloads_gradients
                        what leaves the device with the moments when the optimizer runs on the host:
                        the master copy, and the shards of gradients
    host_bytes          of its memory that such a step moves beside the update, for each parameter
    frozen_shard_bytes  of a number of a frozen weight in its shard, which is gathered in 16 bits;
                        0: as in those
    frozen_8bit         in 8- and 4-bit training frozen weights are kept so, without a 16-bit copy
    copies_8bit         bytes of 8-bit copies, along rows and along columns, that stay beside the
                        16-bit weight of a layer that computes in 8 bits
    frees_gradients     no gradient is allocated at the loss of a step's only micro-batch
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
                        added up in beside themselves and sent from, 0 where there is none; master
                        and moments are then sharded without ZeRO as under its first stage
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
    experts_shard_over_tensor: bool = False
    copies_each_micro_batch: bool = False
    reduce_bucket: float = Field(default=0.0, ge=0)
    gather_bucket: float = Field(default=0.0, ge=0)
    reuse_distance: float = Field(default=0.0, ge=0)
    listed_rank_s: float = Field(default=0.0, ge=0)
    ends_in_one_unit: bool = False
    unpacks_gathered: bool = False
    zero_1_reduces_late: bool = False
    frees_gradients: bool = False
    step_copies: bool = False
    plans_buffers: bool = False
    whole_gradient_bytes: float = Field(default=0.0, ge=0)
    offloads_master: bool = True
    offloads_gradients: bool = False
    host_bytes: float = Field(default=0.0, ge=0)
    frozen_shard_bytes: float = Field(default=0.0, ge=0)
    frozen_8bit: bool = False
    copies_8bit: float = Field(default=0.0, ge=0)
    one_table_per_rank: bool = False
    tied_in_shards: bool = False
    returns_held: bool = False
    bf16_sums_bytes: float = Field(default=0.0, ge=0)
    bf16_sums_always: bool = False


class KernelHabits(Frozen):
    """Which kernels the engine fuses, and so what moves through memory and is saved for backward.

    attention       the attention kernel, of FlashAttention the first to the fourth; the second does
                    not use the matrix units that came with Hopper fully, cuDNN and the third do
    uses_sdpa       PyTorch's scaled_dot_product_attention calls FlashAttention-2, or on AMD's GPUs
                    and Blackwell a kernel of its own (`Kernels.sdpa_forward`)
    sums_in_16_bits the attention's backward adds up the gradients of queries in 16 bits, where the
                    GPU has a kernel for it (`Kernels.sums16_backward`)
    saves_gathered  tensor parallel keeps the matmuls' gathered inputs, and gathers none again
    keeps_joined_qkv
                    values are a view of the one product that queries and keys came of too, so that
                    all of it is kept beside the rotated queries and keys
    gathers_rotary  cosine and sine are looked up for each token in each layer, for queries and for
                    keys, and kept
    dispatch        where a layout leaves it open, how tokens reach experts on other nodes: one copy
                    per expert ("all_to_all"), or one per node, multiplied there ("deduplicated":
                    DeepEP; "hybridep", with what that library sends beside the tokens)
    context         how queries meet all keys under context parallelism, unless the layout says
    gradient_add    how a weight's gradient leaves its product: the product itself adds it to the
                    gradient buffer ("fused"), a kernel does ("added"), or it is copied to where it
                    is communicated from ("copied")
    expert_casts    casts in 8-bit training of an expert's tokens, for each that its two layers
                    need: twelve instead of four where dispatch, permutation, padding and activation
                    run in 16 bit between them (FP8-Flow-MoE, 2511.02302, counts them)
    keeps_casts     in 8-bit training the tokens that experts receive and the inputs of their
                    activations are kept in 8 bits too
    receives_casts  in 8-bit training tokens are cast before they are sent to experts, and what
                    those receive is kept so (their messages are priced in 16 bits)
    keeps_received_cast
                    in 8-bit training the cast of what experts receive is kept, not the tokens
    cast_bytes      moved to cast one number in 8-bit training, 0: as `costmodels.precision` says
    gathers_cast    in fp8 training without adapters tensor-parallel ranks cast their own tokens,
                    and gather 8 bits
    logits_bytes    held per logit at the peak of the loss, all copies and gradients together
    cut_logits_bytes
                    the same where tensor-parallel ranks share the vocabulary, 0: no other
    gathers_logits  tensor-parallel ranks gather each other's logits, and each has the loss of all
    loss_chunk_bytes  bytes of fp32 logits in a chunk that the loss runs over, 0: at once
    loss_chunks     or over so many equal chunks, whose input's gradient is gathered in fp32
    keeps_buffers   tensors that outlive their use: one in 16 bit for each shape of weight, which
                    autograd gets in place of the gradient that the product itself has added to the
                    buffer, and the head's gathered input
    gather_buffers  whole tensors that tensor parallel's gathers write to, never given back
    counts_passes   memory counts what is alive for a moment inside a layer's passes (`passes`); of
                    engines fitted on measured runs the fitted slack holds it
    counts_gradients
                    memory counts the most that a layer's backward pass makes beside what was saved
                    for it, where no fitted slack holds it
    norms_in_products
                    a norm runs in the kernel of the product behind it (Transformer Engine's
                    LayerNormLinear), but for those before latent attention and before experts
    permutes_by_index
                    tokens come to their experts and back by PyTorch's index_select and index_add
    expert_biases   biases of experts are added in their products, or by kernels of PyTorch's:
                    "repeated" for each row, or "looped" over experts
    sums_by_index   a token's copies alone are added up so
    uses_grouped_mm experts' products are PyTorch's own (torch._grouped_mm)
    own_token_latents
                    latent attention projects each tensor rank's own tokens down and gathers latents
    deals_experts   a benchmark's gate deals experts out in order
    weighs_apart    rows are copied to fp32, multiplied by the router's weights and copied back
    sorts_once      where nothing is sent, one copy brings rows to their experts and one back
    products_apart  the host issues each expert's product as a kernel of its own
    saves_16_bits   in fp8 and mxfp8 training a linear layer keeps its input in 16 bits, and casts
                    it again for the gradient of its weight
    keeps_listed    a checkpoint by operator keeps what is on its list even where no backward reads
                    it (`costmodels.operations.by_operator`)
    drops_unread_replay
                    a replay leaves out what no backward reads (`costmodels.operations.replayed`)
    pads_vocabulary its rows are a multiple of 8 for each rank, whatever the model's are
    biases          how biases of dense products are added up (`costmodels.operations.dense_biases`)
    own_gelu        numbers moved for one of GELU where it is no kernel, forward and backward
    drops_apart     dropout, and the bias and the residual sum around it, are kernels of their own
    wide_stream     the residual stream is in fp32 (`costmodels.operations.residual`)
    keeps_wide      and kept so
    copies_heads    a fused attention's inputs and output are copied to and from its own order
    own_norm_bytes  moved for a 16-bit number by a norm that is not fused, forward and backward
    rope_kernels    of a rotation that is not fused
    rope_operators  PyTorch operators of an unfused rotation, forward and backward, of a document
    reorders_documents  see `operations.context_exchange`
    routing_kernels in each direction, of the choice of experts and what follows of it
    weighs_inside_experts
                    the router's weight multiplies inside an expert, so that its output is not saved
    routes_apart    how many tokens each expert gets, and the fp32 weights of the copies sent, are
                    messages of their own
    adapts_joined   LoRA puts one adapter beside a product of several weights (query, key and
                    value; gate and up), not one beside each
    graphed         parts of a layer whose kernels a CUDA graph issues, at no cost to the host:
                    "attention" with its norms and projections, "mlp" the dense feed-forward,
                    "router" with the shared expert (scopes: NVIDIA-NeMo/Megatron-Bridge@01b2977e
                    scripts/performance/configs/qwen/qwen3_workload_base_configs.py; moe_router goes
                    up to the router, shared experts among it where nothing runs beside them:
                    NVIDIA/Megatron-LM megatron/training/arguments.py, --cuda-graph-scope)
    step_graph      one CUDA graph holds a whole step, so the host issues no kernels
    communication_units  SMs that only exchange tokens where the model has experts
    sink_token_s    what a kernel for attention sinks takes longer backward, for each token
    sink_8bit_token_s  the same where 8-bit recipes run attention in 8 bits; None: as in 16
    """

    attention: Literal["unfused"] | AttentionKernel = "cudnn"
    uses_sdpa: bool = False
    sums_in_16_bits: bool = False
    saves_gathered: bool = False
    keeps_joined_qkv: bool = False
    gathers_rotary: bool = False
    dispatch: Literal["all_to_all", "deduplicated", "hybridep"] = "all_to_all"
    context: ContextKind = "ring"
    gradient_add: Literal["fused", "added", "copied"] = "fused"
    expert_casts: int = Field(default=3, ge=1)
    keeps_casts: bool = False
    receives_casts: bool = False
    keeps_received_cast: bool = False
    cast_bytes: float = 0.0
    gathers_cast: bool = False
    logits_bytes: float = 10.0
    cut_logits_bytes: float = Field(default=0.0, ge=0)
    gathers_logits: bool = False
    loss_chunk_bytes: float = 0.0
    loss_chunks: int = Field(default=1, ge=1)
    keeps_buffers: bool = False
    gather_buffers: int = Field(default=0, ge=0)
    counts_passes: bool = False
    counts_gradients: bool = False
    norms_in_products: bool = False
    permutes_by_index: bool = False
    expert_biases: Literal["in_product", "repeated", "looped"] = "in_product"
    sums_by_index: bool = False
    uses_grouped_mm: bool = False
    own_token_latents: bool = False
    deals_experts: bool = False
    weighs_inside_experts: bool = False
    weighs_apart: bool = False
    sorts_once: bool = False
    products_apart: bool = False
    drops_unread_replay: bool = False
    saves_16_bits: bool = False
    keeps_listed: bool = False
    pads_vocabulary: bool = False
    biases: Literal["in_product", "summed", "apart"] = "in_product"
    own_gelu: tuple[float, ...] = ()
    drops_apart: bool = False
    wide_stream: bool = False
    keeps_wide: bool = False
    copies_heads: bool = False
    own_norm_bytes: tuple[float, float] = (16.0, 24.0)
    rope_kernels: int = Field(default=8, ge=1)
    rope_operators: tuple[int, int] = (0, 0)
    reorders_documents: bool = False
    routing_kernels: int = Field(default=10, ge=1)
    routes_apart: bool = False
    adapts_joined: bool = False
    graphed: tuple[Literal["attention", "mlp", "router"], ...] = ()
    step_graph: bool = False
    communication_units: int = Field(default=0, ge=0)
    sink_token_s: float = Field(default=0.0, ge=0)
    sink_8bit_token_s: float | None = Field(default=None, ge=0)

    flash_attention: bool
    fused_norm: bool
    fused_gated: bool
    fused_rope: bool
    fused_cross_entropy: bool
    chunked_loss: bool
    dropout: bool = False


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
