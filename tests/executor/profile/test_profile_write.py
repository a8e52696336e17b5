"""From measurements to the profile that the planner reads."""

import math
from pathlib import Path

import pytest

from meshplan.executor.cli.profile import busbw_of_all_ranks
from meshplan.executor.profile.health import slow_links, slow_ranks
from meshplan.executor.profile.record import Quantity, Record
from meshplan.executor.profile.write import (
    Measured,
    MeasuringRanks,
    build_cluster,
    measured_gpu,
    shared_slowdown,
)
from meshplan.hardware_profiles.built_in import load_gpu
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import AttentionPoint, MatmulPoint

GIB = 2**30


def _quantity(name: str, value: float) -> Record:
    return Record(key=name, result=Quantity(name=name, value=value, unit="ratio"))


def _curve(kind: str, seconds_of_1_gib: float, ranks_per_node: int = 8, nodes: int = 1) -> Record:
    point = CurvePoint.model_validate(
        {
            "kind": kind,
            "ranks_per_node": ranks_per_node,
            "nodes": nodes,
            "size_bytes": GIB,
            "seconds": seconds_of_1_gib,
        }
    )
    return Record(key=f"{kind}{ranks_per_node}x{nodes}", result=point)


RECORDS = (
    _quantity("launch", 3e-6),
    _quantity("usable_memory", 70e9),
    _quantity("context", 1e9),
    _quantity("communicator", 5e8),
    _quantity("burst.bf16", 800e12),
    _quantity("sustained.bf16", 700e12),
    _quantity("bandwidth.copy", 3.0e12),
    _quantity("bandwidth.add", 2.8e12),
    _quantity("bandwidth.adamw", 2.5e12),
    _quantity("interference.compute", 1.1),
    _quantity("interference.communication", 1.3),
    Record(
        key="m",
        result=MatmulPoint(dtype="bf16", m=4096, n=4096, k=4096, flops_per_s=712.3456789e12),
    ),
    *(
        Record(
            key=direction,
            result=AttentionPoint.model_validate(
                {
                    "dtype": "bf16", "direction": direction, "batch": 1, "heads": 32,
                    "kv_heads": 32, "head_dim": 128, "v_head_dim": 128, "seq_len": 8192,
                    "causal": True, "flops_per_s": rate,
                }
            ),
        )
        for direction, rate in (("forward", 500e12), ("backward", 400e12))
    ),
    Record(
        key="tiny",
        result=CurvePoint(
            kind="all_reduce", ranks_per_node=8, nodes=1, size_bytes=1024, seconds=56e-6
        ),
    ),
    *(_curve(kind, 4e-3) for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")),
    _curve("send", 4e-3, ranks_per_node=2),
)  # fmt: skip
H100 = load_gpu("h100-sxm")
JOB = MeasuringRanks(ranks_per_node=8, nodes=1)


def test_links_by_hand() -> None:
    """busbw = bytes / s x 2(n-1)/n for all_reduce, (n-1)/n for its halves, 1 for send."""
    cluster = build_cluster(RECORDS, H100, JOB, {"date": "today"}, "x")
    bandwidth = cluster.node.bus_bandwidth
    assert bandwidth.all_reduce == pytest.approx(GIB / 4e-3 * 2 * 7 / 8, rel=1e-5)
    assert bandwidth.all_gather == pytest.approx(GIB / 4e-3 * 7 / 8, rel=1e-5)
    assert bandwidth.send == pytest.approx(GIB / 4e-3, rel=1e-5)
    assert cluster.node.latency_s == pytest.approx(56e-6 / 14)  # 2 (8 - 1) steps


def test_two_nodes_measure_a_tree() -> None:
    """Its busbw of 2 x 15/16 GiB in 4 ms is GiB in 4 ms for a ring; the hosts' gloo takes rings."""
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    across = [_curve(kind, 4e-3, nodes=2) for kind in kinds]
    records = (*RECORDS, *across, _curve("send", 4e-3, ranks_per_node=1, nodes=2))
    job = MeasuringRanks(ranks_per_node=8, nodes=2)
    for vendor, gain in (("nvidia", 1.0), ("cpu", 2 * 15 / 16)):
        gpu = H100.model_copy(update={"vendor": vendor})
        cluster = build_cluster(records, gpu, job, {"date": "today"}, "x")
        ring = cluster.network.bus_bandwidth.all_reduce
        assert ring == pytest.approx(gain * GIB / 4e-3, rel=1e-5)
        assert busbw_of_all_ranks(cluster) == pytest.approx(2 * 15 / 16 * GIB / 4e-3)


def test_efficiencies_are_fractions_of_the_datasheet() -> None:
    """Sustained rate over datasheet peak, attention over the 16-bit peak, bytes over bandwidth."""
    kernels = build_cluster(RECORDS, H100, JOB, {}, "x").kernels
    assert kernels is not None
    assert kernels.matmul_efficiency["bf16"] == pytest.approx(700 / 989, rel=1e-5)
    assert kernels.attention_backward == pytest.approx(400 / 989, rel=1e-5)
    assert kernels.memory_efficiency == pytest.approx(2 / (1 / 3.0 + 1 / 2.8) / 3.35, rel=1e-5)
    assert kernels.optimizer_efficiency == pytest.approx(2.5 / 3.35, rel=1e-5)


@pytest.mark.parametrize("name", ["add_bf16", "rope_bf16"])
def test_rates_in_bf16_are_no_part_of_the_mean(name: str) -> None:
    """A kernel that casts moves a tenth of the bytes: plans read its own rate, the mean is fp32's,
    whether it was measured in fp32 too or not.
    """
    cast = _quantity(f"bandwidth.{name}", 0.3e12)
    plain = build_cluster(RECORDS, H100, JOB, {}, "x").kernels
    both = build_cluster((*RECORDS, cast), H100, JOB, {}, "x").kernels
    assert plain is not None
    assert both is not None
    assert both.memory_efficiency == plain.memory_efficiency
    assert both.pointwise_bytes_per_s == {**plain.pointwise_bytes_per_s, name: 0.3e12}


def test_the_best_attention_kernel_is_the_measure_of_the_other() -> None:
    """250e12 of FlashAttention-2 beside 500e12 forward, 300e12 beside 400e12 backward: 5/8."""
    flash2 = [
        record.model_copy(
            update={
                "key": f"flash2{record.key}",
                "result": record.result.model_copy(update={"kernel": "flash2", "flops_per_s": r}),
            }
        )
        for record in RECORDS if isinstance(record.result, AttentionPoint)
        for r in ({"forward": 250e12, "backward": 300e12}[record.result.direction],)
    ]  # fmt: skip
    kernels = build_cluster((*flash2, *RECORDS), H100, JOB, {}, "x").kernels
    assert kernels is not None
    assert kernels.attention_forward == pytest.approx(500 / 989, rel=1e-5)
    assert kernels.attention_backward == pytest.approx(400 / 989, rel=1e-5)
    assert kernels.flash2_fraction == pytest.approx(5 / 8)


def test_the_file_reads_back(tmp_path: Path) -> None:
    """The written TOML loads to the same cluster: points, fits and conditions included."""
    cluster = build_cluster(RECORDS, H100, JOB, {"date": "2026-01-01"}, "x")
    save_cluster(cluster, tmp_path / "x.toml")
    assert load_cluster(tmp_path / "x.toml") == cluster
    assert {point.size_bytes for point in cluster.collective_points} == {1024, GIB}
    assert cluster.kernels is not None
    assert cluster.kernels.matmul_points[0].flops_per_s == 712.346e12  # six digits are enough


def test_a_lone_process_pays_nothing_and_says_so(tmp_path: Path) -> None:
    """Without a second rank there is no link to measure: infinite, and never used (max_gpus 1)."""
    alone = tuple(r for r in RECORDS if not isinstance(r.result, CurvePoint))
    cluster = build_cluster(alone, H100, MeasuringRanks(1, 1), {}, "x")
    assert cluster.max_gpus == 1
    assert cluster.node.bus_bandwidth.all_reduce == math.inf
    assert "one process" in cluster.sources["node"]
    save_cluster(cluster, tmp_path / "x.toml")
    assert load_cluster(tmp_path / "x.toml") == cluster


def test_an_unknown_device_gets_measured_peaks() -> None:
    """The peak of a device without datasheet is its fastest product, points included."""
    gpu = measured_gpu(H100, Measured.of(RECORDS))
    assert gpu.peak_flops_per_s == {"bf16": 712.3456789e12}
    assert gpu.memory_bandwidth_bytes_per_s == 3.0e12
    assert gpu.sources["peak_flops_per_s"].startswith("measured")


def test_shared_slowdown_by_hand() -> None:
    """Products that took 2 s of which 1 alone, and 1 s all alone: 3 s instead of 2, 1.5 times. What
    was counted rather than timed, and devices that nobody else uses, say nothing.
    """
    point = MatmulPoint(dtype="bf16", m=1, n=1, k=1, flops_per_s=1.0)
    long = Record(key="a", result=point, rank_seconds=(2.0, 2.0), slowdown=2.0)
    short = Record(key="b", result=point, rank_seconds=(1.0, 1.0), slowdown=1.0)
    moved = _quantity("bandwidth.add", 1e9).model_copy(
        update={"rank_seconds": (3.0,), "slowdown": 1.2}
    )
    assert shared_slowdown((long, short, moved, *RECORDS)) == pytest.approx(
        {"bf16": 1.5, "memory": 1.2}
    )
    assert shared_slowdown(RECORDS) == {}


def test_slow_rank_is_named() -> None:
    """Rank 2 of 4 takes 10 % longer than the median rank in everything it does alone."""
    point = MatmulPoint(dtype="bf16", m=1, n=1, k=1, flops_per_s=1.0)
    records = [Record(key=str(i), result=point, rank_seconds=(1, 1, 1.1, 1)) for i in range(3)]
    assert slow_ranks(records, world_size=4) == pytest.approx({"rank 2": 0.1})


def test_slow_link_is_named() -> None:
    """Of four pairs, the one through a bad cable takes twice the median pair's time."""
    point = CurvePoint(kind="send", ranks_per_node=1, nodes=2, size_bytes=2**24, seconds=2.0)
    record = Record(key="s", result=point, rank_seconds=(1, 1, 1, 2, 1, 1, 1, 2))
    assert slow_links([record], ranks_per_node=4, nodes=2) == {"ranks 3,7": 1.0}
