"""Which datasheet a device on this machine has, by the driver's name for it."""

import pytest

from meshplan.executor.profile.device import recognise
from meshplan.hardware_profiles.built_in import load_gpu


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H100", "h100-64gb-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM-64GB", "a100-64gb-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A800-SXM4-80GB", "a800-80gb-sxm"),
        ("NVIDIA L40", "l40"),
    ],
)
def test_a_card_is_found_by_what_its_driver_says(title: str, name: str) -> None:
    """Memory and units tell most apart; an H200 NVL has an H200's, and says that it is one."""
    card = load_gpu(name)
    found = recognise(title, card.memory_bytes, card.compute_units)
    assert found is not None
    assert found.name == name


def test_cards_that_differ_by_their_power_alone_are_not_told_apart() -> None:
    """The driver's name, memory and units of a GH200 of Alps are those of a whole one."""
    card = load_gpu("gh200-660w")
    assert recognise("NVIDIA GH200 480GB", card.memory_bytes, card.compute_units) is None
