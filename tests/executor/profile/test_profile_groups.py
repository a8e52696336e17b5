"""Group shapes, sizes, and the FLOPs that rates are made of."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshplan.executor.profile.bench import Call
from meshplan.executor.profile.measured import attention, collectives, matmul
from meshplan.executor.profile.measured.groups import GroupShape, group_shapes, members
from meshplan.hardware_profiles.schema import AttentionKernel, Dtype


def test_strided_groups_share_the_network_by_hand() -> None:
    """One rank per node over two nodes of four: four groups at once, same place in each node."""
    assert list(members(GroupShape(nodes=2, ranks_per_node=1), 4, 2)) == [
        (0, 4), (1, 5), (2, 6), (3, 7),
    ]  # fmt: skip


def test_shapes_of_two_nodes_of_four_by_hand() -> None:
    """All powers of two inside and across, without the group of one."""
    found = {(s.ranks_per_node, s.nodes) for s in group_shapes(4, 2)}
    assert found == {(2, 1), (4, 1), (1, 2), (2, 2), (4, 2)}


def test_one_process_has_no_groups() -> None:
    """A single rank has nobody to talk to."""
    assert group_shapes(1, 1) == ()


@given(st.integers(1, 16), st.integers(1, 9))
def test_groups_of_a_shape_never_share_a_rank(ranks_per_node: int, nodes: int) -> None:
    """Groups that run at once are disjoint, of the right size, and made of ranks that exist."""
    for shape in group_shapes(ranks_per_node, nodes):
        found = list(members(shape, ranks_per_node, nodes))
        everyone = [rank for group in found for rank in group]
        assert found
        assert len(everyone) == len(set(everyone)) == len(found) * shape.ranks
        assert set(everyone) <= set(range(ranks_per_node * nodes))


PYTORCHS = partial(attention.pytorch_call, cudnn=False)


@pytest.mark.parametrize("quick", [True, False])
def test_message_sizes_span_what_is_promised(quick: bool) -> None:
    """1 KiB to 1 GiB on GPUs, rising."""
    sizes = collectives.sizes_bytes(is_cuda=True, quick=quick)
    assert (sizes[0], sizes[-1]) == (1024, 2**30)
    assert list(sizes) == sorted(set(sizes))


@pytest.mark.parametrize("layout", matmul.LAYOUTS)
def test_layouts_multiply_the_same_numbers(layout: str) -> None:
    """Forward and both backward products of one linear layer have the same FLOPs."""
    shape = matmul.Shape(m=6, n=4, k=8)
    assert matmul.as_layout(shape, layout).flops == shape.flops == 2 * 6 * 4 * 8


@pytest.mark.parametrize("layout", matmul.LAYOUTS)
def test_the_timed_product_is_the_product(layout: str) -> None:
    """What is timed has the shape that the point claims, in every layout."""
    call = matmul.product_call(matmul.Shape(m=6, n=4, k=8), "fp32", layout, torch.device("cpu"))
    out = call()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (6, 4)
    assert bool(out.isfinite().all())


def test_fp8_product_has_the_shape_of_the_point() -> None:
    """The scaled 8-bit product, which torch can emulate on a CPU, is of (m x k) and (k x n)."""
    shape = matmul.Shape(m=32, n=16, k=64)
    out = matmul.product_call(shape, "fp8", "TN", torch.device("cpu"))()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (32, 16)
    assert out.dtype == torch.bfloat16


def test_minor_formats_get_fewer_shapes_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 and fp8, which models are trained in, get every shape; fp32 a quarter of them."""
    monkeypatch.setattr(matmul, "dtypes_of", lambda _: ("fp32", "bf16", "fp8"))
    planned = matmul.measurements(torch.device("cuda", 0), quick=True, memory_bytes=80e9)
    forward = {
        dtype: sum(item.key.startswith(f"matmul/{dtype}/TN") for item in planned)
        for dtype in ("fp32", "bf16", "fp8")
    }
    assert forward["fp8"] < forward["bf16"] <= forward["fp8"] + 4  # bf16 has grouped products too
    assert forward["fp32"] <= forward["fp8"] / 3
    assert not any(item.key.startswith("matmul/fp8/N") for item in planned)


def test_grouped_product_multiplies_every_group() -> None:
    """A grouped product of 4 groups of 16 rows gives 64 rows."""
    shape = matmul.Shape(m=16, n=32, k=64, groups=4)
    out = matmul.product_call(shape, "bf16", "TN", torch.device("cpu"))()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (64, 32)


def test_what_is_measured_of_attention() -> None:
    """Long sequences, wide heads and latent attention take minutes: not in a quick run."""
    quick, whole = (list(attention.shapes(is_cuda=True, quick=each)) for each in (True, False))
    assert {shape.seq_len for shape in quick} == {1024, 2048, 8192}
    assert {shape.head_dim for shape in quick} == {128}
    assert {shape.seq_len for shape in whole} >= {512, 32768}
    assert {(shape.head_dim, shape.v_head_dim) for shape in whole} >= {(256, 256), (192, 128)}
    on_cpu = [list(attention.shapes(is_cuda=False, quick=each)) for each in (True, False)]
    assert [max(shape.head_dim for shape in found) for found in on_cpu] == [128, 128]
    assert [min(shape.seq_len for shape in found) for found in on_cpu] == [128, 64]


def test_attention_flops_by_hand() -> None:
    """Two products forward, five backward; half of them under the causal mask."""
    shape = attention.Shape(
        batch=1, heads=2, kv_heads=2, head_dim=8, v_head_dim=8, seq_len=16, causal=False
    )
    assert shape.flops("forward") == 2 * 2 * 16 * 16 * (8 + 8)
    assert shape.flops("backward") == 2.5 * shape.flops("forward")
    causal = attention.Shape(
        batch=1, heads=2, kv_heads=2, head_dim=8, v_head_dim=8, seq_len=16, causal=True
    )
    assert causal.flops("forward") == shape.flops("forward") / 2


@pytest.mark.parametrize(
    ("call", "query", "key"),
    [
        pytest.param(PYTORCHS, (1, 4, 16, 8), (1, 1, 16, 8), id="PyTorch's"),
        pytest.param(attention.native_call, (16, 1, 4, 8), (16, 1, 1, 8), id="the engine's"),
    ],
)
def test_attention_backward_gives_all_three_gradients(
    call: Callable[..., Call], query: tuple[int, ...], key: tuple[int, ...]
) -> None:
    """The timed backward differentiates by query, key and value, with fewer key heads too."""
    shape = attention.Shape(
        batch=1, heads=4, kv_heads=1, head_dim=8, v_head_dim=8, seq_len=16, causal=True
    )
    gradients = call(shape, torch.float32, "backward", torch.device("cpu"))()
    assert [tuple(g.shape) for g in gradients] == [query, key, key]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kernel", "heads", "widths", "taken"),
    [
        pytest.param("cudnn", (8, 8), (128, 128), True, id="cuDNN: 128 wide, as many keys"),
        pytest.param("cudnn", (8, 2), (128, 128), False, id="cuDNN: fewer keys"),
        pytest.param("cudnn", (8, 8), (192, 128), False, id="cuDNN: wider queries"),
        pytest.param("cudnn", (8, 8), (256, 256), False, id="cuDNN: 256 wide"),
        pytest.param("flash2", (8, 2), (192, 128), True, id="FlashAttention-2: all of it"),
    ],
)
def test_kernels_are_measured_at_the_shapes_that_they_take(
    kernel: AttentionKernel, heads: tuple[int, int], widths: tuple[int, int], taken: bool
) -> None:
    """cuDNN's backward takes plain heads of at most 128."""
    shape = attention.Shape(
        batch=1, heads=heads[0], kv_heads=heads[1], head_dim=widths[0], v_head_dim=widths[1],
        seq_len=16, causal=True,
    )  # fmt: skip
    assert attention.runs(kernel, shape) == taken


def test_quick_is_a_part_of_the_work() -> None:
    """The quick list is shorter on both kinds of device."""
    for is_cuda in (True, False):
        quick = matmul.shapes(is_cuda=is_cuda, quick=True)
        assert 10 < len(quick) < len(matmul.shapes(is_cuda=is_cuda, quick=False)) / 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16", "fp8"])
def test_every_format_multiplies_on_a_gpu(dtype: Dtype) -> None:
    """Each number format that the device offers has a kernel that gives the right shape."""
    device = torch.device("cuda", 0)
    if dtype not in matmul.dtypes_of(device):
        pytest.skip(f"the device has no {dtype}")
    out = matmul.product_call(matmul.Shape(m=256, n=128, k=512), dtype, "TN", device)()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (256, 128)
