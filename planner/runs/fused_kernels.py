"""What the words of a run's fact `fused_kernels` say: of kernels, of what is kept and gathered."""

from typing import Any

LIGER_LOSS = {"fused_cross_entropy": True, "chunked_loss": True, "loss_chunk_bytes": 1e9}
LIGER = LIGER_LOSS | {"fused_norm": True, "fused_gated": True, "fused_rope": True}
NO_JIT: dict[str, Any] = {"fused_gated": False, "own_gelu": (23.0, 45.0), "drops_apart": True}
"""What Megatron-LM scripted for nvFuser runs one operator after the other where PyTorch has no
nvFuser: until January 2024 it turned TorchScript's other fuser off (NVIDIA/Megatron-LM@f7727433
megatron/initialize.py set_jit_fusion_options), and "nvFuser is deprecated in PyTorch JIT starting
from 2.2" (@473225f9 megatron/core/jit.py, which compiles instead). Of GELU and its bias seven
operators move 2 numbers and three 3 forward, twelve 2 and seven 3 backward
(megatron/model/fused_bias_gelu.py; counted, not measured).
"""
GELU_OPERATORS: dict[str, Any] = {"own_gelu": (38.0, 59.0)}
"""transformers' `gelu_new` under autocast (huggingface/transformers activations.py,
NewGELUActivation): powers are among what autocast computes in fp32, so that ten kernels read and
write 38 numbers of 16 bits forward, casts from and to them among them, and their backward 59
(counted, not measured).
"""
OWN: dict[str, Any] = {"copies_heads": True, "functions_alone": ("tp", "ep")}
LOCAL = OWN | {"norms_in_products": False, "biases": "apart"}
"""Megatron-LM's own layers instead of Transformer Engine's (--transformer-impl local):
@f7727433 megatron/model/transformer.py copies queries, keys, values and the output around
FlashAttention (rearrange, contiguous). Functions of autograd are applied around tensor parallelism
on a rank of its own too (@00caa53a megatron/core/tensor_parallel/mappings.py).
"""
KERNELS: dict[str, dict[str, Any]] = {
    "liger": LIGER,
    "liger_loss": LIGER_LOSS,
    "norm": {"fused_norm": True},
    "rope": {"fused_rope": True},
    "gated": {"fused_gated": True},
    "permutes": {"permutes_by_index": False, "sums_by_index": False, "weighs_apart": False},
    "gathers_biases": {"expert_biases": "gathered"},
    "no_norm": {"fused_norm": False},
    "no_gated": {"fused_gated": False},
    "gelu_operators": GELU_OPERATORS,
    "no_rope": {"fused_rope": False, "rope_kernels": 1, "rope_operators": (26, 20)},
    "no_jit": NO_JIT,
    "local": LOCAL,
    "head_copies": {"copies_heads": True},
    "autocast": {"wide_stream": True, "keeps_wide": True},
    "te_autocast": {"wide_stream": True},
    "joined_norms": {"joins_norms": True},
    "no_rotation": {"fused_rope": True, "copies_unrotated": False},
    "sums_biases": {"biases": "summed"},
    "no_reorder": {"reorders_documents": True},
    "no_routing": {"routing_kernels": 26},
    "no_choosing": {"routing_kernels": 22},
    "no_grouping": {"products_apart": True},
    "filled_masks": {"own_masks": "filled"},
    "multiplied_masks": {"own_masks": "multiplied"},
    "drops_apart": {"drops_apart": True},
    "dropout": {"dropout": True},
    "no_dropout": {"dropout": False},
    "blocking": {"launches_block": True},
    "no_padding": {"pads_vocabulary": False},
    "cast_adapters": {"adapter_casts": "inputs"},
    "wide_adapters": {"adapter_casts": "all"},
    "returned_keys": {"returned_keys": 2},
    "fused_step": {"updates_by_operator": False},
    "operator_step": {"updates_by_operator": True},
    "sums16": {"sums_in_16_bits": True},
}
"""What a word says of kernels. Of queries and of keys Megatron turns a rotation by
13 operators (NVIDIA/Megatron-LM@e4b72598 megatron/core/models/common/embeddings/rope_utils.py,
_apply_rotary_pos_emb_bshd of latent attention; 10 backward), of packed documents one after the
other until August 2026 (_apply_rotary_pos_emb_thd, @d30e1652; at once since @e4ba3a30). Choosing 6
of 64 experts takes it 22 forward and 11 backward, moving rows 13 and 10, counting them and telling
the host 12 (megatron/core/transformer/moe, moe_utils.py and token_dispatcher.py): 68, less the 16
of the copies that are counted in any case, is 26 each way; 22 where moving rows alone is fused
(fused choices take Transformer Engine 2.7: moe_router_fusion, megatron/core/transformer/
transformer_config.py).
Its legacy grouped GEMM issues one product for each local expert (moe_use_legacy_grouped_gemm;
fanshiqing/grouped_gemm).
"""

STATES: dict[str, dict[str, Any]] = {
    "whole_adapters": {"adapter_unit_s": 0.0},
    "whole_experts": {"keeps_experts_whole": True},
}
"""What a word says of what is kept and gathered."""
