"""LoRA in the configurations of frameworks: what of it they say, as `costmodels.training.Lora`.

    Megatron-Bridge  peft.dim, peft.target_modules, peft.dropout; without them 32, all linear
                     layers, 0 (NVIDIA-NeMo/Megatron-Bridge@0191fc5
                     src/megatron/bridge/peft/lora.py)
    axolotl          adapter lora or qlora, lora_r, lora_target_linear or lora_target_modules,
                     lora_dropout, load_in_4bit, load_in_8bit
    LLaMA-Factory    finetuning_type lora, lora_rank (8), lora_target (all), lora_dropout,
                     quantization_bit
    TRL              use_peft, lora_r (16), lora_target_modules, lora_dropout (0.05), load_in_4bit,
                     load_in_8bit (huggingface/trl@f2cd5771 trl/trainer/model_config.py)
    torchtune        a builder lora_... or qlora_... (4 bits), model.lora_rank (8),
                     lora_attn_modules, apply_lora_to_mlp, apply_lora_to_output, lora_dropout
                     (pytorch/torchtune@bd2a0fc torchtune/models/llama3/_component_builders.py)
    ms-swift         tuner_type lora, lora_rank (8), target_modules (all-linear), lora_dropout
                     (0.05), quant_method bnb with quant_bits (modelscope/ms-swift v4.5.2
                     swift/arguments/tuner_args.py, base_args/quant_args.py)
    AutoModel        peft.dim (8), peft.target_modules (*_proj), peft.match_all_linear,
                     peft.dropout, quantization.load_in_4bit, load_in_8bit
                     (NVIDIA-NeMo/Automodel@36044ad nemo_automodel/components/_peft/lora.py,
                     module_matcher.py)

Adapters beside other sets of modules, and kinds other than LoRA, are not modelled: they are named.
"""

import re
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from meshplan.costmodels.training import BasePrecision, Lora, LoraTargets
from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.planner.case.reading import Fact

_MEGATRON: dict[LoraTargets, tuple[str, ...]] = {
    "qkv": ("linear_qkv",),
    "attention": ("linear_qkv", "linear_proj"),
    "all_linear": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}
_HF: dict[LoraTargets, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "all_linear": (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    ),
    "qv": ("q_proj", "v_proj"), "attention_but_key": ("q_proj", "v_proj", "o_proj"),
    "all_but_key": ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}  # fmt: skip
_LAYERS = ("model.layers.{}.", "model.language_model.layers.{}.", "language_model.model.layers.{}.")
"""Where transformers' decoders hold their layers, alone or behind a tower."""
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
_HOLDERS = {name: "mlp" if name in _FEED_FORWARD else "self_attn" for name in _HF["all_linear"]}
_PATTERN = re.compile(r"(?:\w|\\?\.|\[?\\d\]?\+|\[0-9\]\+|\((?:\?:)?(?:\w|\\?\.|\|)+\)\??)+")
"""Regular expressions of one level: names, numbers, groups of words."""
_LONGEST, _MOST_GROUPS = 160, 3
"""What is tried: so many words of so many groups are tried against each other in no time."""
_OTHER_LAYERS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts",
                 "kv_lora_rank", "linear_num_key_heads", "mamba_num_heads", "mamba_d_state",
                 "ssm_state_size", "text_config")  # fmt: skip
"""Sizes that a decoder of plain attention and feed-forwards does not have."""
BRIDGE_RANK, _FACTORY_RANK, _TRL_RANK = 32, 8, 16
_TRL_DROPOUT = _SWIFT_DROPOUT = 0.05
_NO_EFFECT = ("_target_", "alpha", "lora_A_init_method", "lora_B_init_method", "dropout_position")
"""Fields of Bridge's LoRA that change neither time nor memory where nothing is dropped."""

Found = tuple[Fact | None, list[Fact]]
"""The fact, if LoRA is what is trained; what of it is not understood."""


def bridge_settings(lora: Lora) -> dict[str, object]:
    """`lora` as overrides of a PEFT recipe."""
    dropout = {"peft.dropout": lora.dropout} if lora.dropout else {}
    return {"peft.dim": lora.rank, "peft.target_modules": list(_MEGATRON[lora.with_key]), **dropout}


def of_bridge(found: Mapping[str, Fact]) -> Found:
    """What Megatron-Bridge's overrides say below `peft`."""
    stated = {
        name.removeprefix("peft."): fact
        for name, fact in found.items()
        if name.startswith("peft.") and fact.value is not None
    }
    if not stated:
        return None, []
    line = next(iter(stated.values())).line
    values = Values(stated)
    rank = values.count("dim") or Fact(BRIDGE_RANK, line)
    modules = values.get("target_modules") or Fact(list(_MEGATRON["all_linear"]), line)
    names = frozenset(_words(modules.value))
    dropout, unread = _dropout(values, "dropout")
    if dropout:
        why = "dropout behind the adapter is not modelled"
        unread += values.besides(("pre",), "dropout_position", why)
    unread += [
        Fact(f"peft.{name} (changes what adapters do, not modelled)", fact.line)
        for name, fact in values.unasked()
        if name not in _NO_EFFECT and fact.value not in (0, "0", "0.0", False, "false")
    ]
    said = {"rank": rank.value, "dropout": dropout, "targets": _targets(names, _MEGATRON)}
    return _fact(said, unread, modules, rank)


def of_axolotl(values: Values) -> Found:
    """What axolotl's `adapter` and the keys beside it say; without one they say nothing."""
    kind = values.get("adapter")
    rank = values.count("lora_r")
    values.get("lora_alpha")  # a factor
    modules = values.get("lora_target_modules")
    everywhere = values.on("lora_target_linear")
    dropout, unread = _dropout(values, "lora_dropout")
    if kind is None or kind.value not in ("lora", "qlora"):
        return None, []
    if everywhere:
        modules = Fact(list(_HF["all_linear"]), kind.line)
    if modules is None:
        why = "lora_target_linear or lora_target_modules says beside what, and neither is stated"
        return None, [Fact(f"adapter {shown(kind.value)} ({why})", kind.line)]
    four, eight = values.on("load_in_4bit"), values.on("load_in_8bit")
    base = "nf4" if four or kind.value == "qlora" else "int8" if eight else "bf16"
    rank = rank or Fact(_FACTORY_RANK, kind.line)
    targets = _targets(_adapted(modules.value), _HF)
    said = {"rank": rank.value, "dropout": dropout, "targets": targets, "base_precision": base}
    return _fact(said, unread, modules, rank)


def of_factory(values: Values) -> Found:
    """What LLaMA-Factory's `finetuning_type` and the keys beside it say."""
    kind = values.get("finetuning_type")
    if kind is None or kind.value != "lora":
        return None, []
    values.get("lora_alpha")  # a factor
    rank = values.count("lora_rank") or Fact(_FACTORY_RANK, kind.line)
    modules = values.get("lora_target") or Fact("all", kind.line)
    bits, bnb = values.count("quantization_bit"), ("bnb", "bitsandbytes")
    bases: dict[int | None, BasePrecision] = {None: "bf16", 8: "int8", 4: "nf4"}
    base = bases.get(bits.value if bits else None)
    dropout, unread = _dropout(values, "lora_dropout")
    unread += values.besides(bnb, "quantization_method", "bitsandbytes' is modelled")
    if base is None and bits:
        unread.append(Fact(f"quantization_bit {bits.value} (8 and 4 are modelled)", bits.line))
    targets = "all_linear" if modules.value == "all" else _targets(_adapted(modules.value), _HF)
    said = {"rank": rank.value, "dropout": dropout, "targets": targets,
            "base_precision": base or "bf16"}  # fmt: skip
    return _fact(said, unread, modules, rank)


def of_trl(values: Values) -> Found:
    """What TRL's `use_peft` and the keys beside it say; without it they say nothing."""
    kind = values.flag("use_peft")
    rank, modules = values.count("lora_r"), values.get("lora_target_modules")
    values.get("lora_alpha")  # a factor
    stated = values.get("lora_dropout")
    dropout, unread = _dropout(values, "lora_dropout") if stated else (_TRL_DROPOUT, [])
    four, eight = values.on("load_in_4bit"), values.on("load_in_8bit")
    if kind is None or not kind.value:
        named = "load_in_4bit" if four else "load_in_8bit"
        why = "weights of fewer bits are not modelled without adapters"
        return None, [Fact(f"{named} ({why})", values.found[named].line)] if four or eight else []
    if four and not values.on("use_bnb_nested_quant"):
        why = "constants of quantised weights in 32 bits are not modelled"
        unread.append(Fact(f"load_in_4bit without use_bnb_nested_quant ({why})", kind.line))
    if modules is None:
        why = "lora_target_modules says beside what, and is not stated: PEFT's choice for the model"
        return None, [*unread, Fact(f"use_peft ({why})", kind.line)]
    rank = rank or Fact(_TRL_RANK, kind.line)
    base = "nf4" if four else "int8" if eight else "bf16"
    targets = _targets(_adapted(modules.value), _HF)
    said = {"rank": rank.value, "dropout": dropout, "targets": targets, "base_precision": base}
    return _fact(said, unread, modules, rank)


_SWITCHES = ("use_peft", "use_lora", "lora", "lora_enable", "q_lora", "qlora")


def of_others(values: Values) -> Found:
    """Of a program of somebody's own: its switches of adapters, whose defaults are its own."""
    why = "what this program adapts is not known"
    kinds = (name for name in ("adapter", "finetuning_type") if name in values.found)
    words = ("full", "none", "")
    adapts = [name for name in kinds if str(values.found[name].value).lower() not in words]
    on = [name for name in _SWITCHES if values.on(name)]
    found = ((name, values.found[name]) for name in (*on, *adapts))
    return None, [Fact(f"{name} {shown(fact.value)} ({why})", fact.line) for name, fact in found]


def of_swift(values: Values) -> Found:
    """What ms-swift's kind of tuning and the arguments beside it say."""
    kind = values.found["finetuning_type"]
    rank, modules = values.count("lora_rank"), values.get("target_modules")
    values.get("lora_alpha")  # a factor
    stated = values.get("lora_dropout")
    dropout, unread = _dropout(values, "lora_dropout") if stated else (_SWIFT_DROPOUT, [])
    if kind.value != "lora":
        return None, []
    unread += values.besides(("bnb",), "quant_method", "bitsandbytes' is modelled")
    unread += values.besides(("nf4",), "bnb_4bit_quant_type", "nf4 is modelled")
    twice, bits = values.flag("bnb_4bit_use_double_quant"), values.count("quant_bits")
    if twice is not None and not twice.value:
        why = "constants of quantised weights in 32 bits are not modelled"
        unread.append(Fact(f"without bnb_4bit_use_double_quant ({why})", twice.line))
    bases: dict[int | None, BasePrecision] = {None: "bf16", 8: "int8", 4: "nf4"}
    base = bases.get(bits.value if bits else None)
    if base is None and bits:
        unread.append(Fact(f"quant_bits {bits.value} (8 and 4 are modelled)", bits.line))
    modules = modules or Fact("all-linear", kind.line)
    targets = _targets(_adapted(modules.value), _HF)
    said = {"rank": (rank or Fact(_FACTORY_RANK, 1)).value, "dropout": dropout,
            "targets": targets, "base_precision": base or "bf16"}  # fmt: skip
    return _fact(said, unread, modules, rank or kind)


def of_torchtune(values: Values) -> Found:
    """What a builder `lora_...` or `qlora_...` and its arguments say; others adapt nothing."""
    builder = values.get("model._component_")
    kind = re.match(r"(q?)lora_", str(builder.value).rpartition(".")[2]) if builder else None
    if builder is None or kind is None:
        return None, []
    rank = values.count("model.lora_rank") or Fact(_FACTORY_RANK, builder.line)
    modules = values.get("model.lora_attn_modules")
    dropout, unread = _dropout(values, "model.lora_dropout")
    names = _words(modules.value) if modules else set()
    names |= set(_FEED_FORWARD) if values.on("model.apply_lora_to_mlp") else set()
    names |= {"output"} if values.on("model.apply_lora_to_output") else set()
    names = {"o_proj" if name == "output_proj" else name for name in names}
    base = "nf4" if kind[1] or values.on("model.quantize_base") else "bf16"
    said = {"rank": rank.value, "dropout": dropout, "base_precision": base,
            "targets": _targets(frozenset(names), _HF)}  # fmt: skip
    return _fact(said, unread, Fact(sorted(names), (modules or builder).line), rank)


def of_automodel(values: Values, config: Mapping[str, object] | None) -> Found:
    """What AutoModel's `peft` and `quantization` say, beside a decoder of `config`."""
    kind = values.found.get("peft._target_")
    base, unread = _quantised(values)
    if kind is None:
        why = "weights of fewer bits are not modelled without adapters"
        named = [Fact(f"{name} ({why})", 1) for name in ("quantization",) if base != "bf16"]
        return None, [*unread, *named]
    values.asked.add("peft._target_")
    rank = values.count("peft.dim") or Fact(_FACTORY_RANK, kind.line)
    modules = values.get("peft.target_modules") or Fact("*_proj", kind.line)
    dropout, more = _dropout(values, "peft.dropout")
    words = _words(modules.value)
    if values.on("peft.match_all_linear") or "*" in words:
        why = "an adapter beside the head is not modelled; target_modules *_proj has none"
        more.append(Fact(f"peft.match_all_linear ({why})", modules.line))
    names = set(_HF["all_linear"]) if words & {"*_proj", "*"} else {w.lstrip("*") for w in words}
    if config is not None and any(config.get(name) for name in _OTHER_LAYERS):
        why = "adapters beside routed experts and other layers than Llama's are not modelled"
        more.append(Fact(f"peft.target_modules ({why})", modules.line))
    said = {"rank": rank.value, "dropout": dropout, "base_precision": base,
            "targets": _targets(frozenset(names), _HF)}  # fmt: skip
    return _fact(said, [*unread, *more], modules, rank)


def _quantised(values: Values) -> tuple[BasePrecision, list[Fact]]:
    """What AutoModel's frozen weights are kept in, and what of it is not understood."""
    where = "quantization."
    if values.on(where + "load_in_8bit"):
        return "int8", []
    four = values.flag(where + "load_in_4bit")
    if four is None or not four.value:
        return "bf16", []
    unread = values.besides(("nf4",), where + "bnb_4bit_quant_type", "nf4 is modelled")
    twice = values.flag(where + "bnb_4bit_use_double_quant")
    if twice is not None and not twice.value:
        why = "constants of quantised weights in 32 bits are not modelled"
        unread.append(Fact(f"load_in_4bit without bnb_4bit_use_double_quant ({why})", four.line))
    return "nf4", unread


def _targets(
    stated: frozenset[str], names: Mapping[LoraTargets, tuple[str, ...]]
) -> LoraTargets | None:
    """Which of our sets the modules are, None: another one."""
    return next((ours for ours, each in names.items() if set(each) == stated), None)


def _adapted(value: object) -> frozenset[str]:
    """A decoder's linear layers that PEFT's `target_modules` means, and each word that means none
    of them: ends of modules' names, or one regular expression of whole names.
    """
    if value in ("all-linear", ["all-linear"]):
        return frozenset(_HF["all_linear"])
    if isinstance(value, str) and not re.fullmatch(r"[\w\s,]*", value):
        return _matched(value) or frozenset((value,))
    ends = {f"{holder}.{name}": name for name, holder in _HOLDERS.items()}
    return frozenset(ends.get(word, word) for word in _words(value))


def _matched(pattern: str) -> frozenset[str]:
    """The layers that a regular expression means in whichever decoder it means most of; none where
    it is no plain one, or does not mean all layers alike.
    """
    plain = len(pattern) <= _LONGEST and pattern.count("(") <= _MOST_GROUPS
    if not (plain and _PATTERN.fullmatch(pattern)):
        return frozenset()
    found = [
        [
            frozenset(name for name, holder in _HOLDERS.items()
                      if re.fullmatch(pattern, f"{where.format(layer)}{holder}.{name}"))
            for layer in (0, 1, 23)
        ]
        for where in _LAYERS
    ]  # fmt: skip
    return max((each[0] for each in found if len(set(each)) == 1), key=len, default=frozenset())


def _words(value: object) -> set[str]:
    words = value if isinstance(value, list) else str(value).split(",")
    return {str(word).strip(" '\"") for word in words}


def _dropout(values: Values, name: str) -> tuple[float, list[Fact]]:
    """The probability, and what is none."""
    stated = values.num(name)
    if stated is None or stated.value < 1:
        return float(stated.value) if stated else 0.0, []
    return 0.0, [Fact(f"{name} {stated.value} (it is a probability below 1)", stated.line)]


def _fact(said: dict[str, object], unread: list[Fact], modules: Fact, rank: Fact) -> Found:
    if said["targets"] is None:
        why = "adapters beside this set of modules are not modelled"
        return None, [*unread, Fact(f"{shown(modules.value)} ({why})", modules.line)]
    try:
        lora = TypeAdapter(Lora).validate_python(said)
    except ValidationError:
        return None, [*unread, Fact(f"rank {rank.value} (of adapters, too large)", rank.line)]
    return Fact(lora, rank.line), unread
