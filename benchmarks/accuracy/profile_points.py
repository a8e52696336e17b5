"""Published measurements as points of profile files.

    python -m benchmarks.accuracy.profile_points    writes the tables of hardware_profiles

Fractions, levels and links are written by hand in `measured/*.toml` and `clusters/*.toml`, each
with its source; the long tables in them are made here from `published/*.csv`, so that a point can
be traced back to its row.

    kernel_samples  GPT-NeoX linears, t = mp ranks: 1 (b l x h) @ (h x 3h/t), 2 (h/t x h),
                    3 (h x 4h/t), 4 (4h/t x h); rates x LEVEL / best rate of the card's table
    SimuMax         attention runs causally but counts the full square: rates / 2; wgrad ("NT") only
                    with fp32 accumulation, as training does it
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.usage import check_usage
from meshplan import hardware_profiles
from meshplan.hardware_profiles.curves import fit_curves
from meshplan.hardware_profiles.files.toml_io import read_toml, write_toml
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import AttentionPoint, MatmulPoint

HERE = Path(hardware_profiles.__file__).parent
Row = dict[str, str]

# Sustained rate of the best shape, bf16. A100: MAMF (mamf.csv). H100: the Smol Training Playbook's
# upper figure over its shapes on AWS p5. GH200: MAMF.
LEVEL = {"a100-80gb-sxm": 271.2e12, "h100-sxm": 758e12, "gh200": 828.6e12}
SIMUMAX = {"b200": "B200", "a100-80gb-pcie": "A100 PCIe 80GB"}
AZURE = {"a100-80gb-sxm": "A100 SXM 80GB", "h100-sxm": "H100 SXM", "h200": "H200 SXM"}
MAX_MATMULS = 30  # of one transposition, so that a file stays readable
ALL_REDUCE = 2.0  # nccl-tests: busbw = size / time x 2(n-1)/n


def _table(name: str) -> Iterator[Row]:
    with (HERE / "published" / name).open(encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def _spread(points: Sequence[MatmulPoint]) -> list[MatmulPoint]:
    """At most `MAX_MATMULS` of `points`, evenly spaced in order of size."""
    ordered = sorted(points, key=lambda p: (p.m * p.n * p.k, p.m, p.n, p.k))
    stride = -(-len(ordered) // MAX_MATMULS)
    return ordered[::stride]


def _linear_shape(row: Row) -> tuple[int, int, int]:
    ranks, tokens, hidden = int(row["mp"]), int(row["b"]) * int(row["l"]), int(row["dim"])
    n, k = {
        "linear1": (3 * hidden // ranks, hidden),
        "linear2": (hidden, hidden // ranks),
        "linear3": (4 * hidden // ranks, hidden),
        "linear4": (hidden, 4 * hidden // ranks),
    }[row["linear"]]
    return tokens, n, k


def kernel_sample_matmuls(gpu: str, level_of: str) -> list[MatmulPoint]:
    """GPT-NeoX matmuls measured on `gpu`, at the sustained level of `level_of`."""
    rates = {}
    for row in _table("kernel_samples_matmul.csv"):
        if row["gpu"] == gpu:
            m, n, k = _linear_shape(row)
            rates[m, n, k] = 2 * m * n * k / (float(row["forward_us"]) * 1e-6)
    scale = LEVEL[level_of] / max(rates.values())
    return [
        MatmulPoint(dtype="fp16", m=m, n=n, k=k, flops_per_s=_rounded(rate * scale))
        for (m, n, k), rate in sorted(rates.items())
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def kernel_sample_attention(gpu: str) -> list[AttentionPoint]:
    """FlashAttention-2 without a causal mask, as `gpu` ran it."""
    points = []
    for row in _table("kernel_samples_attention.csv"):
        if row["gpu"] != gpu:
            continue
        batch, length, ranks = int(row["b"]), int(row["l"]), int(row["mp"])
        heads, head_dim = int(row["h"]) // ranks, int(row["dim"]) // int(row["h"])
        flops = 4 * batch * length**2 * heads * head_dim
        shape: dict[str, Any] = {
            "dtype": "fp16",
            "batch": batch,
            "heads": heads,
            "kv_heads": heads,
            "head_dim": head_dim,
            "v_head_dim": head_dim,
            "seq_len": length,
            "causal": False,
        }
        factors: dict[Literal["forward", "backward"], float] = {"forward": 1.0, "backward": 2.5}
        for direction, factor in factors.items():
            rate = factor * flops / (float(row[f"{direction}_us"]) * 1e-6)
            points.append(AttentionPoint(**shape, direction=direction, flops_per_s=_rounded(rate)))
    return points


def _numbers(shape: str) -> dict[str, str]:
    return dict(part.split("=") for part in shape.replace(" ", "").split(","))


def _simumax(gpu: str) -> Iterator[tuple[Row, dict[str, str]]]:
    for row in _table("gemm-attn-microbench.csv"):
        if row["accelerator"] == SIMUMAX[gpu] and "SimuMax" in row["source"]:
            yield row, _numbers(row["shape"])


def _single_product(shape: dict[str, str], rate: float) -> MatmulPoint | None:
    if shape["layout"] == "NT" and shape["out_dtype"] != "fp32":
        return None
    m, n, k = (int(shape[name]) for name in "mnk")
    layout: Any = shape["layout"]
    return MatmulPoint(dtype="bf16", m=m, n=n, k=k, layout=layout, flops_per_s=rate)


def _grouped_product(shape: dict[str, str], rate: float) -> MatmulPoint:
    """SimuMax names all passes by the forward's M, N and K; here they are the product's own."""
    rows, n, k = (int(shape[name]) for name in "MNK")
    product: dict[str, Any] = {
        "fwd": {"layout": "TN", "m": rows, "n": n, "k": k},
        "bwd_grad_act": {"layout": "NN", "m": rows, "n": k, "k": n},
        "bwd_grad_w": {"layout": "NT", "m": n, "n": k, "k": rows},
    }[shape["stage"]]
    return MatmulPoint(dtype="bf16", groups=int(shape["ng"]), flops_per_s=rate, **product)


def simumax_matmuls(gpu: str) -> list[MatmulPoint]:
    """Single and grouped products of `gpu` in SimuMax's tables, a spread of each transposition."""
    tables: dict[tuple[bool, str], list[MatmulPoint]] = {}
    for row, shape in _simumax(gpu):
        rate = _rounded(float(row["tflops"]) * 1e12)
        point = None
        if row["op"] == "matmul":
            point = _single_product(shape, rate)
        elif row["op"] == "group_matmul":
            point = _grouped_product(shape, rate)
        if point:
            tables.setdefault((point.groups > 1, point.layout), []).append(point)
    return [point for _, points in sorted(tables.items()) for point in _spread(points)]


def simumax_attention(gpu: str) -> list[AttentionPoint]:
    """Causal attention of `gpu` in SimuMax's tables, FLOPs of the causal half."""
    points = []
    for row, shape in _simumax(gpu):
        if row["op"].startswith("sdp_"):
            point = AttentionPoint(
                dtype="bf16",
                direction="forward" if row["op"].startswith("sdp_fwd") else "backward",
                batch=int(shape["batch"]),
                heads=int(shape["head_num"]),
                kv_heads=int(shape["kv_head_num"]),
                head_dim=int(shape["qk_head_dim"]),
                v_head_dim=int(shape["v_head_dim"]),
                seq_len=int(shape["seq_len"]),
                causal=True,
                flops_per_s=_rounded(float(row["tflops"]) / 2 * 1e12),
            )
            points.append(point)
    return points


def azure_matmuls(gpu: str) -> list[MatmulPoint]:
    """cuBLASLt rates after 10,000 warm-up iterations, out of Azure's benchmarking guide."""
    points = []
    for row in _table("hardware-facts.csv"):
        if row["accelerator"] == AZURE[gpu] and row["metric"].startswith("cuBLASLt GEMM"):
            m, n, k = map(int, re.findall(r"[mnk]=(\d+)", row["condition"]))
            dtype: Any = row["metric"].split()[-1]
            rate = float(row["value"]) * 1e12
            points.append(MatmulPoint(dtype=dtype, m=m, n=n, k=k, flops_per_s=rate))
    return points


def reported(gpu: str) -> list[MatmulPoint]:
    """Square products that owners of a `gpu` reported."""
    return [
        MatmulPoint(
            dtype=row["dtype"],  # type: ignore[arg-type]
            m=int(row["m"]),
            n=int(row["n"]),
            k=int(row["k"]),
            flops_per_s=float(row["tflops"]) * 1e12,
        )
        for row in _table("issues_matmul.csv")
        if row["gpu"] == gpu
    ]


def reported_attention(gpu: str) -> list[AttentionPoint]:
    """Attention rates that owners of a `gpu` reported."""
    keep = set(AttentionPoint.model_fields) - {"flops_per_s", "spread"}
    return [
        AttentionPoint.model_validate(
            {k: v for k, v in row.items() if k in keep}
            | {"flops_per_s": float(row["tflops"]) * 1e12}
        )
        for row in _table("issues_attention.csv")
        if row["gpu"] == gpu
    ]


MATMULS: dict[str, Callable[[], list[MatmulPoint]]] = {
    "a100-80gb-sxm": lambda: (
        kernel_sample_matmuls("a100-80gb-sxm", "a100-80gb-sxm") + azure_matmuls("a100-80gb-sxm")
    ),
    "a100-80gb-pcie": lambda: simumax_matmuls("a100-80gb-pcie"),
    "b200": lambda: simumax_matmuls("b200"),
    "gh200": lambda: kernel_sample_matmuls("gh200", "gh200"),
    "h100-sxm": lambda: (
        kernel_sample_matmuls("gh200", "h100-sxm")
        + azure_matmuls("h100-sxm")
        + reported("h100-sxm")
    ),
    "h20": lambda: reported("h20"),
    "rtx-4090": lambda: reported("rtx-4090"),
    "v100-16gb": lambda: reported("v100-16gb"),
}
ATTENTION: dict[str, Callable[[], list[AttentionPoint]]] = {
    "a100-80gb-sxm": lambda: kernel_sample_attention("a100-80gb-sxm"),
    "a100-80gb-pcie": lambda: simumax_attention("a100-80gb-pcie"),
    "b200": lambda: simumax_attention("b200"),
    "h100-sxm": lambda: reported_attention("h100-sxm"),
}


def all_reduce_curve(accelerator: str, metric: str, ranks: int, nodes: int) -> list[CurvePoint]:
    """All-reduce seconds from the bus bandwidths of `accelerator`'s rows, by size."""
    world = ranks * nodes
    points = []
    for row in _table("hardware-facts.csv"):
        size = re.search(r"(\d+) bytes", row["condition"])
        if row["accelerator"] == accelerator and row["metric"].startswith(metric) and size:
            size_bytes = float(size.group(1))
            # The table's last digits are lost below 1 GB/s: such a row says no time.
            if float(row["value"]) >= 0.2:
                bus = float(row["value"]) * 1e9
                seconds = size_bytes * ALL_REDUCE * (world - 1) / world / bus
                points.append(
                    CurvePoint(
                        kind="all_reduce",
                        ranks_per_node=ranks,
                        nodes=nodes,
                        size_bytes=size_bytes,
                        seconds=_rounded(seconds),
                    )
                )
    return points


def kernel_sample_curves(system: str) -> list[CurvePoint]:
    """Collectives of `system`, a spread of 12 sizes of each (all_gather rows count one rank)."""
    groups: dict[tuple[str, int, int], list[CurvePoint]] = {}
    for row in _table("kernel_samples_nccl.csv"):
        if row["system"] == system:
            ranks, nodes = int(row["gpus_per_node"]), int(row["nodes"])
            whole = ranks * nodes if row["kind"] == "all_gather" else 1
            point = CurvePoint(
                kind=row["kind"],  # type: ignore[arg-type]
                ranks_per_node=ranks,
                nodes=nodes,
                size_bytes=2.0 * int(row["elements_fp16"]) * whole,
                seconds=_rounded(float(row["us"]) * 1e-6),
            )
            groups.setdefault((point.kind, ranks, nodes), []).append(point)
    return [
        point
        for _, points in sorted(groups.items())
        for point in sorted(points, key=lambda p: p.size_bytes)[:: -(-len(points) // 12)]
    ]


def _of_one_node(system: str) -> list[CurvePoint]:
    pairs = [
        all_reduce_curve(f"{system} ({n} GPUs of one node)", "all_reduce", n, 1) for n in (2, 4)
    ]
    return [point for points in pairs for point in points]


IN_PLACE = "all_reduce busbw in place"
BENCH = "all_reduce busbw (all_reduce_bench"
CURVES: dict[str, Callable[[], list[CurvePoint]]] = {
    "dgx-a100": lambda: (
        _of_one_node("A100") + all_reduce_curve("A100 SXM 80GB (8 GPU node)", IN_PLACE, 8, 1)
    ),
    "dgx-h100": lambda: (
        all_reduce_curve("H100 SXM (8 GPU node)", IN_PLACE, 8, 1)
        + all_reduce_curve("H100 SXM, 64 GPUs (8 nodes), NDR IB with SHARP", IN_PLACE, 8, 8)
    ),
    "dgx-h200": lambda: all_reduce_curve("H200 SXM (8 GPU node)", IN_PLACE, 8, 1),
    "dgx-b200": lambda: (
        all_reduce_curve("B200 SXM (8 GPU node, NVLink5, AWS p6-b200)", BENCH, 8, 1)
        + all_reduce_curve("B200 SXM (4 nodes x 8, 8x50 GB/s EFA v4 per node)", BENCH, 8, 4)
    ),
    "dgx-v100": lambda: (
        _of_one_node("V100") + all_reduce_curve("V100 (8 GPUs of one node)", "all_reduce", 8, 1)
    ),
    "gb200-nvl72": lambda: (
        all_reduce_curve("GB200 NVL72, 72 GPUs (1 rack)", IN_PLACE, 72, 1)
        + all_reduce_curve("GB200 NVL72, 144 GPUs (2 racks)", IN_PLACE, 72, 2)
        + all_reduce_curve("GB200 NVL72, 1440 GPUs (20 racks)", IN_PLACE, 72, 20)
    ),
    "gh200-vista": lambda: kernel_sample_curves("vista"),
    "perlmutter": lambda: kernel_sample_curves("perlmutter"),
}


def _records(items: Iterable[MatmulPoint | AttentionPoint | CurvePoint]) -> list[dict[str, Any]]:
    return [item.model_dump() for item in items]


def seeded(path: Path) -> dict[str, Any]:
    """The document at `path` with its tables made anew from the published ones."""
    document, name = read_toml(path), path.stem
    if path.parent.name == "measured":
        if name in MATMULS:
            document["matmul_points"] = _records(MATMULS[name]())
        if name in ATTENTION:
            document["attention_points"] = _records(ATTENTION[name]())
    elif name in CURVES:
        points = CURVES[name]()
        document["collective_points"] = _records(points)
        document["collective_fits"] = [fit.model_dump() for fit in fit_curves(points)]
    return document


def main() -> None:
    """Rewrite every profile whose tables come from published measurements."""
    for path in [HERE / "measured" / f"{name}.toml" for name in sorted({*MATMULS, *ATTENTION})]:
        write_toml(seeded(path), path)
    for path in [HERE / "clusters" / f"{name}.toml" for name in sorted(CURVES)]:
        write_toml(seeded(path), path)


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
