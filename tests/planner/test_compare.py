"""What you run now beside what we would run: the same quantities, the same question."""

import pytest
from random_plans import plan_of

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import read_config
from meshplan.planner.answer.compare import Row, compare, cost_per_trillion_tokens
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import predicted

PLAN: Plan = plan_of(
    "llama-3.1-8b",
    Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1, "full")),
    Training(seq_len=4096, global_batch_size=64),
)
YOURS = """parallelism: {dp: 2, tp: 4, pp: 1, tp_mode: REDUCE_SCATTER, recompute_layer: true}
tokens: {sequence_length: 4096, micro_batch_size: 1, batch_accumulation_per_replica: %d}
optimizer: {zero_stage: 1}
"""


def test_cost_by_hand() -> None:
    """1e12 tokens / 1000 tokens per s and GPU / 3600 s x 2 per hour = 555,555.56."""
    assert cost_per_trillion_tokens(1000, 2.0) == pytest.approx(555_555.5556)


def test_change_is_ours_over_yours() -> None:
    """6 s instead of 8 s is a change of -25 %; text and unknowns have none."""
    assert Row("step_time_s", 8.0, 6.0).change == pytest.approx(-0.25)
    assert Row("layout", "dp8", "dp4").change is None
    assert Row("mfu", None, 0.4).change is None


def test_rows_say_where_the_time_goes() -> None:
    """Both columns are priced alike, their parts add up, and the cost follows from the tokens."""
    reading = read_config(YOURS % 32, "nanotron.yaml", "nanotron")
    result = compare(PLAN, reading, predicted, gpu_hour_price=2.0)
    rows = {row.name: row for row in result.rows}
    assert rows["layout"].yours == "dp2 tp4 zero1 mbs1 recompute-full"
    assert rows["layout"].ours == "dp8 zero1 mbs1 recompute-full"
    assert rows["gpus"].yours == rows["gpus"].ours == 8
    for side in ("yours", "ours"):
        values = {name: getattr(row, side) for name, row in rows.items()}
        parts = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")
        assert sum(values[name] for name in parts) == pytest.approx(values["step_time_s"], rel=1e-6)
        tokens = 4096 * 64 / values["step_time_s"] / 8
        assert values["tokens_per_s_per_gpu"] == pytest.approx(tokens)
        assert values["cost_per_trillion_tokens"] == pytest.approx(
            cost_per_trillion_tokens(tokens, 2.0)
        )
    assert result.notes == ()


def test_another_question_is_said() -> None:
    """A config with half the batch is compared, and the difference is a note."""
    reading = read_config(YOURS % 16, "nanotron.yaml", "nanotron")
    result = compare(PLAN, reading, predicted)
    assert "global_batch_size: your config says 32, the plan 64" in result.notes
    costs = next(row for row in result.rows if row.name == "cost_per_trillion_tokens")
    assert costs.ours is None or costs.ours > 0


def test_what_does_not_fit_is_said() -> None:
    """A config of 64 sequences per micro-batch on half the GPUs lacks memory: two notes."""
    text = YOURS.replace("dp: 2", "dp: 1").replace(
        "recompute_layer: true", "recompute_layer: false"
    )
    text = text.replace("micro_batch_size: 1", "micro_batch_size: 64") % 1
    notes = compare(PLAN, read_config(text, "nanotron.yaml", "nanotron"), predicted).notes
    assert "gpus: your config runs on 4, the plan on 8" in notes
    assert any(note.startswith("your config does not fit: rank 0 lacks ") for note in notes)
