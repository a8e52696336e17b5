"""Whether what is left of a budget is enough, at `PACE` times the pace of what was spent last."""

ASKED, PACE = 3, 1.5  # a pace is of so many times that it was asked for
ENOUGH_WORK = 400_000  # or of so many units of work


class BoundPace:
    """Of a bound that rises with the work that is spent."""

    def __init__(self) -> None:
        self._were = list[tuple[float, float]]()

    def is_enough(self, bound_s: float, wanted_s: float, left: float) -> bool:
        """Whether the bound is as high as is wanted once that much work more is spent; true of the
        first times.
        """
        self._were.append((left, bound_s))
        if len(self._were) <= ASKED:
            return True
        was_left, was_s = self._were[-1 - ASKED]
        return bound_s + PACE * (bound_s - was_s) / (was_left - left) * left >= wanted_s


class WorkPace:
    """Of what many bounds lack together, `lack_s` with `left` units of work."""

    def __init__(self, left: int, lack_s: float) -> None:
        self._were = [(left, lack_s)]

    def is_enough(self, left: int, lack_s: float) -> bool:
        """Whether nothing lacks once that is spent; true of the first units of work."""
        self._were.append((left, lack_s))
        while self._were[1][0] - left >= ENOUGH_WORK:
            self._were.pop(0)
        was_left, lacked_s = self._were[0]
        spent = was_left - left
        return spent < ENOUGH_WORK or PACE * (lacked_s - lack_s) / spent * left >= lack_s
