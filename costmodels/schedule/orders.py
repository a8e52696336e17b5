"""The order of each schedule: what each pipeline rank does, action after action.

An order is an array of numbers, for a long step has a hundred thousand actions:

    number = (place of the kind in `KINDS` x stages + virtual stage) x m + micro-batch

so that number // m is the action's place in `Work.table`.
"""

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Ints
from meshplan.costmodels.schedule.actions import Action, Kind
from meshplan.costmodels.schedule.v_shaped import B, F, I, W, v_shaped_order

KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
V_SHAPED: frozenset[Schedule] = frozenset({"zb_v", "dualpipe_v"})


def order(schedule: Schedule, pp: int, vpp: int, m: int, s: int) -> tuple[Action, ...]:
    """What rank `s` does, in order."""
    what, micro_batch = np.divmod(numbered_order(schedule, pp, vpp, m, s), m)
    kind, stage = np.divmod(what, pp * vpp)
    columns = zip(kind.tolist(), stage.tolist(), micro_batch.tolist(), strict=True)
    return tuple(Action(stage, KINDS[kind], i) for kind, stage, i in columns)


def numbered_order(schedule: Schedule, pp: int, vpp: int, m: int, s: int) -> Ints:
    """The same as numbers."""
    if schedule == "zb_h1":
        return _zb_h1(pp, m, s)
    if schedule in V_SHAPED:
        kind, stage, micro_batch = v_shaped_order(schedule, pp, m, s)
        return (kind * 2 * pp + stage) * m + micro_batch
    forwards, backwards = _passes(pp, vpp, m, s)
    if schedule == "gpipe":
        return np.concatenate([forwards, backwards])
    ahead = pp - s - 1 if vpp == 1 else 2 * (pp - s - 1) + (vpp - 1) * pp
    ahead = min(ahead, len(forwards))
    pairs = np.stack([forwards[ahead:], backwards[: len(forwards) - ahead]], axis=1)
    return np.concatenate([forwards[:ahead], pairs.ravel(), backwards[len(forwards) - ahead :]])


def _zb_h1(pp: int, m: int, s: int) -> Ints:
    """S - s forwards ahead; then I, the W of s micro-batches ago, and the next forward."""
    ahead, i = min(pp - s, m), np.arange(m + s)
    begins = [(kind * pp + s) * m for kind in (I, W, F)]
    turns = np.stack([begins[0] + i, begins[1] + i - s, begins[2] + i + ahead], axis=1)
    legal = np.stack([i < m, i >= s, i < m - ahead], axis=1)
    return np.concatenate([begins[2] + np.arange(ahead), turns[legal]])


def _passes(pp: int, vpp: int, m: int, s: int) -> tuple[Ints, Ints]:
    """The forwards and the backwards of a rank: groups of S micro-batches through its first chunk,
    then the next; backwards begin with the last.
    """
    size = pp if vpp > 1 else m
    whole, rest = np.arange(m - m % size), np.arange(m - m % size, m)
    batch = [np.repeat(whole.reshape(-1, 1, size), vpp, axis=1).ravel(), np.tile(rest, vpp)]
    chunk = [
        np.tile(np.repeat(np.arange(vpp), size), len(whole) // size),
        np.repeat(np.arange(vpp), len(rest)),
    ]
    i, v = np.concatenate(batch), np.concatenate(chunk)
    forward = v * pp + s
    backward = (B * vpp + vpp - 1 - v) * pp + s
    return forward * m + i, backward * m + i
