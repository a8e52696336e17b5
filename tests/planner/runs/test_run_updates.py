"""Whether a row's AdamW was one kernel or PyTorch's operators, from its framework's year."""

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
