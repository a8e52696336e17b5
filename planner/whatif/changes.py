"""What is changed of a plan's question, and the question with it changed.

2x, 0.5x     times so much         +50%, -20%   so much more or less
"""

import re
from collections.abc import Mapping
from dataclasses import field, replace

from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.answer.question import Asked, BadQuestion
from meshplan.planner.answer.stated_cluster import check_gpus
from meshplan.planner.answer.stated_training import check_formats
from meshplan.planner.case.input_limits import too_large
from meshplan.planner.case.memory_limit import with_usable, with_usual_headroom
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.check.check import case_of
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pinned_modules import check_pinned_modules
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.whatif.figures import FIGURES, fastest_matmul

LEAST, MOST = 0.001, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is asked otherwise; None and no entry: as in the plan.

    factors            of the figures that are changed (`FIGURES`), by name
    cluster            as named
    gpu                as named
    gpus               asked for
    seq_len            tokens of a sequence
    global_batch_size  sequences per step
    precision          of the matmuls' inputs
    engine             as named
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    cluster: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    seq_len: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None
    engine: str | None = None

    @property
    def text(self) -> str:
        """It in words, such as `network 2x, gpu h200`."""
        said = [f"{_words(name)} {value:g}x" for name, value in self.factors.items()]
        for name in SETTINGS:
            if (value := getattr(self, name)) is not None:
                said.append(f"{_words(name)} {value}")
        return ", ".join(said)

    def single(self) -> tuple["Change", ...]:
        """Each of its parts alone."""
        factors = (Change(factors={name: value}) for name, value in self.factors.items())
        settings = (
            replace(Change(), **{name: getattr(self, name)})
            for name in SETTINGS
            if getattr(self, name) is not None
        )
        return (*settings, *factors)


SETTINGS = ("cluster", "gpu", "gpus", "seq_len", "global_batch_size", "precision", "engine")


def _words(name: str) -> str:
    return {"seq_len": "sequence", "global_batch_size": "batch"}.get(name, name.replace("_", " "))


def parse_factor(option: str, text: str) -> float:
    """The factor of `2x`, `0.5x`, `+50%` or `-20%`; raises `BadQuestion`."""
    found = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*x\s*", text)
    more = re.fullmatch(r"\s*([+-])(\d{1,6}(?:\.\d{1,6})?)\s*%\s*", text)
    factor = 0.0
    if found:
        factor = float(found[1])
    elif more:
        factor = 1 + float(more[1] + more[2]) / 100
    if not LEAST <= factor <= MOST:
        raise BadQuestion(
            f"{option} {text!r} is not a factor from {LEAST:g} to {MOST:g}; write 2x, 0.5x, +50% "
            "or -20%"
        )
    return factor


def question_of(plan: Plan) -> Asked:
    """The question that `plan` answers; raises the loaders' errors, and `InvalidLayout`."""
    case, notes = case_of(plan), []
    profile = case.cluster.model_copy(update={"plan_memory_bytes": None})
    cluster = with_usual_headroom(profile, plan.engine)
    planned = case.cluster.fillable_bytes
    usual = abs(planned / cluster.fillable_bytes - 1) < 1e-9
    if not usual:
        cluster = with_usable(profile, planned)
    if not usual and abs(planned / profile.capacity_bytes - 1) > 1e-9:
        notes.append("the plan left more or less memory free than the profile does; that is kept")
    if plan.pins is None:
        notes.append("the plan file does not state its pins; none are assumed")
    question = Question(
        model=case.model,
        training=plan.training,
        gpus=plan.cluster.gpus,
        cluster=cluster,
        engine=case.engine,
        pins=parse_pins(plan.pins or {}),
    )
    return Asked(
        question=question,
        model_config=plan.model.config,
        cluster_name=plan.cluster.name,
        profile=profile,
        usual_headroom=usual,
        cluster_sha256=cluster_hash(profile),
        notes=tuple(f"note: {said}" for said in (*case.notes, *notes)),
    )


def changed(asked: Asked, change: Change) -> Asked:
    """`asked` with the change; raises `BadQuestion` and the loaders' errors."""
    q, notes = asked.question, list(asked.notes)
    cluster = before = asked.profile if asked.usual_headroom else q.cluster
    name = asked.cluster_name
    if change.cluster is not None:
        name, cluster = change.cluster, _same_room(load_cluster(change.cluster), before)
    if change.gpu is not None:
        cluster = with_gpu(cluster, change.gpu)
        notes.append(
            f"note: only the GPU is changed: links, nodes and host stay those of {name} (--cluster "
            "takes another machine)"
        )
    profile = _scaled(cluster, change.factors)
    if change.gpus is not None and (refusal := too_large("gpus", change.gpus)):
        raise BadQuestion(refusal)
    gpus = change.gpus or q.gpus
    check_gpus(gpus, name, profile)
    training = _training(q.training, change)
    engine = load_engine(change.engine) if change.engine else q.engine
    check_formats(training.precision, profile, engine)
    check_pinned_modules(q.pins, q.model, training, engine, profile)
    if profile.gpu.name != q.cluster.gpu.name and engine.learned:
        notes.append(f"note: what was learnt on {q.cluster.gpu.name} is not used for another GPU")
    cluster = with_usual_headroom(profile, engine.name) if asked.usual_headroom else profile
    return replace(
        asked,
        question=replace(q, training=training, gpus=gpus, cluster=cluster, engine=engine),
        cluster_name=name,
        profile=profile,
        cluster_sha256=cluster_hash(cluster),
        notes=tuple(notes),
    )


def _scaled(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    for figure, factor in factors.items():
        _check_peak(figure, factor, cluster)
        cluster = FIGURES[figure].scaled(cluster, factor)
    return cluster


def with_gpu(cluster: Cluster, name: str) -> Cluster:
    """`cluster` with other GPUs in its nodes: their datasheet, kernels and memory."""
    gpu = load_gpu(name)
    moved = cluster.model_copy(
        update={
            "gpu": gpu, "kernels": load_kernels(gpu.name),
            "usable_memory_bytes": None, "plan_memory_bytes": None, "gpu_hour_price": None,
        }
    )  # fmt: skip
    return _same_room(moved, cluster)


def _same_room(cluster: Cluster, before: Cluster) -> Cluster:
    """`cluster` with as many bytes left free of a GPU as `before` states, if it states any."""
    limits = dict[str, float]()
    for name in ("usable_memory_bytes", "plan_memory_bytes"):
        stated = getattr(before, name)
        if stated is not None and getattr(cluster, name) is None:
            left_bytes = before.gpu.memory_bytes - stated
            limits[name] = max(cluster.gpu.memory_bytes - left_bytes, 1.0)
    return cluster.model_copy(update=limits)


def _check_peak(figure: str, factor: float, cluster: Cluster) -> None:
    if figure == "matmul" and cluster.kernels and not cluster.kernels.is_measured:
        most = fastest_matmul(cluster)
        if factor > most:
            raise BadQuestion(
                f"--matmul {factor:g}x is beyond the peak of {cluster.gpu.title}, which {most:.2f}x"
                " reaches; take less, or --gpu for another part"
            )


def _training(before: Training, change: Change) -> Training:
    wanted = {
        name: value
        for name in ("seq_len", "global_batch_size", "precision")
        if (value := getattr(change, name)) is not None
    }
    for name in ("seq_len", "global_batch_size"):
        if name in wanted and (refusal := too_large(name, wanted[name])):
            raise BadQuestion(refusal)
    return replace(before, **wanted)
