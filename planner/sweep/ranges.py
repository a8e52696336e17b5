"""What one axis of a sweep holds: a list, a range that doubles, or a range with a step.

8,16,64     these                          8..4096     8, 16, 32, ... as far as 4096
8..64+8     8, 16, 24, ... as far as 64    4k..32k     4096, 8192, ...

Numbers come out ascending and words in the order given, each once.
"""

import re
from collections.abc import Callable, Iterator

from meshplan.planner.answer.sizes import BadQuestion

MOST_VALUES = 10_000
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
"""Of the tokens of a whole run, which people count in powers of 1000."""


def words(option: str, text: str) -> tuple[str, ...]:
    """The items of a list; raises `BadQuestion` where there is none."""
    found = tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    if not found:
        raise BadQuestion(f"{option} {text!r} names nothing; write one name, or several: a,b")
    return found


def numbers(option: str, text: str, read: Callable[[str], int]) -> tuple[int, ...]:
    """The numbers of a list and its ranges, each end read by `read`; raises `BadQuestion`."""
    found: set[int] = set()
    for item in words(option, text):
        for value in _range(option, item, read):
            found.add(value)
            if len(found) > MOST_VALUES:
                raise BadQuestion(
                    f"{option} {item!r} holds more than {MOST_VALUES:,} values; write 8..4096, "
                    "which doubles, or a larger step"
                )
    return tuple(sorted(found))


def _range(option: str, item: str, read: Callable[[str], int]) -> Iterator[int]:
    low, dots, rest = item.partition("..")
    if not dots:
        yield read(item)
        return
    high, plus, step = rest.partition("+")
    if not (low.strip() and high.strip()):
        raise BadQuestion(f"{option} {item!r} needs both ends, as in 8..4096")
    value, last = read(low), read(high)
    if value > last:
        raise BadQuestion(f"{option} {item!r} holds no value; write the smaller number first")
    by = read(step) if plus else 0
    while value <= last:
        yield value
        value += by or value


def count(option: str) -> Callable[[str], int]:
    """What reads one whole number of at least 1; it raises `BadQuestion`."""

    def read(text: str) -> int:
        digits = text.strip().lstrip("0")
        if re.fullmatch(r"[0-9]{19,}", digits):
            raise BadQuestion(f"{option} {text.strip()!r} is more than 1e+18; write a smaller one")
        if not re.fullmatch(r"[0-9]+", digits):
            raise BadQuestion(
                f"{option} {text.strip()!r} is not a whole number of at least 1; write 8, 8,16,64 "
                "or 8..4096, which doubles"
            )
        return int(digits)

    return read


def run_tokens(text: str) -> float:
    """Tokens of a whole run: "15T" (x 1e12), "300B" or "2e12"; raises `BadQuestion`."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?(?:E\d{1,2})?)([KMBT]?)", text.strip().upper())
    tokens = float(found[1]) * SCALES[found[2]] if found else 0.0
    if not 1 <= tokens <= MOST_TOKENS:
        raise BadQuestion(
            f"--tokens {text!r} is not a number of tokens from 1 to {MOST_TOKENS:g}; write 15T "
            "(x 1e12), 300B or 2e12"
        )
    return tokens


MOST_TOKENS = 1e18
