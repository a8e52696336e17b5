"""Operators, built-in functions and methods of constants, lists and mappings, where they cost
little: numbers of so many digits, lists and texts of so many entries. All else is not known.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from meshplan.executor.frameworks.program.values import is_constant, is_flat, is_key, is_whole
from meshplan.planner.case.input_limits import MAX_COUNT

MOST_ENTRIES = 10_000  # of a list or a text that a program makes
_MOST = MAX_COUNT**2


class NotKnown(Exception):
    """What is asked has no answer here."""


_ON_NUMBERS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.LShift: operator.lshift,
}  # fmt: skip
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def computed(kind: ast.operator, left: Any, right: Any) -> Any:
    """`left` and `right` by an operator; raises `NotKnown`."""
    if isinstance(left, str | list | tuple) and type(left) is type(right):
        return _joined(kind, left, right)
    if isinstance(left, dict) and isinstance(right, dict) and isinstance(kind, ast.BitOr):
        return left | right
    if isinstance(left, list) and type(right) is int and isinstance(kind, ast.Mult):
        if len(left) * right <= MOST_ENTRIES:
            return left * right
        raise NotKnown
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise NotKnown
    if isinstance(kind, ast.Pow | ast.LShift) and not 0 <= right <= 64:
        raise NotKnown
    try:
        value = _ON_NUMBERS[type(kind)](left, right)
    except (KeyError, ArithmeticError, TypeError, ValueError):
        raise NotKnown from None
    return _small(value)


def grown(kind: ast.operator, held: Any, more: Any) -> Any:
    """`held` after `held += more`: a list or a mapping is the same one; raises `NotKnown`."""
    if isinstance(kind, ast.Add) and isinstance(held, list) and isinstance(more, list | tuple):
        _grown(held, list(more))
        return held
    value = computed(kind, held, more)
    if isinstance(held, dict):
        held.update(value)
        return held
    return value


def _joined(kind: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(kind, ast.Add) and len(left) + len(right) <= MOST_ENTRIES:
        return left + right
    raise NotKnown


def _small(value: Any) -> Any:
    if isinstance(value, complex) or abs(value) > _MOST or not math.isfinite(value):
        raise NotKnown
    return value


def compared(kind: ast.cmpop, left: Any, right: Any) -> bool:
    """Whether `left` and `right` compare so; raises `NotKnown`."""
    if isinstance(kind, ast.In | ast.NotIn):
        holds = isinstance(right, str) if isinstance(left, str) else False
        named = is_key(left) and isinstance(right, dict)
        if not named and not (is_constant(left) and (holds or is_flat(right))):
            raise NotKnown
        if is_constant(right) and not isinstance(right, str):
            raise NotKnown
        return (left in right) is isinstance(kind, ast.In)
    if not (is_flat(left) and is_flat(right)):
        raise NotKnown
    try:
        return bool(_COMPARE[type(kind)](left, right))
    except (KeyError, TypeError):
        raise NotKnown from None


def _whole(value: Any, base: Any = 10) -> int:
    if isinstance(value, str):
        if len(value) > 18 or base != 10:
            raise NotKnown
        return int(value)
    return int(_small(value))


def _numbers(*values: Any) -> list[Any]:
    listed = list(values[0]) if len(values) == 1 and isinstance(values[0], list | tuple) else values
    if not listed or not all(isinstance(each, int | float) for each in listed):
        raise NotKnown
    return list(listed)


def _range(*bounds: int) -> list[int]:
    steps = range(*bounds)
    if len(steps) > MOST_ENTRIES:
        raise NotKnown
    return list(steps)


def _text(value: Any = "") -> str:
    if not is_constant(value):
        raise NotKnown
    return str(value)


def _listed(value: Any = ()) -> list[Any]:
    if not isinstance(value, list | tuple | dict | str):
        raise NotKnown
    return list(value)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": _whole, "float": lambda value: float(_small(_numbers(value)[0])), "str": _text,
    "bool": lambda value=False: bool(value) if is_flat(value) or isinstance(value, dict) else _no(),
    "len": lambda value: len(value) if is_whole(value) else _no(),
    "min": lambda *values: min(_numbers(*values)), "max": lambda *values: max(_numbers(*values)),
    "abs": lambda value: abs(_numbers(value)[0]), "sum": lambda value: _small(sum(_numbers(value))),
    "round": lambda value: round(_numbers(value)[0]), "range": _range, "list": _listed,
    "tuple": lambda value=(): tuple(_listed(value)),
    "sorted": lambda value: sorted(_numbers(value)),
    "enumerate": lambda value: list(enumerate(_listed(value))),
    "zip": lambda *values: list(zip(*map(_listed, values), strict=False)),
    "math.ceil": lambda value: math.ceil(_numbers(value)[0]),
    "math.floor": lambda value: math.floor(_numbers(value)[0]),
}  # fmt: skip
"""Built-in functions that change nothing and whose answer is short."""


def _no() -> Any:
    raise NotKnown


_TEXT_METHODS = ("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "split",
                 "removeprefix", "removesuffix", "isdigit", "rsplit", "title")  # fmt: skip


def method(value: Any, name: str, args: list[Any]) -> Any:
    """What a method of a text, a list or a mapping answers; raises `NotKnown`."""
    if isinstance(value, str) and name in _TEXT_METHODS and all(map(is_flat, args)):
        return getattr(value, name)(*args)
    if isinstance(value, dict) and (name, len(args)) in (("get", 1), ("get", 2)):
        if not is_constant(args[0]):
            raise NotKnown
        if args[0] not in value and not is_whole(value):
            raise NotKnown
        return value.get(*args)
    if isinstance(value, dict) and name in ("items", "keys", "values") and not args:
        return [*map(_pair, value.items())] if name == "items" else list(getattr(value, name)())
    if isinstance(value, list | dict) and name == "copy" and not args:
        return value.copy()
    if isinstance(value, list) and name == "append" and len(args) == 1:
        return _grown(value, args)
    if isinstance(value, list) and name == "extend" and isinstance(args[0], list | tuple):
        return _grown(value, list(args[0]))
    if isinstance(value, dict) and name == "update" and args and isinstance(args[0], dict):
        value.update(args[0])
        return None
    raise NotKnown


def _pair(item: tuple[Any, Any]) -> tuple[Any, Any]:
    return item


def _grown(value: list[Any], more: list[Any]) -> None:
    if len(value) + len(more) > MOST_ENTRIES:
        raise NotKnown
    value.extend(more)
