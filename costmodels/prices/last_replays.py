"""What the last replays hold of each row of a grid (`costmodels.ranks.last_replays`).

What a layer saves and makes again is as much in every mode, but for what outlives its pass
(`memory.outliving`), so for layers of one kind this is what `step_memory` finds. What layers of
other kinds before it saved depends on their modes, and is counted at its most or at its least.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial, reduce

import numpy as np

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.layout import Mode
from meshplan.costmodels.layouts import Floats, Layouts
from meshplan.costmodels.prices.parts import (
    all_states_bytes,
    come_late,
    of_all_parts,
    updates_of_parts,
)
from meshplan.costmodels.prices.tables import Table
from meshplan.costmodels.ranks.last_replays import first_layers, gathered_then_bytes, to_come_bytes

Choose = Callable[[Number, Number], Number]
"""`maximum` or `minimum` of what layers hold in one mode and in another."""


def beyond_step_bytes(
    layouts: Layouts, work: Table, weights: Table, choose: Choose, beside: Floats
) -> Floats:
    """(N,) what the last replays hold beyond the optimizer step, where gradients come late;
    `beside`: of the ends, reserved.
    """
    setting = weights.setting
    model, reserved = setting.model, setting.tuning.reserved_over_working
    held = [
        work.rows(reserved * _saved_bytes(work, place, choose)) + _whole_bytes(weights, place)
        for place in first_layers(model)
    ]
    step = weights.rows(of_all_parts(weights, updates_of_parts(weights)))
    beyond: Floats = np.max(held, axis=0) + beside - step
    return come_late(layouts, weights) * np.maximum(beyond, 0.0)


def _saved_bytes(work: Table, place: int, choose: Choose) -> Number:
    """In the backward of the layer at `place`: all of it, what those before it saved and is not on
    the host, and what outputs hold of those behind it.
    """
    rank, pattern = work.rank, work.setting.model.pattern

    def chosen(kinds: tuple[int, ...], bytes_of: Callable[[int, Mode], Number]) -> Number:
        """Of layers of `kinds`."""
        each = {k: reduce(choose, [bytes_of(k, mode) for mode in work.modes]) for k in set(kinds)}
        found: Number = sum(each[kind] * n for kind, n in Counter(kinds).items())
        return found

    own = chosen((pattern[place],), partial(own_bytes, work))
    before = chosen(pattern[:place], rank.layer_saved_bytes) * (1 - rank.layout.activation_offload)
    return own + before + chosen(pattern[place + 1 :], rank.returned_keys_bytes)


def _whole_bytes(weights: Table, place: int) -> Floats:
    """(N,) reserved for what ZeRO-3 gathers in the backward of the layer at `place`, less gradients
    that are to come.
    """
    rank, tuning = weights.rank, weights.setting.tuning
    gathered = tuning.reserved_over_working * gathered_then_bytes(rank, place)
    to_come = (1 + tuning.state_slack_fraction) * to_come_bytes(rank, place)
    return weights.rows(gathered - to_come)


def own_bytes(work: Table, kind: int, mode: Mode) -> Number:
    """What a layer holds in its own backward, kept or made again."""
    return work.rank.layer_saved_bytes(kind, mode) + work.rank.working_bytes(kind, mode)


def bytes_by_mode(layouts: Layouts, work: Table, weights: Table) -> list[Floats]:
    """(N,) each: what the last replays are made of beside what layers before saved, in each mode of
    their own layer; and what outputs hold. Nothing where no gradient ever comes late.
    """
    if not weights.rank.state.frees_gradients:
        return []
    pattern, states = work.setting.model.pattern, weights.rows(all_states_bytes(weights))
    reserved = work.setting.tuning.reserved_over_working
    found = [
        work.rows(reserved * own_bytes(work, pattern[place], mode))
        + states + _whole_bytes(weights, place)
        for place in first_layers(work.setting.model) for mode in work.modes
    ]  # fmt: skip
    returned = work.by_mode(work.rank.returned_keys_bytes).reshape(len(layouts), -1)
    late = come_late(layouts, weights)
    return [late * each for each in (*found, *returned.T)]
