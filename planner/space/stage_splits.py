"""The ways in which an engine can cut a model's layers into virtual stages.

"free" engines take any counts: with one chunk per rank the solver chooses (`splits` is None), with
several it chooses among all of them where they are few, else among rows of equal chunks, since a
row waits for its slowest one:

    all    every way to cut, up to `MOST_WAYS`
    rows   rows hold q or q + 1 layers per chunk; what is too much is taken from the first chunk and
           the last, and then one layer each from chunks in order, or in reverse order; where the
           head takes as long as many layers, so many more are taken from the last

The others leave a short list:

    even   L + e + h layers over all stages alike, where the embedding (e) and the head (h) may each
           take the place of one layer if the engine allows it
    ends   the same per pipeline rank, but the first and the last rank may hold another number
           (Megatron-LM's decoder-first/last-pipeline-num-layers), each cut into vpp equal chunks
    cost   the engine's own cut (`costmodels.stage_split.split_by_cost`)

A stage holds at least one layer, but the first and the last may hold the embedding or the head
alone where those count as layers.
"""

from collections.abc import Iterator
from functools import cache, cached_property
from itertools import combinations, product
from math import ceil, comb

from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.stage_split import ends_in_layers, split_by_cost
from meshplan.hardware_profiles.engine_schema import Legality

Counts = tuple[int, ...]
MOST_WAYS = 512  # up to so many ways to cut all are listed
MORE_LAYERS = 1  # a rank may hold so many more than an even split, so that ends are shorter
MOST_OF_FIRST = 2  # layers that the embedding may take the place of
HEAVIER, MOST_MORE = 2, 8  # a head may take so many times its products; layers more per rank


class Ways(tuple[Counts, ...]):
    """Ways to cut, whose hash is found once: of thousands of numbers it takes longer than what is
    looked up by it.
    """

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def splits(model: Model, legality: Legality, pp: int, vpp: int) -> tuple[Counts, ...] | None:
    """The layers of each virtual stage in model order, every legal way; None for any counts."""
    if legality.uneven_stages == "free" or pp == 1:
        if vpp > 1 and lists_all(model, legality, pp, vpp):
            return every_cut(model.num_layers, pp * vpp, _fewest_at_ends(legality))
        if vpp > 1:
            more = max(MORE_LAYERS, min(MOST_MORE, ceil(HEAVIER * ends_in_layers(model) / pp)))
            return _rows(model.num_layers, pp, vpp, _fewest_at_ends(legality), more)
        return None if pp <= _most_stages(model, legality, pp) else ()
    if legality.uneven_stages == "cost":
        if vpp > 1:
            return ()
        counts = split_by_cost(model, pp)
        return (counts,) if min(counts[:-1]) > 0 else ()
    even = legality.uneven_stages == "even"
    return _regular(model.num_layers, pp, vpp, legality.layers_count_ends, even)


def lists_all(model: Model, legality: Legality, pp: int, vpp: int) -> bool:
    """Whether an engine that takes any counts finds all of them in `splits`."""
    layers, chunks = model.num_layers, pp * vpp
    shared = layers - max(0, chunks - 2) - 2 * _fewest_at_ends(legality)  # as each likes
    return comb(max(0, shared + chunks - 1), chunks - 1) <= MOST_WAYS


def can_split(model: Model, legality: Legality, pp: int, vpp: int) -> bool:
    """Whether there is any way."""
    if legality.uneven_stages in ("even", "ends") and pp > 1:
        even, ends = legality.uneven_stages == "even", legality.layers_count_ends
        return _is_regular(model.num_layers, pp, vpp, ends, even)
    ways = splits(model, legality, pp, vpp)
    return ways is None or len(ways) > 0


def _fewest_at_ends(legality: Legality) -> int:
    return 0 if legality.layers_count_ends else 1


@cache
def every_cut(layers: int, chunks: int, fewest_at_ends: int) -> tuple[Counts, ...]:
    """Every way: bars between the layers that chunks may share as they like."""
    fewest = (fewest_at_ends, *[1] * (chunks - 2), fewest_at_ends)
    places = layers - sum(fewest) + chunks - 1
    ways = combinations(range(places), chunks - 1) if places >= chunks - 1 else ()
    return Ways(
        tuple(
            n + end - at - 1
            for n, at, end in zip(fewest, (-1, *bars), (*bars, places), strict=True)
        )
        for bars in ways
    )


@cache
def _rows(layers: int, pp: int, vpp: int, fewest_at_ends: int, most: int) -> tuple[Counts, ...]:
    """Rows of equal chunks, `most` layers per rank more than must be; beyond `MORE_LAYERS` only
    where the ends are shorter by nearly all of what is too much.
    """
    found: set[Counts] = set()
    least = max(vpp, -(-layers // pp))
    for more in range(most + 1):
        small, larger = divmod(least + more, vpp)
        sizes = [small] * (vpp - larger) + [small + 1] * larger
        for order in (sizes, sizes[::-1]):
            counts = [n for n in order for _ in range(pp)]
            ends = pp - 1 if more > MORE_LAYERS else None
            found.update(_shortened(counts, sum(counts) - layers, fewest_at_ends, ends))
    return Ways(sorted(found))


def _shortened(
    counts: list[int], surplus: int, fewest_at_ends: int, most_rest: int | None
) -> Iterator[Counts]:
    """`counts` less `surplus` layers; where `most_rest` is said, no more of these are taken from
    neither end, and from the last chunks alone.
    """
    body = range(1, len(counts) - 1)
    orders = [body, body[::-1]] if most_rest is None else [body[::-1]]
    for first in range(min(MOST_OF_FIRST, surplus, counts[0] - fewest_at_ends) + 1):
        for last in range(min(surplus - first, counts[-1] - fewest_at_ends) + 1):
            rest = surplus - first - last
            for order in orders if most_rest is None or rest <= most_rest else ():
                shorter = [j for j in order if counts[j] > 1][:rest]
                if len(shorter) == rest:
                    cut = [n - (j in shorter) for j, n in enumerate(counts)]
                    yield (cut[0] - first, *cut[1:-1], cut[-1] - last)


def _most_stages(model: Model, legality: Legality, pp: int) -> int:
    return model.num_layers + (2 if legality.layers_count_ends and pp > 1 else 0)


@cache
def _regular(layers: int, pp: int, vpp: int, ends: bool, even: bool) -> tuple[Counts, ...]:
    return Ways(sorted(set(_each_regular(layers, pp, vpp, ends, even))))


@cache
def _is_regular(layers: int, pp: int, vpp: int, ends: bool, even: bool) -> bool:
    return any(True for _ in _each_regular(layers, pp, vpp, ends, even))


def _each_regular(layers: int, pp: int, vpp: int, ends: bool, even: bool) -> Iterator[Counts]:
    for embedding, head in product(range(2 if ends else 1), repeat=2):
        for ranks in _ranks(layers + embedding + head, pp, vpp, even):
            counts = list(ranks) * vpp
            counts[0] -= embedding
            counts[-1] -= head
            empty = 0 if ends else 1
            if min(counts[1:-1], default=1) >= 1 and min(counts[0], counts[-1]) >= empty:
                yield tuple(counts)


def _ranks(total: int, pp: int, vpp: int, even: bool) -> Iterator[Counts]:
    """Layers of each chunk of each rank, so that vpp chunks of all ranks hold `total`."""
    if total % vpp:
        return
    per_round = total // vpp
    if even:
        if per_round % pp == 0:
            yield (per_round // pp,) * pp
        return
    for middle in range(1, per_round // (pp - 2) + 1) if pp > 2 else (0,):
        ends = per_round - middle * (pp - 2)
        for first in range(ends + 1):
            yield first, *[middle] * (pp - 2), ends - first
