"""The products that are measured: how their operands lie, and that no cache holds them."""

import pytest
import torch

from executor.engine import kernels
from executor.profile.matmul import Shape, product_call
from executor.profile.native_kernels import NATIVE


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


@pytest.mark.parametrize(
    ("layout", "kernel", "shapes", "first_stride"),
    [
        pytest.param("TN", "grouped_linear", ((96, 64), (3, 48, 64)), 64, id="y = x w^T"),
        pytest.param("NN", "grouped_linear", ((96, 64), (3, 48, 64)), 1, id="dx = dy w"),
        pytest.param("NT", "grouped_outer", ((192, 32), (192, 48)), None, id="dw = dy^T x"),
    ],
)
def test_experts_of_a_cpu_are_the_native_engines(
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    kernel: str,
    shapes: tuple[tuple[int, ...], ...],
    first_stride: int | None,
) -> None:
    """Three groups of (32 x 64) @ (64 x 48): rows of all groups after each other, and each
    expert's matrix (out, in) as the engine stores or transposes it.
    """
    met: list[tuple[torch.Tensor, torch.Tensor, list[int]]] = []
    monkeypatch.setattr(kernels, kernel, lambda a, b, rows: met.append((a, b, rows)))
    product_call(Shape(32, 48, 64, 3), "bf16", layout, torch.device("cpu"))()
    ((a, b, rows),) = met
    assert (a.shape, b.shape) == shapes
    assert sum(rows) == len(a)
    assert len(rows) == 3
    assert first_stride is None or b.stride(1) == first_stride


@pytest.mark.parametrize("name", sorted(NATIVE))
def test_native_kernels_run_and_count_their_bytes(name: str) -> None:
    """Each counts 1/2 to 26 times the 1 MiB that its tensors were asked to take together."""
    call, moved_bytes = NATIVE[name](2**20, torch.device("cpu"))
    call()
    assert 0.5 <= moved_bytes / 2**20 <= 26
