"""A shell script's words as a tree of `syntax`.

Leaves out: `coproc`, `time` (a plain word here), process substitution. Redirections
other than here-strings and files of here-documents are dropped.
"""

import re

from meshplan.executor.frameworks.shell.grammar.syntax import (
    ASSIGN,
    Array,
    Block,
    Case,
    For,
    Function,
    If,
    Node,
    Not,
    Redirected,
    Simple,
    Test,
    While,
)
from meshplan.executor.frameworks.shell.grammar.words import Word
from meshplan.planner.case.reading import UnreadableConfig

MAX_DEPTH = 80  # commands and blocks inside each other
_SENT = {"<<<": "given", "<<": "document", "<<-": "document", ">": "target", ">|": "target",
         ">>": "longer", ">&": "elsewhere"}  # fmt: skip
_REDIRECTIONS = ("<", ">", ">>", ">&", "<&", "&>", "&>>", "<>", ">|", "<<<", "<<", "<<-")
_SEPARATORS = (";", "&", "\n")


def parse(words: list[Word]) -> Block:
    """The script as a tree; raises `UnreadableConfig` on what bash calls a syntax error."""
    parser = _Parser(words)
    block = parser.block(())
    if parser.here is not None:
        raise UnreadableConfig(f"`{parser.here.raw.strip()}` is out of place", parser.here.line)
    return block


class _Parser:
    def __init__(self, words: list[Word]) -> None:
        self.words, self.at, self.depth = words, 0, 0

    @property
    def here(self) -> Word | None:
        return self.words[self.at] if self.at < len(self.words) else None

    @property
    def line(self) -> int:
        return self.words[min(self.at, len(self.words) - 1)].line if self.words else 1

    def _is(self, *texts: str) -> bool:
        word = self.here
        return word is not None and (word.raw if word.operator else word.bare) in texts

    def _operator(self, *texts: str) -> bool:
        return self._is(*texts) and self.words[self.at].operator

    def _take(self) -> Word:
        word = self.words[self.at]
        self.at += 1
        return word

    def _expect(self, text: str, opened: str, line: int) -> None:
        if not self._is(text):
            raise UnreadableConfig(f"`{opened}` has no `{text}`", line)
        self._take()

    def _skip(self, *texts: str) -> None:
        while self._operator(*texts):
            self._take()

    def block(self, ends: tuple[str, ...]) -> Block:
        """Commands up to one of `ends`, which stays."""
        self._deeper()
        block, joint = Block(), ";"
        while True:
            self._skip(*_SEPARATORS)
            if self.here is None or self._is(*ends) or self._operator(")", ";;", ";&", ";;&"):
                break
            before = self.at
            block.items.append((joint, self._pipeline()))
            joint = ";"
            if self._operator("&&", "||"):
                joint = self._take().raw
            elif self.at == before:
                raise UnreadableConfig(f"`{self._take().raw}` is out of place", self.line)
        self.depth -= 1
        return block

    def _pipeline(self) -> Node:
        negated = False
        while self._is("!") or (self._is("time") and not self._is_option(self.at + 1)):
            negated ^= self._take().bare == "!"
        piped = self._piped()
        return Not(piped) if negated else piped

    def _is_option(self, at: int) -> bool:
        return any(word.raw.startswith("-") for word in self.words[at : at + 1])

    def _piped(self) -> Node:
        first = self._command()
        if not self._operator("|", "|&"):
            return first
        parts: list[tuple[str, Node]] = [(";", Block([(";", first)], alone=True))]
        while self._operator("|", "|&"):
            self._take()
            self._skip("\n")
            parts.append((";", Block([(";", self._command())], alone=True)))
        return Block(parts, piped=True)

    def _command(self) -> Node:
        self._deeper()
        try:
            return self._any_command()
        finally:
            self.depth -= 1

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableConfig(f"it nests over {MAX_DEPTH} deep; no script does", self.line)

    def _any_command(self) -> Node:
        line = self.line
        compound = {
            "if": self._if, "for": self._for, "select": self._for, "while": self._while,
            "until": self._while, "case": self._case, "function": self._function,
            "[[": self._test, "{": self._group, "(": self._group,
        }  # fmt: skip
        word = self.here
        name = (word.raw if word.operator else word.bare) if word else ""
        if name.startswith("((") and name.endswith("))"):
            self._take()
            return Test((), name[2:-2], line)
        if name in compound:
            node = compound[name]()
            self._redirections(Redirected())
            return node
        return self._simple()

    def _redirections(self, sent: Redirected) -> None:
        """Passes over them, and adds those of standard input and output to `sent`."""
        while self._operator(*_REDIRECTIONS):
            operator = self._take()
            if self.here is not None and not self.here.operator:
                word = self._take()
                name = _SENT.get(operator.raw)
                if name is not None and operator.descriptor in ("", "0", "1"):
                    setattr(sent, name, word)

    def _if(self) -> Node:
        line = self._take().line
        clauses: list[tuple[Block | None, Block]] = []
        condition: Block | None = self.block(("then",))
        self._expect("then", "if", line)
        while True:
            clauses.append((condition, self.block(("elif", "else", "fi"))))
            if not self._is("elif", "else"):
                break
            if self._take().raw == "else":
                condition = None
            else:
                condition = self.block(("then",))
                self._expect("then", "elif", line)
        self._expect("fi", "if", line)
        return If(tuple(clauses), line)

    def _body(self, opened: str, line: int) -> Block:
        self._skip(*_SEPARATORS)
        self._expect("do", opened, line)
        body = self.block(("done",))
        self._expect("done", opened, line)
        return body

    def _for(self) -> Node:
        line = self._take().line
        name = self._take().raw if self.here is not None else ""
        if name.startswith("(("):
            return For("", None, name[2:-2], self._body("for", line), line)
        words: list[Word] | None = None
        self._skip("\n")
        if self._is("in"):
            self._take()
            words = []
            while self.here is not None and not self.here.operator:
                words.append(self._take())
        return For(
            name, None if words is None else tuple(words), None, self._body("for", line), line
        )

    def _while(self) -> Node:
        opened = self._take()
        condition = self.block(("do",))
        return While(condition, self._body(opened.raw, opened.line), opened.raw == "until")

    def _case(self) -> Node:
        line = self._take().line
        if self.here is None:
            raise UnreadableConfig("`case` has no `in`", line)
        subject = self._take()
        self._skip("\n")
        self._expect("in", "case", line)
        clauses = []
        while True:
            self._skip("\n")
            if self.here is None or self._is("esac"):
                break
            self._skip("(")
            patterns = []
            while self.here is not None and not self._operator(")", "\n"):
                word = self._take()
                patterns += [] if word.operator else [word]
            self._expect(")", "case", line)
            body = self.block(("esac",))
            end = self._take().raw if self._operator(";;", ";&", ";;&") else ";;"
            clauses.append((tuple(patterns), body, end))
        self._expect("esac", "case", line)
        return Case(subject, tuple(clauses), line)

    def _function(self) -> Node:
        line = self._take().line
        if self.here is None:
            raise UnreadableConfig("`function` has no name", line)
        return self._function_body(self._take().raw)

    def _function_body(self, name: str) -> Node:
        self._skip("(")
        self._skip(")")
        self._skip("\n")
        return Function(name, self._command())

    def _group(self) -> Node:
        opened = self._take()
        closer = "}" if opened.raw == "{" else ")"
        body = self.block((closer,))
        self._expect(closer, opened.raw, opened.line)
        body.alone = opened.raw == "("
        return body

    def _test(self) -> Node:
        line = self._take().line
        words: list[Word] = []
        while not self._is("]]"):
            if self.here is None:
                raise UnreadableConfig("`[[` has no `]]`", line)
            words.append(self._take())
        self._take()
        return Test(tuple(words), None, line)

    def _simple(self) -> Node:
        line = self.line
        parts: list[Word | Array] = []
        sent = Redirected()
        while self.here is not None:
            if self._operator(*_REDIRECTIONS):
                self._redirections(sent)
            elif self._operator("(") and parts and isinstance(parts[-1], Word):
                last = parts[-1]
                match = ASSIGN.fullmatch(last.raw)
                if match:
                    parts[-1] = self._array(match, last.line)
                elif len(parts) == 1 and self.at + 1 < len(self.words):
                    return self._function_body(last.raw)
                else:
                    raise UnreadableConfig("`(` is out of place", self.line)
            elif self.here.operator:
                break
            else:
                parts.append(self._take())
        return Simple(tuple(parts), line, sent)

    def _array(self, match: re.Match[str], line: int) -> Array:
        self._take()
        words = []
        while not self._operator(")"):
            if self.here is None:
                raise UnreadableConfig(f"`{match[1]}=(` is never closed", line)
            word = self._take()
            words += [] if word.operator else [word]
        self._take()
        return Array(match[1], bool(match[3]), tuple(words))
