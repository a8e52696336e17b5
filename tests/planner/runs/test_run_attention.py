"""Which attention kernel a row ran."""

import pytest
from rows import engine_of


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


def test_the_fork_of_the_zero_bubble_paper_has_no_flash_attention() -> None:
    """Its paper counts s b h (34 + 5 a s / h) bytes a layer."""
    fork = engine_of({"framework": "megatron-lm (zero-bubble fork)", "year": "2024"})
    assert fork.name == "megatron"
    assert (fork.kernels.flash_attention, fork.kernels.attention) == (False, "unfused")
    assert (fork.kernels.dropout, fork.kernels.keeps_buffers) == (True, False)
    nemo = engine_of({"framework": "nemo-megatron", "year": "2022"})
    assert nemo.kernels == fork.kernels
    assert engine_of({"framework": "nemo 24.07", "year": "2024"}).kernels.flash_attention
