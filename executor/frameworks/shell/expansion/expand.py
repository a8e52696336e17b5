"""What the words of a shell script become: variables, arrays, arithmetic, splitting at blanks.

What the script does not say (an environment variable, an argument, the output of a command) counts
as empty in conditions, as in an empty environment, and stays visible (`$TP`) in the words of a
command. The output of a command is not nothing where a default stands (`${TP:-4}`).
Source: GNU Bash manual 5.2, 3.5.3 Shell Parameter Expansion, 3.5.7 Word Splitting.
Leaves out: globs, braces `{a,b}`, and commands in `$(...)` that do more than compute and print.
"""

import re
from collections.abc import Callable

from meshplan.executor.frameworks.shell.expansion.arithmetic import NotArithmetic, evaluate
from meshplan.executor.frameworks.shell.expansion.atoms import (
    Atom,
    atoms_of,
    joined,
    length,
    may_say,
    of_items,
    several,
    split,
    squeezed,
    unknown,
)
from meshplan.executor.frameworks.shell.expansion.text import SPACED, change_of
from meshplan.executor.frameworks.shell.grammar.words import (
    Piece,
    Word,
    closing,
    document,
    split_words,
)
from meshplan.executor.frameworks.shell.pipelines import printed
from meshplan.executor.frameworks.shell.variables import (
    OF_LAUNCHERS,
    Part,
    Text,
    Variables,
    is_unset,
    line_of,
    plain,
    shown_text,
)
from meshplan.executor.frameworks.shell.work import work_here
from meshplan.planner.case.reading import UnreadableConfig

MAX_TOKENS = 20_000  # of one expansion: a script that doubles an array in a row stops here
MAX_CHARS = 16 * MAX_TOKENS
_OPENS = re.compile(r"\$\(\(|\$[({]|[)}]")
_NAMED = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\b\}?")
_COMMAND = re.compile(r"\$\((?!\()|`[^`]*`?")
MAX_WAITING = 200  # of a name in arithmetic that waits for others
MAX_DEPTH = 10  # of defaults inside defaults
_NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|([0-9@*#?$!-]))")
_BRACED = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#])(?:\[([^\]]*)\])?(.*)", re.S)
_DEFAULT = re.compile(r"(:?[-=+?])(.*)", re.S)
_DOCUMENT = re.compile(r"\s*cat\s+(<<-?)\s*(['\"]?)(\w+)\2[ \t]*\n(.*\n|)[ \t]*\3\s*", re.S)


class Expander:
    """Expands words by `variables`; `called`, `printed`: what a function, or commands, print."""

    def __init__(self, variables: Variables) -> None:
        self.variables, self.work = variables, work_here()
        self.depth = self.status = 0  # no program is run: each is taken to have succeeded
        self.statuses = [0]  # of the parts of the last pipeline
        self.called: Callable[[list[Text], int], Text | None] = lambda _words, _line: None
        self.printed: Callable[[str, int], Text | None] = lambda _command, _line: None

    def fields(self, word: Word) -> list[Text]:
        """The words that the shell makes of one: none, one or several."""
        return split(self._atoms(word))

    def text(self, word: Word) -> Text:
        """The word as one text, as an assignment takes it."""
        return joined(self._atoms(word))

    def _atoms(self, word: Word) -> list[Atom]:
        atoms: list[Atom] = []
        for piece in word.pieces:
            atoms += self._piece(piece)
        characters = sum(len(a.part.text) for a in atoms if a.part)
        if len(atoms) > MAX_TOKENS or characters > MAX_CHARS:
            raise UnreadableConfig(f"a word expands to over {MAX_TOKENS} parts", word.line)
        self.work.spend(len(atoms) + characters, word.line)
        return atoms

    def _piece(self, piece: Piece) -> list[Atom]:
        quoted = piece.quoting != "bare"
        if piece.quoting == "single":
            return [Atom(Part(piece.text, piece.line))]
        atoms: list[Atom] = []
        at = 0
        while at < len(piece.text):
            start = piece.text.find("$", at)
            start = len(piece.text) if start < 0 else start
            if start > at:
                atoms.append(Atom(Part(piece.text[at:start], piece.line)))
            if start == len(piece.text):
                break
            found, at = self._dollar(piece.text, start, piece.line, quoted=quoted)
            atoms += found
        return atoms or ([Atom(Part("", piece.line))] if quoted else [])

    def _dollar(self, text: str, at: int, line: int, *, quoted: bool) -> tuple[list[Atom], int]:
        """What the `$` at `at` stands for, and where it ends."""
        opener = text[at + 1 : at + 2]
        if opener in ("(", "{"):
            _check_depth(text, at, line)
            end = closing(text, at + 1)
            inner = text[at + 2 : end - 1]
            if text.startswith("$((", at) and inner.endswith(")"):
                return self._arithmetic(inner[1:-1], line), end
            if opener == "(":
                return self._output(inner, line, quoted=quoted), end
            return self._braced(inner, line, quoted=quoted), end
        match = _NAME.match(text, at)
        if match is None:
            return [Atom(Part("$", line))], at + 1
        name = match[1] or match[2]
        return self._value(name, match[0], line, quoted=quoted), match.end()

    def items(self, name: str) -> list[Text] | None:
        """The elements of a variable, the arguments for `@`; None when it is not set."""
        if name in ("@", "*"):
            return self.variables.arguments or None
        if name.isdecimal():
            index = int(name[:6])
            known = 0 < index <= len(self.variables.arguments)
            return [self.variables.arguments[index - 1]] if known else None
        numbers = {"#": [len(self.variables.arguments)], "?": [self.status]}
        numbers["PIPESTATUS"] = self.statuses
        if name in numbers:
            return [(Part(str(number), 1),) for number in numbers[name]]
        name = self.variables.aliases.get(name, name)
        if name in self.variables.maps:
            return list(self.variables.maps[name].values())
        return self.variables.values.get(name)

    def _value(self, name: str, raw: str, line: int, *, quoted: bool) -> list[Atom]:
        items = self.items(name)
        if items is None:
            return unknown(raw, line, quoted=quoted)
        if name in ("@", "*"):
            return several(items, quoted=quoted and name == "@")
        return atoms_of(items[0] if items else (), quoted=quoted)

    def _braced(self, inner: str, line: int, *, quoted: bool) -> list[Atom]:
        match = _BRACED.fullmatch(inner)
        raw = "${" + inner + "}"
        if match is None or self.depth > MAX_DEPTH:
            return [Atom(Part(raw, line, unset=True))]
        mark, name, index, rest = match.groups()
        if mark == "!" and not rest and index is None:
            return self._indirect(name, raw, line, quoted=quoted)
        items = self.items(name)
        if mark == "!" and not rest and index in ("@", "*") and items:
            keys = self.variables.maps.get(name) or map(str, range(len(items)))
            return several([(Part(key, line),) for key in keys], quoted=quoted)
        every = index in ("@", "*") or (index is None and name in ("@", "*"))
        if index is not None and not every and items is not None:
            items = self._element(name, items, index)
        if mark == "#":
            return [Atom(Part(str(length(items, every=every)), line))]
        if mark or (default := _DEFAULT.fullmatch(rest)) is None:
            known = None if mark or items is None else self._changed(items, rest, every=every)
            if known is None:
                return unknown(raw, line, quoted=quoted)
            return of_items(known, every=every, quoted=quoted)
        return self._with_default(name, items, default, raw, line, quoted=quoted, every=every)

    def _with_default(
        self, name: str, items: list[Text] | None, default: re.Match[str], raw: str, line: int,
        *, quoted: bool, every: bool,
    ) -> list[Atom]:  # fmt: skip
        sign, word = default[1], default[2]
        nothing = items is None or (sign[0] == ":" and not any(map(may_say, items)))
        if sign[-1] == "+":
            return [] if nothing else self._word(word, line, quoted=quoted)
        if not nothing:
            assert items is not None
            return of_items(items, every=every, quoted=quoted)
        if sign[-1] == "?":
            self.variables.demanded.setdefault(name, line)
            return [Atom(Part(raw, line, unset=True))]
        atoms = self._word(word, line, quoted=quoted)
        if any(atom.part and atom.part.unset for atom in atoms):
            atoms = unknown(f"${{{name}}}", line, quoted=quoted)
        if name in OF_LAUNCHERS and (number := plain(joined(atoms))).isdecimal():
            self.variables.left.setdefault(name, (number, line))
        if sign[-1] == "=":
            self.variables.values[name] = [joined(atoms)]
        return atoms

    def _word(self, text: str, line: int, *, quoted: bool) -> list[Atom]:
        """The word after `:-`, which may be quoted and may hold variables itself."""
        self.depth += 1
        if quoted and '"' not in text:
            atoms = self._piece(Piece(text, "double", line))
        else:
            atoms = []
            for at, word in enumerate(split_words(text.replace("\n", " "), [(0, line)])):
                atoms += [Atom(Part(" ", line), splits=not quoted)] if at else []
                atoms += self._atoms(word)
        self.depth -= 1
        return atoms

    def _indirect(self, name: str, raw: str, line: int, *, quoted: bool) -> list[Atom]:
        items = self.items(name)
        target = plain(items[0]) if items else ""
        known = self.items(target) if target else None
        if not known:
            return unknown(raw, line, quoted=quoted)
        return atoms_of(known[0], quoted=quoted)

    def key(self, index: str) -> str | None:
        """The key of an element of an associative array; None where it is not known."""
        text = self.text(Word(tuple(split_words(index)[0].pieces), 1)) if index.strip() else ()
        return None if is_unset(text) else plain(text)

    def _element(self, name: str, items: list[Text], index: str) -> list[Text] | None:
        name = self.variables.aliases.get(name, name)
        if name in self.variables.maps:
            found = self.variables.maps[name].get(self.key(index) or "")
            return None if found is None else [found]
        try:
            at = self.number(index)
        except NotArithmetic:
            return None
        return [items[at]] if -len(items) <= at < len(items) else None

    def _changed(self, items: list[Text], rest: str, *, every: bool) -> list[Text] | None:
        """`${X%.sh}` and the like; None for what is not read."""
        if not rest:
            return items
        if every and (match := re.fullmatch(r":(\d+)(?::(\d+))?", rest)):
            start = max(0, int(match[1]) - (items is self.variables.arguments))
            return items[start : start + int(match[2]) if match[2] else None]
        change = change_of(rest)
        if change is None or "$" in rest:
            return None
        for text in items:
            self.work.spend_change(len(plain(text)), line_of(text, 1))
        return [
            text if is_unset(text) else (Part(change(plain(text)), line_of(text, 1)),)
            for text in items
        ]

    def _arithmetic(self, expression: str, line: int) -> list[Atom]:
        try:
            return [Atom(Part(str(self.number(expression)), line))]
        except NotArithmetic:
            return [Atom(Part(f"$(({self._waiting(expression)}))", line, unset=True))]

    def _waiting(self, expression: str) -> str:
        """Arithmetic that waits for names or commands, with the values of the names that are known;
        the words of a command are no names.
        """

        def value(match: re.Match[str]) -> str:
            items = self.items(match[1])
            return shown_text(items[0])[:MAX_WAITING] if items else f"${match[1]}"

        shown, at = "", 0
        while command := _COMMAND.search(expression, at):
            begun = command[0] == "$("
            end = closing(expression, command.start() + 1) if begun else command.end()
            shown += _NAMED.sub(value, expression[at : command.start()])
            shown, at = shown + expression[command.start() : end], end
        return shown + _NAMED.sub(value, expression[at:])

    def number(self, expression: str) -> int:
        """The value of arithmetic; raises `NotArithmetic`, also for what is not set."""
        atoms = self._piece(Piece(expression, "double", 1))
        return evaluate(self._known(joined(atoms)), self._number_of, self._assign)

    def _known(self, text: Text) -> str:
        if is_unset(text):
            raise NotArithmetic(shown_text(text))
        return plain(text)

    def _number_of(self, name: str) -> int:
        items = self.items(name)
        self.depth += 1
        if items is None or self.depth > MAX_DEPTH:
            self.depth -= 1
            raise NotArithmetic(f"{name} is not set")
        value = evaluate(self._known(items[0]) if items else "", self._number_of, self._assign)
        self.depth -= 1
        return value

    def _assign(self, name: str, value: int) -> None:
        self.variables.values[name] = [(Part(str(value), 1),)]

    def _output(self, command: str, line: int, *, quoted: bool) -> list[Atom]:
        """The output of the few commands that only compute; of all others it is unknown."""
        if spaced := SPACED.fullmatch(command.strip()):
            parts = [atom.part for atom in self._word(spaced[1], line, quoted=False)]
            return [Atom(part and squeezed(part), splits=not quoted) for part in parts]
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                raise UnreadableConfig(_too_deep(), line)
            ways = (_comment, self._document, self._pipeline, self.printed)
            said = next((text for way in ways if (text := way(command, line)) is not None), None)
        finally:
            self.depth -= 1
        if said is None:
            return [Atom(Part(f"$({command})", line, unset=True))]
        return atoms_of(said, quoted=quoted)

    def _document(self, command: str, line: int) -> Text | None:
        """What `cat <<EOF` prints, less the line ends behind it."""
        match = _DOCUMENT.fullmatch(command)
        if match is None:
            return None
        body = re.sub(r"^\t+", "", match[4], flags=re.M) if match[1] == "<<-" else match[4]
        text = body.rstrip("\n")
        piece = Piece(text, "single", line) if match[2] else Piece(text, "double", line)
        return self.text(document(Word((piece,), line)))

    def _pipeline(self, command: str, line: int) -> Text | None:
        """What commands print that only compute, or one function of the script; else None."""
        stages: list[list[Text]] = [[]]
        for word in split_words(command.strip(), [(0, line)]):
            if word.operator and word.raw != "|":
                return None
            if word.operator:
                stages.append([])
            else:
                stages[-1] += self.fields(word)
        if len(stages) == 1 and (said := self.called(stages[0], line)) is not None:
            return said
        if any(is_unset(word) for stage in stages for word in stage) or not all(stages):
            return None
        text = printed([[plain(word) for word in stage] for stage in stages])
        return None if text is None else (Part(text, line),)


def _check_depth(text: str, at: int, line: int) -> None:
    """Refuse expansions inside each other beyond what any script has, before following them."""
    depth = 0
    for match in _OPENS.finditer(text, at):
        depth += 1 if match[0][0] == "$" else -1
        if depth <= 0:
            return
        if depth > MAX_DEPTH:
            raise UnreadableConfig(_too_deep(), line)


def _comment(command: str, _line: int) -> Text | None:
    """Nothing, where a command is only a comment: `# of the next flag`, between two others."""
    lines = (line.strip() for line in command.split("\n"))
    return () if all(not line or line.startswith("#") for line in lines) else None


def _too_deep() -> str:
    return f"more than {MAX_DEPTH} expansions inside each other"
