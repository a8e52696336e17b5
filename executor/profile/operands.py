"""Random numbers to measure with: making them takes longer than most measurements."""

from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def random_numbers(count: int, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """`count` normal random numbers; the same ones if the next call asks for as many."""
    return torch.randn(count, device=device).to(kind)
