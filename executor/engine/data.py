"""Token sequences that depend on (seed, step, global sequence index) only, never on the layout.

Synthetic: token t of a sequence is drawn from a generator seeded by those three numbers. From a file:
a flat array of unsigned integers (2 bytes below a vocabulary of 65,536, else 4) mapped into memory;
sequence i of step s starts at token ((s * global_batch_size + i) * seq_len) modulo the file's length.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from costmodels.training import Training


class UnreadableData(ValueError):
    """A token file that cannot feed the model; one line with the value, the rule and the fix."""


class Sequences:
    """The global batch, sequence by sequence; each is seq_len + 1 tokens (inputs and next tokens)."""

    def __init__(self, training: Training, vocab: int, seed: int, path: Path | None = None) -> None:
        self.training, self.vocab, self.seed = training, vocab, seed
        self.tokens = None if path is None else _map(path, training.seq_len, vocab)

    def sequence(self, step: int, index: int) -> Tensor:
        """The `index`-th of the global batch's sequences in `step`, (seq_len + 1,) int64."""
        length = self.training.seq_len + 1
        if self.tokens is None:
            generator = np.random.default_rng((self.seed, step, index))
            return torch.from_numpy(generator.integers(0, self.vocab, length, dtype=np.int64))
        number = step * self.training.global_batch_size + index
        start = number * self.training.seq_len % (len(self.tokens) - length + 1)
        tokens = self.tokens[start : start + length].astype(np.int64)
        if tokens.max() >= self.vocab:
            raise UnreadableData(
                f"token {tokens.max()} at or after position {start}: the model's vocabulary ends at "
                f"{self.vocab - 1}; tokenise the file with the model's tokenizer"
            )
        return torch.from_numpy(tokens)


def _map(
    path: Path, seq_len: int, vocab: int
) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    dtype = np.uint16 if vocab <= 2**16 else np.uint32
    try:
        tokens = np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise UnreadableData(
            f"{path}: cannot be mapped as {dtype.__name__} tokens: {error}"
        ) from None
    if len(tokens) <= seq_len:
        raise UnreadableData(
            f"{path}: {len(tokens)} {dtype.__name__} tokens; one sequence needs {seq_len + 1}"
        )
    return tokens
