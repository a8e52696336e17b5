"""Which text may be a name: one rule for every name that a file gives and another file repeats.

The names of models, clusters, GPUs and engines come from files that anybody may have written, and
go into shell scripts, Python, YAML, HTML and messages. Each writer quotes what it writes; this rule
makes sure that a name is one line of text that no language reads as anything else.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator

MAX_NAME = 255  # characters; file systems allow no longer name either
NEAR = 3  # names that are shown where none is meant exactly
RULE = (
    f"a name has 1 to {MAX_NAME} characters: letters, digits, blanks and . _ + : / @ = , ( ) ~ -; "
    "it starts with neither - nor :, and neither starts nor ends with a blank"
)
_NAME = re.compile(rf"(?![-:\s])[\w .+:/@=,()~-]{{1,{MAX_NAME}}}(?<!\s)")


def checked_name(text: str) -> str:
    """`text` if it may be a name; raises ValueError with the rule and the fix."""
    if _NAME.fullmatch(text) is None:
        shown = ascii(text if len(text) <= 40 else text[:37] + "...")
        raise ValueError(f"{shown} is no name: {RULE}; rename it")
    return text


def near_names(text: str, known: Iterable[str]) -> list[str]:
    """The `known` names that were most likely meant, three at most: first the shortest that go on
    where `text` ends (`qwen3-30b` of `qwen3-30b-a3b`), then those with most of its letters.
    """
    begun, known = text.lower(), tuple(known)
    longer = sorted((name for name in known if begun and name.startswith(begun)), key=len)
    close = get_close_matches(begun, known, n=NEAR, cutoff=0.5)
    return list(dict.fromkeys([*longer, *close]))[:NEAR]


Name = Annotated[str, AfterValidator(checked_name)]
"""The type of a field that holds a name."""
