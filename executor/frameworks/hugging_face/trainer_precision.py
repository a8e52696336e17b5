"""In what precision a trainer trains, also where its file says neither bf16 nor fp16.

    transformers    bf16 and fp16 are off unless stated: fp32 (5.23 training_args.py)
    TRL             bf16 unless fp16 or `bf16: false` (huggingface/trl@f2cd5771 trl/trainer/
                    base_config.py)
    axolotl         `bf16: auto`, which is bf16 where the GPU has it; off, fp32 weights
                    (axolotl-ai-cloud/axolotl@067b021c src/axolotl/utils/schemas/config.py,
                    src/axolotl/utils/config/__init__.py)
    LLaMA-Factory   the checkpoint's format for what is frozen, fp32 for what is trained, and fp32
                    of all of it beside DeepSpeed, whose engine casts what no format is stated for
                    (hiyouga/LLaMA-Factory@ff6d4d12 src/llamafactory/model/patcher.py, adapter.py;
                    deepspeedai/DeepSpeed@edaa722 deepspeed/runtime/engine.py)

A launcher's `mixed_precision` decides before any of these.
"""

from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import Fact, IllegalConfig

_SWITCHES = (
    ("fp8", "fp8"), ("bf16", "bf16"), ("bfloat16", "bf16"), ("pure_bf16", "bf16"),
    ("fp16", "fp16"), ("float16", "fp16"),
)  # fmt: skip
"""The first that is on decides: fp8 wins over the bf16 that stands beside it
(axolotl-ai-cloud/axolotl@067b021c src/axolotl/utils/trainer.py, hiyouga/LLaMA-Factory@ff6d4d12
src/llamafactory/train/fp8_utils.py)."""
_NEITHER = "neither bf16 nor fp16 is on"


_ON, _OFF = ("full", "auto"), ("none", "null")
"""Words of the switches beside true and false; axolotl's `auto` is bf16 where the GPU has it."""


def stated_precision(values: Values) -> Fact | None:
    """The format of the switch that is on. Raises `UnreadableConfig` for a word that says neither,
    and `IllegalConfig` where bf16 and fp16 are both true, which `TrainingArguments` refuses.
    """
    on = {word: fact for name, word in _SWITCHES if (fact := _switched_on(values, name))}
    both = [on[word] for word in ("bf16", "fp16") if word in on and on[word].value is True]
    if len(both) > 1:
        raise IllegalConfig("bf16 and fp16 are both on: the trainer takes one", both[-1].line)
    return next((Fact(word, fact.line) for word, fact in on.items()), None)


def _switched_on(values: Values, name: str) -> Fact | None:
    values.get(name)
    stated = values.found.get(name)
    if stated is None or stated.value is None or str(stated.value).lower() in _OFF:
        return None
    if str(stated.value).lower() in _ON:
        return stated
    whole = Fact(str(stated.value), stated.line)  # 1 of a YAML file is true too
    flag = Values({name: whole}).flag(name)
    return Fact(True, stated.line) if flag and flag.value else None


def left_open(trainer: str, values: Values, *, freezes: bool) -> tuple[Fact, str]:
    """The format that `trainer` takes where no switch is on, and a note; `freezes`: adapters are
    trained, and no engine of DeepSpeed casts the weights beside them.
    """
    off = next((values.found[name] for name in ("bf16", "bfloat16") if name in values.found), None)
    line = off.line if off else 1
    if trainer == "axolotl" and off is None:
        return Fact("bf16", 1), f"bf16 is not stated: auto, the default of {trainer}"
    if trainer == "trl" and (off is None or off.value is None):
        return Fact("bf16", line), f"bf16 is not stated: on, the default of {trainer}"
    if trainer == "llama-factory" and freezes:
        note = f"{_NEITHER}: frozen weights keep the checkpoint's format, taken to be bf16"
        return Fact("bf16", line), note
    return Fact("fp32", line), f"line {line}: {_NEITHER}: trained in fp32, as {trainer} does then"


def wide_products(facts: Mapping[str, Fact]) -> list[Fact]:
    """Quantised weights whose products are of 32 bits, which no price holds."""
    lora, precision = facts.get("lora"), facts["precision"]
    if lora is None or lora.value.base_precision == "bf16" or precision.value != "fp32":
        return []
    why = "products of quantised weights in 32 bits are not modelled; bf16: true has them in 16"
    return [Fact(f"precision fp32 ({why})", precision.line)]


def pure_beside_deepspeed(values: Values, facts: Mapping[str, Fact]) -> list[Fact]:
    """16-bit weights that DeepSpeed is not told of; LLaMA-Factory refuses them beside ZeRO-3
    (hiyouga/LLaMA-Factory@ff6d4d12 src/llamafactory/hparams/parser.py).
    """
    stated = values.get("pure_bf16")
    if stated is None or not values.on("pure_bf16"):
        return []
    if facts["zero_stage"].value == 3:
        raise IllegalConfig(
            "pure_bf16 beside ZeRO-3: LLaMA-Factory refuses it; state bf16: true", stated.line
        )
    return [Fact("pure_bf16 (beside DeepSpeed is not modelled; state bf16: true)", stated.line)]
