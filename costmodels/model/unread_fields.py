"""Fields of a configuration that its family does not read: refused where they change the cost.

`CHANGES_COST` is what some family reads; a test holds it against what the families ask for. A field
of it that this family leaves unread is a feature the price would not have, unless it says again
what other fields have said already (`SAID_ELSEWHERE`). A field that no family knows and whose name
speaks of sizes is named in a warning.
"""

import re
from collections.abc import Iterator

from meshplan.costmodels.model.config_fields import Fields


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CHANGES_COST = _names("""
    attention_bias attention_chunk_size attention_head_dim attention_hidden_size attention_k_eq_v
    attention_layers attention_out_bias attention_window_size attn_config attn_layer_indices
    attn_layer_offset attn_layer_period attn_type_list bias block_auto_adjust_ff_dim block_ff_dim
    block_ffn_dim_multiplier block_multiple_of block_types conv1d_width conv_L_cache conv_bias
    decoder_sparse_step dense_intermediate_size dff do_layer_norm_before enable_bias
    enable_moe_block expansion_ratio expert_layer_offset expert_layer_period ffn_dim ffn_hidden_size
    ffn_proj_factor first_k_dense_replace full_attention_interval full_attn_idxs gating
    global_attn_every_n_layers global_head_dim head_dim hidden_size_per_layer_input
    hybrid_override_pattern index_head_dim index_n_heads index_topk indexer_types
    interleave_moe_layer_step intermediate_size intermediate_size_mlp is_moe kv_channels
    kv_lora_rank layer_group_size layer_types layers_block_type linear_attn_config
    linear_conv_kernel_dim linear_head_dim linear_key_head_dim linear_num_heads linear_num_key_heads
    linear_num_value_heads linear_value_head_dim lm_head_bias lru_width mamba_conv_bias mamba_d_conv
    mamba_d_head mamba_d_ssm mamba_d_state mamba_dt_rank mamba_expand mamba_head_dim mamba_headdim
    mamba_mamba_num_heads mamba_n_groups mamba_n_heads mamba_ngroups mamba_num_heads mamba_proj_bias
    mamba_rms_norm max_window_layers mlp_bias mlp_layer_types mlp_only_layers moe_intermediate_size
    moe_k moe_latent_size moe_layer_end_index moe_layer_freq moe_layer_interval
    moe_layer_start_index moe_layers moe_num_experts moe_num_shared_experts
    moe_shared_expert_intermediate_size moe_topk multi_query n_groups n_inner n_mamba_heads
    n_routed_experts n_shared_experts new_decoder_architecture no_rope_layers
    num_attention_heads_per_layer num_dense_layers num_experts num_experts_per_tok
    num_experts_per_token num_global_key_value_heads num_key_value_heads num_kv_heads
    num_kv_shared_layers num_ln_in_parallel_attn num_local_experts num_mtp_layers
    num_nextn_predict_layers num_shared_experts parallel_attn per_layer_config q_lora_rank
    qk_dim_factor qk_layernorm qk_nope_head_dim qk_rope_head_dim qkv_bias
    shared_expert_intermediate_size shared_experts_intermediate_size shared_intermediate_size
    short_conv_kernel_size sliding_window sliding_window_pattern sliding_window_size ssm_state_size
    state_size swa_head_dim swa_num_attention_heads swa_num_key_value_heads swa_v_head_dim
    use_attention_gate use_bias use_bidirectional_attention use_conv_bias use_double_wide_mlp
    use_parallel_residual use_post_norm use_qk_norm use_qkv_bias use_sandwich_norm
    use_sliding_window v_dim_factor v_head_dim vocab_size_per_layer_input window_size
    word_embed_proj_dim zero_expert_num
""")

SAID_ELSEWHERE = _names("""
    attn_layer_indices attn_layer_offset attn_layer_period attn_type_list block_types conv_L_cache
    decoder_sparse_step dense_intermediate_size expert_layer_offset expert_layer_period
    first_k_dense_replace full_attention_interval full_attn_idxs global_attn_every_n_layers head_dim
    index_head_dim index_n_heads interleave_moe_layer_step intermediate_size intermediate_size_mlp
    layer_group_size linear_attn_config mamba_expand max_window_layers mlp_only_layers
    moe_intermediate_size moe_layer_end_index moe_layer_freq moe_layer_interval
    moe_layer_start_index moe_layers n_shared_experts no_rope_layers num_dense_layers
    num_experts_per_tok num_key_value_heads sliding_window sliding_window_pattern use_sliding_window
""")
"""Of layers that the list of layers does not have, or what that list already says."""

ALWAYS_READ = ("num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size")

IN_THE_CODE = {
    "llama4_text": ("use_qk_norm",),  # without weights, beside the rotation
    "doge": ("num_experts",),  # of a feature that `is_moe` turns on
    "gemma4_unified_text": ("use_bidirectional_attention",),  # between the tokens of an image
}

SPEAKS_OF_SIZES = re.compile(
    r"(^|_)(num|n|layers?|heads?|dims?|size|hidden|experts?|moe|ffn|mlp|rank|width|kernel|conv|state|"
    r"blocks?|depth|shared?|cross|tower|nextn|mtp|lora|window|sparse)(_|$)"
)
SIZE_OF_NOTHING = re.compile(
    r"(^_|token|label|dropout|pdrop|init|std|eps|rope|theta|scal|factor|coef|multiplier|alpha|beta|"
    r"loss|jitter|act|kernel|cache|chunk|dtype|precision|quant|parallel|image|video|audio|vision|"
    r"max_|time_step|logit|norm|group|capacity|summary|use_|output_|return_|num_labels|base|ep_size|"
    r"version|map|class|rotary|qk_head_dim|n_ctx|block_dim|conv_dim|layer_switch|index_|"
    r"keep_window|seq|prefix|problem|train|file|_id$|_fn$|_type$|method|temperature|mode)"
)


def refuse_unread(f: Fields, model_type: str) -> None:
    """Raise `UnsupportedModel` for a field that would change the cost and that nothing has read."""
    known = CHANGES_COST - SAID_ELSEWHERE - f.asked - set(IN_THE_CODE.get(model_type, ()))
    for key in sorted(known & set(f.config)):
        if f.config[key]:
            raise f.refuse(
                f"the field {key!r} is not read for model_type {model_type!r} and may change the "
                "cost; set it to null if it changes nothing here"
            )


def unknown_sizes(f: Fields) -> Iterator[str]:
    """Fields that no family knows and whose names speak of sizes."""
    for key, value in f.config.items():
        plain = (isinstance(value, int | float) and value not in (0, 1)) or isinstance(value, list)
        known = key in f.asked or key in CHANGES_COST or key in ALWAYS_READ
        speaks = SPEAKS_OF_SIZES.search(key[:80]) and not SIZE_OF_NOTHING.search(key[:80])
        if plain and not known and speaks and value:
            yield key
