"""Kernels whose CPU body does more than its definition says."""

import pytest
import torch

from meshplan.executor.engine.parts import kernels

ROWS = [3, 0, 70, 64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_groups_times_their_own_matrices(dtype: torch.dtype) -> None:
    """3, 0, 70 and 64 rows: each group's product, and its outer product, as if it were alone."""
    torch.manual_seed(0)
    x, dy = torch.randn(137, 32).to(dtype), torch.randn(137, 16).to(dtype)
    weight = torch.randn(4, 16, 32).to(dtype)
    products = [part @ w.t() for part, w in zip(x.split(ROWS), weight, strict=True)]
    outer = [d.t() @ part for d, part in zip(dy.split(ROWS), x.split(ROWS), strict=True)]
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(
        kernels.grouped_linear(x, weight, ROWS), torch.cat(products), **close
    )
    torch.testing.assert_close(kernels.grouped_outer(dy, x, ROWS), torch.stack(outer), **close)


def test_products_come_in_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of rows is multiplied as the next multiple of 64: 3 -> 64, 0, 70 -> 128, 64."""
    seen: list[int] = []
    groups = kernels._groups

    def watched(x: torch.Tensor, rows: list[int]) -> list[torch.Tensor]:
        found = groups(x, rows)
        seen.extend(len(part) for part in found)
        return found

    monkeypatch.setattr(kernels, "_groups", watched)
    kernels.grouped_linear(torch.randn(137, 8), torch.randn(4, 4, 8), ROWS)
    assert seen == [64, 0, 128, 64]
