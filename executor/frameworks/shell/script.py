"""Follows a launch script as far as the words of the commands that it would run.

`read_script` runs what only computes: assignments, arrays, conditions, `case`, loops, functions,
`eval` and `bash -c`. Every other command is recorded with its words and counts as having worked.
No command is run. A file that is sourced is followed where it lies beside the script. The
environment and the script's own arguments are unknown: empty in conditions, named (`$TP`) in the
words of a command.

Source: GNU Bash manual 5.2, chapter 3. The tests compare with what bash does.
Leaves out: sourced files that lie elsewhere, `read` but of a here-string, `trap`, subshells' own
variables, job control.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from fnmatch import fnmatchcase

from meshplan.executor.frameworks.shell import commands, syntax
from meshplan.executor.frameworks.shell.arithmetic import NotArithmetic
from meshplan.executor.frameworks.shell.array_jobs import array_tasks
from meshplan.executor.frameworks.shell.conditions import arithmetic_holds, double_holds, test_holds
from meshplan.executor.frameworks.shell.expand import (
    MAX_CHARS,
    MAX_TOKENS,
    Expander,
    Part,
    Text,
    Variables,
    is_unset,
    line_of,
    plain,
    shown_text,
)
from meshplan.executor.frameworks.shell.given import (
    exported_names,
    read_here,
    set_start,
    write_files,
)
from meshplan.executor.frameworks.shell.gpus import slurm_variables
from meshplan.executor.frameworks.shell.record import Script, joined
from meshplan.executor.frameworks.shell.sourced import MAX_SOURCED, sourced_text
from meshplan.executor.frameworks.shell.words import Word, split_words
from meshplan.executor.frameworks.shell.work import COMMAND_WORK, shared_work
from meshplan.planner.case.reading import Fact, UnreadableConfig

SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash")
MAX_STEPS = 20_000  # commands followed in one script
MAX_ROUNDS = 1_000  # of one loop
MAX_CALLS = 20  # functions, `eval` and `bash -c` inside each other
OF_LAUNCHERS = ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES")
_DECLARES = ("export", "local", "readonly", "declare", "typeset")
_PRINTS = ("echo", "printf", "cat", "log", ":", "mkdir", "cd", "rm", "ls", "pip", "git", "exec")


class _Stops(Exception):
    """`exit`, `return`, `break` or `continue` was reached."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


def read_script(text: str, environment: Mapping[str, str] | None = None, path: str = "") -> Script:
    """Follow the script `text` at `path`, of a job array once for each of its tasks; raises
    `UnreadableConfig` on what is no script.

    `environment`: variables by name and arguments by number that it is started with; what Slurm
    sets by the script's own `#SBATCH` lines is known without it.
    """
    given = {**slurm_variables(text), **(environment or {})}
    tasks, notes = array_tasks(text, given)
    with shared_work():
        return joined([_followed(text, {**given, **task}, path) for task in tasks], notes)


def _followed(text: str, given: Mapping[str, str], path: str) -> Script:
    follower = _Follower(path)
    set_start(follower.variables, given)
    follower.exported |= given.keys()
    with suppress(_Stops):
        follower.run(syntax.parse(split_words(text)))
    known = follower.variables
    script = follower.script
    script.variables = {
        name: [Fact(shown_text(item), line_of(item, 1)) for item in items]
        for name, items in known.values.items()
    }
    script.waits = tuple(dict.fromkeys(what for _, what in sorted(known.guesses.items())))
    script.notes += [
        f"line {line}: {what} is not set in the script: taken as empty in this condition"
        for line, what in sorted(known.guesses.items())
    ]
    return script


class _Follower:
    def __init__(self, path: str) -> None:
        self.path, self.sourced, self.exported = path, 0, set[str]()
        self.script, self.variables = Script(), Variables()
        self.expander = Expander(self.variables)
        self.functions: dict[str, syntax.Node] = {}
        self.own: Set[str] = frozenset()
        self.steps = self.calls = 0
        self.conditional = 0  # inside so many `if`, `case`, `&&`, `||` that may be otherwise

    def run(self, node: syntax.Node) -> bool:
        """Follow `node`; whether its status is 0."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise UnreadableConfig(f"over {MAX_STEPS} commands; no launch script has as many")
        self.expander.work.spend(COMMAND_WORK, getattr(node, "line", 1))
        if isinstance(node, syntax.Simple):
            return self._simple(node)
        if isinstance(node, syntax.Block):
            return self._block(node)
        if isinstance(node, syntax.Test):
            if node.arithmetic is not None:
                return arithmetic_holds(self.expander, node.arithmetic, node.line)
            return double_holds(self.expander, node.words, node.line)
        if isinstance(node, syntax.Not):
            return not self.run(node.inner)
        if isinstance(node, syntax.Function):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, syntax.If):
            return self._if(node)
        if isinstance(node, syntax.Case):
            return self._case(node)
        return self._loop(node)

    def _block(self, block: syntax.Block) -> bool:
        status = True
        for joint, node in block.items:
            if joint == ";" or (joint == "&&") == status:
                self.conditional += joint != ";"
                try:
                    status = self.run(node)
                finally:
                    self.conditional -= joint != ";"
        return status

    def _if(self, node: syntax.If) -> bool:
        for condition, body in node.clauses:
            if condition is None or self.run(condition):
                return self._maybe(body)
        return True

    def _maybe(self, body: syntax.Block) -> bool:
        self.conditional += 1
        try:
            return self.run(body)
        finally:
            self.conditional -= 1

    def _case(self, node: syntax.Case) -> bool:
        subject = self.expander.text(node.subject)
        if is_unset(subject):
            self.variables.guesses[node.line] = shown_text(subject)
        for patterns, body in node.clauses:
            if any(fnmatchcase(plain(subject), plain(self.expander.text(p))) for p in patterns):
                return self._maybe(body)
        return True

    def _loop(self, node: syntax.For | syntax.While) -> bool:
        rounds = self._rounds(node)
        try:
            for count, _ in enumerate(rounds):
                if count >= MAX_ROUNDS:
                    raise UnreadableConfig(f"a loop of over {MAX_ROUNDS} rounds")
                try:
                    self._maybe(node.body)
                except _Stops as stop:
                    if stop.word != "continue":
                        raise
        except _Stops as stop:
            if stop.word != "break":
                raise
        return True

    def _rounds(self, node: syntax.For | syntax.While) -> Iterable[None]:
        """Once for each round of a loop, with its variable set."""
        if isinstance(node, syntax.While):
            while True:
                recorded = len(self.script.commands)
                if self.run(node.condition) == node.until:
                    return
                yield
                if len(self.script.commands) > recorded and not commands.decides(node.condition):
                    return  # the condition is a command, whose answer is unknown: one round
        elif node.arithmetic is not None:
            yield from self._counted(node)
        else:
            yield from self._over(node)

    def _over(self, node: syntax.For) -> Iterable[None]:
        values = self.variables.arguments
        if node.words is not None:
            lists = (commands.braced(word) or self.expander.fields(word) for word in node.words)
            values = [text for each in lists for text in each]
        for value in list(values):
            self.variables.values[node.name] = [value]
            yield

    def _counted(self, node: syntax.For) -> Iterable[None]:
        parts = [*(node.arithmetic or "").split(";"), "", "", ""][:3]
        try:
            self.expander.number(parts[0])
            while not parts[1].strip() or self.expander.number(parts[1]):
                yield
                self.expander.number(parts[2])
        except NotArithmetic:
            self.variables.guesses[node.line] = f"(({node.arithmetic}))"

    def _simple(self, node: syntax.Simple) -> bool:
        count = next((at for at, part in enumerate(node.parts) if not syntax.assigns(part)), None)
        if count is None:
            for part in node.parts:
                self._assign(part)
            return True
        first = node.parts[count]
        if isinstance(first, Word) and first.bare in _DECLARES:
            for part in filter(syntax.assigns, node.parts[count + 1 :]):
                self._assign(part)
            if first.bare == "export":
                self.exported |= exported_names(node.parts[count + 1 :])
            return True
        words = [
            text
            for part in node.parts[count:]
            if isinstance(part, Word)
            for text in self.expander.fields(part)
        ]
        before: dict[str, list[Text] | None] = {}
        for part in node.parts[:count]:
            name = syntax.name_of(part)
            before.setdefault(name, self.variables.values.get(name))
            self._assign(part)
        self.own = before.keys()
        try:
            name, sent = plain(words[0]) if words else "", node.sent
            if sent.given is not None and name == "read":
                return read_here(self.variables, words[1:], self.expander.text(sent.given))
            write_files(self.expander, words, sent, self.script.files)
            return self._command(words, node.line)
        finally:
            self._restore(before if words else {})

    def _restore(self, before: dict[str, list[Text] | None]) -> None:
        """Assignments before a command hold for that command only."""
        for name, items in before.items():
            if items is None:
                self.variables.values.pop(name, None)
            else:
                self.variables.values[name] = items

    def _assign(self, part: Word | syntax.Array) -> None:
        known = self.variables
        if isinstance(part, syntax.Array):
            items = [text for word in part.words for text in self.expander.fields(word)]
            old = known.values.get(part.name, []) if part.append else []
            known.values[part.name] = (old + items)[:MAX_TOKENS]
            known.arrays.add(part.name)
            return
        match = syntax.ASSIGN.match(part.raw)
        assert match is not None
        name, index, append = match[1], match[2], bool(match[3])
        value = self.expander.text(commands.after_equals(part, match.end()))
        old = list(known.values.get(name, []))
        at = self._index(index, old) if index else 0
        if at is None:
            return
        at = min(at, len(old))  # a hole in an array is closed: its elements are what counts
        old += [()] * (at == len(old))
        old[at] = old[at] + value if append else value
        if sum(len(each.text) for each in old[at]) > MAX_CHARS:
            raise UnreadableConfig(f"{name} grows over {MAX_CHARS} characters", part.line)
        known.values[name] = old if index or name in known.arrays else [old[0]]

    def _index(self, index: str, old: list[Text]) -> int | None:
        try:
            at = self.expander.number(index)
        except NotArithmetic:
            return None
        at += len(old) if at < 0 else 0
        return at if 0 <= at < MAX_TOKENS else None

    def _command(self, words: list[Text], line: int) -> bool:
        if not words or not (name := shown_text(words[0])):
            return True
        if name in ("[", "test"):
            inner = words[1:-1] if name == "[" else words[1:]
            return test_holds(self.expander, inner, line)
        if name in self.functions:
            return self._call(name, words[1:], line)
        if name == "exec" and words[1:] and not (started := shown_text(words[1])).startswith("{"):
            self._builtin(started, words[1:], line)
            name = "exit"  # nothing behind it is reached
        return self._builtin(name, words, line)

    def _call(self, name: str, arguments: list[Text], line: int) -> bool:
        self._deeper(line)
        try:
            return self._until_return(arguments, lambda: self.run(self.functions[name]))
        finally:
            self.calls -= 1

    def _until_return(self, arguments: list[Text], followed: Callable[[], bool]) -> bool:
        """Follow a function or a file with arguments of its own, which `return` ends."""
        outer = self.variables.arguments
        self.variables.arguments = arguments
        try:
            return followed()
        except _Stops as stop:
            if stop.word != "return":
                raise
            return True
        finally:
            self.variables.arguments = outer

    def _deeper(self, line: int) -> None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise UnreadableConfig(f"calls over {MAX_CALLS} deep", line)

    def _builtin(self, name: str, words: list[Text], line: int) -> bool:
        if name in ("exit", "return", "break", "continue"):
            if name != "exit" or not self.conditional:
                raise _Stops(name)
            return True
        if name in ("true", "false"):
            return name == "true"
        if name == "eval":
            return self._nested(words[1:], line)
        if name == "shift":
            del self.variables.arguments[
                : int(plain(words[1])) if commands.is_count(words[1:]) else 1
            ]
        elif name == "set" and len(words) > 1 and plain(words[1]) == "--":
            self.variables.arguments = words[2:]
        elif name == "unset":
            for word in words[1:]:
                self.variables.values.pop(plain(word), None)
        elif name in ("source", "."):
            return self._source(words[1:], line)
        elif (inner := commands.inline(words)) is not None:
            return self._nested([inner], line)
        elif name not in _PRINTS:
            facts = [Fact(shown_text(word), line_of(word, line)) for word in words]
            self.script.commands.append(facts[:MAX_TOKENS])
            held = ((name, self.variables.values.get(name)) for name in OF_LAUNCHERS)
            self.script.beside.append({n: Fact(shown_text(v[0]), line) for n, v in held if v})
            self.script.exported.append(self._environment())
        return True

    def _environment(self) -> dict[str, str]:
        """What the command that is recorded inherits: its own variables, and those exported."""
        known, names = self.variables.values, self.exported | self.own
        return {name: shown_text(known[name][0]) for name in names if known.get(name)}

    def _source(self, words: list[Text], line: int) -> bool:
        """Follow a file that lies beside the script, as if it stood there."""
        what = shown_text(words[0]) if words else "a file"
        text = sourced_text(what, self.path)
        self.sourced += len(text or "")
        if self.sourced > MAX_SOURCED:
            raise UnreadableConfig(f"sources over {MAX_SOURCED} characters", line)
        inner = None
        with suppress(UnreadableConfig):  # a file in another shell's words
            inner = commands.parsed([(Part(text, line),)], line) if text is not None else None
        said = "what it sets is not read" if inner is None else "read too"
        self.script.notes.append(f"line {line}: {what} is sourced: {said}")
        if inner is None:
            return True
        arguments = words[1:] or self.variables.arguments
        return self._until_return(arguments, lambda: self._inside(inner, line))

    def _nested(self, texts: list[Text], line: int) -> bool:
        """Follow text as a script of its own: `eval`, `bash -c`."""
        return self._inside(commands.parsed(texts, line), line)

    def _inside(self, inner: syntax.Block, line: int) -> bool:
        self._deeper(line)
        try:
            return self.run(inner)
        finally:
            self.calls -= 1
