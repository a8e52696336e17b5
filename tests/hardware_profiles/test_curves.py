"""Broken lines of collective time, and the matmul surface: exact where due, then held out."""

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshplan import hardware_profiles
from meshplan.hardware_profiles.built_in import load_kernels
from meshplan.hardware_profiles.curves import curve_seconds, fit_curve, fit_curves
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import CollectiveKind, CurveFit, CurvePoint
from meshplan.hardware_profiles.schema import MatmulPoint
from meshplan.hardware_profiles.surface import attention_surface, matmul_surface

PUBLISHED = Path(hardware_profiles.__file__).parent / "published"


def point(size_bytes: float, seconds: float, kind: CollectiveKind = "all_reduce") -> CurvePoint:
    """A measurement on one node of 8."""
    return CurvePoint(kind=kind, ranks_per_node=8, nodes=1, size_bytes=size_bytes, seconds=seconds)


@pytest.mark.parametrize(
    ("size_bytes", "expected_s"),
    [
        pytest.param(0.0, 10e-6, id="first line at 0: 10 us"),
        pytest.param(1e6, 11e-6, id="10 us + 1 MB / 1 TB/s"),
        pytest.param(20e6, 30e-6, id="the knot: 10 us + 20 MB / 1 TB/s"),
        pytest.param(1e9, 9.83e-3, id="-170 us + 1 GB / 100 GB/s"),
    ],
)
def test_curve_by_hand(size_bytes: float, expected_s: float) -> None:
    """A size is priced by the line of its regime, and lines meet where they cross (20 MB here)."""
    fit = CurveFit(
        kind="all_reduce",
        ranks_per_node=8,
        nodes=1,
        latency_s=(10e-6, -170e-6),
        bandwidth_bytes_per_s=(1e12, 1e11),
        residual=0.0,
    )
    assert float(curve_seconds(fit, size_bytes)) == pytest.approx(expected_s, rel=1e-3)


def test_a_straight_line_is_found_exactly() -> None:
    """Points on 20 us + size / 50 GB/s give back that line in every regime."""
    sizes = np.geomspace(1e3, 1e9, 20)
    fit = fit_curve([point(float(s), 20e-6 + float(s) / 50e9) for s in sizes])
    assert np.allclose(curve_seconds(fit, sizes), 20e-6 + sizes / 50e9, rtol=1e-6)
    assert fit.residual < 1e-6


def test_one_wild_point_does_not_move_the_curve() -> None:
    """A measurement ten times too slow leaves the fit at the others (robust, not least squares)."""
    sizes = np.geomspace(1e6, 1e9, 16)
    seconds = 20e-6 + sizes / 50e9
    seconds[8] *= 10
    fit = fit_curve([point(float(s), float(t)) for s, t in zip(sizes, seconds, strict=True)])
    others = np.delete(sizes, 8)
    assert np.median(np.abs(curve_seconds(fit, others) / (20e-6 + others / 50e9) - 1)) < 0.02


@example([(1e3, 0.0625), (1e7, 1.0), (13957470.0, 1.0), (13957471.0, 0.0625)])
@example([(9322676.0, 0.5), (18644330.0, 1.0)])
@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(1e3, 1e9), st.floats(1e-6, 1.0)), min_size=1, max_size=12))
def test_more_bytes_are_never_faster(measured: list[tuple[float, float]]) -> None:
    """Whatever was measured, the fitted time is positive and does not fall with the size."""
    fit = fit_curve([point(size, seconds) for size, seconds in measured])
    sizes = np.geomspace(1e3, 1e10, 50)
    seconds = curve_seconds(fit, sizes)
    assert (seconds >= 0).all()
    assert (np.diff(seconds) >= -1e-6 * seconds[1:]).all()


def test_points_of_two_shapes_are_no_curve() -> None:
    """Mixing collectives in one curve is refused by name."""
    with pytest.raises(ValueError, match="all_gather"):
        fit_curve([point(1e6, 1e-3), point(1e6, 1e-3, kind="all_gather")])


def kernel_sample_curves() -> dict[tuple[str, str, int, int], list[CurvePoint]]:
    """Measured collectives of Perlmutter and Vista, by system, kind, nodes and ranks per node."""
    curves: dict[tuple[str, str, int, int], list[CurvePoint]] = {}
    with (PUBLISHED / "kernel_samples_nccl.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            nodes, ranks = int(row["nodes"]), int(row["gpus_per_node"])
            sample = CurvePoint(
                kind=row["kind"],  # type: ignore[arg-type]
                ranks_per_node=ranks,
                nodes=nodes,
                size_bytes=2.0 * int(row["elements_fp16"]),
                seconds=float(row["us"]) * 1e-6,
            )
            curves.setdefault((row["system"], row["kind"], nodes, ranks), []).append(sample)
    return curves


@pytest.mark.few(4)
@pytest.mark.parametrize("key", kernel_sample_curves(), ids=str)
def test_half_of_the_points_predicts_the_other_half(
    key: tuple[str, str, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A curve fitted on every second size predicts the sizes between: median error under 6 %."""
    points = sorted(kernel_sample_curves()[key], key=lambda sample: sample.size_bytes)
    error = held_out(points)
    with capsys.disabled():
        print(f"\n{key}: {len(points)} points, held-out median error {error:.1%}")
    assert error < 0.06


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-h200", "dgx-a100", "dgx-b200", "dgx-v100"])
def test_half_of_a_full_range_predicts_the_other_half(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 1 KiB to 16 GiB, three regimes fitted on half of the sizes: median error under 8 %."""
    points = [
        p for p in load_cluster(name).collective_points if (p.nodes, p.ranks_per_node) == (1, 8)
    ]
    error = held_out(points)
    with capsys.disabled():
        print(f"\n{name}: {len(points)} sizes, held-out median error {error:.1%}")
    assert error < 0.08


def held_out(points: list[CurvePoint]) -> float:
    """Median relative error on every second point of a curve fitted on the others."""
    fit, rest = fit_curve(points[::2]), points[1::2]
    predicted = curve_seconds(fit, [p.size_bytes for p in rest])
    return float(np.median(np.abs(predicted / np.array([p.seconds for p in rest]) - 1)))


def test_single_sizes_are_points_but_no_curves() -> None:
    """One size says nothing of latency: it is kept as a point and gets no fit."""
    assert fit_curves([point(1e6, 1e-3)]) == ()


def microbench(accelerator: str, layout: str) -> list[MatmulPoint]:
    """SimuMax's single matmuls of one transposition (wgrad: with fp32 accumulation)."""
    points: dict[tuple[int, int, int], MatmulPoint] = {}
    with (PUBLISHED / "gemm-attn-microbench.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["accelerator"] != accelerator or row["op"] != "matmul":
                continue
            shape = dict(part.split("=") for part in row["shape"].replace(" ", "").split(","))
            if shape["layout"] == layout and (layout != "NT" or shape["out_dtype"] == "fp32"):
                m, n, k = int(shape["m"]), int(shape["n"]), int(shape["k"])
                rate = float(row["tflops"]) * 1e12
                points[m, n, k] = MatmulPoint(dtype="bf16", m=m, n=n, k=k, flops_per_s=rate)
    return list(points.values())


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
@pytest.mark.parametrize("accelerator", ["B200", "A100 PCIe 80GB"])
def test_half_of_the_matmuls_predicts_the_other_half(
    accelerator: str, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The surface through a random half of the shapes predicts the others: median under 5 %."""
    points = microbench(accelerator, layout)
    errors = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(points))
        surface = matmul_surface([points[i] for i in order[::2]], "bf16")
        assert surface is not None
        rest = [points[i] for i in order[1::2]]
        found = surface([p.m for p in rest], [p.n for p in rest], [p.k for p in rest])
        errors.append(np.abs(found / np.array([p.flops_per_s for p in rest]) - 1))
    error = float(np.median(np.concatenate(errors)))
    with capsys.disabled():
        print(f"\n{accelerator} {layout}: {len(points)} shapes, held-out median error {error:.1%}")
    assert error < 0.05


def grid_points(dtype: str = "bf16") -> list[MatmulPoint]:
    """Eight shapes at 100 TFLOP/s, each dimension 1024 or 4096."""
    sides = (1024, 4096)
    return [
        MatmulPoint(dtype=dtype, m=m, n=n, k=k, flops_per_s=1e14)  # type: ignore[arg-type]
        for m in sides
        for n in sides
        for k in sides
    ]


def test_a_dip_that_neighbours_confirm_is_kept_and_a_lonely_one_is_noise() -> None:
    """Four slow shapes in a row pull the surface down there; one slow shape among 125 does not."""
    sides = (256, 512, 1024, 2048, 4096)
    shapes = [(m, n, k) for m in sides for n in sides for k in sides]

    def rate_at_1024(slow: set[tuple[int, int, int]]) -> float:
        points = [
            MatmulPoint(
                dtype="bf16", m=m, n=n, k=k, flops_per_s=5e13 if (m, n, k) in slow else 1e14
            )
            for m, n, k in shapes
        ]
        surface = matmul_surface(points, "bf16")
        assert surface is not None
        return float(surface(1024, 1024, 1024))

    assert rate_at_1024({(1024, 1024, 1024)}) == pytest.approx(1e14, rel=0.05)
    assert rate_at_1024({shape for shape in shapes if shape[2] == 1024}) < 7e13


def test_a_machine_of_launch_bytes_and_arithmetic_is_found() -> None:
    """Times of 10 us + bytes / (1 TB/s) + FLOPs / (100 TFLOP/s) are predicted at other shapes."""

    def seconds(m: int, n: int, k: int) -> float:
        return 10e-6 + 2 * (m * k + k * n + m * n) / 1e12 + 2 * m * n * k / 1e14

    sides = (64, 512, 4096)
    points = [
        MatmulPoint(dtype="bf16", m=m, n=n, k=k, flops_per_s=2 * m * n * k / seconds(m, n, k))
        for m in sides
        for n in sides
        for k in sides
    ]
    surface = matmul_surface(points, "bf16")
    assert surface is not None
    for shape in ((128, 256, 1024), (1000, 700, 3000), (32, 4096, 4096)):
        m, n, k = shape
        expected = 2 * m * n * k / seconds(m, n, k)
        assert float(surface(m, n, k)) == pytest.approx(expected, rel=1e-3)


def test_transpositions_have_their_own_rates() -> None:
    """Where "NT" was measured at half of the rate, "NT" is asked for and "TN" is not slower."""
    points = grid_points()
    slow = [p.model_copy(update={"layout": "NT", "flops_per_s": 5e13}) for p in points]
    surface = matmul_surface([*points, *slow], "bf16")
    assert surface is not None
    assert float(surface(1024, 4096, 1024, layout="NT")) < 6.5e13
    assert float(surface(1024, 4096, 1024, layout="TN")) > 7.5e13


def test_far_shapes_are_never_beyond_what_was_measured() -> None:
    """Four octaves below the measured shapes and among them the rate is the measured one."""
    surface = matmul_surface(grid_points(), "bf16")
    assert surface is not None
    found = surface(np.array([64, 2048]), 2048, 2048)
    assert np.allclose(found, 1e14)


def test_too_few_points_are_no_surface() -> None:
    """With fewer than four shapes there is no surface, and none for another format."""
    assert matmul_surface(grid_points()[:3], "bf16") is None
    assert matmul_surface(grid_points(), "fp8") is None
    assert matmul_surface(grid_points("fp16"), "bf16") is not None


ATTENTION = [
    pytest.param("b200", "forward", 0.05, id="B200 forward"),
    pytest.param("b200", "backward", 0.05, id="B200 backward"),
    pytest.param("a100-80gb-sxm", "forward", 0.12, id="A100 forward"),
    pytest.param("a100-80gb-sxm", "backward", 0.12, id="A100 backward"),
]


@pytest.mark.parametrize(("gpu", "direction", "bound"), ATTENTION)
def test_half_of_the_attention_shapes_predicts_the_other_half(
    gpu: str,
    direction: Literal["forward", "backward"],
    bound: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The attention surface through a random half predicts the others: median under the bound."""
    points = [p for p in load_kernels(gpu).attention_points if p.direction == direction]
    errors = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(points))
        half = [points[i] for i in order[::2]]
        surface = attention_surface(half, "bf16", direction, causal=half[0].causal)
        assert surface is not None
        rest = [points[i] for i in order[1::2]]
        sides = ([p.batch * p.heads for p in rest], [p.seq_len for p in rest])
        found = surface(*sides, [p.head_dim for p in rest])
        errors.append(np.abs(found / np.array([p.flops_per_s for p in rest]) - 1))
    error = float(np.median(np.concatenate(errors)))
    with capsys.disabled():
        print(f"\n{gpu} attention {direction}: {len(points)} shapes, held-out {error:.1%}")
    assert error < bound


def test_attention_points_count_the_mask_they_ran_with() -> None:
    """SimuMax's B200 rows, halved, are as many forward as backward, and all below the peak."""
    points = load_kernels("b200").attention_points
    directions = [point.direction for point in points]
    assert directions.count("forward") == directions.count("backward") == 32
    assert max(point.flops_per_s for point in points) < 2250e12


def test_many_layouts_ask_for_few_shapes() -> None:
    """An array of any shape, repeats included, gets each shape's own rate in its place."""
    points = [p.model_copy(update={"flops_per_s": 1e11 * p.m}) for p in grid_points()]
    surface = matmul_surface(points, "bf16")
    assert surface is not None
    m = np.array([[2048, 1024, 2048], [1024, 2048, 1024]])
    found = surface(m, 2048, 2048)
    assert found.shape == (2, 3)
    assert not np.allclose(found[0, 0], found[0, 1])
    for side in (1024, 2048):
        assert np.allclose(found[m == side], surface(side, 2048, 2048))
