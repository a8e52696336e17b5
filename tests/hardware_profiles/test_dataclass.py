"""Dataclasses whose constructor alone is compiled: what the standard library's are."""

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from meshplan.hardware_profiles import dataclass as ours

OPTIONS = [
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "eq": False},
    {"slots": True},
]
DECORATORS: list[Callable[..., Any]] = [dataclasses.dataclass, ours.dataclass]


def classes(decorate: Callable[..., Any], **options: Any) -> tuple[type[Any], ...]:
    """One of no field, one of one, one of several kinds of fields, and one that is made of it."""

    @decorate(**options)
    class Nothing:
        pass

    @decorate(**options)
    class One:
        number: int

    @decorate(**options)
    class Several:
        kind: ClassVar[str] = "several"
        number: int
        words: tuple[str, ...] = ()
        beside: int = field(default=0, compare=False)
        hidden: float = field(default=1.5, repr=False)
        uncounted: int = field(default=2, hash=False)
        made: list[int] = field(default_factory=list, compare=False)
        own: int = field(default=9, init=False)

    @decorate(**options)
    class More(Several):
        last: str = "end"

    return Nothing, One, Several, More


def instances(decorate: Callable[..., Any], **options: Any) -> list[Any]:
    """Of each class, some of them alike."""
    nothing, one, several, more = classes(decorate, **options)
    return [
        nothing(), nothing(), one(number=1), one(number=1), one(number=2),
        several(number=1), several(number=1, beside=7), several(number=1, hidden=2.0),
        several(number=1, uncounted=3), several(number=1, words=("a", "b")), more(number=1),
        more(number=1, last="x"),
    ]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_they_compare_print_and_list_as_the_standard_librarys(options: dict[str, Any]) -> None:
    """Every two of the instances; equal ones of one class have one hash, and `hash=False` counts
    for equality alone.
    """
    theirs, own = (instances(decorate, **options) for decorate in DECORATORS)
    equal = [[one == other for other in theirs] for one in theirs]
    assert [[one == other for other in own] for one in own] == equal
    assert list(map(repr, own)) == list(map(repr, theirs))
    assert list(map(dataclasses.asdict, own)) == list(map(dataclasses.asdict, theirs))
    if not options.get("frozen"):
        with pytest.raises(TypeError, match="unhashable"):
            hash(own[0])
    elif options.get("eq", True):
        alike = [[hash(one) == hash(other) for other in theirs[2:10]] for one in theirs[2:10]]
        assert [[hash(one) == hash(other) for other in own[2:10]] for one in own[2:10]] == alike
    assert dataclasses.replace(own[9], number=4).words == ("a", "b")


@pytest.mark.parametrize(
    "given",
    [
        ((), {}), ((), {"number": 1}), ((1, ("a",), 3), {}), ((1,), {"number": 2}),
        ((1,), {"made": [4]}), ((1,), {"own": 3}), ((1,), {"unknown": 0}), ((1,) * 9, {}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_first_instance_takes_what_the_standard_librarys_takes(
    options: dict[str, Any], given: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    """The constructor is compiled by the first call: it takes and refuses the same words, by place
    and by name, and so does the second call.
    """
    made = []
    for decorate in DECORATORS:
        several = classes(decorate, **options)[2]
        made.append([_made(several, *given), _made(several, *given)])
    assert made[0] == made[1]


def _made(kind: type[Any], values: tuple[Any, ...], named: dict[str, Any]) -> object:
    try:
        return dataclasses.asdict(kind(*values, **named))
    except TypeError:
        return TypeError


def test_each_instance_has_a_list_of_its_own() -> None:
    """What a factory makes is not shared."""
    several = classes(ours.dataclass, frozen=True)[2]
    one, other = several(number=1), several(number=1)
    one.made.append(5)
    assert other.made == []


def test_a_class_that_inherits_has_a_constructor_of_its_own() -> None:
    """The first instance of the one leaves that of the other alone, in either order."""
    for first, second in ((2, 3), (3, 2)):
        kinds = classes(ours.dataclass, frozen=True, slots=True)
        kinds[first](number=1)
        kinds[second](number=1)
        assert kinds[3](number=1, last="x").last == "x"
        with pytest.raises(TypeError):
            kinds[2](number=1, last="x")


@ours.dataclass(frozen=True, slots=True)
class Sent:
    """What goes to another process."""

    number: int
    words: tuple[str, ...]


def test_they_are_pickled() -> None:
    """With slots, which have no `__dict__`."""
    sent = Sent(1, ("a",))
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_what_a_class_says_itself_is_kept() -> None:
    """Its own equality, hash and representation."""

    @ours.dataclass(frozen=True)
    class Own:
        number: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), Own(1) == Own(2), hash(Own(3))) == ("own", True, 7)
