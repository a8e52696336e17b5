"""The search as a whole: proof, determinism, pins, refusals."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import check_layout
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space
from meshplan.planner.space.legal_layouts import enumerate_space
from meshplan.planner.space.pins import parse_pins


@pytest.fixture
def asked() -> Question:
    """A small model on a node."""
    return Question(
        model=read_model("llama-3.2-1b")[1], gpus=8, cluster=load_cluster("dgx-h100"),
        training=Training(seq_len=4096, global_batch_size=32), engine=load_engine("megatron"),
    )  # fmt: skip


def test_the_result_is_a_certificate(asked: Question) -> None:
    """OPTIMAL: no gap, and not all layouts are misfits."""
    result = solve(asked, 1)
    best = result.solutions[0]
    assert result.status == "OPTIMAL"
    assert result.gap == 0
    assert result.bound_s == best.step_time_s
    assert 0 <= result.misfits < result.candidates
    assert best.layout.world_size == 8
    check_layout(best.layout, asked.model, asked.training)


def test_equal_questions_have_equal_answers(asked: Question) -> None:
    """The same question gives the same plans."""
    first, second = (solve(asked, 4) for _ in range(2))
    assert first.solutions == second.solutions


def test_pins_never_make_it_faster(asked: Question) -> None:
    """Each pin removes layouts, so the best of the rest is at most as fast."""
    free = solve(asked, 1).solutions[0].step_time_s
    for axis, text in (("tensor_parallel", "2"), ("recompute", "full"), ("zero_stage", "0,1")):
        pinned = solve(replace(asked, pins=parse_pins({axis: text})), 1)
        assert pinned.solutions[0].step_time_s >= free


def test_chunks_are_priced_as_chunks() -> None:
    """Exchanges between experts hide behind another micro-batch's pass where ranks have several
    chunks: a pin to them finds nothing faster than all layouts, nor than the bound of all.
    """
    few = {"tensor_parallel": "1", "pipeline_parallel": "8"}
    asked = Question(
        model=read_model("deepseek-v3")[1],
        training=Training(seq_len=4096, global_batch_size=4096),
        gpus=256,
        cluster=load_cluster("dgx-h100"),
        engine=load_engine("megatron-bridge"),
        pins=parse_pins(few),
    )
    free = solve(asked, 1)
    pins = parse_pins({**few, "expert_parallel": "32", "virtual_stages": "2.."})
    pinned_s = solve(replace(asked, pins=pins), 1).solutions[0].step_time_s
    assert free.solutions[0].step_time_s <= pinned_s * (1 + 1e-9)
    assert free.bound_s <= pinned_s * (1 + 1e-9)
    space = enumerate_space(
        asked.model, asked.training, 256, asked.engine, parse_pins({"pipeline_parallel": "8"}), 8
    )
    for row, chunks in enumerate(space.layouts.virtual_stages.tolist()):
        variants = space.variants(row)
        assert variants
        assert all(chunks in (0, min(v.virtual_stages, 2)) for v in variants)
        away = space.layouts.expert_parallel[row] * space.layouts.expert_tensor_parallel[row] > 8
        assert bool(away) == (chunks > 0)


def test_a_tied_table_is_held_once_where_both_ends_meet() -> None:
    """A V-shaped pipeline has both ends on one rank, so rows say whether they are run as one: the
    head's second table is what they differ by.
    """
    asked = Question(
        model=read_model("llama-3.2-1b")[1],
        training=Training(seq_len=4096, global_batch_size=64),
        gpus=8,
        cluster=load_cluster("dgx-h100"),
        engine=load_engine("native"),
        pins=parse_pins({"pipeline_parallel": "2", "zero_stage": "..2"}),
    )
    q = asked
    space = enumerate_space(q.model, q.training, 8, q.engine, q.pins, 8)
    prices = price_space(q, space, closed_form)
    for row, variants in enumerate(map(space.variants, range(len(space.layouts)))):
        assert len({variant.schedule in V_SHAPED for variant in variants}) == 1
        if variants[0].schedule in V_SHAPED:
            assert space.layouts.tensor_parallel[row] == space.layouts.tensor_parallel[row - 1]
            second_kib = prices.head_state_kib[row - 1] - prices.head_state_kib[row]
            assert second_kib == pytest.approx(prices.embedding_state_kib[row], abs=2)


@pytest.mark.parametrize(
    ("engine", "on_host", "said"),
    [
        ("megatron", None, "fits on"),
        ("megatron", "0,1", "fits on"),
        ("generic", "0", "fits on"),
        ("generic", "0,1", "was found that fits on"),
    ],
)
def test_a_refusal_by_a_bound_of_memory_says_so(
    engine: str, on_host: str | None, said: str
) -> None:
    """With activations on the host beside recomputation what ranks are priced to need is more than
    they may; Megatron-LM keeps everything beside it.
    """
    model = read_model("llama-3.1-70b")[1]
    asked = Question(
        model=model, gpus=1, cluster=load_cluster("dgx-h100"), engine=load_engine(engine),
        training=Training(seq_len=4096, global_batch_size=8),
        pins=parse_pins({"activation_offload": on_host} if on_host else {}),
    )  # fmt: skip
    with pytest.raises(NoLayoutFits, match=f"no layout of llama-3.1-70b {said}") as refused:
        solve(asked, 1)
    assert refused.value.proved == (said == "fits on")
