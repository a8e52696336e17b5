"""How Megatron-Bridge's overrides are written: `KEY=VALUE` words of a command, or YAML.

    model.tensor_model_parallel_size=4 +mixed_precision={fp8:hybrid,fp8_recipe:mxfp8}

The words are Hydra's (facebookresearch/hydra, `hydra/grammar/OverrideParser.g4`), on a command line
or inside a script.
"""

import re
from collections.abc import Callable, Mapping

from meshplan.executor.frameworks.documents.composed import Composed
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.planner.case.reading import Fact, UnreadableConfig

_KEY = re.compile(r"^\+{0,2}((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)=(.*)$", re.S)


def as_word(value: object) -> str:
    """A value as it stands behind `=`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    if isinstance(value, dict):  # without a space: the shell splits words there
        return "{" + ",".join(f"{key}:{as_word(each)}" for key, each in value.items()) + "}"
    return f"'{value}'" if re.search(r"[^\w.-]", str(value)) else str(value)


class Entries(Values):
    """Entries of a YAML file or a script; one that leaves its value to another file, or to the
    script's start (`start`: how to say it), is named.
    """

    def __init__(
        self, found: Mapping[str, Fact], start: Callable[[str], str] | None = None
    ) -> None:
        super().__init__(found)
        self.start = start

    def get(self, *names: str) -> Fact | None:
        fact = super().get(*names)
        if (
            fact is not None
            and isinstance(fact.value, str)
            and re.search(r"\$[{(]|^\$\w+$", fact.value)
        ):
            name = next(name for name in names if name in self.found)
            how = f"; {self.start(fact.value)}" if self.start else ""
            raise UnreadableConfig(
                f"{name} is {shown(fact.value)}, {self._why(fact.value)}{how}", fact.line
            )
        return fact

    def _why(self, written: str) -> str:
        """What a value waits for that stayed as it is written: by itself or by what it names."""
        names = re.findall(r"\$\{\.*([A-Za-z_][\w.]*)\}", written)
        places = (place for name in names for place in (name, name.partition(".")[2]))
        told = [str(self.found[place].value) for place in places if place in self.found]
        set_by = [name for each in (written, *told) for name in _OF_START.findall(each)]
        if set_by:
            return f"which the environment sets; say what it is: --env {set_by[0]}=VALUE"
        return "which the file does not set"


_OF_START = re.compile(r"\$\{(?:oc\.)?env:[ \t]*([A-Za-z_]\w*)")


def is_words(text: str) -> bool:
    """Whether a text holds words and is no YAML."""
    return bool(re.search(r"(^|\s)\+{0,2}(\w+\.)+\w+=", text)) and not re.search(
        r"^\w+:", text, re.M
    )


def words_of(text: str) -> Composed:
    """Every KEY=VALUE word of a list of overrides or of a script, the last of a name winning; left
    are the words that look like a setting and are none.
    """
    found: dict[str, Fact] = {}
    left: list[Fact] = []
    for at, line in enumerate(text.splitlines(), start=1):
        for written in _WORD.findall("" if line.lstrip().startswith("#") else line.split(" #")[0]):
            word = _bare(written.strip("\\"))
            said = override(word, at)
            found |= said
            if not said and _SETS.search(word):
                left.append(Fact(f"{shown(word)} (no KEY=VALUE word of a section)", at))
    return Composed(found, left=tuple(left))


_WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")
_SETS = re.compile(r"\w=|[$~]|^(?:\w+\.)+\w+")


def _bare(word: str) -> str:
    """A word without the quotes around all of it, which a shell takes away."""
    quoted = re.fullmatch(r"'([^']*)'|\"([^\"]*)\"", word)
    return (quoted[1] or quoted[2] or "") if quoted else word


def override(word: str, line: int) -> dict[str, Fact]:
    """What one KEY=VALUE word says; nothing where it is none."""
    match = _KEY.match(word)
    if match is None:
        return {}
    if match[2].startswith("{"):
        return _mapping(match[1], match[2], line)
    if "." in match[1] or match[1] == "mixed_precision":
        name = match[1].removeprefix("training.")  # NeMo-Framework-Launcher's command line
        return {name: Fact(_value(match[2]), line)}
    return {}


def _mapping(name: str, text: str, line: int) -> dict[str, Fact]:
    """The entries of Hydra's `{a:b,c:{d:e}}` under `name`."""
    spaced = re.sub(r":(?=\S)", ": ", text)
    inner = read_yaml(f"{name}: {spaced}\n")
    return {key: Fact(fact.value, line) for key, fact in inner.items()}


def _value(text: str) -> object:
    text = text.strip("'\"")
    if text in ("null", "None"):
        return None
    if text.startswith("[") and text.endswith("]"):
        return [part.strip(" '\"") for part in text[1:-1].split(",") if part.strip()]
    return text
