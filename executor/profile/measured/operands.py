"""Random numbers to measure with: making them takes longer than most measurements."""

from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def random_numbers(count: int, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """`count` normal random numbers; the same ones if the next call asks for as many."""
    return torch.randn(count, device=device).to(kind)


def rows_of_numbers(
    size_bytes: float, device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The same numbers in a tensor of its own, `size_bytes` of rows of 1,024."""
    rows = int(size_bytes) // dtype.itemsize // 1024
    return random_numbers(rows * 1024, dtype, device).clone().view(rows, 1024)
