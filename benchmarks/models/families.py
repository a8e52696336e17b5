"""Counts parameters and FLOPs of each family by transformers, on the meta device.

`python -m benchmarks.models.families [NAME ...]` needs torch and transformers 5.24. It writes the
configurations and the counts that the tests compare with (those named anew, the others as they
are), and prints the families that differ and those that are refused. FLOPs are those of one forward
pass of `TOKENS` tokens by torch's FLOP counter: of matrix products with weights, and of all others
(attention without a causal mask, recurrences). Each family is counted with its default
configuration, and with `VARIANTS` where the default cannot be built, or where it leaves a part of
the family out.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.pages import ROOT
from benchmarks.usage import check_usage
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.families import FAMILIES
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Layer, Model
from meshplan.costmodels.operations.embedding_head import embedding_operations, head_operations
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Matmul, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine

OUT = ROOT / "tests" / "costmodels" / "model" / "family_configs.json"
TOKENS = 64
WITH_WEIGHTS = ("aten.mm", "aten.addmm", "aten._grouped_mm")
OTHERS = ("aten.bmm", "aten.baddbmm")
NOT_SIZES = ("id2label", "label2id", "transformers_version", "architectures", "_name_or_path")
WITH_TOWERS = ("fuyu", "gemma3", "got_ocr2", "moss_transcribe_diarize", "phi4_multimodal")
"""Multimodal: the towers are counted by transformers and left out by us."""
WHOLE_FILES = ("llama4", "gemma3", "qwen2_vl", "qwen2_5_vl", "minimax_m3_vl", "step3p7")
"""Whose text parts are families of their own."""
GATES_IN_BLOCKS = ("recurrent_gemma",)
"""Products with weights that torch counts among the others."""
OUTPUTS_IN_GROUPS = (
    *("deepseek_v4", "deepseek_v4, varied", "inkling_text", "inkling_text, varied"),
)
"""The same (Inkling's shared experts), and all that torch counts is comparable."""

VARIANTS: dict[str, dict[str, Any]] = {
    "ministral": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128, "num_key_value_heads": 8},
    "hunyuan_v1_moe": {"head_dim": 128, "num_key_value_heads": 8, "num_experts": 8, "moe_topk": 2},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "deepseek_v2": {"num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64,
               "hidden_size": 4096},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "jamba": {"num_experts": 1, "num_experts_per_tok": 1},
    "bamba": {"attn_layer_indices": [3, 9]},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "phi": {"qk_layernorm": True, "num_key_value_heads": 8},
    "cohere": {"use_qk_norm": True},
    "gemma4_text": {
        "num_kv_shared_layers": 10, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
        "enable_moe_block": True, "num_experts": 16, "top_k_experts": 4,
        "moe_intermediate_size": 512,
    },
    "gemma3n_text": {
        "num_hidden_layers": 12, "num_kv_shared_layers": 2, "altup_num_inputs": 3,
        "laurel_rank": 40, "intermediate_size": [4096, 8192] * 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 4,
    },
    "qwen4_exp_text": {
        "num_hidden_layers": 8, "indexer_n_heads": 4, "indexer_kv_heads": 1,
        "indexer_head_dim": 256, "indexer_budget": 2048, "indexer_compress_ratio": 4,
        "hc_count": 3, "ple_layer_ids": [2, 5], "ple_embed_dim": 1536, "eos_token_id": 1,
        "ngram_vocab_size_base": 1000,
    },
    "stablelm": {"use_qkv_bias": True, "use_parallel_residual": True},
    "starcoder2": {"use_bias": False},
    "glm_moe_dsa": {"indexer_types": ["full"] * 3 + ["shared"] * 75},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "moe", "mamba", "mlp"],
                   "moe_latent_size": 1024},
    "mamba2": {"use_bias": True, "n_groups": 1},
    "falcon_h1": {"mamba_rms_norm": True, "mamba_d_ssm": 2048, "mamba_d_head": 16},
    "minimax_m3_vl_text": {
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
    },
    "hunyuan_vl_text": {
        "head_dim": 128, "num_key_value_heads": 8,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 16, 16, 16]},
    },
    "qwen3_omni_moe_text": {"head_dim": 128},
    "deepseek_ocr2_text": {
        "num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 31},
    "step3p5": {
        "sliding_window": 512, "num_sliding_attention_heads": 96,
        "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 11 + ["full_attention"],
    },
    "muse_spark_text": {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 60},
    "doge": {"num_key_value_heads": 2, "attention_bias": True},
    "longcat_flash": {"zero_expert_num": 0},
    "inkling_text": {
        "num_hidden_layers": 8, "local_layer_ids": [0, 2, 3, 6], "conv_kernel_size": 3, "d_rel": 8,
        "rel_extent": 256, "swa_num_attention_heads": 32, "swa_head_dim": 64,
        "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6, "n_shared_experts": 3,
    },
    "glm5_next_text": {
        "num_hidden_layers": 8, "index_kpool": 4, "hc_mult": 3, "linear_num_heads": 32,
        "layer_types": ["linear_attention", "indexed_attention"] * 4,
        "indexer_types": ["full"] * 4 + ["shared"] * 4,
    },
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 16},
        "layer_types": ["sliding_attention"] * 3 + [
            "compressed_sparse_attention", "heavily_compressed_attention"] * 20,
        "hc_mult": 2, "o_groups": 4, "num_nextn_predict_layers": 0,
    },
    "hy_v4": {"indexer_types": ["full", "shared"] * 17, "hc_mult": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 5e5}},
    "laguna": {"gating": False, "num_attention_heads_per_layer": [48] * 20 + [64] * 20},
}  # fmt: skip


def counted(model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a family and the parameters of the module that it builds."""
    torch, transformers = import_module("torch"), import_module("transformers")
    config = transformers.AutoConfig.for_model(model_type, **changes)
    with torch.device("meta"):
        module = built(config)
    parameters = sum(each.numel() for each in module.parameters()) + head_of(config)
    return {"config": fields_of(config), "parameters": parameters} | flops_of(config)


def is_text_part(config: Any) -> bool:
    """Whether the module of this configuration has no head of its own."""
    auto = import_module("transformers.models.auto.modeling_auto")
    return config.model_type not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def built(config: Any, **options: Any) -> Any:
    """The causal language model of a configuration, or the text part that it describes."""
    if not is_text_part(config):
        auto = import_module("transformers").AutoModelForCausalLM
        return auto.from_config(config, **options)
    name = type(config).__module__.replace("configuration_", "modeling_")
    known = [each for each in vars(import_module(name)).values()
             if getattr(each, "config_class", None) is type(config)]  # fmt: skip
    module = next(each for each in known if each.__name__.endswith("Model")
                  and not each.__name__.endswith("PreTrainedModel"))  # fmt: skip
    return module._from_config(config, **options)


def head_of(config: Any) -> int:
    """Parameters of the head that a text part leaves to the whole module."""
    tied = getattr(config, "tie_word_embeddings", False)
    return 0 if tied or not is_text_part(config) else config.vocab_size * config.hidden_size


def fields_of(config: Any) -> dict[str, Any]:
    """What a `config.json` of it says."""
    read = json.loads(config.to_json_string(use_diff=False))
    return {k: v for k, v in read.items() if v is not None and k not in NOT_SIZES}


def quiet() -> None:
    """No warnings of transformers' on the models that it builds."""
    warnings.simplefilter("ignore")
    import_module("transformers").logging.set_verbosity_error()


def flops_of(config: Any) -> dict[str, int]:
    """FLOPs of one forward pass, or nothing where the module does not run on the meta device."""
    torch = import_module("torch")
    counter = import_module("torch.utils.flop_counter").FlopCounterMode
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    with torch.device("meta"):
        module = built(config, attn_implementation="eager", dtype=torch.bfloat16)
        mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16)
        positions = torch.arange(TOKENS)[None]
    try:
        if any("experts" in name for name, _ in module.named_modules()):
            module.set_experts_implementation("grouped_mm")
        with (
            torch.no_grad(),
            counter(display=False, custom_mapping={torch.ops.aten._grouped_mm: grouped}) as found,
        ):
            module(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    except (RuntimeError, ValueError, AttributeError):  # data decides what it computes
        return {}
    of_head = 2 * TOKENS * config.vocab_size * config.hidden_size if is_text_part(config) else 0
    by_operation = {str(op): n for op, n in found.get_flop_counts()["Global"].items()}
    return {
        "weight_flops": sum(by_operation.get(name, 0) for name in WITH_WEIGHTS) + of_head,
        "other_flops": sum(by_operation.get(name, 0) for name in OTHERS),
    }


def our_flops(model: Model) -> tuple[float, float, bool]:
    """The same of our list of operations: of products with weights, of all others; and whether a
    state adds products of its own.
    """
    model = replace(model, mtp_layers=0)
    shard = Shard(
        seq_len=TOKENS, document_len=TOKENS, tokens=float(TOKENS), tokens_outside=float(TOKENS),
        tp=1.0, cp=1.0, ep=1.0, etp=1.0, sequence_parallel=0.0,
    )  # fmt: skip
    site = Site(model, shard, load_engine("generic").kernels)
    kinds = [model.kinds[kind] for kind in model.pattern]
    layers = [(kind, op) for kind in kinds for op in layer_operations(site, kind)]
    operations = [*embedding_operations(site), *(op for _, op in layers), *head_operations(site)]
    weights = sum(float(op.forward_flops) for op in operations if isinstance(op, Matmul))
    cores = sum(_projected(kind, op) for kind, op in layers if isinstance(op, AttentionCore))
    narrow = sum(float(op.forward_flops) for op in operations if isinstance(op, Pointwise))
    has_state = any(kind.recurrent and kind.recurrent.key_dim for kind in model.kinds)
    return weights, cores + narrow, has_state


def _projected(layer: Layer, core: AttentionCore) -> float:
    """FLOPs of a core as transformers runs it, which projects keys and values up where our kernels
    meet their latents (`Attention.is_absorbed`).
    """
    flops, attention = float(core.full_forward_flops), layer.attention
    if not attention.is_absorbed or core.name != "core_attention":
        return flops
    projected = attention.head_dim + attention.v_head_dim
    return flops * projected / (core.head_dim + core.v_head_dim)


def grouped(rows: Any, experts: Any, *_args: Any, **_kwargs: Any) -> int:
    """FLOPs of one product for each row with the matrix of its expert."""
    return int(2 * rows[0] * experts[-2] * experts[-1])


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each causal language model that transformers knows and each text part that is read, by
    default and as varied here."""
    auto = import_module("transformers.models.auto.modeling_auto")
    known = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    parts = {name for name in set(FAMILIES) & set(known) if name not in WHOLE_FILES}
    for model_type in sorted(parts | set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)):
        yield model_type, model_type, {}
    for model_type, changes in VARIANTS.items():
        yield f"{model_type}, varied", model_type, changes


def main() -> None:
    """Count, compare and write."""
    quiet()
    named, said = sys.argv[1:], []
    found: dict[str, Any] = json.loads(OUT.read_text()) if named else {}
    asked = [case for case in cases() if not named or case[0] in named]
    for name, model_type, changes in track(asked, "counting"):
        try:
            found[name] = counted(model_type, changes)
        except Exception as error:  # whatever a family's own code raises, it is shown
            said.append(f"{name}: transformers builds none ({type(error).__name__}: {error})"[:120])
            continue
        try:
            model = model_from_config(found[name]["config"], name)
        except UnsupportedModel as error:
            said.append(str(error)[:160])
            del found[name]
            continue
        ours, theirs = model_parameters(model).without_mtp, found[name]["parameters"]
        if ours != theirs:
            said.append(f"{name}: {ours:,} here, {theirs:,} there ({ours / theirs - 1:+.2%})")
    families = {entry["config"]["model_type"] for entry in found.values()} & set(FAMILIES)
    OUT.write_text(json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n")
    Console().print(*said, f"{len(found)} configurations of {len(families)} families", sep="\n")


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
