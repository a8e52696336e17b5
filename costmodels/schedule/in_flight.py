"""How many micro-batches each pipeline rank holds at once, chunk by chunk, in each schedule.

A rank holds the saved activations of a micro-batch in a local chunk from its forward until its
backward has ended. With uneven chunks one number per rank is not exact, so a rank has a set of
vectors (one entry per local chunk, in model order): its peak is the largest of the sums
vector . bytes-per-chunk, and only vectors that no other one exceeds everywhere are kept.

    gpipe              (m)                                  all forwards first (1811.06965)
    1f1b               (min(m, S - s))                      PipeDream-flush (2006.09503)
    interleaved_1f1b   played from Megatron-LM's order: groups of S micro-batches visit chunk after
                       chunk; warm-up 2 (S - s - 1) + (V - 1) S (2104.04473, section 2.2)
    zb_h1              (min(m, S)) on every rank: as 1f1b's first rank, since the others wait as
                       long with their weight gradients (2401.10241, section 2.1)
    any other          counted along `orders.order`; that gives
    zb_v               2 S chunk-activations on every rank, the bytes of 1f1b's first rank
                       (2401.10241, section 6)
    dualpipe_v         2 S + 1: the forward of a pair begins before its backward ends (DualPipe's
                       README: PP + 1, where PP counts 2 S stages)

    S, s, V, m   pipeline ranks, this rank, chunks per rank, micro-batches

Leaves out: schedules that trade memory for bubble inside the family (ZB-H2, V-Half, V-Min).
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.orders import KINDS, V_SHAPED, numbered_order

Vector = tuple[int, ...]
Ints = NDArray[np.int64]
ZERO_BUBBLE: frozenset[Schedule] = V_SHAPED | {"zb_h1"}
MOST_ORDERS = 128  # kept at a time, of one rank each: those of a pipeline are asked for twice


def rank_of_chunk(schedule: Schedule, pp: int, chunk: int) -> int:
    """The pipeline rank that holds virtual stage `chunk`: round robin, or down and up again (V)."""
    if schedule in V_SHAPED:
        return chunk if chunk < pp else 2 * pp - 1 - chunk
    return chunk % pp


def in_flight(schedule: Schedule, pp: int, vpp: int, m: int) -> tuple[tuple[Vector, ...], ...]:
    """For each pipeline rank, the Pareto-maximal vectors of micro-batches held per local chunk."""
    return _vectors(schedule, pp, vpp, enough(schedule, pp, m))


def enough(schedule: Schedule, pp: int, m: int) -> int:
    """So many micro-batches that a longer run reaches no new peak: once an order is warm it repeats
    every micro-batch, an interleaved one every S.
    """
    if schedule == "gpipe":
        return m
    if schedule == "interleaved_1f1b":
        return m if m <= 4 * pp else 4 * pp + m % pp
    return min(m, 2 * pp)


@cache
def _vectors(schedule: Schedule, pp: int, vpp: int, m: int) -> tuple[tuple[Vector, ...], ...]:
    if schedule == "interleaved_1f1b" and vpp > 1:
        return tuple(_interleaved_states(pp, vpp, m))
    return tuple(_rank_vectors(schedule, pp, vpp, m, s) for s in range(pp))


def _rank_vectors(schedule: Schedule, pp: int, vpp: int, m: int, s: int) -> tuple[Vector, ...]:
    if schedule == "gpipe":
        return ((m,) * vpp,)
    if schedule == "1f1b":
        return ((min(m, pp - s),),)
    if schedule == "zb_h1":
        return ((min(m, pp),),)
    return _maximal(_counted(_places(schedule, pp, vpp, m, s), pp, vpp))


CHANGES = {"F": 1, "B": -1, "I": 0, "W": -1}
"""A forward adds one micro-batch to what its chunk holds; the last pass of a backward (B, or W
where the weight gradient is apart) takes it away.
"""


AWAITS_BACKWARD = {"F": 1, "B": -1, "I": -1, "W": 0}
AWAITS_W = {"F": 0, "B": 0, "I": 1, "W": -1}


def _counted(what: Ints, pp: int, vpp: int, changes: Mapping[str, int] = CHANGES) -> Ints:
    """What a rank holds after each action, of which the place in `Work.table` is given."""
    kind, stage = np.divmod(what, pp * vpp)
    added = np.array([changes[name] for name in KINDS])[kind]
    of_chunk = (stage // pp)[:, None] == np.arange(vpp)
    held: Ints = np.cumsum(added[:, None] * of_chunk, axis=0)
    return held


def waiting(schedule: Schedule, pp: int, vpp: int, m: int, s: int) -> tuple[Ints, Ints]:
    """What a rank of a zero-bubble schedule holds after each action, [action, chunk]: micro-batches
    whose backward has not ended, and those whose weight gradient is deferred.
    """
    what = _places(schedule, pp, vpp, enough(schedule, pp, m), s)
    return _counted(what, pp, vpp, AWAITS_BACKWARD), _counted(what, pp, vpp, AWAITS_W)


@lru_cache(maxsize=MOST_ORDERS)
def _places(schedule: Schedule, pp: int, vpp: int, m: int, s: int) -> Ints:
    """Of each action of a rank, in order, the place in `Work.table`."""
    return numbered_order(schedule, pp, vpp, m, s) // m


def _interleaved_states(pp: int, vpp: int, m: int) -> Iterator[tuple[Vector, ...]]:
    """The distinct vectors that each rank holds after a forward of Megatron-LM's interleaved order,
    the largest first.

    From the end of the warm-up on: before it nothing leaves, so its last state holds most. After it
    one micro-batch of a chunk ends between two forwards, so all states of a rank hold equally many,
    and none reaches another in every chunk. Their order is that of one number for each: its entries
    but the last, which follows from the others, as digits.
    """
    forwards = _interleaved_chunks(pp, vpp, m)
    begun, ended = (_so_far(np.eye(vpp, dtype=np.int64)[each]) for each in _both(forwards))
    warm_up = [min(len(forwards) - 1, 2 * (pp - s - 1) + (vpp - 1) * pp) for s in range(pp)]
    most = int((begun[1 + warm_up[0] :] - ended[: len(forwards) - warm_up[0]]).max())  # of any rank
    digits = _digits(most + 1, vpp)
    begun_number, ended_number = (_so_far(digits[each]) for each in _both(forwards))
    for ahead in warm_up:
        after = len(forwards) - ahead
        number = begun_number[1 + ahead :] - ended_number[:after]
        _, first = np.unique(number, return_index=True)
        found = begun[1 + ahead + first] - ended[first]
        yield tuple(map(tuple, found[::-1].tolist()))


def _both(forwards: Ints) -> tuple[Ints, Ints]:
    """The chunks of forwards, and of backwards, which visit them in the reverse order."""
    return forwards, forwards.max() - forwards


def _so_far(each: Ints) -> Ints:
    """Sums of the first 0, 1, 2, ..."""
    nothing = np.zeros((1, *each.shape[1:]), each.dtype)
    return np.concatenate([nothing, each.cumsum(axis=0)])


def _digits(base: int, chunks: int) -> Ints:
    """What a micro-batch in each chunk adds to the number of a state; exact if 64 bits are few."""
    few = (chunks - 1) * math.log2(base) < 62
    powers = [base**power for power in range(chunks - 2, -1, -1)]
    return np.array([*powers, 0], np.int64 if few else object)


def _interleaved_chunks(pp: int, vpp: int, m: int) -> Ints:
    """The local chunk of each forward: S micro-batches through chunk 0, then chunk 1, ..."""
    groups = [min(pp, m - first) for first in range(0, m, pp)]
    return np.concatenate([np.repeat(np.arange(vpp), size) for size in groups])


def _maximal(states: Ints) -> tuple[Vector, ...]:
    """The vectors that no other one reaches or exceeds in every entry, in a fixed order."""
    if states.shape[1] == 1:
        return ((int(states.max()),),)
    if states.shape[1] == 2:  # from the most in the first chunk down, what holds more in the second
        most = np.full(int(states[:, 0].max()) + 1, -1)
        np.maximum.at(most, states[:, 0], states[:, 1])
        so_far = np.maximum.accumulate(most[::-1])
        more = np.flatnonzero(np.diff(so_far, prepend=-1) > 0)
        return tuple((len(most) - 1 - at, int(so_far[at])) for at in more.tolist())
    distinct = _descending(states)
    reached = np.ones((len(distinct), len(distinct)), bool)
    for chunk in distinct.T:
        reached &= chunk >= chunk[:, None]
    kept = reached.sum(axis=1) == 1  # only by itself
    return tuple(map(tuple, distinct[kept].tolist()))


def _descending(states: Ints) -> Ints:
    """The distinct `states`, the largest first: by one number for each where 64 bits hold it."""
    base, chunks = int(states.max()) + 1, states.shape[1]
    if base**chunks >= 2**63:
        return np.unique(states, axis=0)[::-1]
    numbers = states @ base ** np.arange(chunks - 1, -1, -1)
    _, first = np.unique(numbers, return_index=True)
    return states[first[::-1]]
