"""Plans beside published recipes."""

from dataclasses import replace

import pytest

from benchmarks.accuracy.layout_ratios import Timed, Timings
from benchmarks.search.recipes import (
    Beside,
    MadeBy,
    _release,
    decisions,
    large_claims,
    made_by,
    own_changes,
    question_of,
    recipes,
    releases,
    summary,
)
from meshplan.costmodels.layout import Layout, even_stages
from meshplan.planner.search.rows.priced_space import space_of
from meshplan.planner.space.pins import parse_pins


def test_the_last_release_of_each_question_counts() -> None:
    """One run of each question; of gpt-oss-120b on 64 GB300 in MXFP8 that of NeMo 26.08."""
    found = recipes()
    assert len({run.group[1:-1] for run in found}) == len(found)
    assert "mbridge-26.08-gpt-oss-120b-gb300-64-mxfp8-gbs1280" in {run.id for run in found}
    assert _release("megatron-bridge (NeMo 26.06.01)") > _release("megatron-bridge (NeMo 26.06)")


def test_claims_are_counted_before_and_after() -> None:
    """Median and share of large claims of each way; a large one is listed with what it loses by."""
    run = recipes()[0]
    found = [
        Beside(run=run, plan="dp8", before=before, claim=claim, expected=expected, faster=0.6,
               own_error=0.01, why="pipeline bubble 1.00 s")
        for before, claim, expected in ((0.3, 0.2, 0.13), (0.12, 0.05, 0.03), (0.0, 0.0, 0.0))
    ]  # fmt: skip
    lines = list(summary(found))
    assert "| +12.0% | 67% | 33% |" in lines[2]
    assert "| +5.0% | 33% | 33% |" in lines[3]
    assert "| +3.0% | 33% | 33% |" in lines[4]
    assert len([line for line in large_claims(found) if "pipeline bubble 1.00 s" in line]) == 1


def test_the_plan_brings_tokens_to_experts_as_the_recipe_does() -> None:
    """Dropped tokens need Megatron's own exchange: Qwen3-235B of 25.09 on 256 H100."""
    run = next(run for run in recipes() if run.id.endswith("qwen3-235b-a22b-h100-256-fp8-gbs2048"))
    assert run.engine.kernels.dispatch == "all_to_all" != run.layout.dispatcher == ""
    assert len(run.engine.legality.usual_dispatchers) > 1
    assert set(space_of(question_of(run)).layouts.dispatcher.tolist()) == {0}


def test_the_decisions_of_a_recipe_allow_its_layout() -> None:
    """Each alone, and all together."""
    for run in recipes():
        for pins in map(parse_pins, decisions(run.layout).values()):
            for axis in ("expert_parallel", "micro_batch_size", "pipeline_parallel", "zero_stage"):
                assert pins.allows(axis, getattr(run.layout, axis))
            assert pins.allows("recompute", run.layout.recompute)


def test_what_a_change_of_a_recipe_brought() -> None:
    """gpt-oss-120b on 64 B200 went from 64 expert-parallel ranks to 8: 10.18 s to 5.97 s."""
    changed = [runs for runs in releases() if "gpt-oss-120b-b200-64-bf16-gbs1280" in runs[0].id]
    lines = list(own_changes(changed))
    assert len(lines) == 2 + 2
    assert lines[2].endswith("| +71% |")


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        pytest.param((0.03, 0.5, 0.5, 0.0), MadeBy("ep", "expert_parallel", -1), id="fewer ranks"),
        pytest.param((None, 0.2, 0.5, 0.0), MadeBy("micro-batch", "micro_batch_size", 1), id="2"),
        pytest.param((0.6, 0.6, 0.6, 0.4), MadeBy("cut into stages"), id="40 of 60 % is its cut"),
        pytest.param((0.6, 0.5, 0.6, None), MadeBy("micro-batch", "micro_batch_size", 1), id="no"),
        pytest.param((None, None, None, None), None, id="nothing fits with any"),
    ],
)
def test_what_makes_a_claim(left: tuple[float | None, ...], expected: MadeBy | None) -> None:
    """Of a claim of 60 %: the decision that leaves least, unless all together leave most."""
    recipe = Layout(data_parallel=8, expert_parallel=8, stages=even_stages(8, 1))
    plan = replace(recipe, expert_parallel=2, micro_batch_size=2)
    names = ("ep", "micro-batch", "pipeline", "degrees and recomputation")
    assert made_by(0.6, dict(zip(names, left, strict=True)), recipe, plan) == expected


def test_measured_pairs_stand_beside_the_decision_they_are_of() -> None:
    """A change to fewer ranks is not told by a pair that was predicted to gain by more of them."""
    run = recipes()[0]

    def timed(expert_parallel: int, step_s: float) -> Timed:
        layout = replace(run.layout, expert_parallel=expert_parallel)
        measured = replace(run.measured, step_time_s=step_s)
        return Timed(replace(run, layout=layout, measured=measured), step_s)

    fewer, more = (Timings(timed(ep, 1.0), timed(8, 1.2)) for ep in (2, 16))
    each = Beside(
        run=run, plan="dp8", before=0.2, claim=0.2, expected=0.2, faster=0.9, own_error=0.0,
        why="", made_by=MadeBy("ep", "expert_parallel", -1),
    )  # fmt: skip
    (*_, line) = large_claims([each], [fewer, more])
    assert "its ep: the plan has less | 1.00 of it, 1 pair, 1 source |" in line
    (*_, line) = large_claims([each], [more])
    assert "its ep: the plan has less | no pair |" in line
