"""Fields of a configuration that its family does not read: refused where they change the cost.

`CHANGES_COST` is what some family reads; a test holds it against what the families ask for. A field
of it that this family leaves unread is a feature the price would not have, unless it says again
what other fields have said already (`SAID_ELSEWHERE`). `CHANGES_NOTHING` is a closed list of what
no price depends on. A field in neither is refused where its name speaks of a layer's parts, and
named in a warning otherwise; one that is false, 0 or empty turns nothing on.
"""

import re
from collections.abc import Iterator

from meshplan.costmodels.model.config_fields import Fields, names, shown

CHANGES_COST = names("""
    attention_bias attention_chunk_size attention_head_dim attention_hidden_size attention_k_eq_v
    attention_layers attention_out_bias attention_window_size attn_config attn_layer_indices
    attn_layer_offset attn_layer_period attn_type_list bias block_auto_adjust_ff_dim block_ff_dim
    block_ffn_dim_multiplier block_multiple_of block_types compress_rate_csa compress_rate_hca
    compress_rates compress_ratios conv1d_width conv_L_cache conv_bias
    decoder_sparse_step dense_intermediate_size dff do_layer_norm_before enable_bias
    enable_moe_block expansion_ratio expert_ffn_hidden_size expert_layer_offset expert_layer_period
    ffn_config ffn_dim ffn_hidden_size
    ffn_proj_factor first_k_dense_replace full_attention_interval full_attn_idxs gating
    global_attn_every_n_layers global_head_dim hc_mult head_dim hidden_size_per_layer_input
    hybrid_override_pattern index_block_size index_head_dim index_n_heads index_topk
    index_topk_blocks indexer_types
    interleave_moe_layer_step intermediate_size intermediate_size_mlp is_moe is_moe_layer
    kv_channels
    kv_lora_rank kv_source_layers layer_group_size layer_types layers_block_type linear_attn_config
    linear_conv_kernel_dim linear_head_dim linear_key_head_dim linear_num_heads linear_num_key_heads
    linear_num_value_heads linear_value_head_dim lm_head_bias lru_width mamba_conv_bias mamba_d_conv
    mamba_d_head mamba_d_ssm mamba_d_state mamba_dt_rank mamba_expand mamba_head_dim mamba_headdim
    mamba_mamba_num_heads mamba_n_groups mamba_n_heads mamba_ngroups mamba_num_heads mamba_proj_bias
    mamba_rms_norm max_window_layers mlp_bias mlp_layer_types mlp_only_layers moe_intermediate_size
    moe_k moe_latent_size moe_layer_end_index moe_layer_freq moe_layer_interval
    moe_layer_start_index moe_layers moe_num_experts moe_num_shared_experts
    moe_shared_expert_intermediate_size moe_topk mtp_num_hidden_layers multi_query n_groups n_inner
    n_mamba_heads
    n_routed_experts n_shared_experts new_decoder_architecture no_rope_layers
    num_attention_heads_per_layer num_dense_layers num_experts num_experts_per_tok
    num_experts_per_token num_global_key_value_heads num_key_value_heads num_kv_heads
    num_kv_shared_layers num_ln_in_parallel_attn num_local_experts num_mtp_layers
    num_nextn_predict_layers num_shared_experts o_groups o_lora_rank parallel_attn
    per_layer_config q_lora_rank
    qk_dim_factor qk_head_dim qk_layernorm qk_nope_head_dim qk_rope_head_dim qkv_bias
    shared_expert_intermediate_size shared_experts_intermediate_size shared_intermediate_size
    short_conv_kernel_size sliding_window sliding_window_pattern sliding_window_size
    sparse_attention_config ssm_state_size
    state_size swa_head_dim swa_num_attention_heads swa_num_key_value_heads swa_v_head_dim
    top_k_experts use_attention_gate use_bias use_bidirectional_attention use_cla use_conv_bias
    use_double_wide_mlp use_parallel_residual use_post_norm use_qk_norm use_qkv_bias
    use_sandwich_norm use_sliding_window v_dim_factor v_head_dim vocab_size_per_layer_input
    window_size word_embed_proj_dim zero_expert_num _remove_final_layer_norm
    layer_norm_elementwise_affine projectors_bias additional_vocab_size moe_hidden_size norm_after
    num_sliding_attention_heads share_expert_dim qk_norm_type activation_sparsity_pattern
    altup_active_idx altup_correct_scale altup_num_inputs laurel_rank hc_count hc_lowrank
    heads_per_ngram indexer_budget indexer_compress_ratio indexer_head_dim indexer_kv_heads
    indexer_n_heads make_ngram_vocab_size_divisible_by ngram_size ngram_vocab_size_base
    ple_conv_kernel_size ple_embed_dim ple_layer_ids gated_norm_rank index_kpool
    attn_res_block_size latent_moe_use_norm mla_use_output_gate routed_expert_hidden_size
    use_full_rank_gate conv_kernel_size sconv_kernel_size d_rel rel_extent local_layer_ids
    dense_mlp_idx
""")

SAID_ELSEWHERE = names("""
    attn_layer_indices attn_layer_offset attn_layer_period attn_type_list block_types conv_L_cache
    decoder_sparse_step dense_intermediate_size expert_layer_offset expert_layer_period
    first_k_dense_replace full_attention_interval full_attn_idxs global_attn_every_n_layers head_dim
    index_head_dim index_n_heads interleave_moe_layer_step intermediate_size intermediate_size_mlp
    dense_mlp_idx layer_group_size linear_attn_config local_layer_ids mamba_expand
    max_window_layers mlp_only_layers
    moe_intermediate_size moe_layer_end_index moe_layer_freq moe_layer_interval
    moe_layer_start_index moe_layers no_rope_layers num_dense_layers
    num_experts_per_tok num_key_value_heads sliding_window sliding_window_pattern use_sliding_window
""")
"""Of layers that the list of layers does not have, or what that list already says."""

ALWAYS_READ = ("num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size")

COHERE2 = names("""
    use_gated_activation use_parallel_block use_parallel_embedding use_embedding_sharing
    layer_switch order_of_interleaved_layers prefix_dense_sliding_window_pattern
""")
MINIMAX_SCALES = names("""
    layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha
    layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta shared_moe_mode
""")
"""Factors of what a residual adds, and how a shared expert of 0 columns would be weighed."""

MINIMAX_M3 = ("minimax_m3_vl_text", "minimax_m3_vl", "minimax_m3")
IN_THE_CODE: dict[str, frozenset[str]] = {
    "llama4_text": names("use_qk_norm attn_scale floor_scale attn_temperature_tuning"),
    "chatglm": names(
        "apply_query_key_layer_scaling bias_dropout_fusion original_rope prefix_projection "
        "quantization_bit rope_ratio seq_length"
    ),
    "bamba": names("attn_rotary_emb mamba_dt_rank"),
    "doge": names("num_experts keep_window_size"),  # of a feature that `is_moe` turns on
    "gemma3_text": names("_sliding_window_pattern"),
    "gemma3n_text": names("altup_coef_clip"),
    "bailing_hybrid": names("moe_router_enable_expert_bias num_expert_group"),
    "bailing_moe_linear": names("group_norm_size linear_backend linear_rope linear_silu"),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        names("attn_output_gate output_gate_type mtp_use_dedicated_embeddings"),
    ),
    "qwen4_exp_text": names(
        "attn_output_gate output_gate_type mtp_use_dedicated_embeddings number_of_conv_states seed "
        "split_ngram_parts"
    ),
    "telechat": names("base_seqlen logn seq_length training_seqlen"),
    "xlstm": names("add_out_norm weight_mode"),
    "falcon": names("alibi"),
    "bloom": names("apply_residual_connection_post_layernorm"),
    "gpt_neo": names("attention_types"),
    "lfm2": names("block_dim conv_dim conv_dim_out block_use_swiglu use_pos_enc"),
    "lfm2_moe": names("use_expert_bias"),
    "mamba2": names("expand time_step_rank rms_norm norm_before_gate"),
    "nemotron_h": names(
        "expand mtp_layers_block_type mtp_hybrid_override_pattern num_query_groups"
    ),
    "falcon_h1": names("mamba_use_mlp mamba_norm_before_gate mlp_expansion_factor"),
    "cohere2": COHERE2,
    "cohere2_moe": COHERE2 | names("shared_expert_combination_strategy"),
    "minimax_m2": names("use_routing_bias mlp_intermediate_size") | MINIMAX_SCALES,
    **dict.fromkeys(
        ("minimax", "minimax_text_01", "minimax_m1", "MiniMaxText01", "MiniMaxM1"),
        MINIMAX_SCALES | names("block_size postnorm"),
    ),
    "rwkv7": names("attn_mode fuse_norm fuse_cross_entropy"),
    **dict.fromkeys(("step3_text", "step3_vl"), names("norm_expert_weight max_position_embedding")),
    "qwen": names("seq_length use_logn_attn use_cache_kernel use_cache_quantization"),
    "hunyuan": names(
        "cla_share_factor org_vocab_size dense_list anyres_pooling_size num_media_embeds class_num "
        "vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_token"
    ),
    # of inference and of positions: transformers drops no token
    "ernie4_5_moe": names("moe_capacity compression_ratio"),
    "ernie4_5_vl_moe_text": names(  # and of images, in files of its own code
        "moe_capacity compression_ratio moe_multimodal_dispatch_use_allgather pixel_hidden_size "
        "rope_3d freq_allocation spatial_conv_size temporal_conv_size moe_group"
    ),
    "ernie4_5": names("compression_ratio"),
    "hunyuan_v1_moe": names("cla_share_factor org_vocab_size dense_list"),  # of `use_cla`
    **dict.fromkeys(
        MINIMAX_M3,
        names("index_local_blocks num_nextn_predict_layers use_gemma_norm use_routing_bias"),
    ),
    "deepseek_v4": names(
        "compress_rates compress_rope_theta expert_dtype hc_sinkhorn_iters num_hash_layers "
        "qk_rope_head_dim"
    ),
    **dict.fromkeys(("hy_v4", "hy_v4_vl_text"), names("hc_magnitude learnable_sink_init")),
    "longcat_flash": names("attention_method zero_expert_type mla_scale_q_lora mla_scale_kv_lora"),
    **dict.fromkeys(
        ("step3p5", "step3p7"),
        names(
            "use_moe_router_bias moe_router_activation need_fp32_gate swiglu_limits "
            "moe_router_scaling_factor swiglu_limits_shared partial_rotary_factors use_rope_layers "
            "yarn_only_types norm_expert_weight zero_centered"
        ),
    ),
    "molmo2_text": names("rope_scaling_layers"),
    "llada": names(
        "alibi_bias_max attention_layer_norm_with_affine flash_attention init_cutoff_factor "
        "init_fn mlp_ratio precision rope_full_precision scale_logits"
    ),
    "phi3_v": names("embd_layer img_processor"),
    "phi4mm": names("audio_processor embd_layer img_processor speech_lora vision_lora"),
    **dict.fromkeys(
        ("inkling_text", "inkling_mm_model", "inkling_model"),
        names(
            "log_scaling_alpha log_scaling_n_floor logits_mup_width_multiplier unpadded_vocab_size "
            "padded_vocab_size number_of_conv_states mtp_hidden_states_first"
        ),
    ),
    **dict.fromkeys(
        (
            *("glm4v_text", "qwen2", "qwen2_vl", "qwen2_vl_text"),
            *("qwen2_5_vl", "qwen2_5_vl_text"),
        ),
        names("attention_bias"),
    ),
    "afmoe": names("route_norm"),
    "mimo": names("use_mrope"),
    "glm_moe_dsa": names("index_share_for_mtp_iteration"),
    "glm5_next_text": names(
        "hc_sinkhorn_iters index_kpool_always_select_tail index_share_for_mtp_iteration "
        "linear_lower_bound mla_use_nope"
    ),
    **dict.fromkeys(
        ("mimo_v2_flash", "mimo_v2"), names("attention_chunk_size attention_projection_layout")
    ),
    "exaone_moe": names("first_last_k_dense_replace"),
    "kimi_linear": names(
        "mla_use_nope num_expert_group activation_situ_beta activation_situ_linear_beta"
    ),
    "rwkv": names("rescale_every"),
    "mpt": names("norm_type"),
    "granitemoehybrid": names("normalization_function"),
    "mamba": names("fused_add_norm pad_vocab_size_multiple"),
    "hunyuan_v1_dense": names("cla_share_factor org_vocab_size dense_list"),  # of `use_cla`
    "hy_v3": names("moe_router_use_sigmoid moe_router_enable_expert_bias"),
}
"""Fields that a family's modules leave alone or that repeat others, for that family only."""

INKLING: dict[str, object] = {
    "use_sconv": True, "use_embed_norm": True, "shared_expert_sink": True, "use_gate_bias": True,
    "norm_after_topk": True, "use_global_scale": True, "gate_activation": "sigmoid",
}  # fmt: skip
HUNYUAN: dict[str, object] = {"norm_type": "rms", "use_mixed_mlp_moe": True, "num_shared_expert": 1}
SAID_BY_THE_CODE: dict[str, dict[str, object]] = {
    **{name: INKLING for name in ("inkling_text", "inkling_mm_model", "inkling_model")},
    "glm5_next_text": {"mhc": True, "index_kpool_compress": True},
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm"},
    **{name: {"full_attn_mod": 1, "interpolate_factor": 1} for name in ("phi3", "phi4mm")},
    **{name: {"qk_norm": True} for name in ("apertus", "apertus1p5_text")},
    **{name: {"reorder_and_qk_norm": True} for name in ("exaone4", "exaone4_5_text")},
    "ernie4_5_moe": {"moe_use_aux_free": True, "moe_gate": "topk"},
    "ernie4_5_vl_moe_text": {"moe_use_aux_free": True, "moe_gate": "topk", "use_rmsnorm": True},
    "llada": {
        "activation_type": "silu",
        "alibi": False,
        "block_group_size": 1,
        "block_type": "llama",
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "rope": True,
    },
    "hunyuan_v1_moe": HUNYUAN,
    "hunyuan": HUNYUAN,
    "qwen": {"no_bias": True},
    "rwkv7": {"norm_first": True, "norm_bias": True},
    "hunyuan_v1_dense": {"norm_type": "rms"},
    "recurrent_gemma": {"embeddings_scale_by_sqrt_dim": True},
    "mamba": {"rms_norm": True},
    "hy_v3": {"qk_norm": True},
    **{name: {"n_shared_experts": 1} for name in (*MINIMAX_M3, "nemotron_h", "step3p5", "step3p7")},
    "afmoe": {"num_expert_groups": 1, "num_limited_groups": 1},
    "bailing_hybrid": {"gated_attention_proj_granularity_type": "head_wise"},
    **{
        name: {"use_rmsnorm": True}
        for name in ("bailing_moe", "bailing_moe_linear", "bailing_moe_v2")
    },
}
"""Fields of published files that only repeat what a family's modules always have, with the one
value that says so, or a list of it; any other is refused."""

CHANGES_NOTHING = names("""
    activation afn alpha_factor architectures attention_multiplier attention_softmax_in_fp32
    attention_value_scale auto_map autocast_kernel_dtype base_model_prefix chunk_size_feed_forward
    chunkwise_kernel context_length cross_attention_hidden_size custom_pipelines dim_model_base
    dtype embedding_fraction embedding_multiplier enable_moe_fp32_combine ep_size eps
    expert_selection_fn finetuning_task full_attn_alpha_factor full_attn_beta_factor gate_soft_cap
    hidden_act hidden_activation inference_state_dtype init_device init_method is_causal is_decoder
    kda_lower_bound kda_safe_gate layer_rope_theta linear_allow_neg_eigval linear_attn_alpha_factor
    linear_attn_beta_factor lm_head_multiplier logit_scale logits_scaling logits_soft_cap
    mamba_hidden_act mamba_ssm_cache_dtype max_inference_chunksize max_length
    max_position_embeddings max_seq_len max_sequence_length mixer_rms_eps mlp_alpha_factor
    mlp_beta_factor mode model_max_length
    model_type moe_apply_router_weight_on_input moe_norm_min moe_renormalize
    moe_routed_scaling_factor moe_router_activation_func moe_router_logit_softcapping
    moe_shared_expert_overlap mup_enabled n_ctx n_group n_positions norm_reduction_force_float32
    norm_topk_prob num_image_tokens num_labels num_logits_to_keep original_max_position_embeddings
    output_attentions output_hidden_states output_logit_soft_cap output_router_logits
    partial_rotary_factor position_embedding_type prefix pretraining_tp problem_type pruned_heads
    quantization_config query_pre_attn_scalar reorder_and_upcast_attn rescale_prenorm_residual
    residual_in_fp32 residual_multiplier return_dict return_dict_in_generate return_last_states
    rope_interleave rope_local_base_freq rope_parameters rope_scaling rope_theta rope_type
    rotary_dim rotary_emb_base rotary_pct route_scale routed_scaling_factor router_scaling_factor
    scale_attention_softmax_in_fp32 scale_attn_by_inverse_layer_idx scale_attn_weights scale_depth
    scale_emb scale_embedding scoring_func seq_aux sequence_kernel slow_but_exact ssm_multipliers
    step_kernel swiglu_alpha swiglu_limit task_specific_params text_config tie_encoder_decoder
    tie_word_embeddings tokenizer_class topk_group topk_method torch_dtype torchscript
    transformers_version use_associative_scan use_bfloat16 use_cache use_flash_attn
    use_flash_attention use_grouped_topk use_mamba_kernels use_mambapy vision_config audio_config
    attn_implementation mlp_multipliers unsloth_fixed unsloth_version
    indexer_rope_interleave initial_context_length
    qk_scale_factor output_multiplier residual_gate_temperature rope_global_base_freq
    rope_scaling_factor moe_router_score_func for_llm_compressor
    begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values
    repetition_penalty suppress_tokens temperature top_k top_p typical_p
    score_func score_function use_grouped_mm predict_special_tokens pool_type use_rotary_pos_emb
""")
"""Ids, numerics and what only inference has, of the families that are read; transformers 4 wrote
settings of generation into nested configurations (5.24 generation/configuration_utils.py)."""

ONE_EXPERT = names("num_experts num_local_experts n_routed_experts")
"""In files of families without experts (Hunyuan's): 1 says that a layer has one feed-forward."""

OF_NOTHING = re.compile(
    r"^_|^summary_|^time_step_|(^|_)(token|dropout|pdrop|jitter|loss|label|id2label|label2id|eps|"
    r"epsilon|std|init|initializer|inits?|layerdrop|aux)(_|$)|(_token_id|_token_ids|_token_index|"
    r"_multiplier|_noise|_epsilon|_coef|_coefficient|_dtype)$|^linear_(a_log|dt)_|"
    r"^(pad|im|text|mask)_(\w+_)?id$"
)
SPEAKS_OF_PARTS = re.compile(
    r"(^|_)(n|num|layers?|heads?|dims?|size|width|hidden|experts?|moe|mo[a-e]|ffn|mlp|rank|latent|"
    r"kernel|conv\w*|states?|blocks?|depth|shared?|sharing|cross|tower|nextn|mtp|lora|adapters?|"
    r"window|sliding|sparse|attn|attention|gated?|gates|gating|router|routed|residual|memory|"
    r"ssm|mamba|mixer|recurrent|recurrence|loops?|qkv?|kv|bias|norm|embeds?|embeddings?|index\w*|"
    r"ngram|engram|hyper|streams?|topk|pattern|interval|every|linear|delta|chunk\w*|mla|global|"
    r"local|bidirectional|causal|compress\w*|connections?|ratio|factor|expand|expansion)(_|$)"
)


OF_NO_TOWER = names("""
    attention_dropout dropout hidden_dropout_prob initializer_factor layer_norm_eps layerdrop
    norm_eps pos_emb_time projection_dropout rms_norm_eps spatial_patch_size tokens_per_second
    vision_feature_select_strategy vocab_size projection_dim multi_modal_projector_bias
    norm_type image_size num_channels use_mean_pooling vision_feature_layer default_output_length
    image_seq_length init_pos_emb_time pos_emb_type projector_hidden_act projector_ln_eps
    standardize video_attn_type video_seq_length activation_dropout encoder_layerdrop
    scale_embedding activation_function
""")
"""Fields of a `vision_config` or `audio_config` that change no size of what is read of it, or that
say again what the reader knows (a projector without biases, channels where there is no stem)."""


def refuse_unread_of_tower(vision: Fields, section: str = "vision_config") -> None:
    """Raise `UnsupportedModel` for a field of a tower that turns something on and is not read."""
    known = vision.asked | CHANGES_NOTHING | OF_NO_TOWER | set(ALWAYS_READ)
    for key, value in sorted(vision.config.items()):
        if value and key not in known and not OF_NOTHING.search(key[:80]):
            raise vision.refuse(f"the field {shown(key)} of {section} is not read")


def refuse_unread(f: Fields, model_type: str) -> None:
    """Raise `UnsupportedModel` for a field that would change the cost and that nothing has read."""
    always = SAID_BY_THE_CODE.get(model_type, {})
    for key in sorted(_unread(f, model_type)):
        if key in always or key in CHANGES_COST or SPEAKS_OF_PARTS.search(key[:80]):
            raise f.refuse(
                f"the field {shown(key)} is not read for model_type {model_type!r} and may change "
                "the cost; set it to null if it changes nothing here"
            )


def unknown_fields(f: Fields, model_type: str) -> Iterator[str]:
    """Fields in no list whose names do not speak of a layer's parts, as a warning shows them."""
    return map(shown, _unread(f, model_type))


def _unread(f: Fields, model_type: str) -> Iterator[str]:
    """The fields that turn something on, or off what the family always has, that nothing has read
    and that no list explains.
    """
    known = f.asked | SAID_ELSEWHERE | CHANGES_NOTHING | set(ALWAYS_READ)
    known |= IN_THE_CODE.get(model_type, frozenset())
    said = SAID_BY_THE_CODE.get(model_type, {})
    for key, value in f.config.items():
        if key in said and value in (said[key], [said[key]] * _entries(value)):
            continue
        if key in ONE_EXPERT and type(value) is int and value == 1:
            continue
        on = value or (value is False and key in said)
        if on and key not in known and (key in CHANGES_COST or not OF_NOTHING.search(key[:80])):
            yield key


def _entries(value: object) -> int:
    return len(value) if isinstance(value, list) else 0
