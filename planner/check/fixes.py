"""The smallest change that makes a layout legal, or makes it fit.

One change at a time, in order of how little it disturbs: a smaller micro-batch, more recompute,
more sharding, then other degrees on the same GPUs. Of the changes that fit, the fastest: memory
is asked of every legal change, and time, which costs ten times as much, only of those that fit. A
switch of the config itself (`Saving`) counts as one.
Where no single change does, the one that leaves least is made, and the next, until it fits; other
degrees only where the rest is not enough.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from math import inf

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.ranks.recompute_sets import replaying
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.stage_split import (
    split_blocks,
    split_by_cost,
    split_evenly,
    stages_with,
)
from meshplan.costmodels.units import in_runs
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.plan_file import Prediction, StageMemory
from meshplan.planner.case.resolve import Case, check_case, engine_named
from meshplan.planner.space.exchange_choice import with_fastest_kinds

MOST_TIMED = 12  # changes that fit, the least disturbing first: milliseconds each
MOST_ACTIONS = 200_000  # played for all of them: a second; the first that fits needs no time
MOST_CHANGES = 4  # one after the other, where no single one fits
DEGREES = (
    *("tensor_parallel", "context_parallel", "pipeline_parallel", "virtual_stages"),
    *("expert_parallel", "data_parallel"),
)


_FOLLOWING = (
    "sequence_parallel",
    "expert_tensor_parallel",
    "virtual_stages",
    "schedule",
    "shard_group",
    "context_kind",
    "dispatcher",
)
"""What a change of a degree may take along."""


@dataclass(frozen=True, slots=True)
class Quote:
    """The memory of a case by pipeline rank; `whole` prices its time too."""

    memory: tuple[StageMemory, ...]
    whole: Callable[[], Prediction]


Price = Callable[[Case], Quote]


@dataclass(frozen=True, slots=True)
class Fix:
    """One change: what to set, the layout that results, and the engine that then prices it ("": as
    before).
    """

    text: str
    layout: Layout
    engine: str = ""


def fix_illegal(case: Case) -> Fix | None:
    """The first single change that every rule accepts."""
    every = chain(_other_kinds(case), changes(case))
    return next((fix for fix in every if _legal(_with(case, fix))), None)


def _other_kinds(case: Case) -> Iterator[Fix]:
    la = case.layout
    for kind in case.engine.legality.context_kinds if la.context_parallel > 1 else ():
        if kind != la.context_kind:
            yield Fix(f"context_kind {kind}", replace(la, context_kind=kind))


def fix_memory(case: Case, price: Price, usable_bytes: float) -> Fix | None:
    """The fastest single change whose every rank keeps within `usable_bytes`, else several."""
    quotes = list(_quoted(case, price, changes))
    fitting = [pair for pair in quotes if _peak_bytes(pair[1]) <= usable_bytes]
    fitting = _affordable(case, fitting)
    if len(fitting) == 1:
        return fitting[0][0]
    if fitting:
        return min(fitting, key=lambda pair: pair[1].whole().step_time_s)[0]
    return _several(case, price, usable_bytes, _memory_changes) or _several(
        case, price, usable_bytes, changes
    )


def _affordable(case: Case, fitting: list[tuple[Fix, Quote]]) -> list[tuple[Fix, Quote]]:
    """The first of `fitting` whose steps take `MOST_ACTIONS` forwards and backwards together."""
    taken, actions = list[tuple[Fix, Quote]](), 0
    for pair in fitting[:MOST_TIMED]:
        layout = pair[0].layout
        actions += 2 * len(layout.stages) * layout.num_micro_batches(case.training)
        if taken and actions > MOST_ACTIONS:
            break
        taken.append(pair)
    return taken


def _several(
    case: Case, price: Price, usable_bytes: float, changes_of: Callable[[Case], Iterator[Fix]]
) -> Fix | None:
    """One change after the other, each the one that leaves least, until it fits."""
    least, here = inf, case
    for _ in range(MOST_CHANGES):
        quotes = _quoted(here, price, changes_of)
        fix, quote = min(quotes, key=lambda pair: _peak_bytes(pair[1]), default=(None, None))
        if fix is None or quote is None or _peak_bytes(quote) >= least:
            return None
        least, here = _peak_bytes(quote), _with(here, fix)
        if least <= usable_bytes:
            return Fix(_difference(case, here), here.layout, here.engine.name)
    return None


def _with(case: Case, fix: Fix) -> Case:
    if not fix.engine:
        return replace(case, layout=fix.layout)
    return replace(case, layout=fix.layout, engine=engine_named(fix.engine), saving=None)


def _difference(before: Case, after: Case) -> str:
    saving = before.saving.text if before.saving and not after.saving else ""
    changed = _difference_of_layouts(before.layout, after.layout)
    return ", ".join(filter(None, [saving, changed]))


def _difference_of_layouts(before: Layout, after: Layout) -> str:
    others = tuple(name for name in DEGREES if name not in _FOLLOWING)
    names = ("micro_batch_size", "recompute", "zero_stage", *_FOLLOWING, *others)
    return _changes_of(before, after, names)


def _changes_of(before: Layout, after: Layout, names: tuple[str, ...]) -> str:
    changed = (name for name in names if getattr(before, name) != getattr(after, name))
    return ", ".join(_set_to(name, getattr(after, name)) for name in changed)


def _set_to(name: str, value: object) -> str:
    if (name, value) == ("shard_group", 0):
        return "shard_group 0 (ZeRO over all replicas)"
    return f"{name} {value}".lower()


def _peak_bytes(quote: Quote) -> float:
    return max(memory.needed for memory in quote.memory)


def _quoted(
    case: Case, price: Price, changes_of: Callable[[Case], Iterator[Fix]]
) -> Iterator[tuple[Fix, Quote]]:
    """The legal changes of a case with their memory."""
    for fix in changes_of(case):
        changed = _with(case, fix)
        if _legal(changed):
            yield fix, price(changed)


def _legal(case: Case) -> bool:
    try:
        check_case(case)
    except InvalidLayout:
        return False
    return True


def changes(case: Case) -> Iterator[Fix]:
    """Single changes of the layout on the same GPUs, the least disturbing first."""
    yield from _memory_changes(case)
    for axis in ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel"):
        for value in _nearby(getattr(case.layout, axis)):
            changed = _with_degree(case, axis, value)
            changed = changed and _with_kinds(case, _as_experts_are_split(case, changed))
            if changed is not None:
                yield Fix(_described(case, axis, changed), changed)
    value = case.layout.virtual_stages
    if value > 1:
        plain = replace(
            case.layout,
            virtual_stages=1,
            schedule="1f1b",
            stages=_restaged(case, case.layout.pipeline_parallel, 1),
            modules_apart=False,
        )
        yield Fix(_described(case, "virtual_stages", plain), plain)


def _memory_changes(case: Case) -> Iterator[Fix]:
    la, rules = case.layout, case.engine.legality
    if case.saving:
        yield Fix(case.saving.text, la, case.saving.engine)
    for value in _divisors_below(la.micro_batch_size):
        yield Fix(f"micro_batch_size {value}", replace(la, micro_batch_size=value))
    if la.recompute in ("none", "mixed") and "selective" in rules.recompute:
        stages = tuple(Stage(stage.layers, selective_layers=stage.layers) for stage in la.stages)
        setting = Setting.fitted(case.model, case.training, case.cluster, case.engine)
        plain = all(not stage.selective_layers for stage in la.stages)
        like = replaying(la, setting) if plain else la
        same = like.selective_modules == la.selective_modules
        of = "" if same else f" of {' + '.join(like.selective_modules)}"
        yield Fix(f"recompute selective{of}", replace(like, stages=stages))
    if la.recompute != "full" and "full" in rules.recompute:
        stages = tuple(Stage(stage.layers, full_layers=stage.layers) for stage in la.stages)
        yield Fix("recompute full", replace(la, stages=stages))
    if la.data_parallel * la.context_parallel > 1:
        allowed = rules.zero_with_pipeline if la.pipeline_parallel > 1 else rules.zero_stages
        for stage in allowed:
            if stage > la.zero_stage:
                yield Fix(f"zero_stage {stage}", replace(la, zero_stage=stage))
    if la.tensor_parallel > 1 and not la.sequence_parallel and rules.sequence_parallel != "never":
        yield Fix("sequence_parallel true", replace(la, sequence_parallel=True))


def _divisors_below(number: int) -> list[int]:
    return [d for d in range(min(number, 1024) - 1, 0, -1) if number % d == 0]


def _nearby(value: int) -> list[int]:
    """Twice, half, and so on: the neighbours of a degree, nearest first."""
    halves = [value >> k for k in (1, 2, 3) if value >> k]
    return [value * 2, *halves[:1], value * 4, *halves[1:], *([1] if value > 8 else [])]


def _described(case: Case, axis: str, after: Layout) -> str:
    """The change with everything that has to change with it, so that it works when made alone."""
    before = case.layout
    text = f"{axis} {getattr(after, axis)}"
    if before.data_parallel != after.data_parallel:
        text += f" (data_parallel {after.data_parallel})"
    also = _changes_of(before, after, tuple(name for name in _FOLLOWING if name != axis))
    staged = len(before.stages) != len(after.stages) and not _cut_by_the_engine(case)
    even = f"stages of {in_runs(stage.layers for stage in after.stages)} layers"
    return ", ".join([text, *filter(None, [also, even if staged else ""])])


def _cut_by_the_engine(case: Case) -> bool:
    """Whether the stages are those that the engine makes by itself, told only how many."""
    la = case.layout
    own = _restaged(case, la.pipeline_parallel, la.virtual_stages)
    return [stage.layers for stage in la.stages] == [stage.layers for stage in own]


def _with_degree(case: Case, axis: str, value: int) -> Layout | None:
    """The layout with another degree and the data_parallel that keeps the number of GPUs."""
    la = case.layout
    if axis == "expert_parallel":
        return replace(la, expert_parallel=value)
    if axis == "tensor_parallel" and value > case.cluster.gpus_per_node:
        return None
    per_replica = la.world_size // la.data_parallel // getattr(la, axis) * value
    if la.world_size % per_replica:
        return None
    changed = replace(la, data_parallel=la.world_size // per_replica, shard_group=0)
    if axis == "tensor_parallel":
        follows = la.expert_tensor_parallel == la.tensor_parallel > 1
        etp = value if follows else la.expert_tensor_parallel
        return replace(
            changed,
            tensor_parallel=value,
            expert_tensor_parallel=etp,
            sequence_parallel=value > 1 and case.engine.legality.sequence_parallel != "never",
        )
    if axis == "context_parallel":
        return replace(changed, context_parallel=value)
    if value * la.virtual_stages > case.model.num_layers:
        return None
    return replace(
        changed,
        pipeline_parallel=value,
        schedule=la.schedule if value > 1 else "1f1b",
        virtual_stages=la.virtual_stages if value > 1 else 1,
        stages=_restaged(case, value, la.virtual_stages if value > 1 else 1),
        modules_apart=False,
    )


def _with_kinds(case: Case, layout: Layout) -> Layout | None:
    """`layout` with the fastest kinds of the exchanges that a new degree brings, unless it is
    illegal anyway; None where none of the engine's splits the heads.
    """
    la, was, rules = layout, case.layout, case.engine.legality
    keys = la.context_parallel > was.context_parallel == 1 and rules.context_kinds
    tokens = la.expert_parallel > was.expert_parallel == 1 and rules.dispatchers
    if not keys and not tokens:
        return layout
    try:
        check_layout(layout, case.model, case.training)
    except InvalidLayout:
        return layout
    setting = Setting.fitted(case.model, case.training, case.cluster, case.engine)
    found = with_fastest_kinds(layout, setting)
    if keys and not found.context_kind:
        return None
    return replace(
        layout,
        context_kind=found.context_kind if keys else la.context_kind,
        dispatcher=found.dispatcher if tokens else la.dispatcher,
    )


def _as_experts_are_split(case: Case, after: Layout) -> Layout:
    """As the engine splits them: what spreads experts that it split no longer splits them."""
    if not case.model.is_moe:
        return after
    split, tp = case.engine.legality.experts_split_by, after.tensor_parallel
    chosen = 1 if split(tp, case.layout.expert_parallel, 0) else after.expert_tensor_parallel
    return replace(after, expert_tensor_parallel=split(tp, after.expert_parallel, chosen))


def _restaged(case: Case, pp: int, vpp: int) -> tuple[Stage, ...]:
    """Stages as the engine cuts them by itself, all recomputing what all layers did."""
    rules, mode = case.engine.legality, case.layout.recompute
    if rules.uneven_stages == "cost" and vpp == 1:
        counts = split_by_cost(case.model, pp)
    elif rules.blocks_at_ends:
        counts = split_blocks(case.model.num_layers, pp * vpp, rules.blocks_at_ends)
    else:
        ends_count = rules.layers_count_ends
        counts = split_evenly(case.model.num_layers, pp * vpp, ends_count=ends_count)
    return stages_with(counts, "none" if mode == "mixed" else mode)
