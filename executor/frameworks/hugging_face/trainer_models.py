"""What a trainer's keys, and the name of its model, say of how transformers runs that model.

Attention that keeps its scores, weights that a checkpoint holds packed, and adapters beside routed
experts: none of them is in the model's shape, and each changes what fits.

Source: huggingface/transformers@0261a467 `modeling_utils.py` (without SDPA a module falls back to
eager attention), `models/gpt_oss/modular_gpt_oss.py`, `models/qwen3_moe/modular_qwen3_moe.py`
(experts are one parameter, in releases before 5 linear layers); hiyouga/LLaMA-Factory@ff6d4d12
`model/model_utils/attention.py` (`flash_attn: disabled` is eager); `utils/schemas/model.py` of
axolotl-ai-cloud/axolotl@067b021c (eager_attention).
"""

import re
from collections.abc import Mapping

from meshplan.costmodels.training import Lora
from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.reading import Fact, NothingToRead

_EAGER = {"attn_implementation": "eager", "flash_attn": "disabled", "eager_attention": "true",
          "attn_impl": "eager"}  # fmt: skip
"""Keys by which attention is run as a product, a softmax and a product, and the value of each."""
_CHOOSES = (*_EAGER, "flash_attention", "flex_attention")
_WITHOUT_SDPA = ("gpt_oss",)
"""Types of models whose module says `_supports_sdpa = False`: eager, if nothing is said."""
_PACKED = re.compile(r"(^|[-_.])(awq|gptq|aqlm|gguf|bnb|int[48]|[48]bit|w[48]a16|nvfp4)([-_.]|$)")
"""What repositories of quantised weights have in their names."""
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")

_FULL = ("packing", "neat_packing", "sample_packing", "pad_to_sequence_len", "pretraining_dataset")


def short_samples(trainer: str, values: Values, facts: Mapping[str, Fact]) -> list[str]:
    """A note where samples keep their own lengths, which the file does not say."""
    stated = (str(values.found.get(name, Fact(False, 1)).value).lower() for name in _FULL)
    full = any(text not in ("false", "none", "") for text in stated)
    stage = values.found.get("stage")
    if full or trainer == "hf-trainer" or (stage and stage.value == "pt"):
        return []
    length = facts["seq_len"].value if "seq_len" in facts else "as many as the sequence's"
    return [f"samples are not packed: priced with {length} tokens each, the most; fewer need less"]


def scores_kept(values: Values, facts: Mapping[str, Fact]) -> list[Fact]:
    """Attention that keeps its scores for the backward pass, where the file or the model's module
    says so.
    """
    why = "keeps the scores of attention for the backward pass, which is not modelled"
    for name, word in _EAGER.items():
        fact = values.found.get(name)
        if fact is not None and str(fact.value).lower() == word:
            return [Fact(f"{name} {shown(fact.value)} ({why})", fact.line)]
    model = facts.get("model")
    if model is None or any(_is_said(values, name) for name in _CHOOSES):
        return []
    kind = load_model_config(model.value).get("model_type")
    if kind not in _WITHOUT_SDPA:
        return []
    unsaid = f"attn_implementation (not stated, and {kind} runs eager attention without it: {why})"
    return [Fact(unsaid, model.line)]


def _is_said(values: Values, name: str) -> bool:
    fact = values.found.get(name)
    return fact is not None and str(fact.value).lower() not in ("none", "false", "auto")


_TOWERS = ("freeze_vision_tower", "freeze_multi_modal_projector")
_MODALITIES = ("vision_config", "audio_config", "thinker_config")


def without_towers(values: Values, facts: Mapping[str, Fact]) -> None:
    """Reads what LLaMA-Factory freezes of a tower, its defaults, as saying nothing of a model that
    is not known to have one.
    """
    model, language = facts.get("model"), values.found.get("freeze_language_model")
    if model and any(load_model_config(model.value).get(name) for name in _MODALITIES):
        return
    values.asked |= set(_TOWERS)
    if language is not None and str(language.value).lower() == "false":
        values.asked.add("freeze_language_model")


def check_trains(values: Values) -> None:
    """Raise `NothingToRead` for a file that says that it evaluates or predicts only."""
    trains = values.found.get("do_train")
    if trains is not None and str(trains.value).lower() == "false":
        raise NothingToRead("do_train is false: it trains nothing", trains.line)


_NO_SIZES = ("output_router_logits", "router_aux_loss_coef", "use_cache", "attention_dropout")


def same_shape(values: Values, key: str) -> None:
    """Reads `base_model_config`, axolotl's in 2023, where it names the model's own repository, and
    a section of changes to the model's configuration where none changes a size.
    """
    for section in ("model_config", "overrides_of_model_config"):
        inside = [name for name in values.found if name.startswith(f"{section}.")]
        if inside and all(name.rpartition(".")[2] in _NO_SIZES for name in inside):
            values.asked |= {section, *inside}
    model, shape = values.found.get(key), values.found.get("base_model_config")
    if model is not None and shape is not None and model.value == shape.value:
        values.asked.add("base_model_config")


def packed_weights(values: Values, key: str, lora: Lora | None) -> list[Fact]:
    """A checkpoint whose name says that its weights are quantised, where no key says how."""
    stated = values.found.get(key)
    if stated is None or (lora is not None and lora.base_precision != "bf16"):
        return []
    tail = str(stated.value).rstrip("/").rpartition("/")[2].lower()
    if not _PACKED.search(tail):
        return []
    why = "its name says quantised weights, whose format no key states"
    return [Fact(f"{key} {shown(stated.value)} ({why})", stated.line)]


def has_experts(config: Mapping[str, object]) -> bool:
    """Whether a configuration is one of a mixture of experts."""
    return any(config.get(name) for name in _EXPERTS)


def packed_experts(facts: Mapping[str, Fact], lora: Lora | None) -> list[Fact]:
    """Routed experts of a quantised base: which of them are packed, releases of transformers do not
    agree on, and no price holds them.
    """
    model = facts.get("model")
    if lora is None or model is None or lora.base_precision == "bf16":
        return []
    if not has_experts(load_model_config(model.value)):
        return []
    why = f"its routed experts in {lora.base_precision} are not modelled"
    return [Fact(f"model {shown(model.value)} ({why})", model.line)]


def beside_experts(facts: Mapping[str, Fact], lora: Lora | None) -> list[str]:
    """A note that routed experts are priced without adapters."""
    model = facts.get("model")
    if lora is None or model is None:
        return []
    if not has_experts(load_model_config(model.value)):
        return []
    return ["routed experts are priced without adapters, as transformers 5 holds them; releases "
            "before it adapt those that are linear layers"]  # fmt: skip


_PLUGINS = ("cut_cross_entropy", "diffusion", "expert_parallel", "kernels", "liger", "lm_eval",
            "swanlab")  # fmt: skip
"""axolotl's integrations that change nothing without the keys that say it, which are judged."""


def other_plugins(values: Values) -> list[Fact]:
    """axolotl's plugins that change a training by themselves."""
    stated = values.get("plugins")
    names = stated.value if stated and isinstance(stated.value, list) else []
    known = re.compile(rf"axolotl\.integrations\.({'|'.join(_PLUGINS)})\.\w+")
    why = "what this plugin changes is not modelled"
    return [
        Fact(f"plugins {shown(name)} ({why})", stated.line if stated else 1)
        for name in names
        if not known.fullmatch(str(name))
    ]
