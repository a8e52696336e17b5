"""What you run now, a config or a plan file, beside what we would run: one question, one engine,
the same words and units.

    cost per trillion tokens = 1e12 / tokens per second and GPU / 3600 * price per GPU-hour

A fact that the config leaves out is taken from the question and named as assumed. Where the config
states another batch, sequence, model, number of GPUs or engine, what is set beside it is the best
layout of the config's own question (`planner.answer.own_question`).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from meshplan.costmodels.layout import differing_axes
from meshplan.costmodels.units import (
    SECONDS_PER_HOUR,
    TRILLION,
    counted,
    format_bytes,
    format_seconds,
)
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.errors.layout_ratios import faster_probability, in_of_100
from meshplan.planner.answer.explain import (
    LEAST_SHARE,
    PART_NAMES,
    PricedLayout,
    lacking_bytes,
    lost_by,
    needed_bytes,
    priced,
)
from meshplan.planner.case.packed import is_packed
from meshplan.planner.case.plan_file import StageMemory
from meshplan.planner.case.reading import Reading
from meshplan.planner.case.resolve import Case, check_case, check_levels, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.rows.priced_space import Question

Unit = Literal["text", "s", "bytes", "fraction", "count"]
MEMORY_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "saved activations",
    "transient": "transient buffers",
    "slack": "allocator slack",
    "context": "CUDA context and libraries",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One quantity of both sides.

    name   in words
    unit   of both sides
    yours  of the config; None where it is not known
    ours   of the plan, likewise
    part   whether it belongs to the last row above that is no part itself
    """

    name: str
    unit: Unit
    yours: float | str | None
    ours: float | str | None
    part: bool = False

    @property
    def change(self) -> float | None:
        """ours / yours - 1; None for text, unknowns and parts, some of which are nothing."""
        if self.part or not isinstance(self.yours, float) or not isinstance(self.ours, float):
            return None
        return self.ours / self.yours - 1 if self.yours else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Yours:
    """A config as a case of the question; `assumed`: what it does not say, in words."""

    path: str
    case: Case
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search says of the space that ours is of.

    bound_s    nothing in it is faster
    fastest_s  the step of the fastest that was found; ours may be one that ties with it
    """

    bound_s: float
    fastest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both sides.

    question     what both answer
    rows         what is compared
    assumed      what the config does not say
    differences  where the sides are not the same question: empty unless a caller wants it so
    verdict      how much longer the slower side takes, and by what
    notes        how the config was read
    """

    question: str
    rows: tuple[Quantity, ...]
    assumed: tuple[str, ...]
    differences: tuple[str, ...]
    verdict: str
    notes: tuple[str, ...]


def yours_of(question: Question, cluster_name: str, reading: Reading) -> Yours:
    """The config on the question's cluster, what it leaves out taken from the question.

    Raises `InvalidLayout`, `MissingFacts` and the loaders' errors when it cannot be priced, and
    `UnreadableConfig` for a file of several runs.
    """
    q, stated = question, set(reading.alone().facts)
    given = {"seq_len", "global_batch_size", "precision", "optimizer"} - stated
    near = Settings(
        cluster=cluster_name,
        gpus=q.gpus,
        seq_len=q.training.seq_len,
        global_batch_size=q.training.global_batch_size,
        micro_batch_size=None if stated & BATCH == {"num_micro_batches"} else 1,
        precision=q.training.precision,
        packed_mean_length=q.training.packed_mean_length,
    )
    case = resolve(reading, Settings(), near, model=q.model)
    training = replace(case.training, expert_imbalance=q.training.expert_imbalance)
    if "optimizer" in given:
        training = replace(training, optimizer=q.training.optimizer)
    engine = case.engine
    if q.engine.name == engine.name:
        engine = _switched(q.engine, engine)
    case = replace(case, training=training, cluster=q.cluster, engine=engine)
    check_levels(case, reading)
    check_case(case)
    return Yours(path=reading.path, case=case, assumed=tuple(_assumed(case, reading)))


def yours_of_plan(question: Question, path: str, case: Case) -> Yours:
    """A plan file's case on the question's cluster, which says everything itself; raises
    `InvalidLayout`.
    """
    case = replace(case, cluster=question.cluster)
    check_case(case)
    return Yours(path=path, case=case, assumed=())


def _switched(engine: Engine, own: Engine) -> Engine:
    """`engine` with what a config has replicas exchange beside nothing, as in its `own`, and with
    gradients of its bytes, added up as long.
    """
    names = ("data_reduce", "weight_gather")
    shown = {name: min(getattr(each.overlap, name) for each in (engine, own)) for name in names}
    kept = ("gradient_bytes", "reduce_bytes", "sums_before_reducing", "sum_bytes")
    sizes = {name: getattr(own.state, name) for name in kept}
    overlap = engine.overlap.model_copy(update=shown)
    state = engine.state.model_copy(update=sizes)
    return engine.model_copy(update={"overlap": overlap, "state": state})


BATCH = {"global_batch_size", "micro_batch_size", "num_micro_batches"}


def _assumed(case: Case, reading: Reading) -> Iterator[str]:
    """What the config does not say and was taken from the question, in words."""
    stated, training = set(reading.facts), case.training
    if "model" not in stated and reading.model_config is None:
        yield f"the model {case.model.name}"
    if not stated & {"gpus", "data_parallel"}:
        yield counted(case.layout.world_size, "GPU")
    if is_packed(reading.facts):
        yield f"documents of {training.packed_mean_length:,} tokens"
        stated |= {"seq_len", *BATCH}
    if "seq_len" not in stated:
        yield f"sequences of {training.seq_len:,} tokens"
    batch = stated & BATCH
    if "global_batch_size" not in batch and len(batch) < 2:
        yield f"{training.global_batch_size:,} sequences a step"
    if "micro_batch_size" not in batch and len(batch) < 2:
        size = case.layout.micro_batch_size
        yield f"micro-batches of {size} sequence{'s' * (size > 1)}"
    if "precision" not in stated:
        yield training.precision
    if "optimizer" not in stated:
        yield training.optimizer


def compare(
    yours: Yours,
    ours: Case,
    *,
    gpu_hour_price: float | None = None,
    differs: tuple[str, ...] = (),
    searched: Searched | None = None,
) -> Comparison:
    """The config beside the layout `ours`, both priced now. `differs`: what the caller knows to be
    another question on the two sides. `searched`: of what ours is the answer. Without a price the
    cost is left out.
    """
    sides = priced(yours.case), priced(ours)
    rate = gpu_hour_price if gpu_hour_price is not None else ours.cluster.gpu_hour_price
    return Comparison(
        question=_question_line(yours.case),
        rows=tuple(_rows(*sides, rate)),
        assumed=yours.assumed,
        differences=differs,
        verdict="" if differs else _verdict(*sides, searched),
        notes=(*_misfit(sides[0]), *yours.case.notes),
    )


def _question_line(case: Case) -> str:
    training = case.training
    return (
        f"{case.model.name} on {case.layout.world_size:,} x {case.cluster.gpu.title}, "
        f"{training.global_batch_size:,} sequences of {training.seq_len:,} tokens a step, "
        f"{training.precision}, {training.optimizer}, {case.engine.name}"
    )


def _misfit(yours: PricedLayout) -> tuple[str, ...]:
    """That what runs now is not predicted to fit: its step time is then a wish."""
    over = lacking_bytes(yours.prediction)
    if over <= 0:
        return ()
    said = f"your config is predicted not to fit (its fullest rank lacks {format_bytes(over)})"
    return (f"{said}: its step time is that of a GPU with enough memory",)


def _verdict(yours: PricedLayout, ours: PricedLayout, searched: Searched | None) -> str:
    """How much longer the slower side takes, how sure that is, and the parts it loses most by."""
    old, new = yours.prediction.step_time_s, ours.prediction.step_time_s
    if abs(old / new - 1) < 5e-4:
        return "both take the same time"
    slower, faster, who = (yours, ours, "yours") if old > new else (ours, yours, "ours")
    lost = [(n, s) for n, s in lost_by(faster.parts, slower.parts).items() if s > 0][:3]
    told = ", ".join(f"{PART_NAMES[name]} +{format_seconds(seconds)}" for name, seconds in lost)
    why = _why_slower(yours, ours, searched) if who == "ours" and searched else ""
    ratio = max(old, new) / min(old, new)
    return f"{who} takes {ratio:.2f} x as long{_how_sure(yours, ours, ratio)}{why}; mostly {told}"


def _why_slower(yours: PricedLayout, ours: PricedLayout, searched: Searched) -> str:
    """Why ours is the answer of a search though yours is faster."""
    if lacking_bytes(yours.prediction) > 0:
        return ", but fits"
    if needed_bytes(yours.prediction.memory) > ours.case.cluster.fillable_bytes:
        return ", as yours fills more of a GPU than a plan may"
    if yours.case.engine != ours.case.engine:
        return ", as yours is priced with its own switches"
    if yours.prediction.step_time_s < searched.bound_s * SETTLED:
        return ", as your layout is outside the searched space"
    if ours.prediction.step_time_s * SETTLED > searched.fastest_s:
        return ", as ours is the choice among near-equals and not the fastest of them"
    return ", as the search did not end with a proof"


def _how_sure(yours: PricedLayout, ours: PricedLayout, ratio: float) -> str:
    """How often layouts so far apart were measured in that order; of one layout under two settings,
    or one that does not fit, no pair of measured runs says anything.
    """
    one, other = yours.case.layout, ours.case.layout
    if one == other or any(lacking_bytes(each.prediction) > 0 for each in (yours, ours)):
        return ""
    axes = len(differing_axes(one, other))
    return f" (really slower {in_of_100(faster_probability(ratio, axes))})"


def _rows(yours: PricedLayout, ours: PricedLayout, rate: float | None) -> Iterator[Quantity]:
    """The quantities of both, in the order in which they are shown."""
    sides = (yours, ours)

    def row(name: str, unit: Unit, *values: float | str | None, part: bool = False) -> Quantity:
        return Quantity(name=name, unit=unit, yours=values[0], ours=values[1], part=part)

    yield row("layout", "text", *(side.case.layout.full_label for side in sides))
    yield row("GPUs", "count", *(float(side.case.layout.world_size) for side in sides))
    yield row("step", "s", *(side.prediction.step_time_s for side in sides))
    yield row("in 8 of 10 runs", "text", *map(_interval, sides), part=True)
    parts = [dict(side.parts.items()) for side in sides]
    for name, words in PART_NAMES.items():
        pair = [max(each[name], 0.0) for each in parts]  # rounding leaves less than nothing
        least = LEAST_SHARE * min(side.prediction.step_time_s for side in sides)
        if max(pair) >= least:
            yield row(words, "s", *pair, part=True)
    yield row("tokens/s per GPU", "count", *(s.prediction.tokens_per_s_per_gpu for s in sides))
    yield row("MFU", "fraction", *(side.prediction.mfu for side in sides))
    memory, whole = [_fullest(side) for side in sides], ours.prediction.gpu_memory_bytes
    yield row("memory of the fullest rank", "bytes", *(stage.needed for stage in memory))
    for name, words in MEMORY_NAMES.items():
        pair = [float(getattr(each, name)) for each in memory]
        if max(pair) >= LEAST_SHARE * whole:
            yield row(words, "bytes", *pair, part=True)
    left = (s.prediction.gpu_memory_bytes - m.needed for s, m in zip(sides, memory, strict=True))
    yield row("left free of a GPU", "bytes", *left)
    if rate is not None:
        costs = (cost_per_trillion_tokens(s.prediction.tokens_per_s_per_gpu, rate) for s in sides)
        yield row("cost of 1T tokens", "count", *costs)


def _fullest(side: PricedLayout) -> StageMemory:
    return max(side.prediction.memory, key=lambda stage: stage.needed)


def _interval(side: PricedLayout) -> str | None:
    low, high = side.prediction.step_time_low_s, side.prediction.step_time_high_s
    if low is None or high is None:
        return None
    return f"{format_seconds(low)} to {format_seconds(high)}"


def cost_per_trillion_tokens(tokens_per_s_per_gpu: float, gpu_hour_price: float) -> float:
    """In the currency of `gpu_hour_price`; it does not depend on the number of GPUs."""
    return TRILLION / tokens_per_s_per_gpu / SECONDS_PER_HOUR * gpu_hour_price
