"""Token sequences that depend on (seed, step, global sequence index) only, never on the layout.

Synthetic: the tokens of a sequence are drawn from a generator seeded by those three numbers. From a
file: a flat array of unsigned integers (2 bytes up to a vocabulary of 65,536, else 4) mapped into
memory; sequence i of step s starts at token ((s * global_batch_size + i) * seq_len) modulo the
file's length.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshplan.costmodels.training import Training


class UnreadableData(ValueError):
    """A token file that cannot feed the model; one line with the value, the rule and the fix."""


class Sequences:
    """The global batch, sequence by sequence: seq_len tokens and `ahead` more to predict.

    Raises `UnreadableData` for a file that cannot feed the model.
    """

    def __init__(
        self,
        training: Training,
        vocab: int,
        seed: int,
        *,
        path: Path | None = None,
        ahead: int = 1,
    ) -> None:
        self.training, self.vocab, self.seed = training, vocab, seed
        self.length = training.seq_len + ahead
        self.tokens = None if path is None else _map(path, self.length, vocab)

    def sequence(self, step: int, index: int) -> Tensor:
        """The `index`-th of the global batch's sequences in `step`, (seq_len + ahead,) int64."""
        if self.tokens is None:
            generator = np.random.default_rng((self.seed, step, index))
            return torch.from_numpy(generator.integers(0, self.vocab, self.length, dtype=np.int64))
        number = step * self.training.global_batch_size + index
        start = number * self.training.seq_len % (len(self.tokens) - self.length + 1)
        tokens = self.tokens[start : start + self.length].astype(np.int64)
        if tokens.max() >= self.vocab:
            raise UnreadableData(
                f"token {tokens.max()} at or after position {start}: the model's vocabulary ends "
                f"at {self.vocab - 1}; tokenise the file with the model's tokenizer"
            )
        return torch.from_numpy(tokens)


def _map(path: Path, length: int, vocab: int) -> NDArray[np.unsignedinteger]:
    dtype = np.uint16 if vocab <= 2**16 else np.uint32
    try:
        tokens = np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise UnreadableData(
            f"{path}: cannot be mapped as {dtype.__name__} tokens: {error}"
        ) from None
    if len(tokens) < length:
        raise UnreadableData(
            f"{path}: {len(tokens)} {dtype.__name__} tokens; one sequence needs {length}"
        )
    return tokens
