"""The model that a file of NeMo AutoModel's builds, and what its layers are made of.

    model.pretrained_model_name_or_path, model.config (its name,
      its pretrained_model_name_or_path or name_or_path)         the catalogue's
    model.config.hidden_size and further sizes                   a shape of its own
    num_nextn_predict_layers                                     its modules of multi-token
                                                                 prediction, where there are any
    model.attn_implementation, model.backend                     kernels, as the engine has them

Source: NVIDIA-NeMo/Automodel@36044ad `nemo_automodel/_transformers/auto_model.py`,
`components/models/common/utils.py` (BackendConfig, TEFp8Config), and which of `components/models`
build such modules.
"""

import re
from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.hugging_face.trainers import model_of_repository
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.reading import Fact

Config = dict[str, object]
_CAUSAL = ("from_pretrained", "from_config")
_BUILDER = "NeMoAutoModelForCausalLM."
_NAMES = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path",
          "model.config.name_or_path", "model.config")  # fmt: skip
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_TYPE = re.compile(r"\.models\.(\w+)\.\w+\.\w+Config$")
_MODULES = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
_BUILDS_MODULES = ("deepseek_v4", "nemotron_h", "qwen3_5", "qwen3_5_text", "qwen3_5_moe",
                   "qwen3_5_moe_text")  # fmt: skip
_HOLDERS = ("", "config.", "text_config.")
_HARMLESS = frozenset(
    ("_target_", "_attn_implementation", "attn_implementation_new", "trust_remote_code",
     "use_cache", "router_aux_loss_coef", "dtype", "torch_dtype", "architectures", *_MODULES)
)  # fmt: skip
_FUSED = ("te", "sdpa", "flex", "flash_attention_2", "flash_attention_3", "cudnn")
_ATTENTION = ("backend.attn", "attn_implementation", "config._attn_implementation")
_EXCHANGES = ("deepep", "hybridep", "uccl_ep")


def read_model(
    values: Values, facts: dict[str, Fact]
) -> tuple[Config | None, str, list[Fact], list[str]]:
    """Adds the model where it is the catalogue's own; its configuration, what is stated where the
    catalogue lacks it, what is not understood, and notes.
    """
    unread = _another_builder(values)
    modules = values.count(*(f"model.{at}{name}" for at in _HOLDERS for name in _MODULES), least=0)
    own = {name.removeprefix("model.config."): fact for name, fact in values.found.items()
           if name.startswith("model.config.") and fact.value is not None}  # fmt: skip
    if all(size in own for size in _SIZES):
        config = _own_shape(values, own)
        return config, "", unread, []
    stated = [each for each in _NAMES if values.found.get(each, Fact(None, 1)).value is not None]
    values.asked |= set(stated)
    name = stated[0] if stated else _NAMES[0]
    unknown = model_of_repository(values, name, facts)
    unread += _changed_sizes(values, own)
    if "model" not in facts:
        return None, unknown, unread, []
    config = dict(load_model_config(str(facts["model"].value)))
    config, notes = _with_modules(facts, config, modules)
    return config, "", unread, notes


def _another_builder(values: Values) -> list[Fact]:
    stated = values.get("model._target_")
    name = "" if stated is None else str(stated.value)
    head, _, call = name.rpartition(".")
    if stated is None or ((head + "." if head else "").endswith(_BUILDER) and call in _CAUSAL):
        return []
    why = "only NeMoAutoModelForCausalLM is modelled; of images a file does not say how many tokens"
    return [Fact(f"model._target_ {shown(name)} ({why})", stated.line)]


def _own_shape(values: Values, own: Mapping[str, Fact]) -> Config:
    """Sizes that the file states, of the family that its configuration's class names."""
    values.asked |= {f"model.config.{name}" for name in own}
    found = _TYPE.search(str(own["_target_"].value)) if "_target_" in own else None
    config: Config = {name: fact.value for name, fact in own.items() if "." not in name}
    config.pop("_target_", None)
    return {**({"model_type": found[1]} if found else {}), **config}


def _changed_sizes(values: Values, own: Mapping[str, Fact]) -> list[Fact]:
    """Sizes that differ from those of the repository."""
    values.asked |= {f"model.config.{name}" for name in own}
    why = "another shape than the repository's is not modelled"
    names = {name.removeprefix("model.config.") for name in _NAMES} | _HARMLESS
    return [Fact(f"model.config.{name} ({why})", fact.line)
            for name, fact in own.items() if name not in names]  # fmt: skip


def _with_modules(
    facts: dict[str, Fact], config: Config, stated: Fact | None
) -> tuple[Config, list[str]]:
    """The configuration with as many modules of multi-token prediction as are built: those that the
    file states, and none in families for which AutoModel has none.
    """
    held = [name for name in _MODULES if config.get(name)]
    builds = config.get("model_type") in _BUILDS_MODULES
    if (stated is None or not builds) and not (held and not builds):
        return config, []
    number = stated.value if stated is not None and builds else 0
    if (held and config[held[0]] == number) or (not held and not number):
        return config, []
    line = facts.pop("model").line
    said = f"line {line}: {number} modules of multi-token prediction, as AutoModel builds them"
    return {**config, **dict.fromkeys(held, 0), (held or [_MODULES[0]])[0]: number}, [said]


def read_kernels(values: Values, facts: dict[str, Fact]) -> tuple[list[Fact], list[str]]:
    """Kernels that keep or exchange more than the engine's; and notes on others."""
    why = "this attention is not modelled"
    unread = [each for name in _ATTENTION for each in values.besides(_FUSED, f"model.{name}", why)]
    exchange = values.get("model.backend.dispatcher")
    if facts["expert_parallel"].value == 1:
        return unread, []
    if exchange is None:
        return unread, ["tokens are priced as DeepEP exchanges them, the default where it is there"]
    unread += values.besides(_EXCHANGES, "model.backend.dispatcher", "this exchange of tokens is "
                             "not modelled for this engine")  # fmt: skip
    if exchange.value in _EXCHANGES[1:]:
        said = f"line {exchange.line}: dispatcher {exchange.value} is priced as DeepEP"
        return unread, [said]
    return unread, []
