"""The products and attention calls that are measured: how their operands lie, that no cache holds
them, and that what they leave to tell can be told.
"""

import pytest
import torch

from meshplan.executor.engine.parts import kernels
from meshplan.executor.profile.measured import attention
from meshplan.executor.profile.measured.matmul import Shape, product_call
from meshplan.executor.profile.measured.native_kernels import NATIVE
from meshplan.hardware_profiles.schema import AttentionPoint
from meshplan.hardware_profiles.surface import attention_surface


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


@pytest.mark.parametrize("name", sorted(NATIVE["cpu"]))
def test_native_kernels_run_and_count_their_bytes(name: str) -> None:
    """Each counts 1/2 to 26 times the 1 MiB that its tensors were asked to take together."""
    call, moved_bytes = NATIVE["cpu"][name](2**20, torch.device("cpu"))
    call()
    assert 0.5 <= moved_bytes / 2**20 <= 26


def test_a_gpu_trains_in_16_bit() -> None:
    """The engine's kernels are measured in bf16 there, on a CPU in fp32 too."""
    assert all(name.endswith("_bf16") for name in NATIVE["cuda"])
    assert {name.removesuffix("_bf16") for name in NATIVE["cuda"]} < NATIVE["cpu"].keys()
    assert NATIVE["cuda"].keys() < NATIVE["cpu"].keys()


@pytest.mark.parametrize("is_cuda", [True, False])
@pytest.mark.parametrize("quick", [True, False])
def test_a_larger_batch_of_attention_takes_as_much_longer(is_cuda: bool, quick: bool) -> None:
    """Calls of 10 us for each token and head and nothing else, where a cost of each call would
    explain shapes of equally many tokens as well: sixteen times the batch takes 16 times as long.
    """
    points = [
        AttentionPoint(
            dtype="bf16", direction="forward", batch=s.batch, heads=s.heads, kv_heads=s.kv_heads,
            head_dim=s.head_dim, v_head_dim=s.v_head_dim, seq_len=s.seq_len, causal=True,
            flops_per_s=s.flops("forward") / (1e-5 * s.batch * s.heads * s.seq_len),
        )
        for s in attention.shapes(is_cuda=is_cuda, quick=quick) if s.causal
    ]  # fmt: skip
    surface = attention_surface(points, "bf16", "forward")
    assert surface is not None
    for point in points[:2]:
        many = 16 * point.batch * point.heads
        rate = float(surface(many, point.seq_len, point.head_dim))
        assert rate == pytest.approx(point.flops_per_s, rel=0.05)


def test_attention_of_a_cpu_is_the_native_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens come before heads, and keys are as many as the shape says."""
    met: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        kernels, "attention", lambda q, k, v, *_: met.extend(x.shape for x in (q, k, v))
    )
    shape = attention.Shape(
        batch=2, heads=4, kv_heads=1, head_dim=32, v_head_dim=16, seq_len=64, causal=True
    )
    attention.attention_call(shape, "bf16", "forward", torch.device("cpu"))()
    assert met == [(64, 2, 4, 32), (64, 2, 1, 32), (64, 2, 1, 16)]
