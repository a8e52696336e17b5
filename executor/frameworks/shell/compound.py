"""Follows what joins commands: lists, pipelines, shells of their own, conditions, loops."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from meshplan.executor.frameworks.shell import commands
from meshplan.executor.frameworks.shell.asked import notes_of, of_machine
from meshplan.executor.frameworks.shell.conditions import (
    arithmetic_holds,
    bodies_of,
    double_holds,
)
from meshplan.executor.frameworks.shell.endings import Exits, Place, Stops
from meshplan.executor.frameworks.shell.expansion.expand import Expander
from meshplan.executor.frameworks.shell.grammar import syntax
from meshplan.executor.frameworks.shell.loops import Rounds
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.traps import Traps
from meshplan.executor.frameworks.shell.variables import Text, Variables
from meshplan.executor.frameworks.shell.work import COMMAND_WORK
from meshplan.planner.case.reading import UnreadableConfig

MAX_STEPS = 20_000  # commands followed in one script


class Compound(ABC):
    """Follows a tree down to its simple commands; `script` is what it found."""

    def __init__(self) -> None:
        self.script, self.variables = Script(), Variables()
        self.asked: dict[int, syntax.Node | None] = {}  # conditions that were looked at
        self.place = Place(self.variables.guesses, self.script.commands)
        self.expander = Expander(self.variables)
        self.printing: list[Text | None] | None = None  # what a function prints into `$( )`
        self.functions: dict[str, syntax.Node] = {}
        self.rounds = Rounds(self.expander, self.script, self.functions, self.place, self._asked)
        self.traps = Traps()
        self.steps = 0
        self.ended = 0  # the status that a function or a shell of its own just ended with

    @abstractmethod
    def _simple(self, node: syntax.Simple) -> bool:
        """Follow a simple command; whether its status is 0."""

    @abstractmethod
    def _nested(self, texts: list[Text], line: int) -> bool:
        """Follow text as a script of its own."""

    def run(self, node: syntax.Node) -> bool:
        """Follow `node`; whether its status is 0."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise UnreadableConfig(f"over {MAX_STEPS} commands; no launch script has as many")
        self.expander.work.spend(COMMAND_WORK, getattr(node, "line", 1))
        self.ended, since = 0, self.place.guesses.made
        holds = self._run(node)
        self.expander.status = 0 if holds else self.ended or 1
        if isinstance(node, syntax.Simple | syntax.Test) or commands.is_shell(node):
            self.expander.statuses = [self.expander.status]
        if (failing := commands.failing(node, self.expander.statuses)) is not None:
            self._errexit(failing, since, holds=holds)
        return holds

    def _errexit(self, node: syntax.Simple | syntax.Test, since: int, *, holds: bool) -> None:
        """`set -e` ends a shell behind what fails and is not asked for its status."""
        place, status = self.place, self.expander.status
        if (place.tested or not holds) and of_machine(node, self.functions):
            place.guesses.made += 1
        if holds or place.is_asked() or "errexit" not in self.variables.options:
            return
        if self.printing is not None:
            raise Exits("exit", status)
        why = f"by `set -e`: this command's status is {status}"
        place.note_end(node.line, why, status, since)

    def _run(self, node: syntax.Node) -> bool:
        if isinstance(node, syntax.Simple):
            return self._simple(node)
        if isinstance(node, syntax.Block):
            return self._block(node)
        if isinstance(node, syntax.Test):
            if node.arithmetic is not None:
                return arithmetic_holds(self.expander, node.arithmetic, node.line)
            return double_holds(self.expander, node.words, node.line)
        if isinstance(node, syntax.Not):
            return not self._asked(node.inner)
        if isinstance(node, syntax.Function):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, syntax.If):
            return self._if(node)
        if isinstance(node, syntax.Case):
            return self._case(node)
        return self._loop(node)

    def _block(self, block: syntax.Block) -> bool:
        if block.alone:
            return self._until(("exit", "return"), lambda: self._list(block), self._own_shell())
        return self._pipe(block) if block.piped else self._list(block)

    def _pipe(self, block: syntax.Block) -> bool:
        """What all but the last of a pipeline print is not printed; each has a status."""
        said = [] if self.printing is None else self.printing
        printed, statuses, holds = len(said), list[int](), True
        for at, (_, node) in enumerate(block.items, 1):
            del said[printed:]
            self.place.part_status = None
            with self.place.part() if at < len(block.items) else nullcontext():
                holds = self.run(node)
            ended = self.place.part_status if at < len(block.items) else None
            statuses.append(self.expander.status if ended is None else ended)
        self.expander.statuses = statuses
        if "pipefail" in self.variables.options:
            self.ended = next(filter(None, reversed(statuses)), 0)
            return not self.ended
        return holds

    @contextmanager
    def _own_shell(self, without: str = "") -> Iterator[None]:
        """What is set within it is gone behind it."""
        held, conditional = self.variables.copied(), self.place.conditional
        self.expander.work.spend(len(held.values), 1)
        self.variables.options.discard(without)
        self.place.conditional = 0  # `exit` ends this one, whatever is around it
        try:
            with self._trapped():
                yield
        finally:
            self.place.conditional = conditional
            self.variables.become(held)

    @contextmanager
    def _trapped(self) -> Iterator[None]:
        """A shell that follows its own trap where it ends."""
        outer, self.traps = self.traps, Traps()
        try:
            yield
        except Stops:
            self.at_exit()
            raise
        else:
            self.at_exit()
        finally:
            self.traps = outer

    def at_exit(self) -> None:
        """Follow what the shell traps at its end, which keeps its status."""
        text, line = self.traps.taken(), self.traps.line
        if text is None:
            return
        ended, status = self.ended, self.expander.status
        try:
            with suppress(Stops):
                self._nested([text], line)
        except UnreadableConfig:
            self.script.notes.append(f"line {line}: what `trap` does at the end is not read")
        self.ended, self.expander.status = ended, status

    def _list(self, block: syntax.Block) -> bool:
        status, before, since = True, None, 0
        for at, (joint, node) in enumerate(block.items, 1):
            decided, asked = joint != ";", at < len(block.items) and block.items[at][0] != ";"
            if decided:
                self._note_asked(before, [node])
            before, since = node, since if decided else self.place.guesses.made
            if not decided or (joint == "&&") == status:
                with self.place.condition(asked=asked), self.place.body(since, decided=decided):
                    status = self.run(node)
        return status

    def _note_asked(self, condition: syntax.Node | None, bodies: Sequence[syntax.Node]) -> None:
        """Note a condition that a command or a file decides, and by it what is set or printed."""
        if id(condition) not in self.asked:
            self.asked[id(condition)], prints = condition, self.printing is not None
            self.script.notes += notes_of(condition, bodies, self.functions, prints=prints)

    def _if(self, node: syntax.If) -> bool:
        since = self.place.guesses.made
        for condition, body in node.clauses:
            self._note_asked(condition, [each for _, each in node.clauses])
            if condition is None or self._asked(condition):
                return self._maybe(body, since)
        return True

    def _asked(self, condition: syntax.Node) -> bool:
        with self.place.condition():
            return self.run(condition)

    def _maybe(self, body: syntax.Block, since: int) -> bool:
        with self.place.body(since):
            return self.run(body)

    def _case(self, node: syntax.Case) -> bool:
        status, since = True, self.place.guesses.made
        for body in bodies_of(self.expander, node):
            status = self._maybe(body, since)
        return status

    def _loop(self, node: syntax.For | syntax.While) -> bool:
        """The rounds of a loop, whose status is that of the last one's last command."""
        rounds, status, since = self.rounds.of(node), 0, self.place.guesses.made
        try:
            for _ in rounds:
                status = self._round(node.body, since)
        except Stops as stop:
            if stop.word != "break":
                raise
            status = 0
        self.ended = status
        return not status

    def _round(self, body: syntax.Block, since: int) -> int:
        """The status of one round."""
        try:
            self._maybe(body, since)
        except Stops as stop:
            if stop.word != "continue":
                raise
            return 0
        return self.expander.status

    def _until(
        self,
        words: tuple[str, ...],
        followed: Callable[[], bool],
        around: AbstractContextManager[None],
    ) -> bool:
        """Follow what one of these words ends, with the status that it says."""
        try:
            with around:
                return followed()
        except Stops as stop:
            if stop.word not in words:
                raise
            self.ended = stop.status
            return not stop.status
