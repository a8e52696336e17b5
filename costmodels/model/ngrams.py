"""Embeddings of n-grams of tokens that a layer adds to its streams: their sizes.

    table        rows of d / m numbers, m hashed heads: a prime number of rows each
    projections  d n h: a key for each stream; d h: the value of all
    norms        3 n h: of keys, of streams, of gated values
    convolution  c n h: c earlier tokens of each number

    d width, n streams, h hidden

Source: Qwen4 in transformers 5.24 `modeling_qwen4_exp.py` (Qwen4ExpTextNGramEmbedding,
Qwen4ExpTextPLELayer).
"""

from functools import cache
from itertools import count, islice
from math import isqrt

from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NGrams:
    """Rows of a table, by hashes of a token and those before it, gated by what the streams are.

    rows         of all heads
    heads        rows that a token reads
    width        numbers of all of them
    convolution  tokens of it
    """

    rows: int
    heads: int
    width: int
    convolution: int

    @property
    def table(self) -> int:
        """Numbers of the table."""
        return self.rows * (self.width // self.heads)

    def beside_table(self, hidden: int, streams: int) -> int:
        """Of what gates its rows."""
        wide = streams * hidden
        return self.width * (wide + hidden) + (3 + self.convolution) * wide


def hashed_rows(base: int, heads: int, place: int, multiple: int) -> int:
    """Rows of the `place`th of several tables of `heads` heads each: these take the primes from
    `base` on in turn; filled up to a multiple.
    """
    sizes = _primes_from(base, (place + 1) * heads)[place * heads :]
    return multiple * -(-sum(sizes) // multiple)


@cache
def _primes_from(base: int, number: int) -> tuple[int, ...]:
    return tuple(islice(filter(_is_prime, count(max(base, 2))), number))


def _is_prime(value: int) -> bool:
    if value % 2 == 0:
        return value == 2
    return all(value % each for each in range(3, isqrt(value) + 1, 2))
