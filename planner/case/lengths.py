"""Lengths of a sequence as they are typed: 8192, 32k (x 1024), 1m (x 1024 x 1024)."""

import re
from typing import Annotated

from pydantic import BeforeValidator

_TYPED = re.compile(r"([0-9]{1,18})(k|m)?")
_TIMES = {None: 1, "k": 2**10, "m": 2**20}


class NoLength(ValueError):
    """A text that is no number of tokens; one line with the rule."""


def tokens_of(text: str) -> int:
    """The tokens that `text` says; raises `NoLength`."""
    found = _TYPED.fullmatch(text.strip().lower())
    tokens = int(found[1]) * _TIMES[found[2]] if found else 0
    if tokens < 1:
        raise NoLength(f"{text!r} is not a number of tokens; write 8192, 32k or 1m")
    return tokens


def _of_file(value: object) -> object:
    return tokens_of(value) if isinstance(value, str) else value


Length = Annotated[int, BeforeValidator(_of_file)]
"""A field of a file that may say "32k" too."""
