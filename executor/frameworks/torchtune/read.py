"""torchtune's YAML, without running the components that it names.

    theirs                                          ours
    batch_size, gradient_accumulation_steps         micro_batch_size, num_micro_batches
    tokenizer.max_seq_len                           seq_len
    tensor_parallel_dim, context_parallel_dim       tensor_parallel, context_parallel
    data_parallel_shard_dim (-1: what is left),     data_parallel, shard_replicas
      data_parallel_replicate_dim
    fsdp_reshard_after_forward (true)               zero_stage 3, else 2
    enable_activation_checkpointing                 recompute full
    dtype                                           precision; bf16: the optimizer's states too
    optimizer._component_                           optimizer
    model._component_                               model, by the name of its builder
    a file's name that ends in _single_device       gpus 1, as its recipes are named

A recipe of one device is ZeRO of one rank. torchtune runs FSDP2, which is priced as the engine
`accelerate-chunked-loss`. A key that is in no list (`torchtune_keys.toml`), and one that changes
memory or time in a way that is not modelled, makes the verdict incomplete and is named.

Source: pytorch/torchtune@bd2a0fc `recipes/full_finetune_distributed.py`,
`recipes/lora_finetune_distributed.py`, `recipes/configs`,
`torchtune/models/llama3/_parallelism.py` (its training plan splits sequences too).
"""

import re

from meshplan.executor.frameworks.adapters import of_torchtune
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.executor.frameworks.documents.values import Values, optimizer, put, shown, top_level
from meshplan.executor.frameworks.keys.lists import flags_in, judged
from meshplan.hardware_profiles.load_models import model_names
from meshplan.planner.case.reading import Fact, NothingToRead, Reading, Recompute

ENGINE = "accelerate-chunked-loss"
KEYS = ("torchtune_keys.toml",)
OPTIMIZERS = {
    "torch.optim.AdamW": "adamw", "torch.optim.SGD": "sgd", "bitsandbytes.optim.AdamW8bit":
    "adamw8bit", "bitsandbytes.optim.PagedAdamW8bit": "adamw8bit",
}  # fmt: skip
"""bitsandbytes' of 32 bits keep these beside weights of 16, which is not modelled."""
_MARK = re.compile(r"\b_component_:[ \t]*torchtune\.")
_ALONE = re.compile(r"_single_device\.ya?ml$")
_ONE_DEVICE = "the file's name says one device: priced on one GPU, unless --gpus says more"
_LOSSES = "torchtune.modules.loss."
_PIECES = 8
"""Of the logits, where a loss of torchtune's says no other number (num_output_chunks)."""
_PLANS = ("torchtune.models.llama3.base_llama_tp_plan",)
_WIDTHS = ("bf16", "fp32")
_JUDGED_BELOW = ("model.", "optimizer.", "loss.")


def claims(name: str, text: str) -> bool:
    """Whether a file names components of torchtune."""
    return name.endswith((".yaml", ".yml")) and bool(_MARK.search(text))


def read(text: str, path: str) -> Reading:
    """A configuration of full or LoRA fine-tuning; raises `UnreadableConfig`, `IllegalConfig`."""
    alone = _ONE_DEVICE if _ALONE.search(path) else ""
    return read_values(Values(resolved(read_yaml(text), text)), text, path, alone=alone)


def read_values(values: Values, text: str, path: str, *, alone: str) -> Reading:
    """The same of a file's entries.

    alone  why it is priced on one GPU; "": it may run on more
    """
    if not values.has("optimizer"):
        raise NothingToRead("no optimizer in a file of torchtune's: it trains nothing")
    facts: dict[str, Fact] = {}
    put(
        facts,
        micro_batch_size=values.count("batch_size"),
        num_micro_batches=values.count("gradient_accumulation_steps") or Fact(1, 1),
        seq_len=values.count("tokenizer.max_seq_len"),
    )
    _read_ranks(values, facts)
    put(facts, gpus=Fact(1, 1) if alone else None)
    unknown = _read_model(values, facts)
    unread = optimizer(values, facts, "optimizer._component_", OPTIMIZERS)
    lora, more = of_torchtune(values)
    put(facts, lora=lora)
    unread += [*more, *_read_width(values, facts), *_another_loss(values)]
    why = "how this plan splits a model is not modelled"
    unread += values.besides(_PLANS, "tensor_parallel_plan._component_", why)
    full = values.on("enable_activation_checkpointing")
    below = [(name, fact) for name, fact in values.unasked() if name.startswith(_JUDGED_BELOW)]
    above = [(name, fact) for name, fact in top_level(values) if not _is_own(name, text)]
    not_understood, noted = judged([*above, *below], KEYS, "{}")
    return Reading(
        framework="torchtune", engine=ENGINE, path=path, facts=facts, unknown_model=unknown,
        recompute=Recompute("full" if full else "none"), ignored=values.ignored(),
        notes=(*[alone] * bool(alone), *_assumed(values), *noted),
        unread=(*unread, *not_understood),
    )  # fmt: skip


def _is_own(name: str, text: str) -> bool:
    """Whether a name is of no release and stands for a part of other values (`exp_name`, where
    `output_dir: out/${exp_name}`): what it says is said there.
    """
    return f"${{{name}}}" in text and name not in flags_in(*KEYS).classes


def _read_ranks(values: Values, facts: dict[str, Fact]) -> None:
    """Adds the degrees, those that torchtune does not have as 1."""
    one = Fact(1, 1)
    absent = ("pipeline_parallel", "virtual_stages", "expert_parallel", "expert_tensor_parallel")
    tensor = values.count("tensor_parallel_dim") or one
    replicas = values.count("data_parallel_replicate_dim") or one
    shards = values.count("data_parallel_shard_dim", least=-1)
    reshards = values.flag("fsdp_reshard_after_forward") or Fact(True, 1)
    facts |= dict.fromkeys(absent, one) | {
        "tensor_parallel": tensor,
        "sequence_parallel": Fact(tensor.value > 1, tensor.line),
        "context_parallel": values.count("context_parallel_dim") or one,
        "zero_stage": Fact(3 if reshards.value else 2, reshards.line),
    }
    put(facts, shard_replicas=replicas if replicas.value > 1 else None)
    if shards is not None and shards.value > 0:
        facts["data_parallel"] = Fact(shards.value * replicas.value, shards.line)


def _read_model(values: Values, facts: dict[str, Fact]) -> str:
    """Adds the model that the builder's name means: `lora_llama3_1_8b` is llama-3.1-8b. Returns
    what is stated where the catalogue lacks it, else "".
    """
    stated = values.get("model._component_")
    if stated is None:
        return ""
    builder = str(stated.value).rpartition(".")[2]
    plain = re.sub(r"^q?lora_|_(instruct|base)$", "", builder).replace("_", "")
    found = [name for name in model_names() if re.sub(r"[-.]", "", name) == plain]
    if len(found) != 1:
        return f"model._component_ {shown(stated.value)}"
    facts["model"] = Fact(found[0], stated.line)
    return ""


def _read_width(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds the format of the weights, in which AdamW's states are kept too."""
    width = values.get("dtype")
    if width is None or str(width.value) not in _WIDTHS:
        return values.besides(_WIDTHS, "dtype", "weights in this format are not modelled")
    facts["precision"] = width
    adam = facts.get("optimizer", Fact("", 1)).value in ("adamw", "adamw8bit")
    if width.value == "bf16" and adam and "lora" not in facts:
        facts["optimizer_states"] = width
    return []


def _another_loss(values: Values) -> list[Fact]:
    loss, pieces = values.get("loss._component_"), values.count("loss.num_output_chunks")
    if pieces is not None and pieces.value < _PIECES:
        why = f"priced as {_PIECES} pieces of the logits; fewer keep more of them"
        return [Fact(f"loss.num_output_chunks {pieces.value} ({why})", pieces.line)]
    if loss is None or str(loss.value).startswith(_LOSSES):
        return []
    return [Fact(f"loss {shown(loss.value)} (another than of next tokens)", loss.line)]


def _assumed(values: Values) -> list[str]:
    said = [f"priced as the engine {ENGINE} runs a whole model: assumed of torchtune"]
    if not values.on("dataset.packed"):
        said.append("samples that are not packed are priced as whole sequences")
    return [*said, f"logits, which the loss makes in pieces, are priced as made in {_PIECES}"]
