"""Which kernels a training framework runs (`engine_schema.Engine.kernels`)."""

from typing import Literal

from pydantic import Field

from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.schema import AttentionKernel

GraphedPart = Literal["attention", "mlp", "router", "experts"]
"""Parts of a layer whose kernels a CUDA graph may issue."""

ContextKind = Literal["ring", "all_gather", "all_to_all", "hierarchical"]
"""How queries meet all keys of a shared sequence: keys and values go round the ranks, beside the
attention kernel of those that are there; or are gathered before it; or heads are exchanged for
tokens around it (Ulysses, 2309.14509); or that in each node, and keys and values go round nodes.
"""

AdapterCasts = Literal["fused", "none", "inputs", "all"]

DTensorPlan = Literal["", "columns", "sequence", "prepared", "kept"]
"""What of a layer are DTensors where nothing compiles PyTorch's tensor parallelism: inputs and
outputs of products ("columns"); norms and residual sums too, on parts of the sequence, whose
products gather their inputs each for itself ("sequence"); norms and what one gather makes of their
outputs ("prepared"); and queries, keys and values through norms and rotation ("kept").
"""


class KernelHabits(Frozen):
    """Which kernels the engine fuses, and so what moves through memory and is saved for backward.

    attention       the attention kernel, of FlashAttention the first to the fourth; the second does
                    not use the matrix units that came with Hopper fully, cuDNN and the third do
    uses_sdpa       PyTorch's scaled_dot_product_attention calls FlashAttention-2, or on AMD's GPUs
                    and Blackwell a kernel of its own (`Kernels.sdpa_forward`)
    sdpa_order      the release of PyTorch whose order of kernels that keeps (`sdpa_kernel` of
                    costmodels/seconds/attention_kernels.py), or the framework's own: "cudnn" has
                    cuDNN's first, empty has it so on Blackwell alone, "flash" nowhere; says nothing
                    of an engine whose kernel is another (`kernel_order`)
    sdpa_by_assembly
                    on AMD's GPUs its backward is AITER's assembly (PyTorch 2.9 and later, as many
                    heads of keys as of queries, no dropout), not Triton's
    sums_in_16_bits the attention's backward adds up the gradients of queries in 16 bits, where the
                    GPU has a kernel for it (`Kernels.sums16_backward`)
    saves_gathered  tensor parallel keeps the matmuls' gathered inputs, and gathers none again
    reduces_each    without sequence parallel, products that read one input each add up its gradient
                    over tensor-parallel ranks: "gated", gate and up, so two all-reduces; "all",
                    queries, keys and values too
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
                    gradient buffer ("fused"), a kernel does ("added"), it is copied to where it is
                    communicated from ("copied"), or it stays where the product wrote it ("left")
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
    returned_keys   sets of every layer's keys and values that the model's output holds
                    (`costmodels.memory.outliving`): 1, or 2 with those of the step before
    holds_input_gradients
                    of sharded layers whose weights are frozen, those of their inputs live until the
                    backward ends
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
                    "repeated" for each row, "looped" over experts, or
                    "gathered" by row and summed by a product
    sums_by_index   a token's copies alone are added up so
    uses_grouped_mm experts' products are PyTorch's own (torch._grouped_mm)
    loops_over_experts
                    one call issues a product for each expert (on AMD's GPUs Primus has one)
    own_token_latents
                    latent attention projects each tensor rank's own tokens down and gathers latents
    deals_experts   a benchmark's gate deals experts out in order
    weighs_apart    rows are copied to fp32, multiplied by the router's weights and copied back
    sorts_once      where nothing is sent, one copy brings rows to their experts and one back
    products_apart  the host issues each expert's product as a kernel of its own
    exchanging_products
                    kernels of experts' products fetch rows from other ranks, cast them and send
                    what they put out (`costmodels.operations.exchanging_products`)
    fixed_capacity  experts take a fixed number of rows: the host reads no counts of them
    saves_16_bits   in fp8 and mxfp8 training a linear layer keeps its input in 16 bits, and casts
                    it again for the gradient of its weight
    keeps_listed    a checkpoint by operator keeps what is on its list even where no backward reads
                    it (`costmodels.operations.by_operator`)
    drops_unread_replay
                    a replay leaves out what no backward reads (`costmodels.operations.replayed`)
    remakes_outputs the backward passes of the norms before attention and feed-forward and of the
                    feed-forward's activation make their outputs again: only their inputs are kept
    pads_vocabulary its rows are a multiple of 8 for each rank, whatever the model's are
    pads_products   a compiler makes products whose rows are not aligned so, where that is faster
                    (`costmodels.seconds.padded_products`)
    biases          how biases of dense products are added up (`costmodels.operations.dense_biases`)
    own_gelu        numbers moved for one of GELU where it is no kernel, forward and backward
    drops_apart     dropout, and the bias and the residual sum around it, are kernels of their own
    wide_stream     the residual stream is in fp32 (`costmodels.operations.residual`)
    keeps_wide      and kept so
    joins_norms     one kernel adds the residual and norms the sum
                    (`costmodels.operations.residual`)
    copies_unrotated
                    queries and keys that nothing rotates are copied out of their product
    softmax_blocks  of so many sequences x heads on a rank the kernel takes whose attention keeps
                    its scores; where a rank's are no multiple, PyTorch's operators run instead
                    (1: it takes any; 0: there is no such kernel)
    softmax_keys    it takes fewer keys than these (0: any number)
    own_masks       in its place PyTorch's operators mask stored scores in 16 bits: "filled" in, or
                    "multiplied" and a penalty taken off (`costmodels.operations.attention.core`)
    context_merge   how PyTorch's ring adds up the outputs of its hops
                    (`costmodels.operations.attention.pytorch_ring`); "" where another's runs
    copies_heads    a fused attention's inputs and output are copied to and from its own order
    own_norm_bytes  moved for a 16-bit number by a norm that is not fused, forward and backward
    rope_kernels    of a rotation that is not fused
    rope_operators  PyTorch operators of an unfused rotation, forward and backward, of a document
    takes_chosen_rows   see `operations.attention.absorbed`
    reorders_documents  see `operations.attention.context_exchange`
    routing_kernels in each direction, of the choice of experts and what follows of it
    weighs_inside_experts
                    the router's weight multiplies inside an expert, so that its output is not saved
    counts_by       collective by which ranks tell how many tokens each expert gets, beside an
                    all-to-all of the tokens; "": no message of its own
    weights_apart   beside such an all-to-all, so are the fp32 weights of the copies sent
    adapts_joined   LoRA puts one adapter beside a product of several weights (query, key and
                    value; gate and up), not one beside each
    updates_by_operator
                    AdamW's step is PyTorch's multi-tensor operators one after the other, not one
                    kernel (`costmodels.weights.update`)
    graphed         parts of a layer whose kernels a CUDA graph issues, at no cost to the host:
                    "attention" with its norms and projections, "mlp" the dense feed-forward,
                    "router" with the shared expert (scopes: NVIDIA-NeMo/Megatron-Bridge@01b2977e
                    scripts/performance/configs/qwen/qwen3_workload_base_configs.py; moe_router goes
                    up to the router, shared experts among it where nothing runs beside them:
                    NVIDIA/Megatron-LM megatron/training/arguments.py, --cuda-graph-scope)
    launch_share    of the `launch_s` that runs teach, what the host takes for a module of PyTorch's
                    own that nothing compiles
    kernel_share    of the scales of kernels that runs teach, what a program shows that was compiled
                    as a whole and waits for no other GPU
    product_share   of `launch_share`, what the host takes for a dense layer's product in 16 bits,
                    and for a norm that is joined to it
    checkpoint_hooks  PyTorch's checkpoints wrap layers that nothing compiles, not reentrant ones
                    (`costmodels.seconds.checkpoints`)
    launches_block  the host waits for each kernel that it issues (CUDA_LAUNCH_BLOCKING=1: "kernel
                    launches are synchronous", CUDA C++ Programming Guide), so that neither runs
                    under the other
    dtensor         "" where a compiler runs DTensors, tensor parallelism has none, or its plan was
                    not read (AutoModel, torchtune)
    hooked_from     the ZeRO stage from which Megatron-FSDP shards, with hooks around layers and
                    weights; 0: none
    functions_alone axes whose exchanges are functions of autograd that the host applies on a rank
                    of its own too: they find inside, forward and backward, that there is nothing to
                    send. On other axes, and elsewhere, nothing is issued then
    adapter_casts   of PEFT's adapters in fp32 beside a 16-bit model: "inputs" are cast to fp32 and
                    back under autocast, or without it adapters compute in fp32, "all"; "fused": no
                    kernel scales their wide output, as one does in all others
    step_graph      one CUDA graph holds a whole step, so the host issues no kernels
    communication_units  SMs that only exchange tokens where the model has experts
    sink_token_s    what a kernel for attention sinks takes longer backward, for each token
    sink_8bit_token_s  the same where 8-bit recipes run attention in 8 bits; None: as in 16
    """

    attention: Literal["unfused"] | AttentionKernel = "cudnn"
    uses_sdpa: bool = False
    sdpa_order: str = Field(default="", pattern=r"^(cudnn|flash|[0-9]+\.[0-9]+(\.[0-9]+)?)?$")
    sdpa_by_assembly: bool = False
    sums_in_16_bits: bool = False
    saves_gathered: bool = False
    reduces_each: Literal["", "gated", "all"] = ""
    keeps_joined_qkv: bool = False
    gathers_rotary: bool = False
    dispatch: Literal["all_to_all", "deduplicated", "hybridep"] = "all_to_all"
    context: ContextKind = "ring"
    context_merge: Literal["", "operators", "compiled"] = ""
    gradient_add: Literal["fused", "added", "copied", "left"] = "fused"
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
    returned_keys: int = Field(default=0, ge=0)
    holds_input_gradients: bool = False
    gather_buffers: int = Field(default=0, ge=0)
    counts_passes: bool = False
    counts_gradients: bool = False
    norms_in_products: bool = False
    permutes_by_index: bool = False
    expert_biases: Literal["in_product", "repeated", "looped", "gathered"] = "in_product"
    sums_by_index: bool = False
    uses_grouped_mm: bool = False
    loops_over_experts: bool = False
    own_token_latents: bool = False
    deals_experts: bool = False
    weighs_inside_experts: bool = False
    weighs_apart: bool = False
    sorts_once: bool = False
    products_apart: bool = False
    exchanging_products: bool = False
    fixed_capacity: bool = False
    drops_unread_replay: bool = False
    saves_16_bits: bool = False
    keeps_listed: bool = False
    remakes_outputs: bool = False
    pads_vocabulary: bool = False
    pads_products: bool = False
    biases: Literal["in_product", "summed", "apart"] = "in_product"
    own_gelu: tuple[float, ...] = ()
    drops_apart: bool = False
    wide_stream: bool = False
    keeps_wide: bool = False
    joins_norms: bool = False
    copies_unrotated: bool = True
    softmax_blocks: int = Field(default=1, ge=0)
    softmax_keys: int = Field(default=0, ge=0)
    own_masks: Literal["", "filled", "multiplied"] = ""
    copies_heads: bool = False
    own_norm_bytes: tuple[float, float] = (16.0, 24.0)
    rope_kernels: int = Field(default=8, ge=1)
    rope_operators: tuple[int, int] = (0, 0)
    updates_by_operator: bool = False
    takes_chosen_rows: bool = False
    reorders_documents: bool = False
    routing_kernels: int = Field(default=10, ge=1)
    counts_by: Literal["", "all_to_all", "all_gather"] = ""
    weights_apart: bool = False
    adapts_joined: bool = False
    graphed: tuple[GraphedPart, ...] = ()
    step_graph: bool = False
    launch_share: float = Field(default=1.0, gt=0)
    kernel_share: float = Field(default=1.0, gt=0)
    product_share: float = Field(default=1.0, gt=0)
    adapter_casts: AdapterCasts = "none"
    launches_block: bool = False
    checkpoint_hooks: bool = False
    dtensor: DTensorPlan = ""
    hooked_from: int = Field(default=0, ge=0, le=3)
    functions_alone: tuple[Literal["tp", "ep"], ...] = ()
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

    @property
    def kernel_order(self) -> str:
        """`sdpa_order` where PyTorch picks the kernel of attention, else ""."""
        return self.sdpa_order if self.uses_sdpa and self.attention == "flash2" else ""
