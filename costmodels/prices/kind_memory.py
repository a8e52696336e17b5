"""Bytes that no rank of a layout needs more than, where the columns of `prices` are a bound because
layers are of several kinds: `prices.memory` says those of the largest kind, this those of the
least.

A rank of the only stage holds layers of every kind, so there the largest counts in what ZeRO-3
gathers and in what outlives its use; what a replay makes is that of some kind at least.
"""

from collections.abc import Callable, Sequence

import numpy as np

from meshplan.costmodels.elementwise import Number, minimum
from meshplan.costmodels.layouts import Bools, Floats, Layouts
from meshplan.costmodels.memory.kept_buffers import gather_buffer_bytes, head_buffer_bytes
from meshplan.costmodels.operations.embedding_head import logits_bytes
from meshplan.costmodels.prices.last_replays import beyond_step_bytes, bytes_by_mode
from meshplan.costmodels.prices.memory import beyond_host_bytes, received_by_row
from meshplan.costmodels.prices.parts import (
    late_gradient_bytes,
    parts_of,
    updates_of_parts,
)
from meshplan.costmodels.prices.tables import Table
from meshplan.costmodels.ranks.memory import (
    constant_slack_bytes,
    context_bytes,
    embedding_gathered_bytes,
    gathered_bytes,
    head_gathered_bytes,
    unpacked_bytes,
)
from meshplan.costmodels.ranks.queued_launches import held_pairs, run_ahead
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.weights.offload import offloads


def least_of_kinds(layouts: Layouts, work: Table, weights: Table) -> dict[str, Floats]:
    """Columns named as in `Prices`, with nothing on its way to the host or back; beyond any device
    where no host takes what is kept there.
    """
    setting, rank = work.rank.setting, weights.rank
    reserved = setting.tuning.reserved_over_working
    scale, alone = 1 + setting.tuning.state_slack_fraction, layouts.pipeline_parallel == 1
    *layers, embedding, head = parts_of(weights)
    gathered = _some(weights, alone, range(len(layers)), lambda k: gathered_bytes(rank, layers[k]))
    beside = weights.rows(embedding_gathered_bytes(rank, embedding)) * alone
    beside = beside + weights.rows(head_gathered_bytes(rank, head))
    empty = setting.engine.legality.layers_count_ends & ~alone  # the first and last stage may be
    loss = work.rows(logits_bytes(work.rank.site)) + 2 * gathered * ~empty + beside
    held = weights.stacked(scale * rank.state_memory(end).allocated for end in (embedding, head))
    update = weights.rows(updates_of_parts(weights)[-2])
    if rank.state.frees_gradients:
        late = late_gradient_bytes(layouts, weights)[:, -2:]
        ends = reserved * beside * rank.state.ends_in_one_unit
        held, update = held - late, update + late[:, 0]
        update = update + beyond_step_bytes(layouts, work, weights, minimum, ends)
    whole, ahead = Rank(setting, layouts), work.rows(run_ahead(work.rank))
    pairs = held_pairs(whole, layouts.num_micro_batches * 1.0, ahead)
    outside = context_bytes(whole) + constant_slack_bytes(whole, pairs) + 0.0 * pairs
    if offloads(layouts):
        outside = outside + beyond_host_bytes(layouts, work, weights)
    return {
        "transient_bytes": reserved * (_replays(work) + 2 * gathered[:, None]),
        "head_transient_bytes": reserved * loss,
        "embedding_state_bytes": held[:, 0],
        "embedding_update_bytes": update,
        "head_state_bytes": held[:, 1] + work.rows(reserved * head_buffer_bytes(work.rank.site)),
        "fixed_bytes": outside
        + reserved * (_outliving(work, alone, empty) + received_by_row(layouts, work)),
    }


def bytes_by_kind(layouts: Layouts, work: Table, weights: Table) -> Floats:
    """[row, part] bytes that a rank's need is made of and that those columns have of one kind alone
    or added up: of two rows that hold the same stages one without more of any part, and of what a
    layer saves, keeps and updates, needs no more. A rank of the only stage has the largest kind's.
    """
    setting, rank, alone = work.rank.setting, weights.rank, layouts.pipeline_parallel == 1
    *layers, embedding, head = parts_of(weights)
    whole, ahead = Rank(setting, layouts), work.rows(run_ahead(work.rank))
    pairs = held_pairs(whole, layouts.num_micro_batches * 1.0, ahead)
    outside = np.zeros(len(layouts)) + context_bytes(whole) + constant_slack_bytes(whole, pairs)
    reserved = setting.tuning.reserved_over_working
    outside += reserved * received_by_row(layouts, work)
    kept = [_kept_bytes(work, (kind,)) for kind in work.layer_kinds]
    ends = [rank.state_memory(end).allocated for end in (embedding, head)]
    gathered = head_gathered_bytes(rank, head), embedding_gathered_bytes(rank, embedding)
    saved = work.by_mode(work.rank.layer_saved_bytes).reshape(len(layouts), -1)
    return np.column_stack([
        *[saved] * setting.waits_on_host,
        _each(weights, alone, [gathered_bytes(rank, part) for part in layers]),
        *(_each(work, alone, [work.rank.working_bytes(kind, mode) for kind in work.kinds])
          for mode in work.modes),
        outside[:, None] + reserved * _each(work, alone, kept),
        outside + reserved * work.rows(_kept_bytes(work, tuple(work.layer_kinds))),
        weights.stacked([*ends, *gathered]),
        work.stacked([logits_bytes(work.rank.site), head_buffer_bytes(work.rank.site)]),
        *bytes_by_mode(layouts, work, weights),
    ])  # fmt: skip


def _kept_bytes(work: Table, kinds: tuple[int, ...]) -> Number:
    """Buffers of layers of `kinds` that outlive their use, beside the gathers' own."""
    kept = work.rank.stand_in_bytes(kinds, with_modules=False) + unpacked_bytes(work.rank, kinds)
    return kept + gather_buffer_bytes(work.rank.site)


def _each(table: Table, alone: Bools, values: Sequence[Number]) -> Floats:
    """[row, kind] what is of each kind; where all are on one rank what is of the largest."""
    columns = table.stacked(values)
    found: Floats = np.where(alone[:, None], columns.max(axis=1, keepdims=True), columns)
    return found


def _replays(work: Table) -> Floats:
    """(N, R) what some replayed layer holds beyond what it kept; modules, which replay nothing,
    count as such a layer where they are one of the stack.
    """
    rank = work.rank
    found = [
        -work.most(-np.asarray(rank.working_bytes(kind, mode)) for kind in work.kinds)
        for mode in work.modes
    ]
    return np.stack(found, axis=1)


def _outliving(work: Table, alone: Bools, empty: Bools) -> Floats:
    """(N,) buffers of layers that outlive their use, but for the head's; none of a stage that may
    be empty.
    """
    rank = work.rank

    def of(kind: int) -> Number:
        kinds = (kind,)
        return rank.stand_in_bytes(kinds, with_modules=False) + unpacked_bytes(rank, kinds)

    layers = _some(work, alone, work.layer_kinds, of) * ~empty
    return layers + work.rows(gather_buffer_bytes(rank.site))


def _some(table: Table, alone: Bools, kinds: range, bytes_of: Callable[[int], Number]) -> Floats:
    """(N,) of the largest kind where all are on one rank, else of the least."""
    each = [np.asarray(bytes_of(kind)) for kind in kinds]
    found: Floats = np.where(alone, table.most(each), -table.most(-one for one in each))
    return found
