"""The cells of a sweep: what each asks, and the plan that `meshplan plan` gives for it, or why not.

A cell is one `Arguments`, as if it had been typed for `plan`, and its answer is that plan. A name
that nobody knows ends the sweep before it starts; what only one combination cannot be (more GPUs
than a cluster has, tokens that are no whole sequences, a precision that one of the GPUs lacks) is
that cell's answer.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from math import prod
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

import meshplan
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.frozen import Frozen
from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.question import Arguments, Asked, BadQuestion, ask
from meshplan.planner.answer.sizes import TOP
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.seal import content_hash
from meshplan.planner.processes.until import done_by
from meshplan.planner.report.fit import beyond_host_line, host_use_of, miss_line
from meshplan.planner.search.footprint import nearest_miss, on_endless_host
from meshplan.planner.search.least_memory import Fit, NearestMiss
from meshplan.planner.search.result import NoLayoutFits, SearchEnded

MOST_CELLS = 5_000
PRICING = ("costmodels", "hardware_profiles", "planner")
"""The packages whose code and data decide what a plan is."""
Status = Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN", "REFUSED"]
NOT_FOUND = "nothing was found that fits"
WITHOUT_PLAN = {"INFEASIBLE": "nothing fits", "UNKNOWN": "not known", "REFUSED": "refused"}


class Answer(Frozen):
    """What became of a cell.

    OPTIMAL     the plan, proved               FEASIBLE  the plan, with the gap that is open
    INFEASIBLE  nothing was found that fits    UNKNOWN   the time limit came before any plan
    REFUSED     the combination is no question

    may_fit        of what is infeasible: something that may fit was left open
    lacking_bytes  of each GPU, in the nearest miss of what is infeasible; None: no layout is legal,
                   the host alone lacks memory, or the time limit came before it was found
    lacking_host_bytes
                   of each GPU's share of the host, in a layout that the GPUs alone hold
    ended_by_time  the search's time limit came before its work was done
    """

    status: Status
    may_fit: bool = False
    plan: Plan | None = None
    reason: str = ""
    lacking_bytes: float | None = None
    lacking_host_bytes: float | None = None
    ended_by_time: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Self:
        planned, plan = self.status in ("OPTIMAL", "FEASIBLE"), self.plan
        if planned != (plan is not None) or (plan and not (plan.prediction and plan.search)):
            raise ValueError(f"status {self.status} does not go with its plan")
        return self

    @property
    def proved(self) -> bool:
        """Whether nothing is faster, or nothing fits."""
        return self.status == "OPTIMAL" or (self.status == "INFEASIBLE" and not self.may_fit)

    @property
    def verdict(self) -> str:
        """What is said of a cell in place of a plan."""
        return NOT_FOUND if self.may_fit else WITHOUT_PLAN[self.status]

    @property
    def final(self) -> bool:
        """Whether the same search would say the same again."""
        answered = self.status in ("FEASIBLE", "INFEASIBLE")
        return self.status == "OPTIMAL" or (answered and not self.ended_by_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The values of each axis; batches are sequences, or tokens as typed. None: as `plan` does."""

    models: tuple[str, ...]
    gpus: tuple[int, ...]
    clusters: tuple[str, ...]
    seq_lens: tuple[int | None, ...] = (None,)
    batches: tuple[int | str, ...]
    engines: tuple[str | None, ...] = (None,)

    def __len__(self) -> int:
        return prod(len(getattr(self, each.name)) for each in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of cells that differ in their GPUs only; None where no cell of it could be read.

    model              as asked for
    cluster            its name
    engine             its name
    seq_len            tokens of a sequence
    global_batch_size  sequences per step
    """

    model: str
    cluster: str
    engine: str | None
    seq_len: int | None
    global_batch_size: int | None

    @property
    def job(self) -> tuple[str, int | None, int | None]:
        """What is trained: cells of one job may run elsewhere, but do the same work."""
        return self.model, self.seq_len, self.global_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One question of the sweep. `asked` is None where the combination is refused, by `refusal`.

    line           which series it is on       cluster_index  which of the clusters that were named
    """

    line: int
    cluster_index: int
    arguments: Arguments
    asked: Asked | None
    refusal: str = ""


def series_of(cells: Sequence[Cell]) -> Series:
    """What the cells of one line have in common, as far as any of them could be read."""
    known = next((cell for cell in cells if cell.asked is not None), cells[0])
    a = known.arguments
    if known.asked is None:
        return Series(
            model=a.model,
            cluster=str(a.cluster),
            engine=a.engine,
            seq_len=int(a.seq_len) if a.seq_len else None,
            global_batch_size=a.global_batch,
        )
    q = known.asked.question
    return Series(
        model=q.model.name,
        cluster=str(a.cluster),
        engine=q.engine.name,
        seq_len=q.training.seq_len,
        global_batch_size=q.training.global_batch_size,
    )


def cells_of(axes: Axes, precision: str, optimizer: str) -> tuple[Cell, ...]:
    """Every combination, looked up, GPUs innermost.

    Raises `BadQuestion` where no combination is a question, and the loaders' errors for names.
    """
    if len(axes) > MOST_CELLS:
        raise BadQuestion(
            f"a sweep of {len(axes):,} cells is more than {MOST_CELLS:,}; sweep fewer values at "
            "once (one --cache FILE keeps them together)"
        )
    found = tuple(_cells(axes, precision, optimizer))
    if all(cell.asked is None for cell in found):
        raise BadQuestion(found[0].refusal)
    return found


def _cells(axes: Axes, precision: str, optimizer: str) -> Iterator[Cell]:
    clusters = tuple(enumerate(axes.clusters))
    lines = product(axes.models, axes.seq_lens, axes.batches, clusters, axes.engines)
    for line, (model, seq_len, batch, (index, cluster), engine) in enumerate(lines):
        arguments = Arguments(
            model=model,
            gpus=1,
            cluster=cluster,
            seq_len=None if seq_len is None else str(seq_len),
            global_batch=batch if isinstance(batch, int) else None,
            global_batch_tokens=batch if isinstance(batch, str) else None,
            precision=precision,
            optimizer=optimizer,
            engine=engine,
        )
        for gpus in axes.gpus:
            asked, refusal = _looked_up(replace(arguments, gpus=gpus))
            yield Cell(
                line=line,
                cluster_index=index,
                arguments=replace(arguments, gpus=gpus),
                asked=asked,
                refusal=refusal,
            )


def _looked_up(arguments: Arguments) -> tuple[Asked | None, str]:
    """The question, or why the combination is none."""
    try:
        return ask(arguments), ""
    except BadQuestion as error:
        return None, str(error)


def answer(asked: Asked, time_limit_s: float | None) -> Answer:
    """The plan that `meshplan plan` gives, or why there is none."""
    try:
        result = solve(asked.question, TOP, time_limit_s)
    except SearchEnded as error:
        return Answer(status="UNKNOWN", reason=str(error))
    except NoLayoutFits as error:
        return _refused(asked, error, time_limit_s)
    ended = time_limit_s is not None and result.wall_s >= time_limit_s
    return Answer(status=result.status, plan=plan_of(asked, result), ended_by_time=ended)


def _refused(asked: Asked, error: NoLayoutFits, time_limit_s: float | None) -> Answer:
    """Why there is no plan: what the nearest miss lacks, if that is found in as long again as the
    search was given.
    """
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    q = asked.question
    found = done_by(lambda: nearest_miss(q) or on_endless_host(q), deadline)
    refused = partial(Answer, status="INFEASIBLE", may_fit=not error.proved)
    if found is None:
        said = f"{error} (the time limit left out what comes nearest)"
        return refused(reason=said, ended_by_time=True)
    match found.answer:
        case NearestMiss() as miss:
            return refused(reason=miss_line(miss, q.cluster.gpu), lacking_bytes=miss.lacking_bytes)
        case Fit(layout=layout):
            lacking = host_use_of(q, layout).lacking_bytes
            return refused(reason=beyond_host_line(q, layout), lacking_host_bytes=lacking)
    return refused(reason=str(error))


def key_of(asked: Asked) -> str:
    """What an answer depends on, hashed: the whole question with the contents of the cluster's and
    the engine's profile, the version, and the code and data that price it.
    """
    q = asked.question
    return content_hash(
        {
            "version": version("meshplan"),
            "code": code_hash(),
            "model": [q.model.name, asked.model_config],
            "cluster": [asked.cluster_name, cluster_hash(q.cluster)],
            "gpus": q.gpus,
            "training": asdict(q.training),
            "engine": q.engine.model_dump(mode="json"),
            "pins": q.pins.describe(),
            "top": TOP,
        }
    )


@cache
def code_hash() -> str:
    """SHA-256 of every file that decides what a plan is."""
    root, total = Path(meshplan.__file__).parent, sha256()
    for package in PRICING:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(root)}\0".encode())
                total.update(sha256(path.read_bytes()).digest())
    return total.hexdigest()
