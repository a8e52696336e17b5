"""NeMo 1's YAML (NeMo-Framework-Launcher) in Megatron's words.

    theirs, below model                    Megatron's
    encoder_seq_length                     seq_length
    activation: fast-swiglu, swiglu ...    swiglu
    bias: false                            disable_bias_linear
    share_embeddings_and_output_weights    untie_embeddings_and_output_weights (its opposite)
    activations_checkpoint_granularity ... recompute_granularity ...
    optim.name: mcore_distributed_optim,   use_distributed_optimizer, optimizer: adam
      distributed_fused_adam
    num_query_groups                       the same, and group_query_attention

Source: NVIDIA/NeMo-Framework-Launcher@26e42fa9 `launcher_scripts/conf/training/`;
NVIDIA/NeMo@8cfedd72 `nemo/collections/nlp/parts/megatron_trainer_builder.py`,
`nemo/collections/nlp/models/language_modeling/megatron_base_model.py`.
"""

from collections.abc import Mapping

from meshplan.planner.case.reading import Fact, NothingToRead

_GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")
_PLAIN = ("gelu", "relu", "squared-relu", "openai-gelu", "approx-gelu", "gelu-approx")
_RENAMED = {
    "encoder_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "qkv_bias": "add_qkv_bias",
    "override_vocab_size": "vocab_size",
    "use_flash_attention": "use_flash_attn",
}
_OTHER_MODELS = ("bert_binary_head", "mcore_bert", "mcore_t5", "num_classes", "add_lm_head",
                 "kd_teacher_restore_from_path")  # fmt: skip
_OPTIMIZERS = {
    "mcore_distributed_optim": (True, "adam"),
    "distributed_fused_adam": (True, "adam"),
    "fused_adam": (False, "adam"),
    "adam": (False, "adam"),
    "adamw": (False, "adam"),
    "megatron_fused_adam": (False, "adam"),
    "sgd": (False, "sgd"),
}
_MARKS = (
    *("model.mcore_gpt", "model.megatron_amp_O2", "model.encoder_seq_length"),
    *("model.activations_checkpoint_granularity", "model.optim.name"),
)

_ROOTS = frozenset(
    (
        *("model", "train", "trainer", "ddp", "dist", "comm_overlap", "dataset", "mixed_precision"),
        *("data", "optimizer", "recipe", "cfg"),
    )
)
JUDGED = ("model", "ddp", "dist", "optimizer", "mixed_precision")
"""Sections of Megatron-Bridge of which every entry is judged."""
_TRAINER = ("trainer", "trainer.strategy")
"""The trainer's sections: Lightning's, as NeMo has them; those of programs that train by
reinforcement beside it (SkyRL's `trainer.policy.megatron_config`) are others."""


def is_nemo(found: Mapping[str, Fact]) -> bool:
    """Whether a YAML file has the keys of NeMo 1."""
    return any(mark in found for mark in _MARKS)


def check_trains(found: Mapping[str, Fact]) -> None:
    """Raises `NothingToRead` for a trainer's section without an optimizer's: inference, converters.

    KEY=VALUE words have no sections.
    """
    if "trainer" in found and not any("optim" in name for name in found):
        raise NothingToRead("a trainer without an optim section: it trains nothing")


def megatron_facts(found: Mapping[str, Fact]) -> tuple[dict[str, Fact], list[Fact]]:
    """The entries in Megatron's words, by their last name; what of them is not understood."""
    facts: dict[str, Fact] = {}
    left: list[Fact] = []
    for name, fact in found.items():
        section, _, last = name.rpartition(".")
        if section in ("model", "trainer", "trainer.strategy") and fact.value not in (None, -1):
            facts[_RENAMED.get(last, last)] = fact
        elif section == "model" and fact.value == -1:
            left.append(Fact(f"{name} -1 (left to the checkpoint)", fact.line))
    unread = [_lengths(found, facts), _activation(facts), _optimizer(found, facts), _master(facts)]
    _switches(facts)
    for name in _OTHER_MODELS:  # whatever their value: their presence says what is trained
        if (mark := found.get(f"model.{name}")) is not None:
            left.append(Fact(f"model.{name} (another model than a GPT is not modelled)", mark.line))
    return facts, [*left, *(fact for fact in unread if fact is not None)]


def _lengths(found: Mapping[str, Fact], facts: dict[str, Fact]) -> Fact | None:
    """Adds the data's length where the model states none; two lengths are not understood."""
    data = found.get("model.data.seq_length", Fact(None, 1))
    stated = facts.setdefault("seq_length", data).value
    if data.value is None or data.value == stated:
        return None
    why = f"the model's sequences have {stated}, and which of the two counts is not modelled"
    return Fact(f"model.data.seq_length {data.value} ({why})", data.line)


def _activation(facts: dict[str, Fact]) -> Fact | None:
    activation = facts.pop("activation", None)
    if activation is None or activation.value in _PLAIN:
        return None
    if activation.value in _GATED:
        facts["swiglu"] = Fact(True, activation.line)
        return None
    return Fact(f"model.activation {activation.value!r} (not known)", activation.line)


def _optimizer(found: Mapping[str, Fact], facts: dict[str, Fact]) -> Fact | None:
    name = found.get("model.optim.name")
    if name is None or name.value is None:
        return None
    if str(name.value) not in _OPTIMIZERS:
        return Fact(f"model.optim.name {name.value!r} (not known)", name.line)
    distributed, optimizer = _OPTIMIZERS[str(name.value)]
    facts["use_distributed_optimizer"] = Fact(distributed, name.line)
    facts["optimizer"] = Fact(optimizer, name.line)
    return None


def _master(facts: dict[str, Fact]) -> Fact | None:
    """Without O2 the weights stay in 32 bit and each matmul casts them."""
    level, precision = facts.get("megatron_amp_O2"), facts.get("precision")
    narrow = precision is not None and str(precision.value) not in ("32", "32-true")
    if level is not None and level.value is False and narrow:
        return Fact("model.megatron_amp_O2 false (32-bit weights are not modelled)", level.line)
    eight = facts.get("fp8")
    if eight is not None and eight.value is True and precision is not None and not narrow:
        why = "products of 8 bit beside weights of 32 are not modelled"
        return Fact(f"model.fp8 true, trainer.precision {precision.value} ({why})", eight.line)
    return None


def _switches(facts: dict[str, Fact]) -> None:
    """What Megatron says with another switch, or with its opposite."""
    bias, shared = (facts.pop(n, None) for n in ("bias", "share_embeddings_and_output_weights"))
    if bias is not None:
        name = "add_bias_linear" if bias.value else "disable_bias_linear"
        facts[name] = Fact(True, bias.line)
    if shared is not None:
        facts["untie_embeddings_and_output_weights"] = Fact(not shared.value, shared.line)
    if (groups := facts.get("num_query_groups")) is not None:
        facts["group_query_attention"] = Fact(True, groups.line)
    count = facts.get("recompute_num_layers")
    full = facts.get("recompute_granularity")
    if full is None and (method := facts.pop("recompute_method", None)) is not None:
        facts["idle_recompute_method"] = method  # no granularity: nothing is recomputed
    if full is None and count is not None:
        facts["idle_recompute_num_layers"] = facts.pop("recompute_num_layers")
    elif count is not None and count.value == 0:
        del facts["recompute_num_layers"]


def is_known(name: str) -> bool:
    """Whether an entry stands in a section whose words are Bridge's or NeMo's, or in none."""
    section = name.rpartition(".")[0]
    root = section.partition(".")[0]
    return not section or (section in _TRAINER if root == "trainer" else root in _ROOTS)
