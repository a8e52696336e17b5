"""Changes many sizes and flags of each family's configuration at once, and counts again.

`python -m benchmarks.models.together_fuzz [SEED [DRAWS [MODEL_TYPE ...]]]` needs torch and
transformers 5.24. Sizes are odd ones that go together (14 heads of 40, 2 key heads, 6 experts, a
vocabulary of 1003), flags and lists of layers are drawn. Parameters of the module on the meta
device are ours, FLOPs by torch's counter within 0.1 % (windows hold all `TOKENS` tokens, for the
counter sees no mask), or the file is refused; a difference that nothing says is an error, and the
command ends with 1.
"""

import json
import random
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from benchmarks.models.families import (
    GATES_IN_BLOCKS,
    NOT_SIZES,
    OUTPUTS_IN_GROUPS,
    TOKENS,
    VARIANTS,
    flops_of,
    our_flops,
)
from benchmarks.models.family_fuzz import (
    READ_AS_TRAINED,
    Outcome,
    causal_families,
    ours,
    theirs,
    told,
)
from benchmarks.usage import check_usage
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config

SIZES: dict[str, tuple[Any, ...]] = {
    "vocab_size": (1003, 2050), "intermediate_size": (200, 328, 1000),
    "moe_intermediate_size": (72, 104), "shared_expert_intermediate_size": (56, 120),
    "n_routed_experts": (6, 10), "num_experts": (6, 10), "num_local_experts": (6, 10),
    "num_experts_per_tok": (1, 2, 3), "n_shared_experts": (0, 1, 3), "num_shared_experts": (1, 2),
    "first_k_dense_replace": (0, 1, 2), "decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [0]),
    "n_group": (1,), "topk_group": (1,), "max_window_layers": (0, 2),
    "sliding_window": (TOKENS, 2 * TOKENS, None), "q_lora_rank": (None, 40, 56),
    "kv_lora_rank": (24, 40), "qk_nope_head_dim": (16, 24), "qk_rope_head_dim": (8, 16),
    "v_head_dim": (16, 32), "linear_num_value_heads": (8,), "linear_num_key_heads": (2, 4),
    "linear_key_head_dim": (16,), "linear_value_head_dim": (24,), "full_attention_interval": (2, 3),
    "partial_rotary_factor": (0.25, 0.5),
    **dict.fromkeys(
        ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_qk_norm", "qk_layernorm",
         "use_bias", "qkv_bias", "use_sliding_window"),
        (True, False),
    ),
}  # fmt: skip
LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")
OF_ATTENTION = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
SHARE = 0.75
"""Of the fields that a family has, those that are changed."""


def drawn(draw: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    """Other values of most fields of a configuration."""
    heads, width = draw.choice((6, 10, 12, 14)), draw.choice((24, 40, 48, 64))
    key_heads = draw.choice([each for each in range(1, heads + 1) if heads % each == 0])
    attention = dict(zip(OF_ATTENTION, (heads, key_heads, width, heads * width), strict=True))
    values = attention | {field: draw.choice(known) for field, known in SIZES.items()}
    found = {k: v for k, v in values.items() if k in fields and draw.random() < SHARE}
    if "hidden_size" in found and "num_attention_heads" not in found:
        found["hidden_size"] = fields.get("num_attention_heads", heads) * width
    for key in LISTS:
        if fields.get(key) and draw.random() < SHARE:
            words = sorted(set(fields[key]))
            found[key] = [draw.choice(words) for _ in fields[key]]
    return found


def outcomes(model_type: str, seed: str, draws: int) -> Iterator[Outcome]:
    """One for each draw; every second of them from the family's variant."""
    auto = import_module("transformers").AutoConfig
    for number in range(draws):
        draw = random.Random(f"{seed} {model_type} {number}")
        base = {"num_hidden_layers": draw.randrange(3, 8)}
        base |= VARIANTS.get(model_type, {}) if number % 2 else {}
        try:
            fields = json.loads(auto.for_model(model_type, **base).to_json_string(use_diff=False))
        except Exception:  # a family's own defaults may not build
            continue
        changes = base | drawn(draw, fields)
        word, detail = compared(model_type, changes)
        yield Outcome(field=json.dumps(changes), value="", word=word, detail=detail)


def compared(model_type: str, changes: dict[str, Any]) -> tuple[str, str]:
    """A word for what came of it, and what differs."""
    try:
        config = import_module("transformers").AutoConfig.for_model(model_type, **changes)
        counted = theirs(config)
    except Exception as error:  # whatever a family's own code raises, it has refused the values
        return "unbuilt", str(error)[:80]
    read = json.loads(config.to_json_string(use_diff=False))
    read = {key: value for key, value in read.items() if key not in NOT_SIZES}
    try:
        mine = ours(read)
    except UnsupportedModel as error:
        return "refused", str(error)
    except Exception as error:  # a crash of ours is what is looked for
        return "crashed", repr(error)
    if counted not in mine:
        as_trained = any(name == model_type and read.get(f) for name, f in READ_AS_TRAINED)
        word = "read as it is trained" if as_trained else "different"
        return word, f"{mine[0]:,} and {counted:,} parameters"
    return _compared_flops(config, read)


def _compared_flops(config: Any, read: dict[str, Any]) -> tuple[str, str]:
    found = flops_of(config)
    if not found.get("weight_flops") or config.model_type in GATES_IN_BLOCKS:
        return "equal, no FLOPs", ""
    weights, others, has_state = our_flops(model_from_config(read, "changed"))
    pairs = [(weights, found["weight_flops"]), (others, found["other_flops"])]
    if config.model_type in OUTPUTS_IN_GROUPS:
        pairs = [(weights + others, sum(found.values()))]
    for mine, counted in pairs[:1] if has_state or not found["other_flops"] else pairs:
        if abs(mine - counted) > 1e-3 * counted:
            return "different", f"{mine:,.0f} and {counted:,} FLOPs"
    return "equal", ""


def main() -> int:
    """Count all outcomes, and print what is different."""
    seed, number = (*sys.argv[1:3], *("1", "4")[len(sys.argv[1:3]) :])
    return told(sys.argv[3:] or causal_families(), lambda name: outcomes(name, seed, int(number)))


if __name__ == "__main__":
    check_usage(str(__doc__))
    sys.exit(main())
