"""Measurements that people already have, as points of a profile: nccl-tests logs and matmul tables.

    nccl-tests   size count type redop root | time algbw busbw wrong | time algbw busbw wrong
                 (out of place, then in place; us and GB/s). Ranks and hosts: the "# Rank" lines.
                 all_reduce is taken in place, as training runs it, the others out of place
    matmuls      lines with "4096x8192x1024" and a rate in TFLOPS (mamf-finder's), median before
                 mean, or a CSV with columns m, n, k, tflops and perhaps dtype

What is measured replaces what the base profile had of the same kind; the rest stays, with its
source.
"""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.seconds.trees import ring_rate
from meshplan.costmodels.units import GB, TFLOPS
from meshplan.hardware_profiles.curves import fit_curves
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.files.bounded_file import read_bounded
from meshplan.hardware_profiles.network_schema import BusBandwidth, CollectiveKind, CurvePoint, Link
from meshplan.hardware_profiles.schema import Cluster, Dtype, Gpu, Kernels, MatmulPoint
from meshplan.planner.profiles.plot import bus_bandwidth

MAX_LOG_BYTES = 4 * 2**20  # a log of nccl-tests has some 100 lines

# nccl-tests programs by our kinds; longer names first, since "reduce" is part of others.
PROGRAMS: dict[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send",
}
LARGE_BYTES = 64 * 2**20  # from here on a message's bus bandwidth is the link's
RANK_LINE = re.compile(r"#\s+Rank\s+\d+.*?\bon\s+(\S+)\s+device")
SHAPE = re.compile(r"(\d+)\s*x\s*(\d+)\s*x\s*(\d+)")
NUMBER = r"(\d+(?:\.\d+)?)"


class UnreadableLog(ValueError):
    """A file that holds no measurement we know: one line that says what was looked for."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Points out of one file."""

    file: str
    curves: tuple[CurvePoint, ...] = ()
    matmuls: tuple[MatmulPoint, ...] = ()


def read_measurements(path: Path, *, dtype: Dtype = "bf16") -> Imported:
    """Points of an nccl-tests log, or of a matmul table whose lines do not say another `dtype`.

    Raises `UnreadableLog` when it cannot be read, is no file or holds neither.
    """
    try:
        data = read_bounded(path, MAX_LOG_BYTES, "a log or a table")
    except OSError as error:
        raise UnreadableLog(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UnreadableLog(f"{path}: {error}") from None
    text = data.decode("utf-8-sig", errors="replace")
    if "busbw" in text:
        return Imported(path.name, curves=_collectives(text, path.name))
    matmuls = _matmul_csv(text, dtype) or _matmul_lines(text, dtype)
    if not matmuls:
        raise UnreadableLog(
            f"{path}: neither an nccl-tests log (a header with busbw) nor a matmul table "
            "(lines like '4096x8192x1024 ... 612.3 TFLOPS', or CSV with m,n,k,tflops)"
        )
    return Imported(path.name, matmuls=matmuls)


def _collectives(text: str, name: str) -> tuple[CurvePoint, ...]:
    kind = _kind(text, name)
    hosts = Counter(RANK_LINE.findall(text))
    if not hosts or len(set(hosts.values())) != 1:
        raise UnreadableLog(f"{name}: no '# Rank ... on HOST device' lines, as many on each host")
    points = [
        CurvePoint(
            kind=kind,
            ranks_per_node=next(iter(hosts.values())),
            nodes=len(hosts),
            size_bytes=size_bytes,
            seconds=seconds,
        )
        for size_bytes, seconds in _timings(text, in_place=kind == "all_reduce")
    ]
    if not points:
        raise UnreadableLog(f"{name}: an nccl-tests header, but no line with a size and times")
    return tuple(points)


def _kind(text: str, name: str) -> CollectiveKind:
    """The collective that the log names itself, or its file name does."""
    for place in (re.findall(r"(\w+)_perf", text), [name]):
        for program, kind in PROGRAMS.items():
            if any(program in word for word in place):
                return kind
    raise UnreadableLog(
        f"{name}: the log does not say its collective; name the file after the program, "
        "as in all_reduce_perf.log"
    )


def _timings(text: str, *, in_place: bool) -> list[tuple[float, float]]:
    """Size in bytes and seconds of each line of results with any bytes in it."""
    found = []
    for line in text.splitlines():
        words = line.split()
        # At least size, count, type, and two groups of time, algbw, busbw, wrong.
        if len(words) < 11 or not words[0].isdigit():
            continue
        time_us = words[-4] if in_place else words[-8]
        if re.fullmatch(NUMBER, time_us) and float(time_us) > 0 and int(words[0]) > 0:
            found.append((float(words[0]), float(time_us) * 1e-6))
    return found


def _matmul_csv(text: str, dtype: Dtype) -> tuple[MatmulPoint, ...]:
    rows = csv.DictReader(text.splitlines())
    columns = {name.strip().lower(): name for name in rows.fieldnames or ()}
    if not {"m", "n", "k", "tflops"} <= set(columns):
        return ()
    return tuple(
        MatmulPoint(
            dtype=_dtype(row[columns["dtype"]]) or dtype if "dtype" in columns else dtype,
            m=int(row[columns["m"]]),
            n=int(row[columns["n"]]),
            k=int(row[columns["k"]]),
            flops_per_s=float(row[columns["tflops"]]) * TFLOPS,
        )
        for row in rows
    )


def _matmul_lines(text: str, dtype: Dtype) -> tuple[MatmulPoint, ...]:
    said = re.search(r"torch\.(\w+)", text)
    dtype = (_dtype(said.group(1)) if said else None) or dtype
    points = {}
    for line in text.splitlines():
        # "best so far" repeats an earlier line.
        line = re.split(r"\|\s*best", line)[0]
        shape, rate = SHAPE.search(line), _rate(line)
        if shape and rate:
            m, n, k = (int(word) for word in shape.groups())
            points[m, n, k] = MatmulPoint(dtype=dtype, m=m, n=n, k=k, flops_per_s=rate * TFLOPS)
    return tuple(points.values())


def _rate(line: str) -> float | None:
    for form in (rf"{NUMBER}\s*\(median\)", rf"{NUMBER}\s*\(mean\)", rf"{NUMBER}\s*TFLOP"):
        found = re.search(form, line)
        if found:
            return float(found.group(1))
    return None


def _dtype(text: str) -> Dtype | None:
    names: dict[str, Dtype] = {
        "bfloat16": "bf16",
        "float16": "fp16",
        "float32": "fp32",
        "float8_e4m3fn": "fp8",
    }
    names |= {name: name for name in get_args(Dtype)}
    return names.get(text.strip().lower())


def with_measurements(base: Cluster, imported: Sequence[Imported], name: str) -> Cluster:
    """`base` under a new `name`, with the imported points, their fits, and the rates they show.

    Large messages over a whole node, or over several whole nodes, become the link's bus bandwidth.
    """
    curves = tuple(point for file in imported for point in file.curves)
    matmuls = tuple(point for file in imported for point in file.matmuls)
    shapes = {(p.kind, p.ranks_per_node, p.nodes) for p in curves}
    kept = tuple(
        p for p in base.collective_points if (p.kind, p.ranks_per_node, p.nodes) not in shapes
    )
    files = ", ".join(file.file for file in imported)
    document = dict(base)
    document |= {
        "name": name,
        "title": f"{base.title}, measured",
        "node": _link(base.node, base.gpu, _whole(curves, base, several_nodes=False)),
        "network": _link(base.network, base.gpu, _whole(curves, base, several_nodes=True)),
        "collective_points": kept + curves,
        "collective_fits": fit_curves(kept + curves),
        "kernels": _with_matmuls(base, matmuls, files),
        "conditions": base.conditions | {"kind": "imported", "files": files, "base": base.name},
        "sources": base.sources | _link_sources(curves, base, files),
    }
    return Cluster.model_validate(document)


def _whole(
    curves: Sequence[CurvePoint], base: Cluster, *, several_nodes: bool
) -> dict[str, CurvePoint]:
    """For each collective that used whole nodes, its largest message (of the most nodes)."""
    found: dict[str, CurvePoint] = {}
    for point in sorted(curves, key=lambda p: (p.nodes, p.size_bytes)):
        whole = point.ranks_per_node == base.gpus_per_node
        if whole and (point.nodes > 1) == several_nodes and point.size_bytes >= LARGE_BYTES:
            found[point.kind] = point
    return {kind: found[kind] for kind in found if kind in BusBandwidth.model_fields}


def _link(base: Link, gpu: Gpu, measured: dict[str, CurvePoint]) -> Link:
    rates = {kind: _link_rate(point) for kind, point in measured.items()}
    if "all_reduce" in measured:
        point = measured["all_reduce"]
        whole = Group(float(point.nodes * point.ranks_per_node), float(point.ranks_per_node))
        gathered = rates.get("all_gather", 0.0)
        rates["all_reduce"] = ring_rate(gpu, whole, rates["all_reduce"], gathered)
    bandwidth = base.bus_bandwidth.model_copy(update=rates)
    return base.model_copy(update={"bus_bandwidth": bandwidth})


def _link_rate(point: CurvePoint) -> float:
    """The tier's rate: busbw, of all_to_all between nodes only the part that leaves the node."""
    ranks = point.nodes * point.ranks_per_node
    if point.kind == "all_to_all" and point.nodes > 1:
        return bus_bandwidth(point) * (ranks - point.ranks_per_node) / (ranks - 1)
    return bus_bandwidth(point)


def _link_sources(curves: Sequence[CurvePoint], base: Cluster, files: str) -> dict[str, str]:
    return {
        f"{tier}.bus_bandwidth.{kind}": f"nccl-tests, {point.nodes} nodes, "
        f"{point.size_bytes / GB:.3g} GB: {files}"
        for tier, several in (("node", False), ("network", True))
        for kind, point in _whole(curves, base, several_nodes=several).items()
    }


def _with_matmuls(base: Cluster, matmuls: Sequence[MatmulPoint], files: str) -> Kernels | None:
    """Kernels with the points of each imported dtype in place of the base's."""
    if not matmuls or base.kernels is None:
        return base.kernels
    dtypes = {point.dtype for point in matmuls}
    unknown = dtypes - set(base.gpu.peak_flops_per_s)
    if unknown:
        raise UnreadableLog(f"{files}: {base.gpu.name} has no {', '.join(sorted(unknown))} matmuls")
    efficiency = base.kernels.matmul_efficiency | {
        dtype: _large_rate([p for p in matmuls if p.dtype == dtype])
        / base.gpu.peak_flops_per_s[dtype]
        for dtype in dtypes
    }
    kept = tuple(p for p in base.kernels.matmul_points if p.dtype not in dtypes)
    changed: dict[str, Any] = {
        "matmul_efficiency": efficiency,
        "matmul_points": kept + tuple(matmuls),
        "conditions": base.kernels.conditions | {"kind": "imported", "files": files},
        "sources": base.kernels.sources
        | {
            "matmul_points": files,
            "matmul_efficiency": f"{', '.join(sorted(dtypes))}: 90th percentile of the larger half "
            f"of the shapes in {files}; others as before: "
            + base.kernels.sources.get("matmul_efficiency", "not stated"),
        },
    }
    return base.kernels.model_copy(update=changed)


def _large_rate(points: Sequence[MatmulPoint]) -> float:
    by_size = sorted(points, key=lambda p: p.m * p.n * p.k)
    return float(np.quantile([p.flops_per_s for p in by_size[len(by_size) // 2 :]], 0.9))
