"""What an exported file cannot say of its plan: comments in the file, which `check` reads back.

    # meshplan export could not say layout.expert_parallel = 8: it has no such parallelism
    # meshplan export left to the code training.lora = rank 16, ...: not written

The first kind is a note beside the price of the file as it stands. Of the second kind the training
code or its data may add what the plan has: where neither an option nor a settings file does, the
file is not priced. A file in JSON holds the same words as a list of texts.
"""

from collections.abc import Iterable
from dataclasses import replace

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.reading import CannotSay, Fact, Reading
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.settings import Settings

COMMENT_KEY = "_meshplan"
"""Of a file in JSON: its readers pass over keys that they do not know (DeepSpeed's
`runtime/config.py`, transformers' `DistributedConfig.from_dict`).
"""
_NEVER, _LEFT = "meshplan export could not say ", "meshplan export left to the code "
_NO_PRICE = ("numerics",)
"""Parts of a model that change its results, not its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaid:
    """One such comment: the field, its value in the plan, why it is not said, and its line.

    left  whether the training code or its data may say it
    """

    name: str
    value: str
    why: str
    line: int
    left: bool


class LeftToCode(MissingFacts):
    """A file whose plan has what only the training code or its data may add."""

    def __init__(self, left: tuple[Unsaid, ...]) -> None:
        super().__init__((), tuple(Fact(_words(each), each.line) for each in left))
        has = "; ".join(f"{_words(each)} ({each.why})" for each in left)
        lines = ", ".join(str(each.line) for each in left)
        self.args = (
            f"its plan has {has}, which the training code or its data may add: not priced; delete "
            f"the comment of line {lines} to price the file as it stands",
        )


def comment_of(unsaid: CannotSay) -> str:
    """The words of one comment, without the sign that begins it."""
    text = f"{_LEFT if unsaid.left else _NEVER}{unsaid}"
    return "".join(char if char.isprintable() and char != '"' else " " for char in text)


def unsaid_in(text: str) -> tuple[Unsaid, ...]:
    """The comments of a file's `text`."""
    if _NEVER not in text and _LEFT not in text:
        return ()
    lines = (_unsaid(line, number) for number, line in enumerate(text.split("\n"), start=1))
    return tuple(each for each in lines if each)


def _unsaid(line: str, number: int) -> Unsaid | None:
    """One comment: what follows `#`, or a text of JSON's list."""
    text = line.strip().strip('#", ')
    kind = next((each for each in (_NEVER, _LEFT) if text.startswith(each)), None)
    if kind is None:
        return None
    name, _, rest = text.removeprefix(kind).partition(" = ")
    value, _, why = rest.partition(": ")
    return Unsaid(name=name, value=value, why=why, line=number, left=kind == _LEFT)


def check_left(unsaid: Iterable[Unsaid], case: Case | None, settings: Settings) -> None:
    """Raise `LeftToCode` for what the code may add, no setting states and the case lacks; without a
    case, for what the code may add to a layout.
    """
    left = [each for each in unsaid if each.left and not _stated(settings, each)]
    if case is None:
        lacking = tuple(each for each in left if each.name.startswith("layout."))
    else:
        lacking = tuple(each for each in left if not _has(case, each))
    if lacking:
        raise LeftToCode(lacking)


def _stated(settings: Settings, unsaid: Unsaid) -> bool:
    """Whether an option or a settings file decides it, however the plan had it."""
    return getattr(settings, _setting(unsaid), None) is not None


def notes_of(unsaid: Iterable[Unsaid], case: Case) -> tuple[str, ...]:
    """A note for each difference between the plan and the file that nothing can mend."""
    lacking = (each for each in unsaid if not each.left and not _has(case, each))
    return tuple(f"unlike its plan, without {_words(each)}: {each.why}" for each in lacking)


def noted(reading: Reading, text: str) -> Reading:
    """The reading of a file's `text` with a note for each comment that no setting could state, for
    those who compare it with another plan than the one that it was exported from.
    """
    lacking = (
        each
        for each in unsaid_in(text)
        if each.name.partition(".")[0] not in _NO_PRICE and not _settable(each)
    )
    notes = tuple(f"exported from a plan with {_words(each)}: {each.why}" for each in lacking)
    return replace(reading, notes=(*notes, *reading.notes))


def _settable(unsaid: Unsaid) -> bool:
    return unsaid.left and _setting(unsaid) in Settings.model_fields


def _setting(unsaid: Unsaid) -> str:
    """The key of a settings file that would state it, if there is one."""
    return unsaid.name.rpartition(".")[2]


def _words(unsaid: Unsaid) -> str:
    return f"{unsaid.name} = {unsaid.value}"


def _has(case: Case, unsaid: Unsaid) -> bool:
    """Whether the case is as the plan there, or its price does not depend on it."""
    part, _, field = unsaid.name.partition(".")
    if unsaid.name == "model":  # which model the code builds is an option's or a settings file's
        return unsaid.left or case.model.name == unsaid.value
    if unsaid.name == "engine":
        return case.engine.name == unsaid.value
    if part in ("layout", "training"):
        return _shown(case, part, field) == unsaid.value
    return part in _NO_PRICE


def _shown(case: Case, part: str, field: str) -> str:
    """A field as a comment shows it."""
    layout = case.layout
    if field == "stages":
        return str(tuple(stage.layers for stage in layout.stages))
    if field == "stages.recompute":
        return layout.recompute
    if field == "selective_modules":
        return ", ".join(layout.selective_modules)
    return str(getattr(getattr(case, part), field, None))
