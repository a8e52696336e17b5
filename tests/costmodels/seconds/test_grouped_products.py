"""Seconds of experts' products: both terms by hand, and 132 that were measured."""

import csv
import tomllib
from dataclasses import dataclass, replace
from io import StringIO
from math import log
from pathlib import Path
from statistics import fmean

import pytest
from round_device import round_device

from meshplan import hardware_profiles
from meshplan.costmodels.operations.kinds import Matmul, Module
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device, matmul_s
from meshplan.costmodels.seconds.operation import cast_calls
from meshplan.costmodels.training import Precision
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning

HERE = Path(hardware_profiles.__file__).parent
MEASURED = Path(__file__).parents[3] / "benchmarks" / "measured"


@dataclass(frozen=True)
class Point:
    """`groups` products of rows x inner by inner x columns, of so many seconds."""

    rows: float
    columns: float
    inner: float
    groups: float
    seconds: float
    gradient_bytes: float = 0.0

    def off(self, device: Device) -> float:
        """|ln| of the predicted over the measured seconds."""
        op = Matmul(name="experts_up", m=self.rows, n=self.columns, k=self.inner,
                    groups=self.groups)  # fmt: skip
        if self.gradient_bytes:
            device = replace(device, weight_gradient_bytes=self.gradient_bytes)
        layout = "NT" if self.gradient_bytes else "TN"
        predicted = matmul_s(device, op, self.rows, self.columns, self.inner, layout)
        return abs(log(float(predicted) / self.seconds))


@pytest.mark.parametrize(
    ("overlap", "layout", "precision", "moved"),
    [
        pytest.param(2.0, "TN", "bf16", 2e4 * 3840e3 + 2e4 * 2560 * 1280, id="2 bytes a number"),
        pytest.param(1.0, "TN", "bf16", 2e4 * 3840e3 + 2e4 * 2560 * 1280, id="and nothing hides"),
        pytest.param(1.0, "NT", "bf16", 2e4 * 3840e3 + 8e4 * 2560 * 1280, id="added in fp32"),
        pytest.param(1.0, "TN", "fp8", 1e4 * 3840e3 + 2e4 * 2560 * 1280, id="8 bits are read"),
    ],
)
def test_by_hand(overlap: float, layout: str, precision: str, moved: float) -> None:
    """Ten thousand groups of 2560 x 1280, 100 tiles each: full waves at half of 100 or 200 TFLOP/s,
    and the bytes at 1 TB/s.
    """
    plain = round_device()
    kernels = plain.kernels.model_copy(
        update={"grouped_efficiency": {"bf16": 0.5, "fp8": 0.5}, "grouped_overlap": overlap}
    )
    device = Device(plain.gpu, kernels, Tuning(), RECIPES[precision])  # type: ignore[index]
    device = replace(device, weight_gradient_bytes=8.0)
    op = Matmul(name="experts_up", m=2560, n=1280, k=1000, groups=10_000)
    math_s = 2 * 2560 * 1280 * 1000 * 1e4 / (50e12 if precision == "bf16" else 100e12)
    memory_s = moved / 1e12
    both_s = math_s + memory_s if overlap == 1 else (math_s**2 + memory_s**2) ** 0.5
    found = float(matmul_s(device, op, 2560, 1280, 1000, layout))
    assert found == pytest.approx(1e-5 + both_s, rel=1e-12)


@pytest.mark.parametrize(
    ("groups", "of_torch", "grouped"),
    [
        pytest.param(1, False, False, id="one expert: cuBLAS, as a dense layer"),
        pytest.param(2, False, True, id="two"),
        pytest.param(1, True, True, id="torch._grouped_mm, also of one"),
    ],
)
def test_a_group_of_one_is_a_plain_product(groups: int, of_torch: bool, grouped: bool) -> None:
    """It has the rate of a dense layer's, twice that of groups here."""
    plain = round_device()
    kernels = plain.kernels.model_copy(update={"grouped_efficiency": {"bf16": 0.25}})
    device = replace(plain, kernels=kernels, uses_grouped_mm=of_torch)
    dense = Matmul(name="up", m=2560, n=1280, k=1000, groups=groups)
    alone, of_experts = (
        float(matmul_s(device, op, 2560, 1280, 1000))
        for op in (dense, replace(dense, name="experts_up"))
    )
    assert (of_experts != pytest.approx(alone)) == grouped


def _published(accelerator: str) -> list[Point]:
    """SimuMax' of Transformer Engine's grouped products, forward and both gradients."""
    text = (HERE / "published" / "gemm-attn-microbench.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(StringIO(text))
            if row["op"] == "group_matmul" and row["accelerator"] == accelerator]  # fmt: skip
    return [_point(dict(part.strip().split("=") for part in row["shape"].split(",")),
                   float(row["tflops"])) for row in rows]  # fmt: skip


def _point(of: dict[str, str], tflops: float) -> Point:
    m, n, k, groups = (int(of[name]) for name in ("M", "N", "K", "ng"))
    sides = {"fwd": (m, n, k), "bwd_grad_act": (m, k, n), "bwd_grad_w": (n, k, m)}[of["stage"]]
    added = 8.0 if of["main_grad_dtype"] == "fp32" else 4.0
    gradient = added if of["stage"] == "bwd_grad_w" else 0.0
    return Point(*sides, groups, 2 * m * n * k * groups / (tflops * 1e12), gradient)


def _own(gpu: str) -> list[Point]:
    """What `meshplan profile` measured of torch._grouped_mm."""
    document = tomllib.loads((MEASURED / f"{gpu}.toml").read_text(encoding="utf-8"))
    rows = csv.DictReader(StringIO(document["kernels"]["matmul_points"].strip()))
    found = (
        (float(row["flops_per_s"]), *(int(row[name] or 1) for name in ("m", "n", "k", "groups")))
        for row in rows
    )
    return [Point(m, n, k, groups, 2 * m * n * k * groups / rate)
            for rate, m, n, k, groups in found if groups > 1]  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "points", "number", "most"),
    [
        pytest.param("b200", _published("B200"), 108, 0.125, id="B200, SimuMax"),
        pytest.param("a100-80gb-pcie", _published("A100 PCIe 80GB"), 12, 0.04, id="A100, SimuMax"),
        pytest.param("h100-sxm", _own("h100-sxm"), 12, 0.07, id="H100, our own"),
    ],
)
def test_measured_products(gpu: str, points: list[Point], number: int, most: float) -> None:
    """20 to 256 groups of 128 to 9832 rows, from memory's rate to the matrix units'."""
    cluster = load_cluster(gpu)
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(), RECIPES["bf16"])
    assert len(points) == number
    assert fmean(point.off(device) for point in points) < most


@pytest.mark.parametrize(
    ("precision", "modules", "in_16_bit", "expected"),
    [
        pytest.param("fp8", ("moe", "experts"), False, (3, 3, 0), id="of tokens, and of gradients"),
        pytest.param("mxfp8", ("moe", "experts"), False, (3, 3, 0), id="in blocks as well"),
        pytest.param(
            "bf16", ("moe", "experts"), False, (0, 0, 0), id="16 bits are cast to nothing"
        ),
        pytest.param("fp8", ("moe", "experts"), True, (0, 0, 0), id="kept in 16"),
        pytest.param("fp8", ("linear", "mlp"), False, (0, 0, 0), id="dense: in the constants"),
    ],
)
def test_casts_that_the_host_issues(
    precision: Precision,
    modules: tuple[Module, ...],
    in_16_bit: bool,
    expected: tuple[int, ...],
) -> None:
    """Three casts of what 16 experts are given, and of their output's gradient: a call each."""
    op = Matmul(name="up", m=8.0, n=8.0, k=8.0, groups=16.0, casts=3, modules=modules)
    op = replace(op, in_16_bit=in_16_bit)
    calls = (
        cast_calls(RECIPES[precision], op, "forward"),
        cast_calls(RECIPES[precision], op, "input_grad"),
        cast_calls(RECIPES[precision], op, "weight_grad"),
    )
    assert calls == expected
