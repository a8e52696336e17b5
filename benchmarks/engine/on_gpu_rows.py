"""Rows of `benchmarks.engine.on_gpu`: a rank that ran alone, and a plan that all its ranks ran."""

import os
from collections.abc import Sequence

from benchmarks.accuracy.rows import csv_text
from benchmarks.engine.on_gpu_plans import Item
from meshplan.costmodels.units import GIB
from meshplan.executor.launch.results import RankResult, RunResult
from meshplan.executor.launch.run_row import row_of
from meshplan.executor.onerank.result import OneRankRun, RankMeasured
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan

Row = dict[str, str]


def table(rows: Sequence[Row]) -> str:
    """The rows as CSV, every column that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text(columns, ([row.get(name, "") for name in columns] for row in rows))


def row_of_rank(item: Item, plan: Plan, run: OneRankRun, cluster: Cluster) -> Row:
    """A row for the rank that ran. `validate` skips it where its columns cannot say the model."""
    (rank,) = run.ranks
    row = row_of(plan, result_of(run, rank), cluster.gpu.name) or unsaid(plan, run, cluster)
    held = {name: f"{size / GIB:.4f}" for name, size in rank.held_bytes.items()}
    seconds = {
        f"{name.strip().replace(' ', '_').replace('-', '_')}_{what}_s": f"{value:.6g}"
        for part in run.parts[rank.rank] if part.unit == "s"
        for name, what, value in (
            (part.name, "measured", part.measured), (part.name, "predicted", part.predicted)
        ) if value is not None
    }  # fmt: skip
    alone = plan.layout.world_size > 1
    return {
        **row, "suite": "one rank" if alone else "one GPU",
        "id": f"{row['id']}-rank{rank.rank}", "year": run.date[:4],
        "note": f"rank {rank.rank} alone, its messages answered in predicted time" if alone else "",
        "allocated_gib": _gib(rank, "allocated") if rank.rank == 0 else "",
        "separates": item.separates, "rank": str(rank.rank),
        "micro_batches_run": str(rank.micro_batches),
        "put_together_s": _seconds(run.step.measured) if alone else "",
        **_said_of(run, rank.step_times_s, cluster),
        **{f"held_{name}_gib": size for name, size in held.items()},
        "rank_allocated_gib": _gib(rank, "allocated"), "rank_reserved_gib": _gib(rank, "reserved"),
        **seconds,
    }  # fmt: skip


def row_of_all(
    item: Item, plan: Plan, result: RunResult, alone_s: float | None, cluster: Cluster
) -> Row:
    """A row for the plan that all its ranks ran; `alone_s`: the step put together from ranks that
    ran alone.
    """
    row = row_of(plan, result, cluster.gpu.name) or unsaid(plan, result, cluster)
    return {
        **row, "suite": "all ranks", "id": f"{row['id']}-together", "year": result.date[:4],
        "note": f"{len(result.ranks)} processes, "
        + ("NCCL" if result.device == "cuda" else "gloo") + " between them",
        "separates": item.separates, "step_time_s": _seconds(result.step_time_s),
        "put_together_s": _seconds(alone_s),
        **_said_of(result, result.step_times_s, cluster),
    }  # fmt: skip


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.6g}"


def _said_of(run: OneRankRun | RunResult, steps_s: Sequence[float], cluster: Cluster) -> Row:
    """By what it was priced, what ran it, and beside what."""
    return {
        "priced_by": cluster.name,
        "versions": "; ".join(f"{name} {version}" for name, version in run.versions.items()),
        "conditions": f"load {os.getloadavg()[0]:.1f}, steps "
        + " ".join(f"{seconds:.5g}" for seconds in steps_s),
    }


def unsaid(plan: Plan, run: OneRankRun | RunResult, cluster: Cluster) -> Row:
    """What is left of a row whose model the columns cannot say: no shape, so nobody prices it."""
    return {
        "id": f"{plan.model.name}-{run.layout.replace(' ', '-')}-{run.date}", "grade": "A",
        "framework": "native", "model": plan.model.name, "gpu": cluster.gpu.name,
        "precision": plan.training.precision, "seq_len": str(plan.training.seq_len),
        "global_batch": str(plan.training.global_batch_size),
        "gpus": str(plan.layout.world_size),
    }  # fmt: skip


def _gib(rank: RankMeasured, name: str) -> str:
    size = rank.device_bytes.get(name)
    return "" if size is None else f"{size / GIB:.3f}"


def result_of(run: OneRankRun, rank: RankMeasured) -> RunResult:
    """The run as `execute` writes it: a step only where the rank is the whole plan."""
    whole = not run.estimated_pipeline_ranks and not rank.exposed_s.keys() - {"world"}
    seconds = rank.seconds
    return RunResult(
        status="complete", plan=run.plan, layout=run.layout, engine="native", device=run.device,
        versions=run.versions, date=run.date, step_time_s=run.step.measured if whole else None,
        ranks=(
            RankResult(
                rank=rank.rank, pipeline_rank=rank.pipeline_rank, step_time_s=rank.step_s,
                forward_s=seconds["forward"], backward_s=seconds["backward"],
                optimizer_s=seconds["optimizer"], waiting_s=seconds.get("wait", 0.0),
                exposed_comm_s=seconds.get("reduce", 0.0),
                processor_s=min(rank.processor_s),
                allocated_peak_bytes=rank.device_bytes.get("allocated", 0),
                reserved_peak_bytes=rank.device_bytes.get("reserved", 0),
            ),
        ),
    )  # fmt: skip
