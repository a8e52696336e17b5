"""Reads nanotron's YAML, its model included, as a Llama, Qwen2 or mixture-of-experts configuration.

Absent settings are the defaults of `ParallelismArgs` and `MoEConfig`. The keys are a closed list
(`nanotron_keys.toml`). Sources as in `nanotron`.
"""

import re
from collections.abc import Mapping
from typing import Any

from meshplan.costmodels.model.class_defaults import nothing_left_out
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values, put
from meshplan.executor.frameworks.keys.lists import judged, unjudged
from meshplan.executor.frameworks.nanotron.export import COUNTS, DTYPES, PIPELINE_ENGINES, TP_MODES
from meshplan.planner.case.reading import Fact, Placement, Reading, Recompute, UnreadableConfig

_KEYS = ("nanotron_keys.toml",)
_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
_NUMBERS = ("rms_norm_eps", "rope_theta", "initializer_range")


def read(text: str, path: str) -> Reading:
    """A nanotron config; raises `UnreadableConfig` and `IllegalConfig`."""
    values = Values(read_yaml(text))
    if not values.has("parallelism"):
        raise UnreadableConfig("no `parallelism:` section found")
    facts: dict[str, Fact] = {"virtual_stages": Fact(1, 1), "expert_tensor_parallel": Fact(1, 1)}
    put(facts, **{ours: values.count(name) for ours, name in COUNTS.items()})
    mode = values.word(TP_MODES, "parallelism.tp_mode") or Fact(False, 1)
    split = facts.get("tensor_parallel", Fact(1, 1)).value > 1
    schedule = values.word(PIPELINE_ENGINES, "parallelism.pp_engine") or Fact("gpipe", 1)
    if facts.get("pipeline_parallel", Fact(1, 1)).value == 1:
        schedule = Fact("1f1b", schedule.line)
    put(
        facts,
        sequence_parallel=Fact(mode.value and split, mode.line),
        schedule=schedule,
        zero_stage=values.count("optimizer.zero_stage", least=0),
        precision=values.word(DTYPES, "model.dtype") or Fact("bf16", 1),
        optimizer=values.word({"adamW": "adamw", "sgd": "sgd"}, "optimizer.optimizer_factory.name"),
    )
    shape = _shape_of(values)
    replayed = values.on("parallelism.recompute_layer")
    unread = [*_unread(values, shape), *values.nested(), *_stages_of_other_length(text, facts)]
    not_understood, noted = judged(unjudged(values, _KEYS), _KEYS, "{}")
    return Reading(
        framework="nanotron",
        engine="nanotron",
        path=path,
        facts=facts,
        placement=Placement(rule="cost", line=facts.get("pipeline_parallel", Fact(1, 1)).line),
        recompute=Recompute("full" if replayed else "none"),
        model_config=shape,
        ignored=values.ignored(),
        notes=(*noted, *values.suspects(COUNTS.values())),
        unread=(*unread, *not_understood),
    )


def _stages_of_other_length(text: str, facts: Mapping[str, Fact]) -> list[Fact]:
    """A stage of `data_stages` whose sequences are not those of `tokens` (DatasetStageArgs of
    releases after 2411b022).
    """
    length = facts.get("seq_len")
    for stated in re.finditer(r"^[ \t-]*sequence_length:[ \t]*(\d{1,9})\b", text, re.M):
        if length is not None and int(stated[1]) != length.value:
            line = text.count("\n", 0, stated.start()) + 1
            why = f"the sequences of tokens have {length.value}: stages of data that differ"
            return [Fact(f"sequence_length {stated[1]} ({why} are not modelled)", line)]
    return []


def _unread(values: Values, shape: Mapping[str, Any] | None) -> list[Fact]:
    """What other sizes follow from than those that are priced."""
    unread = []
    stated = values.found.get("model.model_config")
    if stated and shape is None:
        unread.append(Fact("model.model_config (its sizes are not read)", stated.line))
    wide = values.flag("optimizer.accumulate_grad_in_fp32")
    if wide and not wide.value:
        why = "gradients summed in 16 bit are not modelled"
        unread.append(Fact(f"optimizer.accumulate_grad_in_fp32 false ({why})", wide.line))
    multiple = values.count("model.make_vocab_size_divisible_by")
    vocab = shape.get("vocab_size") if shape else None
    if multiple and vocab and vocab % multiple.value:
        why = f"it pads the vocabulary of {vocab}, which is not modelled"
        unread.append(Fact(f"model.make_vocab_size_divisible_by ({why})", multiple.line))
    return unread


def _shape_of(values: Values) -> dict[str, Any] | None:
    prefix = "model.model_config."
    sizes = {
        name: fact.value for name in _SIZES if (fact := values.count(prefix + name)) is not None
    }
    if "hidden_size" not in sizes or "num_hidden_layers" not in sizes:
        return None
    config: dict[str, Any] = {
        **sizes,
        "model_type": "qwen2" if values.on(prefix + "attention_bias") else "llama",
        "tie_word_embeddings": values.on(prefix + "tie_word_embeddings"),
    }
    numbers = {name: values.num(prefix + name) for name in _NUMBERS}
    config |= {name: fact.value for name, fact in numbers.items() if fact is not None}
    return nothing_left_out(config | _experts_of(values, prefix + "moe_config.", sizes))


def _old_experts_of(values: Values) -> dict[str, Any]:
    """The keys of `examples/moe` (is_llamoe_config), before nanotron had a `moe_config`."""
    experts = values.count("model.model_config.moe_num_experts")
    if experts is None:
        return {}
    top = values.count("model.model_config.num_experts_per_tok")
    return {
        "model_type": "mixtral",
        "num_local_experts": experts.value,
        "num_experts_per_tok": top.value if top else 1,
    }


def _experts_of(values: Values, prefix: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """MoE layers as Qwen2-MoE's configuration; absent ones are `MoEConfig`'s defaults."""
    experts = values.count(prefix + "num_experts")
    if experts is None:
        return _old_experts_of(values)
    top, width = values.count(prefix + "top_k"), values.count(prefix + "moe_intermediate_size")
    shared = values.count(prefix + "shared_expert_intermediate_size", least=0)
    listed = values.get(prefix + "layers")
    routed = listed.value if listed and isinstance(listed.value, list) else [-1]
    layers = range(min(sizes["num_hidden_layers"], 100_000))
    width_value = width.value if width else 1408
    config = {
        "num_experts_per_tok": top.value if top else 2,
        "moe_intermediate_size": width_value,
        "mlp_only_layers": [] if routed == [-1] else [at for at in layers if at not in routed],
    }
    if values.on(prefix + "enable_shared_expert"):
        config |= {
            "model_type": "qwen2_moe",
            "num_experts": experts.value,
            "shared_expert_intermediate_size": shared.value if shared else 5632,
            "qkv_bias": values.on("model.model_config.attention_bias"),
        }
    elif not config["mlp_only_layers"] and not values.on("model.model_config.attention_bias"):
        config |= {
            "model_type": "mixtral",
            "num_local_experts": experts.value,
            "intermediate_size": width_value,
        }
    else:
        config |= {"model_type": "qwen3_moe", "num_experts": experts.value}
    return config
