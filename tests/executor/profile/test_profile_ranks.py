"""What is kept of several ranks, and of a GPU where a CPU keeps something else."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.measured import interference, memory
from meshplan.executor.profile.measured.interference import Overlap
from meshplan.executor.profile.measured.matmul import Shape, run_steady

SHAPE = Shape(8, 8, 8)


class OnGpu(Bench):
    """A bench that is taken for a GPU's, without one."""

    is_cuda = True

    def synchronise(self) -> None:
        """Nothing to wait for."""


class Counting:
    """A bench whose samples take 1, 2, 3 ... s."""

    def once_s(self, call: Any, iterations: int = 1) -> float:
        """Longer than any budget."""
        return 1e9

    def samples(self, call: Any, iterations: int, repeats: int) -> list[float]:
        """Of so many repeats."""
        return [1.0 + at for at in range(repeats)]


class CountingOnGpu(Counting, OnGpu):
    """Of a GPU."""


class CountingOnCpu(Counting, Bench):
    """Of a CPU."""


@pytest.mark.parametrize(
    ("bench", "seconds"),
    [
        pytest.param(CountingOnGpu, (1.5, 15.5), id="of 20: the median of 1, 2 and of 11 to 20"),
        pytest.param(CountingOnCpu, (1.0, 1.0), id="of a CPU the fastest of all"),
    ],
)
def test_burst_and_sustained_by_hand(bench: type[Bench], seconds: tuple[float, float]) -> None:
    """The first tenth and the last half, which a CPU does not tell apart."""
    found = run_steady(bench(torch.device("cpu")), SHAPE, "fp32")
    assert [SHAPE.flops / each.result.value for each in found] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("bench", "seconds", "spread"),
    [
        pytest.param(OnGpu, 5.0, 0.8, id="the median; quartiles: (7 - 3) / 5"),
        pytest.param(Bench, 1.0, 1.0, id="the fastest; the next one: (2 - 1) / 1"),
    ],
)
def test_the_spread_of_what_is_kept(bench: type[Bench], seconds: float, spread: float) -> None:
    """Of nine repeats, 1 to 9 s."""
    row = [float(each) for each in range(1, 10)]
    timing = bench(torch.device("cpu"))._timing([row], together=False)
    assert (timing.seconds, timing.spread) == pytest.approx((seconds, spread))


def test_memory_is_what_every_rank_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GB here and 6 GB there: 6."""

    class TwoRanks(Bench):
        def everywhere(self, values: Any) -> list[list[float]]:
            return [list(values), [6e9]]

    monkeypatch.setattr(memory, "usable_bytes", lambda *_: 8e9)
    (record,) = memory._usable(TwoRanks(torch.device("cpu"), world_size=2))
    assert record.result.value == 6e9


def test_interference_is_that_of_the_rank_that_suffers_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Computing takes 1.1 times as long here and 1.2 there, communicating 1.3 and 1.0."""

    def both(_bench: Any, _group: Any, _array: Any, _call: Any, counts: Any) -> Overlap:
        together = min(counts) > 0
        return Overlap(1.1 if together else 1.0, 1.3 if together else 1.0)

    monkeypatch.setattr(interference, "both", both)
    bench: Any = SimpleNamespace(
        nodes=1, ranks_per_node=2, is_cuda=False, device=torch.device("cpu"), budget_s=10.0,
        measure=lambda *_, **__: SimpleNamespace(seconds=1.0),
        everywhere=lambda values: [values, [1.2, 1.0]],
    )  # fmt: skip
    groups: Any = SimpleNamespace(use=lambda *_: None, own=object())
    found = interference._run(bench, groups)
    assert [each.result.value for each in found] == pytest.approx([1.2, 1.3])
