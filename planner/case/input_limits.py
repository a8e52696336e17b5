"""How much of anything is read: the limits of inputs and of questions, each with its line.

Every limit is far above what real configs, plans and clusters have, and low enough that reading
a file within all of them takes less than two seconds and 500 MB, whatever it holds.
"""

import re
from collections.abc import Mapping

from meshplan.costmodels.layout import MAX_COUNT as MAX_COUNT  # a degree's limit is a count's
from meshplan.costmodels.training import MOST_IMBALANCE, MOST_RANK, MOST_SEQ_LEN, MOST_SEQUENCES
from meshplan.hardware_profiles.files.bounded_file import dotted_key
from meshplan.planner.case.missing import FLAGS
from meshplan.planner.case.reading import UnreadableConfig

MAX_BYTES = 2 * 2**20  # the largest published configs are a few KiB; plans of 1000 stages 100 KiB
MAX_LINE = 10_000  # characters of a line of Python
MAX_PROGRAM_BYTES = 2**18  # of a script or a Python file, which cost more to read than data does
MAX_ENTRIES = 100_000  # a training config has hundreds; YAML aliases can multiply a few lines
MAX_REFERENCES = 10_000  # characters of entries with `${...}`; a published file has 4,220
MAX_DEPTH = 50
MAX_PATH = 500  # characters of a key with those above it
MAX_DIGITS = 300  # of a whole number; a float64 has no more before its point
MAX_STAGES = 160  # that `check` prices in 2 s with fixes; published runs have up to 128
MAX_EXPRESSION = 4000  # characters of one `$((...))` or pipeline layout

MOST: Mapping[str, float] = {
    "gpus": 2**20,  # the largest cluster announced has some 500,000
    "gpus_per_node": 1024,
    "seq_len": MOST_SEQ_LEN,
    "packed_mean_length": MOST_SEQ_LEN,
    "global_batch_size": MOST_SEQUENCES,
    "micro_batch_size": 2**20,
    "pipeline_parallel": MAX_STAGES,
    "vocab_size": 2**27,
    "expert_imbalance": MOST_IMBALANCE,
    "lora_rank": MOST_RANK,
    "image_tokens": MOST_SEQ_LEN,
    "images": MOST_SEQ_LEN,
    "top": 1000,
    "time_limit": 10**7,
}
"""The most that a question, an option or a plan may say, by name; the least is each one's own."""

_BRACES = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.S)


def too_large(name: str, value: float) -> str | None:
    """Why `value` is no `name`, in one line with the rule and the fix; None if it may be."""
    most = MOST[name]
    if 1 <= value <= most:
        return None
    option = FLAGS.get(name, f"--{name.replace('_', '-')}")
    typed = str(value) if isinstance(value, int) else f"{value:.12g}"
    return f"{option} {typed} is not between 1 and {most:.12g}; take one of those"


def check_size(text: str, kind: str) -> None:
    """Refuse a longer `text`; raises `UnreadableConfig`."""
    if len(text) > MAX_PROGRAM_BYTES:
        raise UnreadableConfig(
            f"{kind} of {len(text)} characters; at most {MAX_PROGRAM_BYTES} are read: keep the "
            "arguments in a file of their own"
        )


def check_lines(text: str) -> None:
    """Refuse Python with a longer line than `MAX_LINE`: its parser keeps every beginning of a
    dotted name, so 60,000 characters of `a.a.a` take 1 GB. Raises `UnreadableConfig`.
    """
    longest = max(map(len, text.replace("\\\n", "").splitlines()), default=0)
    if longest > MAX_LINE:
        raise UnreadableConfig(f"a line of {longest} characters; at most {MAX_LINE} are read")


def check_counts(entries: int, depth: int, line: int = 1) -> None:
    """Refuse a document of so many entries, or that nests so deep; raises `UnreadableConfig`."""
    if depth > MAX_DEPTH:
        raise UnreadableConfig(f"it nests more than {MAX_DEPTH} deep; no config does", line)
    if entries > MAX_ENTRIES:
        raise UnreadableConfig(
            f"more than {MAX_ENTRIES} entries (aliases count as what they stand for); no config "
            "has as many",
            line,
        )


def check_braces(text: str) -> None:
    """Refuse JSON that nests too deep, before its keys are walked; raises `UnreadableConfig`."""
    depth = 0
    for entries, match in enumerate(_BRACES.finditer(text), start=1):
        depth += (match[0] in "{[") - (match[0] in "}]")
        check_counts(entries, depth)


def check_toml(text: str) -> None:
    """Refuse TOML whose dotted keys nest too deep: they cost the square of their parts.

    Raises `UnreadableConfig`.
    """
    check_size(text, "TOML")
    if match := dotted_key(MAX_DEPTH).search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise UnreadableConfig(f"a key of {MAX_DEPTH} parts or more; no config has one", line)
