"""The rounds of a script's loops, `for`, `while` and `until`, as far as they are known.

Source: GNU Bash manual 5.2, 3.2.5.1 Looping Constructs.
"""

from collections.abc import Callable, Iterable, Mapping

from meshplan.executor.frameworks.shell import commands
from meshplan.executor.frameworks.shell.asked import asks
from meshplan.executor.frameworks.shell.endings import Place
from meshplan.executor.frameworks.shell.expansion.arithmetic import NotArithmetic
from meshplan.executor.frameworks.shell.expansion.expand import Expander
from meshplan.executor.frameworks.shell.grammar import syntax
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.variables import shown_text
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.reading import UnreadableConfig

MAX_ROUNDS = 1_000  # of one loop
_NOBODYS = ("$@", "$*", "${@}", "${*}")  # arguments, where the script is started without any


@dataclass(frozen=True, slots=True)
class Rounds:
    """Loops over what `expander` knows; `run` follows a condition, which adds to `script`."""

    expander: Expander
    script: Script
    functions: Mapping[str, syntax.Node]
    place: Place
    run: Callable[[syntax.Node], bool]

    def of(self, node: syntax.For | syntax.While) -> Iterable[None]:
        """Once for each round of a loop, with its variable set."""
        for count, _ in enumerate(self._each(node)):
            if count >= MAX_ROUNDS:
                raise UnreadableConfig(f"a loop of over {MAX_ROUNDS} rounds")
            yield

    def _each(self, node: syntax.For | syntax.While) -> Iterable[None]:
        if isinstance(node, syntax.While):
            return self._while(node)
        return self._over(node) if node.arithmetic is None else self._counted(node)

    def _while(self, node: syntax.While) -> Iterable[None]:
        variables = self.expander.variables
        while True:
            recorded, left = len(self.script.commands), self.place.left
            if self.run(node.condition) == node.until:
                return
            held = dict(variables.values)
            yield
            if left != self.place.left:
                return  # it repeats what failed
            if held == variables.values and asks(node.condition, self.functions):
                return  # it waits for what no round changes
            runs = len(self.script.commands) > recorded or commands.reads(node.condition)
            if runs and not commands.decides(node.condition):
                return  # the condition is a command, whose answer is unknown: one round

    def _over(self, node: syntax.For) -> Iterable[None]:
        variables = self.expander.variables
        values = variables.arguments
        if node.words is not None:
            lists = (commands.braced(word) or self.expander.fields(word) for word in node.words)
            values = [text for each in lists for text in each if shown_text(text) not in _NOBODYS]
        for value in list(values):
            variables.values[node.name] = [value]
            yield

    def _counted(self, node: syntax.For) -> Iterable[None]:
        parts = [*(node.arithmetic or "").split(";"), "", "", ""][:3]
        try:
            self.expander.number(parts[0])
            while not parts[1].strip() or self.expander.number(parts[1]):
                yield
                self.expander.number(parts[2])
        except NotArithmetic:
            self.expander.variables.guesses[node.line] = f"(({node.arithmetic}))"
