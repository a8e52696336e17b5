"""llm-foundry's YAML: Composer's FSDP around an MPT, or around a model of Hugging Face.

    ours                     theirs
    global_batch_size        global_train_batch_size
    micro_batch_size         device_train_microbatch_size: at most a GPU's share; auto is not stated
    seq_len                  train_loader.dataset.max_seq_len, max_seq_len
    zero_stage               fsdp_config.sharding_strategy; 0 (DDP) without fsdp_config
    shard_group              fsdp_config.data_parallel_shard_degree
    shard_replicas           fsdp_config.data_parallel_replicate_degree
    recompute                fsdp_config.activation_checkpointing
    model                    model.name mpt_causal_lm: its sizes; hf_causal_lm: the catalogue's
    gpus                     compute.gpus, of a file for MosaicML's platform

`${...}` is resolved by OmegaConf. A file for MosaicML's platform holds the configuration below
`parameters`. A key that is in no list (`llm_foundry_keys.toml`) makes the verdict incomplete.

Source: mosaicml/llm-foundry@8c8dd48f `llmfoundry/utils/config_utils.py` (TrainConfig,
calculate_batch_size_info), `llmfoundry/models`, and its releases from v0.1.0; mosaicml/composer
v0.32 `composer/utils/parallelism.py` (FSDPConfig).
"""

import re
from collections.abc import Iterator

from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.executor.frameworks.documents.values import Values, optimizer, put, shown
from meshplan.executor.frameworks.hugging_face.trainers import model_of_repository
from meshplan.executor.frameworks.keys.lists import judged
from meshplan.executor.frameworks.llm_foundry.model import mpt_config, mpt_unread
from meshplan.planner.case.reading import Fact, Reading, Recompute

ENGINE = "llm-foundry"
_MARKS = tuple(
    re.compile(rf"^[ \t]*({names})[ \t]*:", re.M)
    for names in ("global_train_batch_size|device_train_microbatch_size", "max_seq_len", "model")
)
_KEYS = ("llm_foundry_keys.toml",)
_PLATFORM = "parameters."
_STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0,
               "HYBRID_SHARD": 3, "_HYBRID_SHARD_ZERO2": 2}  # fmt: skip
_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8"}
_OPTIMIZERS = {"decoupled_adamw": "adamw"}
_FUSED = ("flash_attention_2", "flash_attention_3", "sdpa", "flash", "triton")
_DEEP = {"model": 2, "fsdp_config": 2, "algorithms": 2, "callbacks": 2, "tp_config": 1}
_NAMED = ("algorithms", "callbacks")
_SUBSECTIONS = ("model.attn_config", "model.ffn_config", "model.config_overrides")


def claims(name: str, text: str) -> bool:
    """Whether a YAML file states the keys that llm-foundry's training needs."""
    return name.endswith((".yaml", ".yml")) and all(mark.search(text) for mark in _MARKS)


def read(text: str, path: str) -> Reading:
    """An llm-foundry configuration; raises `UnreadableConfig` and `IllegalConfig`."""
    found = read_yaml(text)
    inner = {
        name.removeprefix(_PLATFORM): fact
        for name, fact in found.items()
        if name.startswith(_PLATFORM)
    }
    platform = Values({} if "model.name" in found else found)
    values = Values(resolved(inner if inner and platform.found else found, text))
    facts = {f"{axis}_parallel": Fact(1, 1) for axis in ("tensor", "pipeline", "context", "expert")}
    facts["virtual_stages"] = Fact(1, 1)
    put(
        facts,
        gpus=platform.count("compute.gpus"),
        global_batch_size=values.count("global_train_batch_size"),
        micro_batch_size=values.count("device_train_microbatch_size"),
        seq_len=values.count("train_loader.dataset.max_seq_len", "max_seq_len"),
        precision=values.word(_PRECISIONS, "precision") or Fact("bf16", 1),
    )
    notes: list[str] = []
    unknown, not_modelled = _model(values, facts, notes)
    unread = [
        *_command(platform),
        *not_modelled,
        *optimizer(values, facts, "optimizer.name", _OPTIMIZERS),
    ]
    unread += [] if values.get("optimizer.name") else [Fact("no optimizer.name", 1)]
    unread += _sharding(values, facts)
    notes += _wide_sums(values)
    config = mpt_config(values) if _is_mpt(values) else None
    full = values.on("fsdp_config.activation_checkpointing")
    not_understood, noted = judged(_unjudged(values, text), _KEYS, "{}")
    return Reading(
        framework="llm-foundry", engine=ENGINE, path=path, facts=facts, model_config=config,
        recompute=Recompute("full" if full else "none"), ignored=values.ignored(),
        notes=(*notes, *noted), unread=(*unread, *values.nested(), *not_understood),
        micro_batch_is_most=True, unknown_model=unknown,
    )  # fmt: skip


def _is_mpt(values: Values) -> bool:
    name = values.get("model.name")
    return name is not None and name.value == "mpt_causal_lm"


def _command(platform: Values) -> list[Fact]:
    """Settings that the platform's command adds to the configuration."""
    command = platform.get("command")
    if command is None:
        return []
    written = str(command.value).partition("parameters.yaml")[2][:2000]
    words = re.findall(r"(?<!\S)([a-z_][\w.]*)=\S", written.replace("\\\n", " ").split("\n")[0])
    why = "set by the command, beside the configuration"
    return [Fact(f"{shown(word)} ({why})", command.line) for word in words]


def _model(values: Values, facts: dict[str, Fact], notes: list[str]) -> tuple[str, list[Fact]]:
    """Adds a model of the catalogue; one that it does not have, and what is not understood."""
    name = values.get("model.name")
    if _is_mpt(values):
        return "", mpt_unread(values)
    if name is None or name.value != "hf_causal_lm":
        why = "only causal language models are modelled"
        return "", [Fact(f"model.name {shown(name.value if name else None)} ({why})", 1)]
    unknown = model_of_repository(values, "model.pretrained_model_name_or_path", facts)
    notes.append("priced as llm-foundry runs MPT: assumed of a model of Hugging Face")
    return unknown, [*_overrides(values), *_attention(values)]


def _overrides(values: Values) -> Iterator[Fact]:
    """Sizes that differ from those of the repository; a RoPE's or ALiBi's length is none."""
    where = "model.config_overrides."
    harmless = ("max_seq_len", "max_position_embeddings", "attn_config.attn_impl",
                "attn_config.attn_uses_sequence_id", "use_cache")  # fmt: skip
    for name, fact in values.found.items():
        if name.startswith(where) and fact.value is not None:
            values.asked.add(name)
            if name.removeprefix(where) not in harmless:
                why = "another shape than the repository's is not modelled"
                yield Fact(f"{name} ({why})", fact.line)


def _attention(values: Values) -> list[Fact]:
    """Attention that keeps its scores, which engine profiles of FSDP do not have."""
    if values.on("model.use_flash_attention_2"):
        return []
    stated = values.get(
        "model.attn_implementation", "model.config_overrides.attn_config.attn_impl",
        "model.attention_patch_type",
    )  # fmt: skip
    if stated is not None and stated.value in _FUSED:
        return []
    why = "which attention runs depends on releases; model.use_flash_attention_2 says it"
    return [Fact(f"no FlashAttention ({why})", stated.line if stated is not None else 1)]


def _sharding(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds the ZeRO stage; what of FSDP is not understood."""
    if not any(name.startswith("fsdp_config.") for name in values.found):
        facts["zero_stage"] = Fact(0, 1)
        bare = values.found.get("fsdp_config")
        why = "nothing is DDP and {} is FSDP: remove it, or state sharding_strategy"
        return [Fact(f"fsdp_config without a key ({why})", bare.line)] if bare is not None else []
    stated = values.get("fsdp_config.sharding_strategy") or Fact("FULL_SHARD", 1)
    facts["zero_stage"] = values.word(_STRATEGIES, "fsdp_config.sharding_strategy") or Fact(3, 1)
    group = values.count("fsdp_config.data_parallel_shard_degree", least=-1)
    copies = values.count("fsdp_config.data_parallel_replicate_degree")
    put(
        facts,
        shard_group=group if group and group.value > 0 else None,
        shard_replicas=copies if copies and copies.value > 1 else None,
    )
    unread = []
    if "HYBRID" in str(stated.value) and not {"shard_group", "shard_replicas"} & facts.keys():
        why = "a node's GPUs, which the file does not state; data_parallel_shard_degree says it"
        unread.append(Fact(f"fsdp_config.sharding_strategy {stated.value} ({why})", stated.line))
    why = "gathered weights of 32 bits are not modelled"
    return unread + values.besides(("PURE", "DEFAULT"), "fsdp_config.mixed_precision", why)


def _wide_sums(values: Values) -> list[str]:
    """A note where FSDP sends and adds gradients in 32 bits (mosaicml/composer
    composer/distributed/mosaic_parallelism.py, get_mixed_precision).
    """
    stated = values.get("fsdp_config.mixed_precision")
    if stated is None or stated.value != "DEFAULT":
        return []
    said = "fsdp_config.mixed_precision DEFAULT sends gradients in 32 bits"
    return [f"line {stated.line}: {said}, and is priced as PURE, in 16"]


def _unjudged(values: Values, text: str) -> list[tuple[str, Fact]]:
    """The keys that nobody read: of the file's own level, and below the sections that matter.

    A key that a `${...}` names is a variable of the file's own; a callback or an algorithm without
    settings of its own is switched on by its name.
    """
    variables = set(re.findall(r"\$\{([A-Za-z_]\w*)\}", text))
    seen: dict[str, Fact] = {}
    for name, fact in values.found.items():
        key = _judged_part(name)
        if name in values.asked or key in variables or key in values.asked:
            continue
        section = (key in _DEEP and key != "tp_config") or key in _SUBSECTIONS
        named = name.partition(".")[0] in _NAMED and key == name
        if not section and (named or fact.value is not None or key != name):
            seen.setdefault(key, fact if key == name and not named else Fact(True, fact.line))
    return list(seen.items())


def _judged_part(name: str) -> str:
    """As much of a dotted name as the lists have."""
    parts = name.split(".")
    depth = _DEEP.get(parts[0], 1)
    if ".".join(parts[:2]) in _SUBSECTIONS:
        depth = 3
    return ".".join(parts[:depth])
