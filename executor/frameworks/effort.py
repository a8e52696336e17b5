"""Counts what following one shell script costs, so that no script takes long to read."""

from dataclasses import dataclass

from planner.limits import MAX_STEPS
from planner.reading import UnreadableConfig


@dataclass(slots=True)
class Effort:
    """What was spent on one script, in characters expanded and words copied."""

    spent: int = 0

    def spend(self, steps: int, line: int = 1) -> None:
        """Add `steps`; raises `UnreadableConfig` at `line` when the script took too many."""
        self.spent += steps + 1
        if self.spent > MAX_STEPS:
            raise UnreadableConfig(
                f"following the script takes more than {MAX_STEPS} steps (variables that grow, or "
                "a line of very many words); keep the arguments in a script of their own",
                line,
            )
