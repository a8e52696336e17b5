"""What CP-SAT proved of one layout, for others that are nowhere cheaper."""

from meshplan.planner.problem.stage_problem import StageProblem

Family = tuple[str, int, int, int, tuple[int, ...]]


class Refuted:
    """By problems that differ only in their prices: prices, and a bound below which none has a
    plan.
    """

    def __init__(self) -> None:
        self._known: dict[Family, list[tuple[tuple[int, ...], int]]] = {}

    def add(self, problem: StageProblem, bound: int) -> None:
        """No plan of `problem` is below `bound`."""
        self._known.setdefault(_family(problem), []).append((problem.costs, bound))

    def holds(self, problem: StageProblem, window: int) -> bool:
        """Whether a layout that is nowhere dearer was proved to have no plan below `window`."""
        return any(
            bound >= window and all(a <= b for a, b in zip(costs, problem.costs, strict=True))
            for costs, bound in self._known.get(_family(problem), ())
        )


def _family(problem: StageProblem) -> Family:
    return problem.schedule, problem.pp, problem.vpp, problem.m, problem.modes
