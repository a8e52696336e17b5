"""Sizes as they are typed: the length of a sequence, the batch in sequences or in tokens.

Of tokens 4M is 4 x 2**20 (labs count so: 512 x 8192), 1024x4096 is sequences x their length,
4194304 is itself.
"""

import re

from meshplan.planner.case.lengths import NoLength, tokens_of

TOP = 3
"""Layouts that differ in kind that are told of, unless said: the plan and its runners-up."""
SUFFIX = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "B": 2**30}


class BadQuestion(ValueError):
    """Arguments that do not make a question; one line with the value, the rule and a fix."""


def parse_length(text: str, option: str = "--seq-len") -> int:
    """Tokens of a sequence: "8192", or "32k" (x 1024); raises `BadQuestion`."""
    try:
        return tokens_of(text)
    except NoLength as why:
        raise BadQuestion(f"{option} {why}") from None


def check_one_batch(sequences: object, tokens: object) -> None:
    """Refuse a batch that is stated twice, or not at all."""
    if (sequences is None) == (tokens is None):
        raise BadQuestion(
            "say the batch of one step once: --global-batch 512 (sequences) or "
            "--global-batch-tokens 4M"
        )


def sequences_of(batch: int | None, batch_tokens: str | None, seq_len: int) -> int:
    """Sequences of a batch that is stated in sequences or in tokens; raises `BadQuestion`."""
    check_one_batch(batch, batch_tokens)
    if batch is not None:
        return batch
    text = str(batch_tokens)
    tokens = parse_tokens(text)
    if tokens % seq_len:
        near = max(1, round(tokens / seq_len))
        stated = "" if text == str(tokens) else f" = {tokens}"
        raise BadQuestion(
            f"--global-batch-tokens {text}{stated} is {tokens // seq_len} sequences of {seq_len} "
            f"and {tokens % seq_len} tokens, not a whole number; write --global-batch {near}"
        )
    return tokens // seq_len


SEQUENCES_X_LENGTH = re.compile(r"([0-9]{1,18})x([0-9]{1,18})")
"""Tokens of a step as sequences of so many tokens: 1024x4096."""


def parse_tokens(text: str) -> int:
    """Tokens of "4M" (2**20 each), "1024x4096" or "4194304"; raises `BadQuestion`."""
    if shape := SEQUENCES_X_LENGTH.fullmatch(text):
        tokens = int(shape[1]) * int(shape[2])
    elif found := re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([KMGB]?)", text.strip().upper()):
        exact = float(found[1]) * SUFFIX[found[2]]
        tokens = int(exact) if exact == int(exact) else 0
    else:
        tokens = 0
    if tokens <= 0:
        raise BadQuestion(
            f"--global-batch-tokens {text!r} is not a number of tokens; write 4M, 1024x4096 or "
            "4194304"
        )
    return tokens
