"""Which attention kernel a row ran."""

import pytest
from rows import engine_of

from meshplan.costmodels.operations.kinds import AttentionCore
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.kernels import Device
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.tunings import Tuning


@pytest.mark.parametrize(
    ("framework", "note", "attention"),
    [
        ("megatron-core 0.6.0", "flash attention 2, TE", "flash2"),
        ("GPT-NeoX", "flash attention v1, parallel attention and MLP", "flash1"),
        ("llm-foundry", "attention by Triton (--attn_impl of its script)", "triton"),
        ("Megatron-DeepSpeed", "flash attention on", "flash2"),
        ("MaxText (JAX)", "cudnn flash attention via TE", "flash2"),
        ("DeepSpeed + HF transformers", "eager attention, AdamW", "unfused"),
        ("JAX / Pax", "flash attention not yet default at this version", "unfused"),
    ],
)
def test_a_note_names_the_attention_kernel(framework: str, note: str, attention: str) -> None:
    """What a note says wins over the framework's usual kernel; without dropout, if it says none."""
    kernels = engine_of({"framework": framework, "note": note}).kernels
    assert (kernels.attention, kernels.flash_attention) == (attention, attention != "unfused")
    assert not (kernels.dropout and "Pax" in framework)


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x"])
def test_transformer_engine_on_amd_calls_what_the_profile_was_measured_with(gpu: str) -> None:
    """As Megatron's engine has it there; without a word MaxText's is PyTorch's, half as fast."""
    maxtext = {"framework": "MaxText (JAX)"}
    named = _attention_s(maxtext | {"attention_kernel": "aiter"}, gpu)
    assert named == _attention_s({"framework": "megatron-lm", "year": "2026"}, gpu)
    assert sum(_attention_s(maxtext, gpu)) > 2 * sum(named)


def _attention_s(row: dict[str, str], gpu: str) -> list[float]:
    """Seconds of a layer's attention over 8,192 tokens, forward and backward."""
    kernels = engine_of(row).kernels
    device = Device(
        load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], kernels.attention,
        uses_sdpa=kernels.uses_sdpa, sdpa_by_assembly=kernels.sdpa_by_assembly,
    )  # fmt: skip
    core = AttentionCore(
        name="attention", queries=8192.0, keys=4096.0, all_keys=8192.0, heads=32, head_dim=128,
        v_head_dim=128, fused=True,
    )  # fmt: skip
    return [float(attention_s(device, core, backward=backward)) for backward in (False, True)]


def test_the_fork_of_the_zero_bubble_paper_has_no_flash_attention() -> None:
    """Its paper counts s b h (34 + 5 a s / h) bytes a layer."""
    fork = engine_of({"framework": "megatron-lm (zero-bubble fork)", "year": "2024"})
    assert fork.name == "megatron"
    assert (fork.kernels.flash_attention, fork.kernels.attention) == (False, "unfused")
    assert (fork.kernels.dropout, fork.kernels.keeps_buffers) == (True, False)
    nemo = engine_of({"framework": "nemo-megatron", "year": "2022"})
    assert nemo.kernels == fork.kernels
    assert engine_of({"framework": "nemo 24.07", "year": "2024"}).kernels.flash_attention
