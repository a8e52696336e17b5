"""Runners-up further from the best than the proof looked: what it had let go of their kinds."""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.search import best_simulated, far_kinds
from meshplan.planner.search.found import KIND_AXES, kind_of

FAR_APART = Arguments(
    model="qwen2.5-0.5b", gpus=3, cluster="dgx-h100", engine="megatron-bridge", global_batch=9
)  # fmt: skip


MOVED = replace(
    FAR_APART, model="gemma-3-4b", gpus=9, cluster="mi300x-8", engine="internevo", global_batch=27
)


@pytest.mark.few(1)
@pytest.mark.parametrize("asked", [
    pytest.param(FAR_APART, id="its first plan takes 3 % longer"),
    pytest.param(MOVED, id="its best listed cut takes 3 % longer than layers moved from it"),
])  # fmt: skip
def test_rows_that_the_proof_let_go_are_looked_at_where_their_kind_is_shown(
    asked: Arguments,
) -> None:
    """The fastest layout of a kind that is shown is one of the rows that were let go."""
    for shown in solve(ask(asked).question, 3).solutions:
        pins = {name: str(getattr(shown.layout, name)) for name in KIND_AXES}
        alone = solve(ask(replace(asked, pins=pins)).question, 1)
        assert shown.step_time_s == pytest.approx(alone.solutions[0].step_time_s, rel=2e-6)


def test_just_what_was_let_go_of_its_kind_is_settled_below_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that the proof has kept are settled by itself, and those of other kinds are not shown.
    The proof's deadline holds here too, and what is simulated counts as its own.
    """
    looked_at = list[tuple[set[int], float, float | None]]()

    class Noted(far_kinds.Simulated):
        def settle_below(self, *_: Any, **__: Any) -> list[Any]:
            rows = np.flatnonzero(cast(far_kinds._Some, self.source).asked)
            looked_at.append((set(rows.tolist()), self.limit_s, self.tally.deadline))
            self.tally.simulated = 1_000_000
            return []

    def settle(proof: far_kinds.Simulated, k: int) -> None:
        proof.tally.deadline = math.inf
        far_kinds.settle_far_kinds(proof, k)
        assert proof.tally.simulated // 1_000_000 == len(looked_at)
        for rows, limit_s, deadline in looked_at:
            kinds = {kind_of(proof.layouts, row) for row in rows}
            assert [proof.best[kind].step_s for kind in kinds] == [limit_s]
            assert not rows & set(proof.kept.tolist())
            assert deadline == math.inf

    monkeypatch.setattr(far_kinds, "Simulated", Noted)
    monkeypatch.setattr(best_simulated, "settle_far_kinds", settle)
    solve(ask(FAR_APART).question, 3)
    assert looked_at


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


def test_nothing_that_was_let_go_is_priced_once_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it may be after what the proof has kept of the kind."""
    monkeypatch.setattr(far_kinds, "settle_kind", lambda proof, kind: proof.tally.end())
    monkeypatch.delattr(far_kinds, "Simulated")
    assert solve(ask(FAR_APART).question, 3).status == "OPTIMAL"


def test_nothing_that_was_let_go_is_asked_where_every_moment_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There the source of rows keeps account of what the proof has asked."""
    monkeypatch.delattr(far_kinds, "Simulated")
    assert solve(ask(replace(FAR_APART, engine="native")).question, 3).all_degrees
