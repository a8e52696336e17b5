"""What was typed of a question, before any of it is looked up."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The words of the command line; None where nothing was said."""

    model: str
    gpus: int
    cluster: str | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    network: str | None = None
    seq_len: str | None = None
    global_batch: int | None = None
    global_batch_tokens: str | None = None
    precision: str = "bf16"
    optimizer: str = "adamw"
    optimizer_states: str | None = None
    expert_imbalance: float = 1.0
    packed_mean_length: str | None = None
    lora_rank: int | None = None
    lora_targets: str | None = None
    base_precision: str | None = None
    image_tokens: str | None = None
    audio_tokens: str | None = None
    images: int | None = None
    frozen: str | None = None
    engine: str | None = None
    headroom: str | None = None
    learned: Path | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
