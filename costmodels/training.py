"""What the user wants trained, layout apart: sequence, batch, number formats, optimizer."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

Precision = Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Optimizer = Literal["adamw", "adamw8bit", "muon", "sgd"]


MOST_SEQ_LEN, MOST_SEQUENCES = 2**27, 2**30
MOST_IMBALANCE = 1024  # the busiest experts cannot hold more than all tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training job.

    seq_len            tokens of a sequence
    global_batch_size  sequences per optimizer step
    precision          the format of the matmuls' inputs; attention, norms and the head stay 16 bit
                       under fp8
    optimizer          what state it keeps is said in `memory`
    adapters_only      LoRA: the weights are frozen, so they have no gradients and no optimizer
                       state
    expert_imbalance   tokens of the busiest expert group over the mean (1 = balanced or forced
                       balance)
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # as `Layout`, it is read from plan files

    seq_len: Annotated[int, Field(gt=0, le=MOST_SEQ_LEN)]
    global_batch_size: Annotated[int, Field(gt=0, le=MOST_SEQUENCES)]
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    expert_imbalance: Annotated[float, Field(ge=1, le=MOST_IMBALANCE)] = 1.0
    adapters_only: bool = False

    @property
    def global_batch_tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.seq_len * self.global_batch_size
