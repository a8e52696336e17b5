"""A finished sweep: each cell with its answer and cost, and which sizes stand out.

cheapest, knee   of the cells that differ in their GPUs only      (`planner.sweep.economics`)
front            of all cells of one job, wherever they would run
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.answer.explain import needed_bytes
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.plan_file import said
from meshplan.planner.sweep.cells import Answer, Cell, Series, series_of
from meshplan.planner.sweep.economics import (
    RunCost,
    Terms,
    cheapest,
    front,
    in_money,
    knee,
    run_cost,
)

T = TypeVar("T")
LACKING = ("lacking_bytes", "lacking_host_bytes")
PER_TRILLION = ("gpu_hours_per_trillion_tokens", "cost_per_trillion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One cell of a finished sweep; `answer` is None where Ctrl-C came first."""

    line: int
    series: Series
    gpus: int
    answer: Answer | None
    cost: RunCost | None = None
    cheapest: bool = False
    knee: bool = False
    front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All rows, line by line."""

    rows: tuple[SweepRow, ...]
    terms: Terms

    @property
    def lines(self) -> list[list[SweepRow]]:
        """The rows of each series, in the order asked."""
        return list(_grouped(self.rows, lambda row: row.line).values())

    @property
    def jobs(self) -> list[list[SweepRow]]:
        """The rows of each job, in the order asked."""
        return list(_grouped(self.rows, lambda row: row.series.job).values())

    @property
    def planned(self) -> int:
        """Cells that have a plan."""
        return sum(row.cost is not None for row in self.rows)


def outcome(
    cells: Sequence[Cell],
    answers: Sequence[Answer | None],
    terms: Terms,
    prices: Sequence[float | None],
) -> Sweep:
    """Everything about a sweep; `prices` per GPU-hour by cluster, None where nothing was said."""
    members = _grouped(cells, lambda cell: cell.line)
    series = {line: series_of(group) for line, group in members.items()}
    rows = [
        SweepRow(
            line=cell.line,
            series=series[cell.line],
            gpus=cell.arguments.gpus,
            answer=found,
            cost=cost_of(found, cell.asked, terms, prices[cell.cluster_index]),
        )
        for cell, found in zip(cells, answers, strict=True)
    ]
    return Sweep(rows=tuple(_marked(rows)), terms=terms)


def cost_of(
    found: Answer | None, asked: Asked | None, terms: Terms, price: float | None
) -> RunCost | None:
    """What the run costs, None without a plan; without a `price` at that of the cluster's GPUs."""
    if asked is None or found is None or found.plan is None or found.plan.prediction is None:
        return None
    q, step_s = asked.question, found.plan.prediction.step_time_s
    rate = q.cluster.gpu_hour_price if price is None else price
    return run_cost(q.gpus, step_s, q.training.global_batch_tokens, terms, rate)


def _marked(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """The rows with what stands out marked."""
    marked = list(rows)
    for indices in _grouped(range(len(rows)), lambda i: rows[i].line).values():
        costs = {i: cost for i in indices if (cost := rows[i].cost) is not None}
        best, bend = cheapest(list(costs.values())), knee(list(costs.values()))
        for i, cost in costs.items():
            marked[i] = replace(marked[i], cheapest=cost is best, knee=cost is bend)
    for indices in _grouped(range(len(rows)), lambda i: rows[i].series.job).values():
        costs = {i: cost for i in indices if (cost := rows[i].cost) is not None}
        places = list(costs)
        for place in front(list(costs.values())):
            marked[places[place]] = replace(marked[places[place]], front=True)
    return marked


def _grouped(items: Sequence[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    groups: dict[Any, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def record(row: SweepRow) -> dict[str, Any]:
    """A row's facts with the units in the keys, the same for CSV and JSON; None: not known.

    gpus                    of the cell
    status                  `OPTIMAL`, `FEASIBLE`, `INFEASIBLE`, `UNKNOWN`; `REFUSED`: no question;
                            `OPEN`: the sweep was ended before
    label                   of the layout, in short
    needed_bytes            of the fullest rank
    may_fit                 of what is infeasible: something that may fit was left open
    lacking_bytes           of each GPU, in the nearest miss of what is infeasible
    lacking_host_bytes      of each GPU's share of the host, where that alone is infeasible
    gpu_hours_per_trillion_tokens
                            GPU-hours of 1e12 tokens
    cost_per_trillion_tokens
                            in the currency of the price; None without one
    cheapest                whether a token costs least here, of its series
    knee                    whether time x cost is least here, of its series
    front                   whether no cell of the same job is both faster and cheaper
    reason                  why there is no plan
    """
    found, cost = row.answer, row.cost
    plan = found.plan if found else None
    prediction = plan.prediction if plan else None
    return {
        **asdict(row.series),
        "gpus": row.gpus,
        "status": found.status if found else "OPEN",
        "label": plan.layout.label if plan else None,
        **facts(prediction, "step_time_s", "step_time_low_s", "step_time_high_s", "mfu",
                "tokens_per_s_per_gpu"),
        "needed_bytes": needed_bytes(prediction.memory) if prediction else None,
        **facts(prediction, "gpu_memory_bytes"),
        **facts(found, "may_fit", *LACKING),
        **facts(plan and plan.search, "bound_s", "gap"),
        **facts(
            cost, "tokens_per_s", *PER_TRILLION, "goodput", "days", "gpu_hours",
            "price_per_gpu_hour", "cost",
        ),
        **facts(row, "cheapest", "knee", "front"),
        "reason": (found.reason if found else "not planned: the sweep was ended") or None,
    }  # fmt: skip


def facts(of: object, *names: str) -> dict[str, Any]:
    """The attributes `names` of `of`, by name; None where it is None, or one has no end."""
    values = {name: getattr(of, name) if of else None for name in names}
    return {name: None if value == math.inf else value for name, value in values.items()}


def document(sweep: Sweep) -> dict[str, Any]:
    """The sweep as one JSON document; `layout` is what a plan file says of it.

    meshplan_sweep  version of the document
    tokens          of the whole run, as asked
    gpu_mtbf_s      mean time between failures of one GPU, as asked
    checkpoint_s    to write a checkpoint, as asked
    restart_s       to start again, as asked
    series          cells that differ in their GPUs only
    fronts          for each job what is not beaten in both speed and cost
    cells           each combination
    """
    cells = []
    for row in sweep.rows:
        plan = row.answer.plan if row.answer else None
        cells.append({**record(row), "layout": said(plan.layout) if plan else None})
    return {
        "meshplan_sweep": 1,
        "tokens": sweep.terms.tokens,
        **facts(sweep.terms.failures, "gpu_mtbf_s", "checkpoint_s", "restart_s"),
        "series": [standing_out(line) for line in sweep.lines],
        "fronts": [front_document(job) for job in sweep.jobs],
        "cells": cells,
    }


def standing_out(line: Sequence[SweepRow]) -> dict[str, Any]:
    """The sizes of one series that stand out, None where nothing of it has a plan.

    cheapest_gpus  where a token costs least
    knee_gpus      where time x cost is least
    """
    return {
        **asdict(line[0].series),
        "cheapest_gpus": next((row.gpus for row in line if row.cheapest), None),
        "knee_gpus": next((row.gpus for row in line if row.knee), None),
    }


def front_document(job: Sequence[SweepRow]) -> dict[str, Any]:
    """The cells of one job on its front, the fastest first.

    model              of the job
    seq_len            of the job
    global_batch_size  of the job
    cost_in            `money`, or `gpu_hours` where a cell has no price
    cells              `cluster`, `engine` and `gpus` of each, the fastest first
    """
    return {
        **facts(job[0].series, "model", "seq_len", "global_batch_size"),
        "cost_in": "money" if in_money(costs_of(job)) else "gpu_hours",
        "cells": [
            {**facts(row.series, "cluster", "engine"), "gpus": row.gpus} for row in on_front(job)
        ],
    }


def on_front(job: Sequence[SweepRow]) -> list[SweepRow]:
    """The rows of a job that are on its front, the fastest first."""
    kept = [row for row in job if row.front and row.cost is not None]
    return sorted(kept, key=lambda row: -row.cost.tokens_per_s if row.cost else 0.0)


def costs_of(rows: Sequence[SweepRow]) -> list[RunCost]:
    """The costs of the rows that have a plan."""
    return [row.cost for row in rows if row.cost is not None]
