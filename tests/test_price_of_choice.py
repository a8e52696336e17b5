"""What the layout that a plan would choose loses on measured layouts, and which one that is."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.accuracy import price_of_choice
from benchmarks.accuracy.price_of_choice import chosen, mean_price
from meshplan.costmodels.layout import Layout, even_stages
from meshplan.hardware_profiles.errors.layout_ratios import Pair
from meshplan.planner.answer.ties import Worst

PAIRS = [
    Pair("other", "native", 1, 0.0, 0.1, tensor_parallel=2.0, micro_batch_size=0.0)
    for _ in range(400)
]
"""Layouts priced alike; the one with four times the tensor parallelism took 10 % longer."""


def row(tp: int, predicted_s: float, measured_s: float, **said: Any) -> Any:
    """A layout of one question on eight GPUs."""
    usual: dict[str, Any] = {"micro_batch_size": 1, "fits": True, "suite": "ours"} | said
    layout = Layout(
        data_parallel=8 // tp, tensor_parallel=tp, pipeline_parallel=1, expert_parallel=1,
        zero_stage=1, micro_batch_size=usual["micro_batch_size"], stages=even_stages(4, 1),
    )  # fmt: skip
    measured = SimpleNamespace(step_time_s=measured_s, oom=False)
    run = SimpleNamespace(suite=usual["suite"], layout=layout, measured=measured, group=("q",))
    return SimpleNamespace(
        run=run, fits=usual["fits"], time=SimpleNamespace(step_time_s=predicted_s)
    )


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs above, all within 2 % a tie, and no figure that is off."""
    steps: dict[int, float] = {1: 1.01, 2: 1.005, 4: 1.0, 8: 1.5}

    def losses(_: Any, layouts: Sequence[Layout], longer: Sequence[float]) -> list[Worst]:
        leant = [steps[each.tensor_parallel] * by for each, by in zip(layouts, longer, strict=True)]
        return [Worst(step / min(leant) - 1, "", 0.0) for step in leant]

    monkeypatch.setattr(price_of_choice, "worst_losses", losses)
    monkeypatch.setattr(price_of_choice, "pairs", lambda: PAIRS)
    monkeypatch.setattr(
        price_of_choice, "faster_probability", lambda ratio, _: 0.5 + 10 * (ratio - 1)
    )


def test_ties_lean_as_pairs_of_other_sources_do() -> None:
    """tp 4 is predicted fastest by 1 %; by pairs of others it takes 10 % longer than tp 1."""
    group = [row(4, 1.0, 3.0), row(1, 1.01, 2.0), row(2, 1.005, 2.5), row(8, 1.5, 1.0)]
    assert chosen(group).run.layout.tensor_parallel == 1
    own = [row(4, 1.0, 3.0, suite="other"), row(1, 1.01, 2.0, suite="other")]
    assert chosen(own).run.layout.tensor_parallel == 4


def test_only_the_best_of_each_kind_is_looked_at() -> None:
    """Of two micro-batches of tp 1 the one that is predicted faster, which is no tie."""
    group = [row(4, 1.0, 3.0), row(1, 1.01, 2.0), row(1, 1.005, 2.2, micro_batch_size=2)]
    assert chosen(group).run.layout.micro_batch_size == 2


def test_what_does_not_fit_is_not_chosen() -> None:
    """But where nothing is said to fit one of all is."""
    group = [row(4, 1.0, 3.0), row(1, 1.01, 2.0, fits=False)]
    assert chosen(group).run.layout.tensor_parallel == 4
    assert chosen(group[1:]).run.layout.tensor_parallel == 1


def test_the_mean_price_by_hand() -> None:
    """Four layouts; tp 1 is chosen, 2.0 s, where the best took 1.6: a quarter. Three are none."""
    group = [row(4, 1.0, 3.0), row(1, 1.01, 2.0), row(2, 1.005, 2.5), row(8, 1.5, 1.6)]
    assert mean_price(group) == pytest.approx(0.25)
    assert list(price_of_choice.questions(group[:3])) == []
