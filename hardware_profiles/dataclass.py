"""The standard library's dataclasses, with less to compile and to run.

`dataclasses.dataclass(frozen=True)` writes six methods for each class and compiles them when it is
imported. A plan imports some 180 such classes: a tenth of a second, a tenth of what a short search
takes. Here the constructor alone is compiled. Representation, equality and hash are functions that
all classes share, and mean the same.

To mypy this is the standard library's, so that what assigns to a field of a frozen class is found
when the code is checked, as CI does. At run time nothing refuses it: a constructor that goes round
such a refusal takes three times as long for each field, and a search makes a hundred thousand of
these values. `fields`, `replace`, `asdict`, patterns and pickles are as with the standard library.
"""

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any


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


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """`dataclasses.dataclass` without `order`: `frozen` says whether instances are hashed."""

        def made_of(cls):
            own = {name for name, known in vars(cls).items() if known is not None}
            made = dataclasses.dataclass(cls, eq=False, repr=False, **options)
            if "__repr__" not in own:
                made.__repr__ = _repr
            if eq:
                _compare(made, own, hashed=frozen)
            return made

        return made_of if cls is None else made_of(cls)
