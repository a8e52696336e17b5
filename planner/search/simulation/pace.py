"""Whether what is left of a budget is enough, at `PACE` times the pace of what was spent last."""

PACE = 1.5
ENOUGH_WORK = 400_000  # a pace is of so many units of work at least


class WorkPace:
    """Of what many bounds lack together, `lack_s` with `left` units of work: that of the last
    `window` units, once `first` units are spent, which are no more than a window.
    """

    def __init__(
        self, *known: tuple[int, float], window: int = ENOUGH_WORK, first: int = ENOUGH_WORK
    ) -> None:
        self._were, self._window, self._first = list(known), window, first

    def is_enough(self, left: int, lack_s: float) -> bool:
        """Whether nothing lacks once that is spent; true before `first` units are."""
        self._were.append((left, lack_s))
        while len(self._were) > 1 and self._were[1][0] - left >= self._window:
            self._were.pop(0)
        was_left, lacked_s = self._were[0]
        spent = was_left - left
        return spent < self._first or PACE * (lacked_s - lack_s) / spent * left >= lack_s
