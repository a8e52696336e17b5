"""What a verdict offers: a fix that works when it is made alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from hand_priced import (
    LAYOUT,
    TRAINING,
    a_case,
    price,
)
from random_plans import plan_of as small_plan_of

from meshplan.costmodels.layout import CONTEXT_KINDS, Layout, even_stages
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.answer.answer import case_at
from meshplan.planner.answer.explain import priced
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.resolve import Case, model_named
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import case_of, check_paths
from meshplan.planner.check.fixes import (
    Fix,
    Quote,
    _difference_of_layouts,
    _with_degree,
    changes,
    fix_illegal,
    fix_memory,
)
from meshplan.planner.cli.check import quoted, tools

ALL_REPLICAS = " (ZeRO over all replicas)"


def _made(layout: Layout, fix: Fix) -> Layout:
    """`layout` with exactly what the text of `fix` says, and the stages that follow."""
    text = fix.text.replace(ALL_REPLICAS, "").replace(" (", ", ").replace(")", "")
    stages = fix.layout.stages
    changed: dict[str, object] = {"stages": stages}
    for part in text.split(", "):
        name, _, value = part.partition(" ")
        if value.startswith("selective of "):
            modules = value.removeprefix("selective of ").split(" + ")
            changed["selective_modules"] = tuple(modules)
        if name in ("recompute", "stages") or name.isdecimal():
            continue
        known = {"true": True, "false": False}
        changed[name] = known.get(value, int(value) if value.isdecimal() else value)
    return replace(layout, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(LAYOUT, id="with sequence parallelism"),
        pytest.param(
            replace(LAYOUT, tensor_parallel=1, data_parallel=32, sequence_parallel=False),
            id="tensor parallelism brings it along",
        ),
        pytest.param(
            replace(
                LAYOUT, virtual_stages=2, schedule="interleaved_1f1b", stages=even_stages(80, 4)
            ),
            id="chunks that end with the pipeline",
        ),
        pytest.param(replace(LAYOUT, shard_group=2), id="a group that ends with its ranks"),
    ],
)
def test_a_fix_says_all_that_changes_with_it(layout: Layout) -> None:
    """Making just what the text of a fix says gives the layout that was judged."""
    case = a_case(layout)
    offered = list(changes(case))
    assert len(offered) > 5
    for fix in offered:
        assert _made(layout, fix) == fix.layout, fix.text
        assert ("shard_group 0" in fix.text) == (f"shard_group 0{ALL_REPLICAS}" in fix.text)
    ends = any("shard_group 0" in fix.text for fix in offered)
    assert ends == (layout.shard_group > 0)


@pytest.mark.parametrize(
    ("usable_gib", "text"),
    [
        pytest.param(35, "micro_batch_size 2", id="10 + 2 x 10 + 1 = 31, the fastest"),
        pytest.param(25, "micro_batch_size 1", id="10 + 10 + 1 = 21"),
        pytest.param(15, "micro_batch_size 1, recompute full", id="10 + 2 + 1: least of each two"),
    ],
)
def test_a_fix_fits_on_the_fullest_rank(usable_gib: float, text: str) -> None:
    """Though the other rank of two keeps a GiB."""

    def uneven(case: Case) -> Quote:
        now = price(case)
        empty = now.memory[0].model_copy(update={"allocated": 0.0, "reserved": 0.0})
        return Quote((now.memory[0], empty), lambda: now)

    fix = fix_memory(a_case(LAYOUT), uneven, usable_gib * 2**30)
    assert fix is not None
    assert fix.text == text


SHARDED = Layout(data_parallel=4, context_parallel=16, stages=even_stages(80, 1))


@pytest.mark.parametrize(
    ("layout", "texts"),
    [
        pytest.param(
            LAYOUT,
            [
                "micro_batch_size 2", "micro_batch_size 1",
                "recompute selective of mlp", "recompute full",
                "tensor_parallel 8 (data_parallel 4)", "tensor_parallel 2 (data_parallel 16)",
                "tensor_parallel 1 (data_parallel 32), sequence_parallel false",
                "context_parallel 2 (data_parallel 4), context_kind ring",
                "context_parallel 4 (data_parallel 2), context_kind ring",
                "pipeline_parallel 4 (data_parallel 4)", "pipeline_parallel 1 (data_parallel 16)",
                "pipeline_parallel 8 (data_parallel 2)",
                "expert_parallel 2", "expert_parallel 4",
            ],
            id="8 x 4 x 2: no ZeRO-3 beside a pipeline, no 16 ranks of a node of 8",
        ),
        pytest.param(
            SHARDED,
            [
                "recompute selective of mlp", "recompute full", "zero_stage 1", "zero_stage 3",
                "tensor_parallel 2 (data_parallel 2), sequence_parallel true",
                "tensor_parallel 4 (data_parallel 1), sequence_parallel true",
                "context_parallel 32 (data_parallel 2)", "context_parallel 8 (data_parallel 8)",
                "context_parallel 64 (data_parallel 1)", "context_parallel 4 (data_parallel 16)",
                "context_parallel 2 (data_parallel 32)", "context_parallel 1 (data_parallel 64)",
                "pipeline_parallel 2 (data_parallel 2)", "pipeline_parallel 4 (data_parallel 1)",
                "expert_parallel 2", "expert_parallel 4",
            ],
            id="4 x 16: twice, half, 4, 1/4, 1/8, none",
        ),
        pytest.param(
            Layout(
                tensor_parallel=2, pipeline_parallel=40, stages=even_stages(80, 40, "full")
            ),
            [
                "sequence_parallel true", "tensor_parallel 1 (data_parallel 2)",
                "pipeline_parallel 20 (data_parallel 2)", "pipeline_parallel 10 (data_parallel 4)",
                "pipeline_parallel 5 (data_parallel 8)", "pipeline_parallel 1 (data_parallel 40)",
                "expert_parallel 2", "expert_parallel 4",
            ],
            id="no replicas: nothing to shard over",
        ),
    ],
)  # fmt: skip
def test_single_changes_come_by_how_little_they_disturb(layout: Layout, texts: list[str]) -> None:
    """All of them, on as many GPUs, whether or not a rule accepts them."""
    assert [fix.text for fix in changes(a_case(layout))] == texts


def test_two_chunks_per_rank_may_become_one_at_the_end() -> None:
    """The last of the single changes."""
    chunks = {"virtual_stages": 2, "schedule": "interleaved_1f1b", "stages": even_stages(80, 4)}
    *_, last = changes(a_case(replace(LAYOUT, **chunks)))
    assert last.text == "virtual_stages 1, schedule 1f1b"


def test_several_changes_are_each_named_once() -> None:
    """What disturbs least comes first, degrees last."""
    after = replace(
        LAYOUT, tensor_parallel=8, data_parallel=4, micro_batch_size=1, shard_group=2,
        virtual_stages=2, schedule="interleaved_1f1b",
    )  # fmt: skip
    assert _difference_of_layouts(LAYOUT, after) == (
        "micro_batch_size 1, virtual_stages 2, schedule interleaved_1f1b, shard_group 2, "
        "tensor_parallel 8, data_parallel 4"
    )


@pytest.mark.parametrize(("ranks", "cuts"), [(80, True), (160, False)])
def test_a_pipeline_has_no_more_stages_than_layers(ranks: int, *, cuts: bool) -> None:
    """80 layers on 80 or 160 of 320 GPUs."""
    layout = replace(LAYOUT, tensor_parallel=1, data_parallel=8, pipeline_parallel=40)
    layout = replace(layout, sequence_parallel=False, stages=even_stages(80, 40))
    assert (_with_degree(a_case(layout), "pipeline_parallel", ranks) is not None) == cuts


def test_another_kind_of_exchange_comes_before_other_degrees() -> None:
    """Sliding windows have no ring: the engine's next kind, all_gather, has them."""
    layout = Layout(
        data_parallel=8, context_parallel=2, context_kind="ring", stages=even_stages(24, 1)
    )
    fix = fix_illegal(case_of(small_plan_of("gpt-oss-20b", layout, TRAINING)))
    assert fix is not None
    assert fix.text == "context_kind all_gather"


def test_stages_that_were_given_are_named_with_a_new_pipeline() -> None:
    """Of stages that the engine would not cut so by itself, the new ones are listed."""
    given = replace(LAYOUT, stages=even_stages(40, 1) + even_stages(40, 1))
    uneven = replace(given, stages=(replace(given.stages[0], layers=50), *given.stages[1:]))
    uneven = replace(uneven, stages=(uneven.stages[0], replace(uneven.stages[1], layers=30)))
    texts = [fix.text for fix in changes(a_case(uneven))]
    assert any("stages of 4 x 20 layers" in text for text in texts)
    assert not any("stages of" in f.text for f in changes(a_case(given)))


def test_a_fix_of_a_hundred_thousand_micro_batches_is_timed_once(tmp_path: Path) -> None:
    """Steps that take long to play are not all played to find the fastest change."""
    path = tmp_path / "axolotl.yml"
    path.write_text(
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 2\n"
        "gradient_accumulation_steps: 99999\noptimizer: adamw_torch\nbf16: auto\ndatasets: []\n"
    )
    played: list[Case] = []

    def counting(case: Case) -> Quote:
        quote = quoted(case)
        return replace(quote, whole=lambda: played.append(case) or quote.whole())  # type: ignore[func-returns-value]

    told = replace(tools(), price=counting)
    (finding,) = check_paths([path], told, Settings(cluster="dgx-h100", gpus=64))
    assert finding.verdict == "does not fit"
    assert finding.fix
    assert len(played) <= 1


@pytest.mark.parametrize(
    ("ranks", "schedule", "chunks", "stages"),
    [
        pytest.param(4, "interleaved_1f1b", 5, (4,) * 20, id="chunks stay, of 80 / 20 layers"),
        pytest.param(1, "1f1b", 1, (80,), id="one rank has nothing to interleave"),
    ],
)
def test_another_pipeline_keeps_its_schedule(
    ranks: int, schedule: str, chunks: int, stages: tuple[int, ...]
) -> None:
    """And as many GPUs: 64, of which tensor parallelism takes 4."""
    chunked = replace(
        LAYOUT, schedule="interleaved_1f1b", virtual_stages=5, stages=even_stages(80, 10)
    )
    found = _with_degree(a_case(chunked), "pipeline_parallel", ranks)
    assert found is not None
    assert (found.schedule, found.virtual_stages) == (schedule, chunks)
    assert tuple(stage.layers for stage in found.stages) == stages
    assert (found.world_size, found.data_parallel) == (64, 16 // ranks)


@pytest.mark.parametrize(
    ("model", "degree", "kinds"),
    [
        pytest.param("llama-3.1-8b", 2, {*CONTEXT_KINDS} - {"hierarchical"}, id="all in one node"),
        pytest.param("gpt-oss-20b", 2, {"all_gather", "all_to_all"}, id="sliding windows"),
        pytest.param("deepseek-v2-lite", 2, {"ring"}, id="keys of 192, values of 128"),
    ],
)
def test_a_degree_brings_the_fastest_kind_that_runs(
    model: str, degree: int, kinds: set[str]
) -> None:
    """Windows do not go round a ring, the engine's own kind, whose price was told."""
    fixes = _context_fixes(model)
    fix = fixes[degree]
    assert f", context_kind {fix.layout.context_kind}" in fix.text
    steps = {
        kind: priced(replace(_on_eight(model), layout=replace(fix.layout, context_kind=kind)))
        for kind in kinds
    }
    assert fix.layout.context_kind == min(
        steps, key=lambda kind: steps[kind].prediction.step_time_s
    )


def test_a_degree_for_which_no_kind_runs_is_no_change() -> None:
    """Sliding windows take no ring, values narrower than keys nothing else."""
    assert sorted(_context_fixes("llama-3.1-8b")) == [2, 4]
    assert not _context_fixes("mimo-v2-flash")


def _on_eight(model: str) -> Case:
    """Eight replicas on one node of Megatron-LM."""
    asked = ask(Arguments(
        model=model, gpus=8, cluster="dgx-h100", seq_len="4096", global_batch=64, engine="megatron",
    ))  # fmt: skip
    q = asked.question
    layout = Layout(data_parallel=8, zero_stage=1, stages=even_stages(q.model.num_layers, 1))
    return case_at(q, layout)


def _context_fixes(model: str) -> dict[int, Fix]:
    """The changes to each degree of context parallelism."""
    found = changes(_on_eight(model))
    return {f.layout.context_parallel: f for f in found if f.text.startswith("context_parallel")}


@pytest.mark.parametrize(
    ("degrees", "splits"),
    [
        pytest.param((1, 1, 1), {"tp2": 2, "tp4": 4, "ep2": 1}, id="no tensor parallelism yet"),
        pytest.param((2, 1, 2), {"tp4": 4, "tp1": 1, "ep2": 1, "ep4": 1}, id="experts are split"),
        pytest.param((2, 2, 1), {"tp4": 1, "ep1": 2, "ep4": 1}, id="experts are spread"),
    ],
)
def test_torchtitan_splits_experts_that_are_not_spread(
    degrees: tuple[int, int, int], splits: dict[str, int]
) -> None:
    """By all ranks of tensor parallelism, also in a layout that one change leads to."""
    tp, ep, etp = degrees
    moe = Layout(
        data_parallel=16 // tp, tensor_parallel=tp, expert_parallel=ep, expert_tensor_parallel=etp,
        sequence_parallel=tp > 1, zero_stage=3, stages=even_stages(48, 1),
    )  # fmt: skip
    case = replace(
        a_case(LAYOUT), layout=moe, model=model_named("qwen3-30b-a3b"),
        engine=load_engine("torchtitan"),
    )  # fmt: skip
    found = {}
    for fix in changes(case):
        la = fix.layout
        if la.tensor_parallel != tp:
            found[f"tp{la.tensor_parallel}"] = la.expert_tensor_parallel
        if la.expert_parallel != ep:
            found[f"ep{la.expert_parallel}"] = la.expert_tensor_parallel
    assert found.items() >= splits.items()
