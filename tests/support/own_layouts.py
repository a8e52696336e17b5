"""Every layout of a small question, listed by rules of its own and priced one by one.

Of the search it shares the price and the memory of one layout (what `check` says), the sets of
modules that selective recompute may replay, and nanotron's rule of cuts. Degrees, cuts, mixes of
recomputation, kinds of exchanges and shard groups are read off the engine's file and what a plan
says of its space.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, product
from typing import NamedTuple

from meshplan.costmodels.layout import SELECTIVE, Layout, RecomputeModule, Schedule, Stage
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.stage_split import split_by_cost
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.step.step_models import StepModels
from meshplan.hardware_profiles.dispatchers import load_dispatchers
from meshplan.hardware_profiles.engine_schema import Dispatcher
from meshplan.hardware_profiles.kernel_habits import ContextKind
from meshplan.planner.answer.answer import case_at
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.search.found import Kind, kind_of_layout
from meshplan.planner.search.rows.priced_space import Question

USUAL = {*range(1, 17), 20, 24, 32, 40, 48, 64}
SPLITS_BACKWARD = ("zb_h1", "zb_v", "dualpipe_v")
CHUNKS = {"gpipe": 1, "1f1b": 1, "zb_h1": 1, "zb_v": 2, "dualpipe_v": 2}
GROUPS = ((1, 2), (4, 8), (16, 8), (64, 8))
"""Shard groups of so many nodes, where so many groups are left."""


class Degrees(NamedTuple):
    """How many ranks split what; `m` micro-batches of `mbs` sequences."""

    tp: int
    cp: int
    pp: int
    dp: int
    mbs: int
    m: int


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [each for each in range(1, number + 1) if number % each == 0]


def degrees(q: Question) -> Iterator[Degrees]:
    """Every product of ranks that is the GPUs, with every batch."""
    batch, g = q.training.global_batch_size, q.cluster.gpus_per_node
    widest = max(g, 16 if q.gpus > batch * g else 8)
    for tp, cp, pp in product(divisors(q.gpus), repeat=3):
        if q.gpus % (tp * cp * pp) == 0 and _splits(q, tp, cp, widest) and _cuts(q, pp):
            dp = q.gpus // (tp * cp * pp)
            yield from (each for each in _batches(q, tp, cp, pp, dp) if _pinned(q, each))


def _splits(q: Question, tp: int, cp: int, widest: int) -> bool:
    """Whether tp divides what it cuts, and cp the sequence."""
    rules, kinds = q.engine.legality, q.model.kinds
    heads = [kind.attention.kv_heads for kind in kinds if not kind.attention.is_mla]
    whole = all(size % tp == 0 for kind in kinds for size in kind.divided_by_tp.values())
    whole &= not rules.kv_heads_divide or all(each % tp == 0 for each in heads)
    near = "tensor_parallel" in q.pins.axes or tp <= widest
    can = rules.context_parallel and not q.model.mixed_by and q.training.seq_len % (2 * cp) == 0
    return whole and near and (cp == 1 or can)


def _cuts(q: Question, pp: int) -> bool:
    """Whether the engine has stages of this model at all."""
    return pp == 1 or q.engine.legality.tied_with_pipeline or not q.model.tied


def _batches(q: Question, tp: int, cp: int, pp: int, dp: int) -> Iterator[Degrees]:
    batch, rules = q.training.global_batch_size, q.engine.legality
    fills, least = rules.micro_batches_at_least_pp, pp - rules.micro_batches_short_of_pp
    for mbs in divisors(batch):
        m, rest = divmod(batch, dp * mbs)
        usual = "micro_batch_size" in q.pins.axes or mbs in USUAL
        if rest == 0 and usual and (pp == 1 or not fills or m >= least):
            yield Degrees(tp, cp, pp, dp, mbs, m)


def _pinned(q: Question, at: Degrees) -> bool:
    axes = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel",
            "micro_batch_size", "num_micro_batches")  # fmt: skip
    return all(q.pins.allows(axis, value) for axis, value in zip(axes, at, strict=True))


def schedules(q: Question, pp: int, m: int) -> Iterator[tuple[Schedule, int]]:
    """Each with its chunks per rank."""
    rules, pins = q.engine.legality, q.pins
    names = [each for each in rules.schedules if pins.allows("schedule", each)]
    if pp == 1:
        names = ["1f1b"] if pins.allows("schedule", "1f1b") else []
    elif "1f1b" in names and not rules.hides_sends:
        names = [each for each in names if each != "gpipe"]
    for name in names:
        divides = name != "interleaved_1f1b" or not rules.interleaved_needs_multiple or m % pp == 0
        most = (q.model.num_layers + 3) // pp
        chunks = [CHUNKS[name]] if name in CHUNKS else range(2, most + 1)
        if divides and (name != "dualpipe_v" or m >= 2 * pp):
            yield from ((name, v) for v in chunks if pins.allows("virtual_stages", v))  # type: ignore[misc]


def bars(total: int, fewest: list[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as counts of at least `fewest`: bars between what is beyond."""
    spare, chunks = total - sum(fewest), len(fewest)
    for at in combinations(range(spare + chunks - 1), chunks - 1) if spare >= 0 else ():
        edges = (-1, *at, spare + chunks - 1)
        yield tuple(edges[j + 1] - edges[j] - 1 + least for j, least in enumerate(fewest))


def cuts(q: Question, pp: int, v: int) -> Iterator[tuple[int, ...]]:
    """Layers of each chunk, in every way in which the engine can cut."""
    rules, layers, chunks = q.engine.legality, q.model.num_layers, pp * v
    if chunks == 1:
        yield (layers,)
    elif rules.uneven_stages == "cost":
        counts = split_by_cost(q.model, pp)
        yield from [counts] if v == 1 and min(counts[:-1]) > 0 else []
    else:
        end = 0 if rules.layers_count_ends else 1
        for counts in bars(layers, [end, *[1] * (chunks - 2), end]):
            if rules.uneven_stages == "free" or _regular(q, counts, pp):
                yield counts


def _regular(q: Question, counts: tuple[int, ...], pp: int) -> bool:
    """Whether all chunks of a rank, and all ranks but the ends where these may differ, hold equally
    many, embedding and head counted where the engine counts them.
    """
    rules = q.engine.legality
    for embedding, head in product((0, 1) if rules.layers_count_ends else (0,), repeat=2):
        held = [counts[0] + embedding, *counts[1:-1], counts[-1] + head]
        of_ranks = [set(held[rank::pp]) for rank in range(pp)]
        if all(len(each) == 1 for each in of_ranks):
            alike = of_ranks if rules.uneven_stages == "even" else of_ranks[1:-1]
            if len(set().union(*alike)) <= 1:
                return True
    return False


def cuts_apart(q: Question, pp: int, v: int) -> Iterator[tuple[int, ...]]:
    """The same with the modules of multi-token prediction on the stage before the last."""
    if not (q.engine.legality.modules_apart and q.model.mtp_layers and pp >= 3):
        return
    for counts in bars(q.model.num_layers, [0, *[1] * (pp * v - 3), 0]):
        first, *body, last = counts
        if len(set(body)) <= 1 and (not body or (_near(first, body[0]) and last <= body[0])):
            yield (*counts, 0)


def _near(first: int, each: int) -> bool:
    """A first stage may hold one layer more, or two less."""
    return max(0, each - 2) <= first <= each + 1


def sharding(q: Question, at: Degrees, schedule: str) -> Iterator[tuple[bool, int, int]]:
    """Sequence parallelism, ZeRO stage and shard group."""
    rules, pins, replicas = q.engine.legality, q.pins, at.dp * at.cp
    own = {"always": [True], "never": [False], "optional": [False, True]}[rules.sequence_parallel]
    whole = [each for each in own if pins.allows("sequence_parallel", ("off", "on")[each])]
    for sequence, zero in product(whole if at.tp > 1 else [False], rules.zero_stages):
        split = at.pp > 1 and schedule in SPLITS_BACKWARD
        piped = at.pp == 1 or zero in rules.zero_with_pipeline
        right = rules.zero_with_split_backward
        alone = replicas > 1 or zero == min(rules.zero_stages)
        right_split = not split or right is None or zero in right
        if piped and alone and right_split and pins.allows("zero_stage", zero):
            yield from ((sequence, zero, group) for group in _groups(q, at, zero))


def _groups(q: Question, at: Degrees, zero: int) -> list[int]:
    """0: all replicas together."""
    replicas, hybrid = at.dp * at.cp, q.engine.legality.hybrid_shard and zero > 0
    if pin := q.pins.axes.get("shard_group"):
        every = divisors(replicas) if hybrid else [replicas if zero else 1]
        stated = {size: size if zero and size < replicas else 0 for size in every}
        return [to for size, to in stated.items() if pin.allows(size) or pin.allows(to)]
    node = min(replicas, max(1, q.cluster.gpus_per_node // at.tp))
    some = [(node * nodes, copies) for nodes, copies in GROUPS if hybrid]
    return [0, *(size for size, copies in some
                 if size > 1 and replicas % size == 0 and size * copies <= replicas)]  # fmt: skip


def experts(q: Question, at: Degrees) -> Iterator[tuple[int, int]]:
    """Ranks that hold other experts, and ranks that split each."""
    rules, ranks, moe = q.engine.legality, at.tp * at.cp * at.dp, q.model.is_moe
    split = rules.expert_tensor_parallel if moe else "never"
    widths = [kind.experts.ffn for kind in q.model.kinds if kind.experts]
    for ep, etp in product(
        divisors(q.model.num_experts) if moe and rules.expert_parallel else [1],
        divisors(at.tp) if split != "never" else [1],
    ):
        if split == "without_ep" and etp != (at.tp if ep == 1 else 1):
            continue
        divides = ranks % (ep * etp) == 0 and all(width % etp == 0 for width in widths)
        pinned = q.pins.allows("expert_parallel", ep)
        if divides and pinned and q.pins.allows("expert_tensor_parallel", etp):
            yield ep, etp


def contexts(q: Question, at: Degrees) -> list[ContextKind | str]:
    """How queries may meet all keys."""
    rules, every = q.engine.legality, [kind.attention for kind in q.model.kinds]
    if at.cp == 1 or not rules.context_kinds:
        return [""]
    with_heads = [each for each in every if each.heads]
    limits = [
        (any(each.window for each in with_heads), rules.context_kinds_with_windows),
        (any(each.head_dim != each.v_head_dim and not each.is_absorbed for each in with_heads),
         rules.context_kinds_with_latents),
        (any(each.is_absorbed for each in with_heads), rules.context_kinds_with_chosen_latents),
    ]  # fmt: skip
    kinds = [each for each in rules.context_kinds if q.pins.allows("context_kind", each)]
    for there, limit in limits:
        kinds = [each for each in kinds if not there or limit is None or each in limit]
    heads = [n for each in with_heads
             for n in (each.heads, each.heads if each.is_mla else each.kv_heads)]  # fmt: skip
    near = min(at.cp, max(1, q.cluster.gpus_per_node // at.tp))
    by = {"all_to_all": at.cp, "hierarchical": near}
    spans = {"hierarchical": 1 < near < at.cp and at.cp % near == 0}
    return [each for each in kinds if spans.get(each, True)
            and all(n % (at.tp * by.get(each, 1)) == 0 for n in heads if each in by)]  # fmt: skip


def dispatchers(q: Question, ep: int, etp: int) -> list[Dispatcher | str]:
    """What may bring tokens to experts."""
    rules, found = q.engine.legality, list[str]()
    if ep == 1 or not rules.dispatchers:
        return [""]
    named = rules.dispatchers if "dispatcher" in q.pins.axes else rules.usual_dispatchers
    for kind in named:
        library, ranks = load_dispatchers().get(kind), ep * etp
        runs = library is None or q.cluster.gpu.name in library.gpus
        if library is not None and library.ranks is not None:
            runs &= ranks in library.ranks
        if library is not None and library.ranks_of_a_node is not None:
            most = min(ranks, library.ranks_of_a_node)
            runs &= min(ranks, q.cluster.gpus_per_node) >= most
        if runs and q.pins.allows("dispatcher", kind):
            found.append(kind)
    return found


Mix = tuple[tuple[Stage, ...], tuple[RecomputeModule, ...]]


def mixes(q: Question, layout: Layout) -> Iterator[Mix]:
    """All that its layers may recompute, and the modules that selective ones replay."""
    rules, counts = q.engine.legality, [stage.layers for stage in layout.stages]
    modes = [each for each in ("none", "selective", "full")
             if each in rules.recompute and q.pins.allows("recompute", each)]  # fmt: skip
    split = layout.pipeline_parallel > 1 and layout.schedule in SPLITS_BACKWARD
    if split and not rules.recompute_with_split_backward:
        modes = [each for each in modes if each == "none"]
    sets = recompute_sets(q.setting)
    for replayed in sets if "selective" in modes else sets[:1]:
        yield from ((stages, replayed) for stages in _recomputed(counts, modes, q))


def _recomputed(
    counts: list[int], modes: Sequence[str], q: Question
) -> Iterator[tuple[Stage, ...]]:
    rule = q.engine.legality.recompute_layers
    if rule == "any":
        yield from product(*(_stages(n, modes) for n in counts))
        return
    for mode in modes:
        yield tuple(Stage(n, n * (mode == "selective"), n * (mode == "full")) for n in counts)
    if rule == "first" and {"none", "full"} <= set(modes):
        for number in range(1, max(counts)):
            yield tuple(Stage(n, 0, min(number, n)) for n in counts)


def _stages(layers: int, modes: Sequence[str]) -> list[Stage]:
    ways = product(range(layers + 1), repeat=2)
    return [
        Stage(layers, selective, full)
        for selective, full in ways
        if selective + full == layers or (selective + full < layers and "none" in modes)
        if (selective == 0 or "selective" in modes) and (full == 0 or "full" in modes)
    ]


def layouts(q: Question) -> Iterator[Layout]:
    """Each legal layout with nothing recomputed, which some engines cannot run."""
    places = [False, True] if q.model.mtp_layers else [False]
    for at in degrees(q):
        for schedule, v in schedules(q, at.pp, at.m):
            some = [(counts, apart) for apart in places
                    if len(places) == 1 or q.pins.allows("modules_apart", ("off", "on")[apart])
                    for counts in (cuts_apart if apart else cuts)(q, at.pp, v)]  # fmt: skip
            for (sequence, zero, group), (ep, etp) in product(
                list(sharding(q, at, schedule)) if some else [], list(experts(q, at))
            ):
                ways = product(contexts(q, at), dispatchers(q, ep, etp), some)
                for context, dispatcher, (counts, apart) in ways:
                    yield Layout(
                        data_parallel=at.dp, tensor_parallel=at.tp, pipeline_parallel=at.pp,
                        virtual_stages=v, context_parallel=at.cp, expert_parallel=ep,
                        expert_tensor_parallel=etp, sequence_parallel=sequence, zero_stage=zero,
                        shard_group=group, micro_batch_size=at.mbs, schedule=schedule,
                        context_kind=context, dispatcher=dispatcher,  # type: ignore[arg-type]
                        stages=tuple(map(Stage, counts)), modules_apart=apart,
                    )  # fmt: skip


def with_mix(layout: Layout, mix: Mix) -> Layout:
    """`layout` with what its layers recompute."""
    stages, replayed = mix
    some = any(stage.selective_layers for stage in stages)
    return replace(layout, stages=stages, selective_modules=replayed if some else SELECTIVE)


def models_of(q: Question) -> StepModels:
    """The price of each layout: `test_step_models.py` holds it against that of one alone."""
    setting = Setting.fitted(q.model, q.training, q.cluster, q.engine)
    return StepModels(setting, most=1_000)


def needed_bytes(model: StepModel) -> float:
    """What `check` says that the fullest rank of a layout needs."""
    return max(rank.needed for rank in stage_memory(model))


def layout_bytes(q: Question, layout: Layout) -> float:
    """The same of one layout alone."""
    return needed_bytes(step_model_of(case_at(q, layout)))


class Least(NamedTuple):
    """The least step of what fits, infinite where nothing does; and of each kind of degrees."""

    step_s: float
    by_kind: dict[Kind, float]


def fastest(q: Question, most: int, *, kinds_to: float = 1.0) -> Least | None:
    """The least of everything, and of the kinds no slower than `kinds_to` times that; None if there
    are more than `most` layouts. A layer recomputes only where memory asks for it, as a plan says,
    or where an allocator would stop that must give blocks back.
    """
    every = list(zip(layouts(q), range(most + 1), strict=False))
    if len(every) > most:
        return None
    models = models_of(q)
    timed = sorted((models.of(each).time().step_time_s, at) for each, at in every)
    found, best_s, priced = dict[Kind, float](), math.inf, 0
    stops = q.setting.tuning.pressed_s > 0
    for bare_s, at in timed:
        layout = every[at][0]
        kind = kind_of_layout(layout)
        if bare_s > best_s * kinds_to and not stops:
            break
        for mix in mixes(q, layout) if stops or bare_s < found.get(kind, math.inf) else ():
            one, priced = with_mix(layout, mix), priced + 1
            if priced > 4 * most:
                return None
            model = models.of(one)
            step_s = model.time().step_time_s
            fits = step_s < found.get(kind, math.inf)
            if fits and needed_bytes(model) <= q.cluster.fillable_bytes:
                found[kind], best_s = step_s, min(best_s, step_s)
                if one == layout and not stops:
                    break
    return Least(best_s, found)


def least_bytes(q: Question, most: int) -> float | None:
    """The least that the fullest rank of any layout needs; None where there are too many."""
    every = ((layout, mix) for layout in layouts(q) for mix in mixes(q, layout))
    some = list(islice(every, most + 1))
    if len(some) > most:
        return None
    models = models_of(q)
    return min((needed_bytes(models.of(with_mix(*each))) for each in some), default=math.inf)
