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
    shown_s = _shown_s()
    pins = {"tensor_parallel": "1", "context_parallel": "1", "pipeline_parallel": "3"}
    alone = solve(ask(replace(FAR_APART, pins=pins)).question, 1)
    assert alone.status == "OPTIMAL"
    assert shown_s == alone.solutions[0].step_time_s


def _shown_s() -> float:
    """The step of the layout of three pipeline ranks that is shown."""
    shown = solve(ask(FAR_APART).question, 3).solutions
    return next(each.step_time_s for each in shown if each.layout.pipeline_parallel == 3)


def test_ctrl_c_while_layers_are_moved_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The faster layout of rows that were let go is there before layers are moved from it."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    class Stopped(far_kinds.Simulated):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            monkeypatch.setattr(self.moves, "around", stop)

    found_s = _shown_s()
    monkeypatch.setattr(far_kinds, "Simulated", Stopped)
    assert _shown_s() == found_s


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
