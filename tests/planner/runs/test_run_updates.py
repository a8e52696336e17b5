"""What a row's PyTorch ran by its framework's year: the update of the weights, attention on AMD."""

import pytest
from rows import engine_of


@pytest.mark.parametrize(
    ("framework", "year", "words", "by_operator"),
    [
        pytest.param("torchtitan", "2024", "", True, id="fused was off"),
        pytest.param("torchtitan", "2025", "", False, id="fused is the default"),
        pytest.param("torchtitan", "", "", False, id="no year: as today"),
        pytest.param("HF transformers + FSDP", "2025", "", True, id="adamw_torch"),
        pytest.param("HF transformers + FSDP", "2026", "", False, id="adamw_torch_fused"),
        pytest.param("HF transformers + DeepSpeed", "2024", "", False, id="DeepSpeed's own Adam"),
        pytest.param("prime-rl (FSDP2)", "2026", "", True, id="called without fused"),
        pytest.param("PyTorch FSDP2 (own loop)", "2026", "", True, id="a loop of its own"),
        pytest.param("torchtitan", "2024", "fused_step", False, id="its row says fused"),
        pytest.param("torchtitan", "2025", "operator_step", True, id="its row says not"),
    ],
)
def test_adamw_was_what_its_framework_called(
    framework: str, year: str, words: str, *, by_operator: bool
) -> None:
    """By the last year of the old default, unless the row says."""
    said = {"framework": framework, "year": year, "fused_kernels": words}
    assert engine_of(said).kernels.updates_by_operator is by_operator


@pytest.mark.parametrize(
    ("framework", "year", "assembled"),
    [
        pytest.param("torchtitan", "2026", True, id="PyTorch 2.9 or later"),
        pytest.param("torchtitan", "", True, id="no year: as today"),
        pytest.param("torchtitan", "2025", False, id="PyTorch 2.8 or older"),
        pytest.param("torchtune (PyTorch)", "2026", False, id="FlexAttention over packed samples"),
    ],
)
def test_attention_on_amd_is_of_the_runs_pytorch(
    framework: str, year: str, *, assembled: bool
) -> None:
    """AITER's backward came with PyTorch 2.9, in October 2025."""
    said = {"framework": framework, "year": year}
    assert engine_of(said).kernels.sdpa_by_assembly is assembled
