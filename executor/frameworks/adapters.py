"""LoRA in the configurations of frameworks: what of it they say, as `costmodels.training.Lora`.

    Megatron-Bridge  peft.dim, peft.target_modules; without them 32, all linear layers
                     (NVIDIA-NeMo/Megatron-Bridge@0191fc5 src/megatron/bridge/peft/lora.py)
    axolotl          adapter lora or qlora, lora_r, lora_target_linear or lora_target_modules,
                     load_in_4bit, load_in_8bit
    LLaMA-Factory    finetuning_type lora, lora_rank (8), lora_target (all), quantization_bit

Adapters beside other sets of modules, and kinds other than LoRA, are not modelled: they are named.
"""

from collections.abc import Iterable, Mapping
from typing import get_args

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
}  # fmt: skip
_BRIDGE_RANK, _FACTORY_RANK = 32, 8
_NO_EFFECT = ("_target_", "alpha", "lora_A_init_method", "lora_B_init_method", "dropout_position")
"""Fields of Bridge's LoRA that change neither time nor memory."""

Found = tuple[Fact | None, list[Fact]]
"""The fact, if LoRA is what is trained; what of it is not understood."""


def bridge_settings(lora: Lora) -> dict[str, object]:
    """`lora` as overrides of a PEFT recipe."""
    return {"peft.dim": lora.rank, "peft.target_modules": list(_MEGATRON[lora.targets])}


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
    rank = values.count("dim") or Fact(_BRIDGE_RANK, line)
    modules = values.get("target_modules") or Fact(list(_MEGATRON["all_linear"]), line)
    targets = _targets(modules, _MEGATRON)
    unread = [
        Fact(f"peft.{name} (changes what adapters do, not modelled)", fact.line)
        for name, fact in values.unasked()
        if name not in _NO_EFFECT and fact.value not in (0, "0", "0.0", False, "false")
    ]
    return _fact(rank, targets, "bf16", unread, modules)


def of_axolotl(values: Values) -> Found:
    """What axolotl's `adapter` and the keys beside it say."""
    kind = values.get("adapter")
    if kind is None or kind.value not in ("lora", "qlora"):
        return None, []
    values.get("lora_alpha")  # a factor
    rank = values.count("lora_r") or Fact(_FACTORY_RANK, kind.line)
    modules = values.get("lora_target_modules")
    if values.on("lora_target_linear"):
        modules = Fact(list(_HF["all_linear"]), kind.line)
    if modules is None:
        why = "lora_target_linear or lora_target_modules says beside what, and neither is stated"
        return None, [Fact(f"adapter {shown(kind.value)} ({why})", kind.line)]
    four, eight = values.on("load_in_4bit"), values.on("load_in_8bit")
    base = "nf4" if four or kind.value == "qlora" else "int8" if eight else "bf16"
    return _fact(rank, _targets(modules, _HF), base, _dropout(values), modules)


def of_factory(values: Values) -> Found:
    """What LLaMA-Factory's `finetuning_type` and the keys beside it say."""
    kind = values.get("finetuning_type")
    if kind is None or kind.value != "lora":
        return None, []
    values.get("lora_alpha")  # a factor
    rank = values.count("lora_rank") or Fact(_FACTORY_RANK, kind.line)
    modules = values.get("lora_target") or Fact("all", kind.line)
    if modules.value == "all":
        modules = Fact(list(_HF["all_linear"]), modules.line)
    bits = values.count("quantization_bit")
    bases: dict[int | None, BasePrecision] = {None: "bf16", 8: "int8", 4: "nf4"}
    base = bases.get(bits.value if bits else None)
    unread = _dropout(values)
    if base is None and bits:
        unread.append(Fact(f"quantization_bit {bits.value} (8 and 4 are modelled)", bits.line))
    return _fact(rank, _targets(modules, _HF), base or "bf16", unread, modules)


def _targets(modules: Fact, names: Mapping[LoraTargets, tuple[str, ...]]) -> LoraTargets | None:
    """Which of our sets the modules are, None: another one."""
    value = modules.value
    stated = _words(value if isinstance(value, list) else str(value).split(","))
    return next((ours for ours in get_args(LoraTargets) if set(names[ours]) == stated), None)


def _words(values: Iterable[object]) -> set[str]:
    return {str(value).strip(" '\"") for value in values}


def _dropout(values: Values) -> list[Fact]:
    """A mask of each input would be kept too."""
    stated = values.num("lora_dropout")
    if stated is None or stated.value == 0:
        return []
    return [Fact("lora_dropout (the masks of adapters' inputs are not modelled)", stated.line)]


def _fact(
    rank: Fact, targets: LoraTargets | None, base: str, unread: list[Fact], modules: Fact
) -> Found:
    if targets is None:
        why = "adapters beside this set of modules are not modelled"
        return None, [*unread, Fact(f"{shown(modules.value)} ({why})", modules.line)]
    try:
        lora = TypeAdapter(Lora).validate_python(
            {"rank": rank.value, "targets": targets, "base_precision": base}
        )
    except ValidationError:
        return None, [*unread, Fact(f"rank {rank.value} (of adapters, too large)", rank.line)]
    return Fact(lora, rank.line), unread
