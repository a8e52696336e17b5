"""What the free words beside a measured run say of how it ran, as columns of their own.

A file of measured runs states these facts in the columns of `FACTS`; `hardware_profiles/published`
has them. A file without the columns (people write notes) gets them from its words, once, when it is
read; `python -m benchmarks.accuracy.run_columns FILE` writes them into the file, where they can be
checked and corrected. Nothing later than this module looks at a note.

Three facts are known of a whole source rather than said in each of its rows: the jobs of the
Ultra-Scale Playbook up to `LAST_STALLING_JOB` ran nanotron before its point-to-point fix, whether
they stall or ran out of memory before they could; the zero-bubble paper
(2401.10241, section 5.1) gives the first and the last stage a layer less, and NVIDIA's recipes of
DeepSeek-V3 train its multi-token-prediction module unless a row says otherwise
(NVIDIA-NeMo/Megatron-Bridge@05d003f src/megatron/bridge/recipes/deepseek/deepseek_v3.py; rows of
theirs that state FLOPs and tokens state 260e9 a token so, and 250e9 "w/o MTP").
"""

import re
from collections.abc import Iterator, Mapping

from meshplan.costmodels.units import GIB
from meshplan.planner.runs.engines import LAST_WITHOUT_FLASH, engine_name

Cells = Mapping[str, str]

FACTS = {
    "priced_gpu": "the GPU's profile where `gpu` is too wide a word for it",
    "flash_attention": "0: before FlashAttention, or without it; 1: with it",
    "attention_kernel": "flash1 to flash4: the first to the fourth FlashAttention; triton: the"
    " first as a Triton kernel; efficient: PyTorch's memory-efficient one, masked: and its mask is"
    " a tensor, so that it skips no key; cudnn, cudnn_mxfp8: cuDNN's, of inputs of 16 or 8 bits;"
    " aiter: AMD's own, which Transformer Engine calls there;"
    " sdpa: PyTorch's scaled_dot_product_attention, which AMD's GPUs and Blackwell have a kernel"
    " for; flex: FlexAttention, compiled by Triton",
    "qk_norm": "head: norms of queries and keys",
    "sinks": "1: attention sinks",
    "compiled": "0: torch.compile was off; 1: it was on, in a loop of one's own for the whole"
    " model, head and all, or another compiler made one program of the step",
    "recomputed_share": "of the layers, the fraction that is recomputed in full, the others not",
    "fused_kernels": "liger: Hugging Face modules with Liger's kernels, the loss in chunks,"
    " liger_loss: that loss alone; norm, rope, gated: fused beside modules that nothing compiles;"
    " permutes: so is what brings rows to experts and back, weighed there; gathers_biases: a"
    " product sums the gradients of their biases;"
    " no_norm: norms, no_gated: SwiGLU, no_rope: Megatron's rotation, no_routing: its router and"
    " permutation as kernels of PyTorch's, no_choosing: its router alone;"
    " gelu_operators: GELU is PyTorch's operators, in fp32 under autocast (gelu_new);"
    " no_grouping: each expert's products are kernels of their own;"
    " no_reorder: Transformer Engine's packed documents put in order one by one around an"
    " all-to-all of context parallelism, as until June 2026;"
    " dropout: of hidden states, whose masks are kept, no_dropout: none;"
    " blocking: the host waits for each kernel (CUDA_LAUNCH_BLOCKING); no_padding: a vocabulary"
    " that Megatron would fill up has the model's own rows (a NeMo configuration that presets"
    " vocab_size);"
    " cast_adapters: PEFT casts the input of adapters to fp32 and autocast back,"
    " wide_adapters: they compute in fp32;"
    " local: Megatron-LM's own layers, not Transformer Engine's;"
    " no_jit: it asks for nvFuser, which PyTorch no longer has; autocast: the"
    " residual stream is fp32, te_autocast: and norms keep 16 bits of it;"
    " joined_norms: the whole model is compiled, norms with the sums before them; no_rotation:"
    " positions are learned, and attention takes views of the joined product; head_copies: a fused"
    " attention's inputs and output are copied;"
    " filled_masks, multiplied_masks: PyTorch's operators mask stored scores in 16 bits;"
    " drops_apart: dropout and the bias and sum around it are kernels of their own;"
    " sums_biases: a kernel sums the gradient of each bias; returned_keys: the model's output holds"
    " keys and values of every layer, and the step's before too; no_reentrant: checkpoints of"
    " PyTorch's that are not reentrant; fused_step, operator_step: one kernel updates the weights,"
    " or PyTorch's operators one after the other; whole_adapters: no weight of an adapter is a unit"
    " of FSDP's by itself; whole_experts: those of expert parallelism are in no unit of FSDP's;"
    " sums16: AMD's attention adds up gradients of queries in 16 bits"
    " (NVTE_CK_IS_V3_ATOMIC_FP32=0)",
    "fused_loss": "te: Transformer Engine's cross entropy, its gradient in place of the logits;"
    " native, unfused: Megatron-Core's own, in fp32, with cross_entropy_loss_fusion and without;"
    " chunks, whole: torchtitan's loss in equal chunks of tokens or at once; fp32: logits"
    " cast to fp32 before PyTorch's own loss, fp32_in_place: before one whose gradient takes their"
    " place, fp32_shifted: the same where labels are shifted, not logits; bf16: PyTorch's own loss"
    " of 16-bit logits; bf16_held, fp32_held: and a variable holds the logits until the next ones;"
    " gathered: tensor-parallel ranks have the logits of all; eager, compiled: torchtitan's, and"
    " what became of it apart from the model",
    "gradient_add": "added: a kernel adds a weight's gradient to its buffer, not its product;"
    " unsynced: FSDP's gradients add up whole over a step's micro-batches (no_sync); synced: they"
    " are reduced after each; 16: bf16 gradients add up and are sent in 16 bits, as by DeepSpeed's"
    " grad_accum_dtype; 32: in 32, as by grad_reduce_in_fp32 of Megatron-Bridge's recipes",
    "fp8_scaling": "rowwise: scales by row and column; flow: tokens go to experts in 8 bits",
    "bf16_layers": "FIRST LAST: layers at both ends that stay in 16 bits, as in 0 14",
    "stalling_p2p": "1: nanotron before its point-to-point fix",
    "async_tensor": "1: tensor parallel's collectives run beside products",
    "comm_overlap": "0: no overlap of communication, as far as a switch does it; reduce: only that"
    " of gradients; data: only that of gradients and weights; tensor: user buffers"
    " for tensor parallel's, as in NVIDIA's recipes",
    "cp_kind": "ring, all_gather, all_to_all or hierarchical: how queries meet the keys of other"
    " context-parallel ranks, in `plan`'s words",
    "dispatcher": "alltoall, deepep, hybridep or dist_moe: how tokens reach experts",
    "widest_ep": "1: experts over as many data-parallel ranks as divide them",
    "gate": "dealt: a benchmark's gate deals experts out to tokens in order; natural 1.5: routers"
    " choose, and the busiest rank gets 1.5 times the mean's rows; capacity: experts take as many"
    " rows as the mean, tokens beyond are dropped and rows that lack are padded"
    " (moe_pad_expert_input_to_capacity); empty: balance is forced, or the source does not say",
    "hidden_exchanges": "exchanges between experts behind another micro-batch, 1: are, 0: are not",
    "mtp_modules": "multi-token-prediction modules that were trained",
    "ends_are_layers": "1: embedding and head count as a layer each when stages are cut",
    "cuda_graph": "full_iteration: one graph holds a whole step; attention, mlp, router, experts:"
    " that part of a layer, or several with blanks between",
    "shard_group": "ranks that ZeRO shards over, where not all",
    "optimizer_offload": "1: the optimizer ran on the host",
    "optimizer_states": "bf16: weights, gradients and moments in 16 bits, as `plan` has it",
    "activation_offload": "the share of what layers keep for the backward that waited on the host",
    "adapters": "lora, or lora RANK TARGETS BASE DROPOUT in `plan`'s words: trained beside frozen"
    " weights",
    "other_config": "1: the layout is that of a config file beside the published result",
    "allocated_gib": "peak of allocated memory",
    "reserved_gib": "peak of memory that the allocator reserved",
    "memory_of": "0: of the first rank; last: of the last, as Megatron-LM logs to TensorBoard;"
    " empty: of the fullest",
}
"""The columns, and what their values mean; an empty cell means that the source does not say."""

UNCOMPILED = r"\b(?<!aot_)eager\b|no torch\.compile|torch\.compile (?:off|disabled)|aot_eager"
"""aot_eager traces a model and fuses nothing (pytorch torch/_dynamo/backends/debugging.py)."""

NOT_OVERLAPPED = (
    r"\bwithout (?:communication )?overlap\b|\bno overlap of gradient or parameter exchange\b"
    r"|\boverlap_comm off\b"
)
ATTENTION_AND_ROUTER = r"cuda graphs: [^;]*\battn\b[^;]*\bmoe_router\b"
NO_FLASH = (
    r"\bno flash[ -]?attention\b|\bflash[ -]?attention off\b|\beager attention\b"
    r"|\bflash[ -]?attention not yet default\b"
)

NOTES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (column, value, re.compile(words, flags))
    for column, value, words, flags in (
        ("stalling_p2p", "1", r"pp_fix=0", 0),
        ("compiled", "0", UNCOMPILED, re.IGNORECASE),
        ("async_tensor", "1", r"\basync tp\b", re.IGNORECASE),
        ("fp8_scaling", "rowwise", r"\bfp8-rowwise\b", re.IGNORECASE),
        ("fp8_scaling", "flow", r"\bfp8 dataflow\b", re.IGNORECASE),
        ("gate", "dealt", r"\bfake balanced gate\b", 0),
        ("hidden_exchanges", "0", r"\bEP all-to-all not overlapped\b", 0),
        ("hidden_exchanges", "1", r"\bEP all-to-all overlapped\b", 0),
        ("comm_overlap", "reduce", r"\bonly gradient reduction overlapped\b", 0),
        ("comm_overlap", "0", r"\bcomm overlap all disabled\b", 0),
        ("comm_overlap", "data", r"\bgradient and parameter exchange overlapped\b", 0),
        ("comm_overlap", "0", NOT_OVERLAPPED, re.IGNORECASE),
        ("fused_kernels", "liger", r"(?<!no )\bliger kernels\b", re.IGNORECASE),
        ("fused_loss", "te", r"\bTE fused cross entropy\b", 0),
        ("cp_kind", "all_to_all", r"\bCP by all-to-all\b", 0),
        ("attention_kernel", "flash2", r"\bflash[ -]?attention[ -]?(?:v?2)\b", re.IGNORECASE),
        ("attention_kernel", "flash3", r"\bFA3\b", 0),
        ("attention_kernel", "flash1", r"\bflash[ -]?attention v1\b", re.IGNORECASE),
        ("attention_kernel", "triton", r"\battention by Triton\b", 0),
        ("flash_attention", "1", r"\bflash[ -]?attention on\b", re.IGNORECASE),
        ("flash_attention", "0", NO_FLASH, re.IGNORECASE),
        ("cuda_graph", "attention", r"cuda graphs: [^;]*\battn\b", re.IGNORECASE),
        ("cuda_graph", "mlp", r"cuda graphs: [^;]*\bmlp\b", re.IGNORECASE),
        ("cuda_graph", "router", r"cuda graphs: [^;]*\bmoe_router\b", re.IGNORECASE),
        ("cuda_graph", "attention router", ATTENTION_AND_ROUTER, re.IGNORECASE),
        ("cuda_graph", "full_iteration", r"cuda graphs: [^;]*full_iteration", re.IGNORECASE),
        ("widest_ep", "1", r"deepep", re.IGNORECASE),
        ("optimizer_offload", "1", r"cpu-offloaded optimizer|cpu offload of adamw", re.IGNORECASE),
        ("other_config", "1", r"\bmay differ from the measured run\b", 0),
        ("adapters", "lora", r"\bq?lora\b", re.IGNORECASE),
    )
)
"""Column, value, and the words of a note that mean it."""

DISPATCHER = re.compile(
    r"\bdispatcher (alltoall|deepep|hybridep)\b|\b(alltoall|deepep|hybridep)( flex)? dispatcher\b",
    re.IGNORECASE,
)
KEPT_IN_16_BIT = re.compile(r"\bfirst (\d{1,4}) and last (\d{1,4}) layers in bf16\b")
FROM_RECIPE = re.compile(r"\bfrom recipe\b")
SHARD_GROUP = re.compile(r"shard_group=(\d+)")
PRINTED_BYTES = re.compile(r"peak_memory_usage (\d+) bytes")
"""A log's own number, exact where `mem_gb` is that number in another unit."""

ALSO_RESERVED = re.compile(r"\(max reserved ([\d.]+) GiB\)")
"""Beside an allocated peak."""


def with_facts(cells: Cells) -> dict[str, str]:
    """The row with the columns of `FACTS`: its own, or where it has none of them those of its
    words.
    """
    if not FACTS.keys().isdisjoint(cells):
        return dict(cells)
    return dict(cells) | facts_in_words(cells)


LAST_STALLING_JOB = 14097149
"""Of the Ultra-Scale Playbook: every timed job up to here stalls, none after (its `pp_fix`)."""

PLAYBOOK_JOB = re.compile(r"\bjob (\d{1,12})\b")
OF_LAYERS = re.compile(r"\b(\d{1,4}) of (\d{1,4}) layers\b")


def facts_in_words(cells: Cells) -> dict[str, str]:
    """The facts that the words of a row state."""
    said: dict[str, str] = {}
    for source in (_of_note, _of_framework, _of_model, _of_memory, _of_recompute):
        said |= dict(source(cells))
    return said


Said = Iterator[tuple[str, str]]


def _of_note(cells: Cells) -> Said:
    note = cells.get("note") or ""
    for column, value, words in NOTES:
        if words.search(note):
            yield column, value
    if found := SHARD_GROUP.search(note):
        yield "shard_group", found[1]
    if found := KEPT_IN_16_BIT.search(note):
        yield "bf16_layers", f"{found[1]} {found[2]}"
    if found := DISPATCHER.search(note):
        yield "dispatcher", (found[1] or found[2]).lower()
    elif FROM_RECIPE.search(note):
        yield "dispatcher", "alltoall"  # Megatron's own, where a recipe names no other
    if (cells.get("gpu") or "").strip() == "h100-sxm" and "memory variant not stated" in note:
        # torchao's card is the one that torchtitan's pages, by the same people, name: bf16 runs
        # at the same speed on both.
        yield "priced_gpu", "h100-96gb-hbm2e-500w"


def _of_framework(cells: Cells) -> Said:
    framework, year = (cells.get("framework") or "").lower(), cells.get("year") or ""
    old_nemo = "nemo" in framework and year.isdigit() and int(year) <= LAST_WITHOUT_FLASH
    if old_nemo or "zero-bubble" in framework:
        yield "flash_attention", "0"
    if re.search(UNCOMPILED, framework):
        yield "compiled", "0"
    if cells.get("suite") == "zb":
        yield "ends_are_layers", "1"
    job = PLAYBOOK_JOB.search(cells.get("note") or "")
    if cells.get("suite") == "playbook" and job and int(job[1]) <= LAST_STALLING_JOB:
        yield "stalling_p2p", "1"


def _of_model(cells: Cells) -> Said:
    name = cells.get("model") or cells.get("id") or ""
    known = re.sub("[^a-z0-9]", "", name.lower())
    if "gptoss" in known:
        yield "sinks", "1"
    if "qwen3" in known and not (cells.get("attention") or "").startswith("mla"):
        yield "qk_norm", "head"
    if re.search(r"\bq?lora\b", name, re.IGNORECASE):
        yield "adapters", "lora"
    if found := re.search(r"\bw/(o?) mtp\b", name.lower()):
        yield "mtp_modules", "0" if found[1] else "1"
    elif "deepseekv3" in known and engine_name(cells.get("framework") or "") in NVIDIA:
        yield "mtp_modules", "1"


NVIDIA = ("nemo", "megatron-bridge")
"""Engines whose recipes of DeepSeek-V3 train its module."""


def _of_recompute(cells: Cells) -> Said:
    words = (cells.get("recompute") or "").lower()
    noted = (cells.get("note") or "").lower().partition("recompute: full")[2].partition(";")[0]
    if found := OF_LAYERS.search(words) or OF_LAYERS.search(noted):
        some, layers = int(found[1]), int(found[2])
        if 0 < some <= layers:
            yield "recomputed_share", f"{some / layers:.4g}"
    elif "every other layer" in words:
        yield "recomputed_share", "0.5"
    elif "fraction of blocks" in words and (share := _share_of_utilisations(cells)):
        yield "recomputed_share", f"{share:.4g}"


def _share_of_utilisations(cells: Cells) -> float | None:
    """3 (HFU / MFU - 1): a forward again is a third of what a step computes. A note that prints two
    pairs, "0.59/0.51 (A100), 0.40/0.35 (H100)" or "A100, H100: 0.69/0.61, 0.46/0.43", means the
    row's GPU by the second or the first. Of figures printed with two digits a ratio may come out
    above 4/3 where all layers are recomputed, never by more than rounding allows.
    """
    pairs = re.findall(r"(\d\.\d+)/(\d\.\d+)", (cells.get("note") or "").partition("HFU/MFU")[2])
    if not pairs:
        return None
    hardware, model = map(float, pairs[-1 if "h100" in (cells.get("gpu") or "") else 0])
    possible = 0 < model < hardware and hardware - ROUNDED <= (model + ROUNDED) * 4 / 3
    return min(3 * (hardware / model - 1), 1.0) if possible else None


ROUNDED = 0.005
"""What a figure of two digits may be off by."""


def _of_memory(cells: Cells) -> Said:
    note, memory = cells.get("note") or "", (cells.get("mem_gb") or "").strip()
    kind = (cells.get("mem_kind") or note).lower()
    if printed := PRINTED_BYTES.search(note):
        memory = f"{int(printed[1]) / GIB:.6g}"
    said = re.findall("allocated|reserved", kind)[:1]  # the first is its own
    if said and memory:
        yield f"{said[0]}_gib", memory
    if said != ["reserved"] and (beside := ALSO_RESERVED.search(note)):
        yield "reserved_gib", beside[1]
    if "rank 0" in kind:
        yield "memory_of", "0"
