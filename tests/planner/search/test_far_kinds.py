"""Runners-up further from the best than the proof looked: what it had let go of their kinds."""

from dataclasses import replace
from typing import Any

import pytest

from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search import best_simulated, far_kinds

FAR_APART = Arguments(
    model="qwen2.5-0.5b", gpus=3, cluster="dgx-h100", engine="megatron-bridge", global_batch=9
)  # fmt: skip


def test_rows_that_the_proof_let_go_are_looked_at_where_their_kind_is_shown() -> None:
    """Three pipeline ranks take 1.4 times as long as three replicas. Their first plan was shown;
    a layout of one of the rows that were let go takes 3 % less.
    """
    shown = next(
        each for each in solve(ask(FAR_APART).question, 3).solutions
        if each.layout.pipeline_parallel == 3
    )  # fmt: skip
    pins = {"tensor_parallel": "1", "context_parallel": "1", "pipeline_parallel": "3"}
    alone = solve(ask(replace(FAR_APART, pins=pins)).question, 1)
    assert alone.status == "OPTIMAL"
    assert shown.step_time_s == alone.solutions[0].step_time_s


def test_ctrl_c_among_rows_that_were_let_go_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends what would follow too, not the look at these rows alone."""

    class Interrupted(far_kinds.Simulated):
        def settle_below(self, *_: Any, **__: Any) -> list[Any]:
            self.tally.end()
            return []

    late = list[bool]()

    def settle(proof: far_kinds.Simulated, k: int) -> None:
        far_kinds.settle_far_kinds(proof, k)
        late.append(proof.tally.late)

    monkeypatch.setattr(far_kinds, "Simulated", Interrupted)
    monkeypatch.setattr(best_simulated, "settle_far_kinds", settle)
    assert solve(ask(FAR_APART).question, 3).status == "OPTIMAL"
    assert late == [True]
