"""How far a program is followed, counted and not timed, and where it is not."""

import ast

from meshplan.planner.case.reading import UnreadableConfig

MAX_STEPS = 400_000  # expressions and statements of a file; Megatron-Bridge's longest has 171,000
MAX_CALLS = 24  # inside each other; Megatron-Bridge's recipes have 5


class Unfollowed(Exception):
    """What a program does and this reader does not; the line is of the file that is read."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.text = text
        self.line = line


class Budget:
    """The steps that are left for one file, and the words of its syntax that were asked for."""

    def __init__(self) -> None:
        self._left = MAX_STEPS
        self.written: dict[ast.AST, str] = {}

    def step(self, line: int, steps: int = 1) -> None:
        """So many more; raises `UnreadableConfig` where there are too many."""
        self._left -= steps
        if self._left < 0:
            raise UnreadableConfig(
                f"it takes more than {MAX_STEPS} steps to follow; no configuration does", line
            )
