"""From the sliders to a case that can be priced, and back, by the rules of `check` and the search.

A layout is resolved as a config of the same degrees would be, so it is refused in the same words.
A cut into stages that was solved is kept while the engine can still cut the model so;
otherwise it is the most even cut that the engine has: the shortest longest stage first, then the
shortest last one (it has the head), then the shortest first one (it has the embedding).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import get_args

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.ranks.recompute_sets import replaying
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.engine_schema import Legality, RecomputeModule
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.reading import Fact, Reading, Recompute
from meshplan.planner.case.resolve import Case, check_case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.space.engine_rules import unpriced
from meshplan.planner.space.exchange_choice import with_fastest_kinds
from meshplan.planner.space.module_splits import stack_splits
from meshplan.planner.space.stage_splits import splits
from meshplan.planner.ui.requests import Axis, SliderLayout

KEPT_CUTS = 4096
STATED = tuple(axis for axis in get_args(Axis) if axis != "recompute")


def case_of_choice(asked: Asked, choice: SliderLayout) -> Case:
    """The legal case of `choice`; raises `InvalidLayout` with the rule that forbids it."""
    q = asked.question
    facts = {name: getattr(choice, name) for name in STATED} | {
        "gpus": q.gpus,
        "seq_len": q.training.seq_len,
        "global_batch_size": q.training.global_batch_size,
        "sequence_parallel": choice.tensor_parallel > 1
        and q.engine.legality.sequence_parallel != "never",
    }
    facts["expert_tensor_parallel"] = q.engine.legality.experts_split_by(
        choice.tensor_parallel, choice.expert_parallel, choice.expert_tensor_parallel
    )
    if choice.schedule:
        facts["schedule"] = choice.schedule
    reading = Reading(
        framework="page",
        engine=q.engine.name,
        path=q.model.name,
        facts={name: Fact(value, 1) for name, value in facts.items()},
    )
    reading = replace(reading, placement=replace(reading.placement, rule="given"))
    settings = Settings(cluster=asked.cluster_name)
    case = resolve(reading, settings, Settings(), model=q.model)
    stages, apart = _stages(q.model, q.engine.legality, choice)
    group = _shard_group(choice, case.layout)
    layout = replace(case.layout, stages=stages, shard_group=group, modules_apart=apart)
    case = replace(case, layout=layout, training=q.training, cluster=q.cluster, engine=q.engine)
    case = replace(case, layout=_with_kinds(case, choice))
    check_case(case)
    _check_space(case)
    return case


def _with_kinds(case: Case, choice: SliderLayout) -> Layout:
    """The layout with the choice's kinds of exchanges, or the fastest."""
    check_layout(case.layout, case.model, case.training)
    stated = replace(case.layout, context_kind=choice.context_kind, dispatcher=choice.dispatcher)
    setting = Setting.fitted(case.model, case.training, case.cluster, case.engine)
    if any(stage.selective_layers for stage in stated.stages):
        named = [each for each in get_args(RecomputeModule) if each in choice.replays.split("+")]
        stated = replace(stated, selective_modules=tuple(named)) if named else (
            replaying(stated, setting)
        )  # fmt: skip
    return with_fastest_kinds(stated, setting)


def _check_space(case: Case) -> None:
    """Raise `InvalidLayout` for what the engine's profile does not price or no schedule runs."""
    la, legality = case.layout, case.engine.legality
    for line in unpriced(la, case.engine):
        raise InvalidLayout(line)
    if la.recompute != "mixed" and la.recompute not in legality.recompute:
        raise InvalidLayout(f"the profile of {case.engine.name} has no recompute {la.recompute}")
    if la.pipeline_parallel == 1 and la.virtual_stages > 1:
        raise InvalidLayout("virtual_stages need a pipeline: pipeline_parallel is 1")


def _shard_group(choice: SliderLayout, layout: Layout) -> int:
    """The ranks that ZeRO shards over, 0 (all) where the choice's do not fit the degrees."""
    ranks, group = layout.data_parallel * layout.context_parallel, choice.shard_group
    keeps = choice.zero_stage > 0 and group and ranks % group == 0 and group < ranks
    return group if keeps else 0


def _stages(
    model: Model, legality: Legality, choice: SliderLayout
) -> tuple[tuple[Stage, ...], bool]:
    """The solved cut while the engine has it, else the most even one; recompute as chosen. And
    whether prediction modules are apart from the loss, which the most even cut has not.
    """
    pp, vpp = choice.pipeline_parallel, choice.virtual_stages
    solved = tuple(read_stages(choice.stages, pp * vpp)) if choice.stages else ()
    counts, apart = tuple(stage.layers for stage in solved), bool(choice.modules_apart)
    if not _is_cut(model, legality, (pp, vpp), counts, apart=apart):
        counts, solved, apart = even_cut(model, legality, pp, vpp), (), False
    if solved and Layout(stages=solved).recompute == choice.recompute:
        return solved, apart
    mode = "full" if choice.recompute == "mixed" else choice.recompute
    return tuple(map(Recompute(mode).stage, counts)), apart


@lru_cache(maxsize=KEPT_CUTS)
def _is_cut(
    model: Model,
    legality: Legality,
    degrees: tuple[int, int],
    counts: tuple[int, ...],
    *,
    apart: bool,
) -> bool:
    """Whether the engine can cut the layers into `counts` for `degrees` (pp, vpp)."""
    if len(counts) != degrees[0] * degrees[1] or sum(counts) != model.num_layers:
        return False
    if apart:
        parts = (*counts[:-2], counts[-2] + 1, counts[-1])
        return parts in (stack_splits(model, legality, *degrees, (True,)) or ())
    ways = splits(model, legality, *degrees)
    return ways is None or counts in ways


@lru_cache(maxsize=KEPT_CUTS)
def even_cut(model: Model, legality: Legality, pp: int, vpp: int) -> tuple[int, ...]:
    """The most even of the engine's cuts; raises `InvalidLayout` where it has none."""
    ways = splits(model, legality, pp, vpp)
    if ways is None:
        return _balanced(model.num_layers, pp)
    if not ways:
        raise InvalidLayout(
            f"the {model.num_layers} layers do not cut into pipeline_parallel {pp} x "
            f"virtual_stages {vpp} stages"
        )
    return min(ways, key=lambda counts: (max(counts), counts[-1], counts[0]))


def _balanced(layers: int, stages: int) -> tuple[int, ...]:
    """As even as it goes; the last stage is the first to be shorter, then the first one."""
    base, longer = divmod(layers, stages)
    order = sorted(range(stages), key=lambda i: (i == stages - 1, i == 0, i))
    takes = set(order[:longer])
    return tuple(base + (stage in takes) for stage in range(stages))


def read_stages(text: str, most: int) -> Iterator[Stage]:
    """The stages of `62*2/0/1,2*1/0/1`, runs of COUNT*LAYERS/SELECTIVE/FULL: about `most`."""
    for run in text.split(","):
        count, _, stage = run.partition("*")
        layers, selective, full = map(int, stage.split("/"))
        for _ in range(min(int(count), most + 1)):
            yield Stage(layers, selective, full)


def write_stages(stages: tuple[Stage, ...]) -> str:
    """The text that `read_stages` reads."""
    runs = ((stage, len(list(group))) for stage, group in groupby(stages))
    return ",".join(f"{count}*{s.layers}/{s.selective_layers}/{s.full_layers}" for s, count in runs)


def choice_of(layout: Layout) -> SliderLayout:
    """The sliders that show `layout`, its cut into stages included."""
    usual = "interleaved_1f1b" if layout.virtual_stages > 1 else "1f1b"
    selective = any(stage.selective_layers for stage in layout.stages)
    return SliderLayout(
        **{name: getattr(layout, name) for name in STATED},
        shard_group=layout.shard_group,
        context_kind=layout.context_kind,
        dispatcher=layout.dispatcher,
        modules_apart="on" if layout.modules_apart else "",
        recompute=layout.recompute,
        replays="+".join(layout.selective_modules) if selective else "",
        schedule=None if layout.schedule == usual else layout.schedule,
        stages=write_stages(layout.stages),
    )


def shortest_choice(case: Case) -> SliderLayout:
    """The same, without the cut where it is the one that is taken anyway."""
    choice = choice_of(case.layout)
    plain = choice.model_copy(update={"stages": None})
    usual = case.layout.stages, case.layout.modules_apart
    same = _stages(case.model, case.engine.legality, plain) == usual
    return plain if same else choice
