"""Every field of NeMo AutoModel's YAML is understood or named (NVIDIA-NeMo/Automodel@36044ad)."""

from typing import Any

import pytest
import yaml
from trainer_texts import AUTOMODEL_DENSE
from unread import unread_of

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import (
    IllegalConfig,
    Reading,
    UnreadableConfig,
)

FIELDS = {
    "distributed": """activation_checkpointing activation_checkpointing_scope autocast_dtype
    defer_fsdp_grad_sync enable_async_tensor_parallel enable_compile enable_fsdp2_prefetch
    fsdp2_backward_prefetch_depth fsdp2_forward_prefetch_depth multimodal.frozen_sharding
    offload_policy.pin_memory patch_is_packed_sequence reshard_after_forward sequence_parallel
    tp_plan.a cp_size dp_replicate_size dp_size ep_size pp_size tp_size""",
    "distributed.moe": """ignore_router_for_ac lm_head_precision mp_policy.param_dtype
    reshard_after_forward wrap_outer_model""",
    "distributed.mp_policy": "cast_forward_inputs output_dtype param_dtype reduce_dtype",
    "distributed.pipeline": """dtype layers_per_stage module_fqns_per_model_part
    patch_causal_lm_model patch_inner_model patch_stage_backward_maybe_with_nosync
    pp_batch_size pp_microbatch_size pp_schedule pp_schedule_csv pp_seq_len
    round_virtual_stages_to_pp_multiple scale_grads_in_schedule""",
    "model.backend": """attn compile_attn cuda_graph.modules dispatcher dispatcher_async_dispatch
    dispatcher_num_sms dispatcher_share_token_dispatcher enable_deepep enable_fsdp_optimizations
    enable_hf_state_dict_adapter experts fake_balanced_gate fake_gate_noise gate_precision linear
    mok.minibatch_size rms_norm rope rope_fusion te_fp8.recipe""",
    "peft": """alpha dim dropout dropout_position exclude_modules lora_A_init lora_dtype
    match_all_linear moe_rank_scaling target_modules use_dora use_memory_efficient_lora
    use_triton""",
}
"""Fields of FSDP2Config, MoEParallelizerConfig, MixedPrecisionPolicy, PipelineConfig, BackendConfig
and PeftConfig at NVIDIA-NeMo/Automodel@36044ad."""
VALUES = {"reshard_after_forward": "true", "pp_schedule": "1f1b", "layers_per_stage": "16",
          "round_virtual_stages_to_pp_multiple": "up",
          "dtype": "bf16", "dropout": "0.1",
          "activation_checkpointing": "true", "sequence_parallel": "true", "moe_rank_scaling":
          "true", "use_dora": "true", "defer_fsdp_grad_sync": "true", "match_all_linear": "true",
          "enable_compile": "true", "enable_fsdp_optimizations": "true"}  # fmt: skip
SWITCHES = ("enable_", "patch_", "fake_balanced", "cast_")


def stated(section: str, name: str, value: str) -> Reading:
    """A recipe of two pipeline ranks with one more field, by its dotted name."""
    two = "pp_size: 2, pipeline: {pp_schedule: 1f1b}}"
    base = AUTOMODEL_DENSE.replace("cp_size: 1}", two).replace(
        "local_batch_size: 1}", "local_batch_size: 8}"
    )
    lines = [f"{'  ' * at}{key}:" for at, key in enumerate(f"{section}.{name}".split("."))]
    document = "\n".join(lines) + f" {value}\n"
    merged = _merged(yaml.safe_load(base), yaml.safe_load(document))
    if section == "peft":
        merged["peft"]["_target_"] = "nemo_automodel.components._peft.lora.PeftConfig"
    return read_config(yaml.safe_dump(merged), "a.yaml")


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys()
            if isinstance(one[key], dict) and isinstance(other[key], dict)}  # fmt: skip
    return one | other | both


@pytest.mark.parametrize("section", FIELDS)
def test_every_field_of_its_dataclasses_is_known(section: str) -> None:
    """Each is read, or in a list with a reason: none is a name that the reader never heard of."""
    for name in FIELDS[section].split():
        last = name.rpartition(".")[2]
        value = VALUES.get(last) or ("true" if last.startswith(SWITCHES) else "2")
        reading = stated(section, name, value)
        assert "not known" not in unread_of(reading), name


SECTIONS = (
    *("distributed", "distributed.pipeline", "distributed.moe", "distributed.mp_policy", "model"),
    *("model.backend", "model.config", "model.text_config", "peft", "fp8", "quantization"),
    *("optimizer", "loss_fn", "step_scheduler", "of_a_later_release"),
)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_field_of_a_later_release_is_named(section: str) -> None:
    """Wherever it is, whatever its type: nothing that might matter is passed over."""
    for value in ("2", "true", "abc", "[1, 2]", "{a: 3}"):
        assert "field_of_2030" in unread_of(stated(section, "field_of_2030", value))


@pytest.mark.parametrize(
    "name",
    ["distributed.tp_size", "distributed.pp_size", "step_scheduler.local_batch_size", "peft.dim",
     "dataset.seq_len", "distributed.pipeline.layers_per_stage"],
)  # fmt: skip
def test_counts_of_another_type_are_refused(name: str) -> None:
    """A section where a number belongs is named, everything else refused in one line."""
    section, _, last = name.rpartition(".")
    assert last in unread_of(stated(section, last, "{a: 3}"))
    for value in ("-1", "1.5", "abc", "[1, 2]", "true", "9" * 30):
        with pytest.raises((IllegalConfig, UnreadableConfig), match=last):
            stated(section, last, value)
