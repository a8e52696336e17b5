"""What tells runs of one framework on one cluster apart: what their errors go with."""

from collections.abc import Mapping

from meshplan.costmodels.layout import CHOSEN_AXES, Layout
from meshplan.costmodels.training import Training

Facts = Mapping[str, str]
"""Values by name."""


def facts_of(layout: Layout, training: Training, model: str) -> dict[str, str]:
    """The chosen axes of a layout, its GPUs, the model's name, the sequence, precision and LoRA."""
    axes = {axis: str(getattr(layout, axis)) for axis in CHOSEN_AXES}
    return {
        **axes, "gpus": str(layout.world_size), "model": model, "seq_len": str(training.seq_len),
        "precision": training.precision, "lora": str(training.lora),
    }  # fmt: skip


def differing(one: Facts, other: Facts) -> int:
    """How many of them differ."""
    return sum(other.get(name) != value for name, value in one.items())
