"""The standard library's dataclasses, with less to compile and to run.

`dataclasses.dataclass(frozen=True)` writes six methods for each class and compiles them when it is
imported. A plan imports some 180 such classes: a tenth of a second, a tenth of what a short search
takes. Here the constructor alone is compiled, when the first instance is made: many classes have
none in a command. Representation, equality and hash are functions that all classes share, and mean
the same.

To mypy this is the standard library's, so that what assigns to a field of a frozen class is found
when the code is checked, as CI does. At run time nothing refuses it: a constructor that goes round
such a refusal takes three times as long for each field, and a search makes a hundred thousand of
these values. `fields`, `replace`, `asdict`, patterns and pickles are as with the standard library.
"""

import dataclasses
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

Constructor = Callable[..., None]


def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"


def _eq(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    kind: Any = other.__class__
    return kind._compared(self) == kind._compared(other)


def _hash(self: Any) -> int:
    return hash(type(self)._hashed(self))


def _values_of(names: list[str]) -> Any:
    """What reads these fields of an instance, as a tuple."""
    if len(names) > 1:
        return staticmethod(attrgetter(*names))
    return staticmethod(lambda each: tuple(getattr(each, name) for name in names))


def _compare(made: Any, own: set[str], *, hashed: bool) -> None:
    """Equality of the class `made` by its fields and, where it is `hashed`, the hash that belongs
    to it; not what the class has of its `own`.
    """
    listed = dataclasses.fields(made)
    has_hash = "__hash__" in own
    if "__eq__" not in own:
        made._compared = _values_of([field.name for field in listed if field.compare])
        made.__eq__ = _eq
    if not has_hash:
        counted = [(f.name, f.compare if f.hash is None else f.hash) for f in listed]
        made._hashed = _values_of([name for name, counts in counted if counts])
        made.__hash__ = _hash if hashed else None


def _made_when_called(made: Any) -> Constructor:
    """The constructor of the class `made`, in whose place the compiled one is from its first call
    on.
    """

    def __init__(self: Any, *values: Any, **named: Any) -> None:
        made.__init__ = constructor = _constructor(made)
        constructor(self, *values, **named)

    return __init__


def _constructor(made: Any) -> Constructor:
    """What takes the fields of the class `made` by place or name, and assigns them."""
    listed = dataclasses.fields(made)
    by_place = [_parameter(each) for each in listed if each.init and not each.kw_only]
    named = [_parameter(each) for each in listed if each.init and each.kw_only]
    words = ["self", *by_place, *(["*", *named] if named else [])]
    lines = [*_assignments(listed), *["self.__post_init__()"] * hasattr(made, "__post_init__")]
    known: dict[str, Any] = {"_missing": dataclasses.MISSING}
    for each in listed:
        known[f"_default_{each.name}"] = each.default
        known[f"_new_{each.name}"] = each.default_factory
    exec(f"def __init__({', '.join(words)}):\n " + "\n ".join(lines or ["pass"]), known)
    constructor: Constructor = known["__init__"]
    constructor.__qualname__ = f"{made.__qualname__}.__init__"
    return constructor


def _parameter(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        return f"{field.name}=_default_{field.name}"
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.name}=_missing"
    return field.name


def _assignments(listed: "tuple[dataclasses.Field[Any], ...]") -> Iterator[str]:
    """A line for each field that has a value."""
    for name, each in ((each.name, each) for each in listed):
        if each.default_factory is not dataclasses.MISSING:
            given = f" if {name} is _missing else {name}" if each.init else ""
            yield f"self.{name} = _new_{name}(){given}"
        elif each.init:
            yield f"self.{name} = {name}"
        elif each.default is not dataclasses.MISSING:
            yield f"self.{name} = _default_{name}"


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """`dataclasses.dataclass` without `order` and `InitVar`: `frozen` says whether instances
        are hashed.
        """

        def made_of(cls):
            own = {name for name, known in vars(cls).items() if known is not None}
            made = dataclasses.dataclass(cls, init=False, eq=False, repr=False, **options)
            if "__init__" not in own:
                made.__init__ = _made_when_called(made)
            if "__repr__" not in own:
                made.__repr__ = _repr
            if eq:
                _compare(made, own, hashed=frozen)
            return made

        return made_of if cls is None else made_of(cls)
