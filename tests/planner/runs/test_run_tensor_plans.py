"""Which plan of DTensors a row's framework has where nothing is compiled."""

import pytest
from rows import engine_of

KEMPNER = "KempnerForge (FSDP2)"


@pytest.mark.parametrize(
    ("framework", "said", "plan"),
    [
        ("torchtitan 0.2.0", {"model": "Llama 3.1 8B"}, "prepared"),
        ("torchtitan (2025)", {"model": "Qwen3-32B"}, "kept"),
        ("torchtitan (2026)", {"model": "DeepSeek-V3 16B"}, "kept"),
        (KEMPNER, {"sp": "1"}, "sequence"),
        (KEMPNER, {"sp": "0"}, "columns"),
        (KEMPNER, {"sp": "1", "pp": "2"}, "columns"),
        ("PyTorch FSDP2 + DTensor (HF transformers)", {}, "columns"),
        ("PyTorch FSDP2", {}, ""),
        ("nemo-automodel (FSDP2 + DTensor)", {}, ""),
        ("Megatron-LM", {}, ""),
        ("torchtitan", {"compiled": "1"}, ""),
        ("torchtitan", {"compiled": ""}, ""),
    ],
)
def test_an_eager_row_has_the_plan_of_its_framework(
    framework: str, said: dict[str, str], plan: str
) -> None:
    """Of frameworks whose plan has been read; a compiler runs others' DTensors."""
    row = {"framework": framework, "tp": "4", "compiled": "0"} | said
    assert engine_of(row).kernels.dtensor == plan
