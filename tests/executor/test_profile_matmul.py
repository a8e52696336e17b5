"""The products that are measured: how their operands lie, and that no cache holds them."""

import pytest
import torch

from executor.profile.matmul import Shape, product_call


@pytest.mark.parametrize(
    ("layout", "left", "right"),
    [
        pytest.param("TN", (64, 1), (1, 64), id="x (m, k) as it is, w (n, k) transposed"),
        pytest.param("NN", (64, 1), (48, 1), id="both as they are"),
        pytest.param("NT", (1, 32), (48, 1), id="dy (k, m) transposed"),
    ],
)
def test_operands_lie_as_training_stores_them(
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    left: tuple[int, int],
    right: tuple[int, int],
) -> None:
    """(32 x 64) @ (64 x 48): strides of both operands, and no operand twice in two calls."""
    met: list[tuple[torch.Tensor, torch.Tensor]] = []
    monkeypatch.setattr(torch, "mm", lambda a, b: met.append((a, b)))
    call = product_call(Shape(32, 48, 64), "bf16", layout, torch.device("cpu"))
    for _ in range(2):
        call()
    for a, b in met:
        assert (a.shape, b.shape) == ((32, 64), (64, 48))
        assert (a.stride(), b.stride()) == (left, right)
        assert a.dtype == torch.bfloat16
    starts = {tensor.data_ptr() for pair in met for tensor in pair}
    assert len(starts) == 4
