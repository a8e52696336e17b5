"""Changes fields of published files, one at a time, and counts again.

`python -m benchmarks.models.published_fuzz [SEED [FILES [FIELDS]]]` needs torch and transformers
5.24. Of each of `FILES` files (60) of the catalogue and of `published_configs.json`, `FIELDS` drawn
fields (12) take another value, are null or left out: those that the file has, in its sections too,
and those of the family's class that it has not. The module is built on the meta device as the
changed file says: its parameters are ours, or the file is refused; a difference that nothing says
is an error, and the command ends with 1.
"""

import json
import random
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from benchmarks.models.family_fuzz import OF_NO_MODULE, Outcome, others_than, told
from benchmarks.models.published import BUILT_AS, compared, family_of, files
from benchmarks.usage import check_usage

NOT_CHANGED = {
    *OF_NO_MODULE, "model_type", "architectures", "dtype", "torch_dtype", "transformers_version",
    "_source", "quantization_config", "auto_map", "rope_scaling", "rope_parameters",
}  # fmt: skip
WORDS_OF_LAYERS = (
    "full_attention", "sliding_attention", "linear_attention", "chunked_attention", "attention",
    "mamba", "conv", "moe", "mlp", "dense", "sparse",
)  # fmt: skip
DROPPED = "left out"
OF_DEEPSEEK = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear", "glm_moe_dsa", "axk1",
    "glm4_moe_lite",
)  # fmt: skip
OF_QWEN = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
OF_LING = ("bailing_hybrid",)
OF_KIMI = ("deepseek_v3", "kimi_k2")
READ_AS_PUBLISHED: dict[str, tuple[tuple[str, ...], str]] = {
    "moe_layer_freq": (OF_DEEPSEEK, "DeepSeek's own code steps by it, transformers ignores it"),
    "q_lora_rank = 0": (
        (*OF_DEEPSEEK, *OF_LING),
        "DeepSeek's own code has no low rank then, transformers one of 0",
    ),
    "n_routed_experts = 0": (
        OF_DEEPSEEK, "read as no experts; transformers builds a layer of none"
    ),
    "shared_expert_intermediate_size = 0": (
        OF_QWEN, "none is read; transformers keeps a gate of nothing"
    ),
    "vt_num_hidden_layers": (OF_KIMI, "Kimi's own code reads it, transformers another name"),
    "vt_intermediate_size": (OF_KIMI, "the same"),
    "init_pos_emb_height": (OF_KIMI, "the same"),
    "init_pos_emb_width": (OF_KIMI, "the same"),
    "moe_shared_expert_intermediate_size": (
        OF_LING, "Ling's own code reads it, transformers ignores it"
    ),
    "moe_intermediate_size": (OF_LING, "the same, which the other field does not follow"),
    "attention_head_dim": (
        ("nemotron_h",), "Nemotron-H's own code reads it, transformers `head_dim`"
    ),
    "swa_v_head_dim": (
        ("mimo_v2_flash",), "MiMo's own code reads it, transformers `v_head_dim` in windows too"
    ),
    **dict.fromkeys(
        ("add_swa_attention_sink_bias", "num_key_value_heads"),
        (("mimo_v2_flash",), "MiMo's own code has sinks and key heads of windows apart"),
    ),
    "in_chans": (("qwen2_vl",), "its file says it, its class reads `in_channels`"),
    "bias": (("internlm2",), "InternLM2's own code reads it, the Llama that is built not"),
    "attention_bias": (("mimo",), "MiMo's own code reads it, the Qwen2 that is built not"),
    "num_experts": (("step3p7",), "Step's file says it, its class reads `n_routed_experts`"),
    "zero_expert_num": (
        ("longcat_flash",), "transformers allocates rows that it never reads"
    ),
    "first_k_dense_replace": (
        ("hy_v3",), "Hy3's file says it, its class in transformers reads a list alone"
    ),
}  # fmt: skip
"""Fields that these families read as the code beside the published weights does."""

Change = tuple[tuple[str, ...], object]


def stated(config: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[Change]:
    """The path of each field of a file, with its value."""
    for key, value in config.items():
        if isinstance(value, dict) and key not in NOT_CHANGED:
            yield from stated(value, (*at, key))
        elif key not in NOT_CHANGED:
            yield (*at, key), value


def left_out(config: dict[str, Any]) -> Iterator[Change]:
    """The path of each field of the family's class that the file does not state, by default."""
    at = ("text_config",) if "text_config" in config else ()
    text = config.get("text_config") or config
    try:
        made = import_module("transformers").AutoConfig.for_model(family_of(config))
    except ValueError:  # a family that transformers does not have
        return
    for key, value in json.loads(made.to_json_string(use_diff=False)).items():
        if key not in text and key not in NOT_CHANGED and not isinstance(value, str | dict):
            yield (*at, key), value


def others(value: object, draw: random.Random) -> list[object]:
    """Values that a field may have instead, null and being left out among them."""
    if isinstance(value, list) and value:
        word = draw.choice(WORDS_OF_LAYERS) if isinstance(value[0], str) else draw.choice(value)
        at = draw.randrange(len(value))
        one_other = [*value[:at], word, *value[at + 1 :]]
        turned, shuffled = [*value[1:], value[0]], draw.sample(value, len(value))
        return [one_other, turned, shuffled, value[::-1], value[:-1], None, DROPPED]
    found = others_than(value)
    return [*found, None, DROPPED] if value is not None and found else found


def may_be_left_out(config: dict[str, Any], value: object) -> bool:
    """Whether a value is one, or the class is that of the file: it says what an absent field is."""
    return value != DROPPED or family_of(config) not in BUILT_AS


def changed(config: dict[str, Any], change: Change) -> dict[str, Any]:
    """The file with this field's other value."""
    (first, *rest), value = change
    if rest:
        return config | {first: changed(config[first], (tuple(rest), value))}
    kept = {key: each for key, each in config.items() if key != first}
    return kept if value == DROPPED else kept | {first: value}


def outcomes(name: str, config: dict[str, Any], fields: int, seed: str) -> Iterator[Outcome]:
    """One for each of so many drawn fields."""
    draw = random.Random(f"{seed} {name}")
    known = [(path, others(value, draw)) for path, value in (*stated(config), *left_out(config))]
    known = [
        (path, [each for each in values if may_be_left_out(config, each)]) for path, values in known
    ]
    known = [(path, values) for path, values in known if values]
    for path, values in draw.sample(known, min(fields, len(known))):
        value = draw.choice(values)
        field = ".".join(path)
        told = [READ_AS_PUBLISHED.get(key) for key in (path[-1], f"{path[-1]} = {value}")]
        as_published = any(each and family_of(config) in each[0] for each in told)
        try:
            word, detail = compared(changed(config, (path, value)), name)
        except Exception as error:  # a crash of ours is what is looked for
            word, detail = "crashed", repr(error)
        word = "read as it is published" if word == "different" and as_published else word
        yield Outcome(field=field, value=value, word=word, detail=detail)


def drawn(seed: str, number: int) -> dict[str, dict[str, Any]]:
    """So many of the files."""
    return dict(random.Random(seed).sample(list(files([])), number))


def main() -> int:
    """Count all outcomes, and print what is different."""
    seed, number, fields = (*sys.argv[1:], *("1", "60", "12")[len(sys.argv) - 1 :])
    known = drawn(seed, int(number))
    return told(list(known), lambda name: outcomes(name, known[name], int(fields), seed))


if __name__ == "__main__":
    check_usage(str(__doc__))
    sys.exit(main())
