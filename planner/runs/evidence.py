"""The measured runs nearest to a layout: what they measured, and what is predicted for them.

A distance is a sum; 1 is as far as a model twice as large is:

    model     |log2| of the ratio of parameters and of active ones, half of each; 2 for another kind
              (dense, experts, state)
    scale     |log2| of the ratio of GPUs and of sequence lengths, half of each
    GPU       1 for another of the same family, 3 for another family
    engine    2 for another engine
    training  1 for another precision (fp16 and bf16 are one: the same kernels at the same rate), 2
              where one alone trains adapters beside frozen weights
    layout    |log2| of the ratios of tp, pp, cp and ep, a quarter of each; 1/4 for another mode of
              recompute, 1/2 where ZeRO shards weights in one of them alone

Near is a run of the same kind of model at a distance of at most 3 (`NEAR`): a model eight times as
large, another family of GPUs, or another engine and as much again as twice the size. Of what lies
beyond it a reader is told that no run is near.

A run on GPUs says nothing of CPU processes, nor the reverse: those have no distance. Only complete
runs (grades A and B) with a step time count, and of those of one suite that have the
model, the GPU and their number in common the nearest alone: its neighbours say little more. The
weights are chosen, not fitted: they order what a reader sees, and no prediction depends on them.
"""

import csv
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.model.parameters import active_parameters, model_parameters
from meshplan.costmodels.model.transformer import Model
from meshplan.hardware_profiles.errors.left_out_runs import ratios
from meshplan.hardware_profiles.tunings import gpu_family, load_fit
from meshplan.planner.case.plan_findings import MeasuredRun
from meshplan.planner.case.resolve import Case
from meshplan.planner.runs.engines import engine_name
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, run_of
from meshplan.planner.runs.validate import predict_run

SHOWN = 5
NEAR = 3.0
CPU = "cpu"  # the name of every `local_cpu.detect_cpu`
COMPLETE = ("A", "B")
Cells = Mapping[str, str]


def nearest_runs(case: Case, shown: int = SHOWN) -> tuple[MeasuredRun, ...]:
    """The published runs nearest to `case`, the nearest first, each priced as it was run."""
    found: list[MeasuredRun] = []
    seen = set()
    for run, framework, distance in _in_order(case):
        alike = (run.suite, run.model.name, run.cluster.gpu.name, run.layout.world_size)
        if alike not in seen:
            seen.add(alike)
            found.append(_measured(case, run, framework, distance))
        if len(found) == shown:
            break
    return tuple(found)


def _in_order(asked: Case) -> Iterator[tuple[Run, str, float]]:
    """Runs with their framework and distance, the nearest first.

    What the cells of a row say of its distance is a lower bound; only rows whose bound is next are
    looked at more closely, and none that is surely like one that was told.
    """
    rows, on_cpu = _rows(), asked.cluster.gpu.name == CPU
    queue: list[tuple[float, int, Run | None]] = [
        (bound, index, None)
        for index, bound in enumerate(_bounds(asked, rows).tolist())
        if on_cpu == (rows.gpus[index] == CPU)
    ]
    heapq.heapify(queue)
    told = set[tuple[str, ...]]()
    while queue:
        distance, index, run = heapq.heappop(queue)
        alike = rows.alike(index)
        if run is not None:
            told.add(alike)
            yield run, rows.columns["framework"][index], distance
        if alike in told:
            continue
        try:
            run = run_of(rows.whole(index))
        except SkippedRow:
            continue
        heapq.heappush(queue, (distance_of(asked, run), index, run))


class _Rows(NamedTuple):
    """The complete runs: `columns` of what they are compared by, the GPU that each is priced on,
    and all cells of each as one text: together half of the memory that they took cell by cell.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    gpus: tuple[str, ...]

    def whole(self, index: int) -> Cells:
        """All cells of a run."""
        return dict(zip(self.names, self.texts[index].split(BETWEEN), strict=True))

    def alike(self, index: int) -> tuple[str, ...]:
        """Runs that agree in it are of one suite, model, GPU and number of GPUs."""
        said = (self.columns[name][index] for name in ("suite", "model", "config", "gpus"))
        return *said, self.gpus[index]

    def numbers(self, column: str, usual: float = 0.0) -> Floats:
        """What the cells of a column say; `usual` is what an empty one means."""
        return np.array([float(cell) if cell else usual for cell in self.columns[column]])


BETWEEN = "\0"  # cells, none of which has it


COMPARED = (
    "suite", "framework", "model", "config", "params_b", "experts", "gpu", "priced_gpu", "gpus",
    "tp", "pp", "cp", "ep", "seq_len", "precision",
)  # fmt: skip
"""The columns of a run by which its distance is bounded: a few of them all."""


@cache
def _rows() -> _Rows:
    with BUILT_IN.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        names = tuple(next(lines))
        grade, step, oom = (names.index(name) for name in ("grade", "step_time_s", "oom"))
        compared_of = itemgetter(*map(names.index, COMPARED))
        complete = [
            (BETWEEN.join(cells), compared_of(cells))
            for cells in lines
            if cells and cells[grade] in COMPLETE and cells[step] and cells[oom] in ("", "0")
        ]
    texts, compared = zip(*complete, strict=True)
    columns = dict(zip(COMPARED, zip(*compared, strict=True), strict=True))
    each = zip(columns["priced_gpu"], columns["gpu"], strict=True)
    return _Rows(names, texts, columns, tuple(priced or own for priced, own in each))


def distance_of(asked: Case, run: Run) -> float:
    """How far `run` is, as the module's docstring counts."""
    return _model(asked, run) + _circumstances(asked, run) + _layouts(asked.layout, run.layout)


def _model(one: Case, other: Run) -> float:
    sizes = zip(_parameters(one.model), _parameters(other.model), strict=True)
    apart = sum(_octaves(own, its) / 2 for own, its in sizes)
    return apart + 2 * (one.model.kind != other.model.kind)


@cache
def _parameters(model: Model) -> tuple[int, int]:
    """All of a model's parameters and the active ones, without those of further tokens."""
    return model_parameters(model).without_mtp, active_parameters(model).without_mtp


def _circumstances(one: Case, other: Run) -> float:
    return (
        _octaves(one.layout.world_size, other.layout.world_size) / 2
        + _octaves(one.training.seq_len, other.training.seq_len) / 2
        + _gpus_apart(one.cluster.gpu.name, other.cluster.gpu.name)
        + 2 * (one.engine.name != other.engine.name)
        + (_format(one.training.precision) != _format(other.training.precision))
        + 2 * ((one.training.lora is None) != (other.training.lora is None))
    )


def _layouts(one: Layout, other: Layout) -> float:
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
    apart = sum(_octaves(getattr(one, name), getattr(other, name)) for name in degrees)
    return (
        apart / 4
        + (one.recompute != other.recompute) / 4
        + ((one.zero_stage == 3) != (other.zero_stage == 3)) / 2
    )


LESS = 1e-9  # by which a bound stays below a distance that is summed in another order


def _bounds(asked: Case, rows: _Rows) -> Floats:
    """Of each row at most the distance of its run."""
    la, training, own = asked.layout, asked.training, _format(asked.training.precision)
    inner = _all_octaves(la.expert_parallel, rows.numbers("ep"))
    for name, degree in (
        ("tp", la.tensor_parallel), ("pp", la.pipeline_parallel), ("cp", la.context_parallel),
    ):  # fmt: skip
        inner += _all_octaves(degree, rows.numbers(name, 1))
    inner += 2 * _all_octaves(la.world_size, rows.numbers("gpus"))
    inner += 2 * _all_octaves(training.seq_len, rows.numbers("seq_len"))
    engine, gpu = asked.engine.name, asked.cluster.gpu.name
    return (
        inner / 4
        + _of_each(rows.gpus, lambda said: _least_gpus_apart(gpu, said))
        + _of_each(
            rows.columns["framework"], lambda said: 2 * _runs_elsewhere(engine, engine_name(said))
        )
        + _of_each(rows.columns["precision"], lambda said: own != _format(said.lower() or "bf16"))
        + _least_models(asked.model, rows)
        - LESS
    )


def _of_each(cells: Sequence[str], value: Callable[[str], float]) -> Floats:
    """The value of each cell, asked once for equal ones."""
    known = {cell: float(value(cell)) for cell in set(cells)}
    return np.array([known[cell] for cell in cells])


def _all_octaves(one: float, others: Floats) -> Floats:
    """`_octaves` of each."""
    found: Floats = np.abs(np.log2(one / np.where(others > 0, others, one)))
    return found


ROUNDED = 0.1
"""Octaves by which a stated number of parameters is off at most: 7 for 6.7 billions."""


def _least_models(own: Model, rows: _Rows) -> Floats:
    """Of the distance from the model `own` what each row's cells say; beside a named configuration
    it may be little.

    A described model has no state, and all parameters of one without experts are active.
    """
    billions = rows.numbers("params_b")
    every, active = (
        np.maximum(0.0, _all_octaves(count / 1e9, billions) - ROUNDED) / 2
        for count in _parameters(own)
    )
    experts = rows.numbers("experts") > 1
    apart = np.where(experts, own.kind != "experts", own.kind != "dense")
    named = np.array([bool(cell) for cell in rows.columns["config"]])
    return every + np.where(named, 0.0, active * ~experts + 2 * apart)


@cache
def _runs_elsewhere(engine: str, named: str) -> bool:
    """Whether a run of the framework `named` is surely priced by another engine than `engine`: by
    `planner.runs.habits` some of Megatron's are Megatron-DeepSpeed's, and a release has its own.
    """
    return not (engine.startswith(named) or engine == "megatron-deepspeed")


def _octaves(one: float, other: float) -> float:
    return abs(math.log2(one / other)) if other > 0 else 0.0


@cache
def _gpus_apart(one: str, other: str) -> float:
    if one == other:
        return 0.0
    families = gpu_family(one), gpu_family(other)
    return 1.0 if families[0] == families[1] != "any" else 3.0


@cache
def _least_gpus_apart(one: str, cell: str) -> float:
    """The same of what a cell says: it may be another name of the same GPU, but of its family."""
    said = gpu_family(cell)
    return 0.0 if said in (gpu_family(one), "any") else _gpus_apart(one, cell)


def _format(precision: str) -> str:
    return "bf16" if precision == "fp16" else precision


def _measured(asked: Case, run: Run, framework: str, distance: float) -> MeasuredRun:
    """The run with today's prediction of it, and the one that had not seen its source."""
    predicted = predict_run(run, load_fit(run.engine.name, run.cluster.gpu.name).tuning)
    measured_s = run.measured.step_time_s
    assert measured_s is not None
    unseen = _unseen().get(run.id)
    return MeasuredRun(
        id=run.id, suite=run.suite, framework=framework, engine=run.engine.name,
        model=run.model.name, parameters=float(model_parameters(run.model).without_mtp),
        gpu=run.cluster.gpu.name, gpus=run.layout.world_size, seq_len=run.training.seq_len,
        global_batch_size=run.training.global_batch_size, precision=run.training.precision,
        layout=run.layout.label, distance=round(distance, 3),
        near=distance <= NEAR and asked.model.kind == run.model.kind,
        measured_step_time_s=measured_s, predicted_step_time_s=predicted.time.step_time_s,
        predicted_unseen_s=None if unseen is None else measured_s / unseen,
        measured_reserved_gib=run.measured.reserved_gib,
        predicted_reserved_gib=predicted.reserved_gib,
    )  # fmt: skip


@cache
def _unseen() -> dict[str, float]:
    """Measured over predicted step time of runs that the constants had not seen: their whole source
    left out of the fit, or never in it; of one whose layout alone was left out, nothing.
    """
    return {each.run: each.step_time for each in ratios() if each.left_out != "layout"}
