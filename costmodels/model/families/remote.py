"""Families whose code lies beside their weights, and which transformers 5.24 does not have.

Sources: RWKV-7, 2503.14456 section 4 and appendix (its formula of parameters), and
fla-org/flash-linear-attention@1408c4a5 fla/models/rwkv7; Hunyuan-Large, 2411.02265 table 1 (keys
and values of two layers, one after the other, are one: CLA), and Hunyuan-A13B,
Tencent-Hunyuan/Hunyuan-A13B models/hunyuan.py; Step-3, 2507.19427 table 1 (its queries are of low
rank), and configuration_step3.py as vllm-project/vllm quotes it; MiniMax-Text-01 and M1,
2501.08313: the layers that transformers calls `minimax`; Qwen (the first), QwenLM/Qwen
modeling_qwen.py (`intermediate_size` is that of the gate and of what it gates together);
openPangu-Embedded, modeling_openpangu_dense.py as wujing215/OpenPangu7B-on-NVIDIA@1d101f9f keeps it
(`bias` is of attention alone); TeleChat and TeleChat2, vllm-project/vllm telechat2.py (only what
comes after attention and the feed-forward has biases), TeleChat3, a Llama; the language models of
dots.ocr (a Qwen2), Keye-VL and LLaVA-OneVision-1.5 (Qwen3), modelscope/ms-swift
swift/model/models/{mllm,llava}.py; Phi-3-vision and Phi-4-multimodal, whose language models are
Phi-3-mini's, 2404.14219, and Phi-4-mini's, 2503.01743; two that denoise whole sequences,
Dream (a Qwen2), 2508.15487, and LLaDA, 2502.09992 and modeling_llada.py (its block of
type llama); Megatron-LM's experts without a gate, which no file of Hugging Face describes
(`executor.frameworks.megatron.plain_experts`).
"""

from dataclasses import replace

from meshplan.costmodels.model import layer_patterns as layers
from meshplan.costmodels.model import recurrent_kinds as recurrent
from meshplan.costmodels.model.families.dense import QWEN2, QWEN3
from meshplan.costmodels.model.families.experts import EXPERTS
from meshplan.costmodels.model.families.parts import LLAMA, MISTRAL, PLAIN
from meshplan.costmodels.model.families.recurrent import RECURRENT
from meshplan.costmodels.model.family import Family, Routed
from meshplan.costmodels.model.rules import family as family_rules
from meshplan.costmodels.model.rules import remote as rules

MINIMAX = replace(RECURRENT["minimax"], defaults=(("num_key_value_heads", 8),))
HUNYUAN = EXPERTS["hunyuan_v1_moe"]
assert HUNYUAN.experts is not None

REMOTE: dict[str, Family] = {
    "rwkv7": Family(
        recurrent=recurrent.delta_mix,
        mixers=layers.all_recurrent,
        listed_as=(),
        gated=False,
        norm="layernorm",
        embedding_norm=True,
        ffn_of=rules.rwkv7_width,
        adjust=rules.rwkv7,
    ),
    "hunyuan": replace(
        HUNYUAN,
        qk_normed=("use_qk_norm", False),
        experts=replace(HUNYUAN.experts, layers=rules.hunyuan_sparse),
        adjust=rules.hunyuan,
    ),
    "step3_text": replace(
        PLAIN,
        kv_heads=("num_attention_groups", "num_key_value_heads"),
        adjust=rules.step3_queries,
        experts=Routed(
            experts=("moe_num_experts",),
            top_k=("moe_top_k",),
            shared_width=("share_expert_dim",),
            layers=layers.step_sparse,
        ),
    ),
    "qwen": Family(qkv_bias=True, out_bias=False, ffn_of=rules.half_width, adjust=rules.qwen),
    **dict.fromkeys(("minimax_text_01", "minimax_m1", "MiniMaxText01", "MiniMaxM1"), MINIMAX),
    **dict.fromkeys(
        ("PanguEmbedded", "openpangu_dense"),
        Family(qkv_bias=("bias", True), out_bias=("bias", True)),
    ),
    "telechat": Family(
        qkv_bias=False,
        out_bias=True,
        ffn=("ffn_hidden_size",),
        numbers=rules.bias_of_output,
    ),
    "telechat3": LLAMA,
    **dict.fromkeys(("phi3_v", "phi4mm"), MISTRAL),
    **dict.fromkeys(("Dream", "dream"), replace(QWEN2, adjust=rules.sees_later_tokens)),
    "llada": Family(
        kv_heads=("n_kv_heads",),
        qkv_bias=("include_qkv_bias", False),
        out_bias=False,
        ffn=("mlp_hidden_size",),
        vocab=("embedding_size", "vocab_size"),
        adjust=rules.llada,
    ),
    "dots_ocr": replace(QWEN2, qkv_bias=("attention_bias", True)),
    **dict.fromkeys(("Keye", "KeyeVL1_5", "LLaVAOneVision1_5_text"), QWEN3),
    "megatron_plain_experts": Family(
        gated=False,
        norm="layernorm",
        qkv_bias=("attention_bias", False),
        out_bias=False,
        qk_norm="head",
        qk_normed=("use_qk_norm", False),
        experts=Routed(shared_width=("shared_expert_intermediate_size",)),
        adjust=family_rules.positions_if_stated,
    ),
}
