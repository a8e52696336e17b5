"""The bytes of `costmodels.prices.prices.Prices`: what each column holds of a rank's memory.

A rank's priced peak is never below the one that `step_memory` finds for the same layers: transients
are those of the largest layer kind, whether a rank holds it or not, and what is whole for a moment
is that of the two largest parts.
"""

import numpy as np

from meshplan.costmodels.elementwise import Number, maximum, where
from meshplan.costmodels.layouts import Floats, Layouts
from meshplan.costmodels.memory.backward_peak import (
    backward_steps,
    left_bytes,
    loss_bytes,
    most_passing_bytes,
    most_put_off_bytes,
    peak_bytes,
)
from meshplan.costmodels.memory.kept_buffers import (
    gather_buffer_bytes,
    head_buffer_bytes,
)
from meshplan.costmodels.memory.receive_buffers import receive_buffer_bytes
from meshplan.costmodels.memory.states import Sharding
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.operations.embedding_head import logits_bytes
from meshplan.costmodels.operations.layers import input_bytes
from meshplan.costmodels.prices.last_replays import beyond_step_bytes
from meshplan.costmodels.prices.parts import (
    late_gradient_bytes,
    parts_of,
    states_of_parts,
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
from meshplan.costmodels.weights.offload import host_share_bytes, offloads


def memory_columns(
    layouts: Layouts, work: Table, weights: Table, ends_saved_bytes: tuple[Number, Number]
) -> dict[str, Floats]:
    """The columns by name; `ends_saved_bytes`: of the embedding and of the head."""
    reserved = work.rank.setting.tuning.reserved_over_working
    gathered = reserved * _largest_gathered_bytes(weights)
    stand_ins = work.rank.stand_in_bytes(work.layer_kinds, with_modules=work.rank.has_modules)
    outliving = stand_ins + unpacked_bytes(work.rank, work.layer_kinds)
    outliving = outliving + gather_buffer_bytes(work.rank.site)
    whole, ahead = Rank(work.setting, layouts), work.rows(run_ahead(work.rank))
    pairs = held_pairs(whole, layouts.num_micro_batches * 1.0, ahead)
    slack = constant_slack_bytes(whole, pairs)  # by the pipeline's depth: by row
    outside = context_bytes(whole) + slack + work.rows(reserved * outliving)
    outside = outside + reserved * received_by_row(layouts, work)
    if offloads(layouts):
        outside = outside + reserved * _on_their_way_bytes(work)
        outside = outside + beyond_host_bytes(layouts, work, weights)
    layers = np.arange(len(work.kinds)) < len(work.layer_kinds)
    stays = 1 - layouts.activation_offload[:, None] * layers
    saved = reserved * work.by_mode(work.rank.layer_saved_bytes)
    columns = _states(layouts, weights, reserved) | _put_off(work, weights, reserved)
    embedding_saved = work.rows(reserved * ends_saved_bytes[0])
    if weights.rank.state.frees_gradients:  # of the only stage, as the embedding is
        columns["embedding_update_bytes"] += beyond_step_bytes(
            layouts, work, weights, maximum, embedding_saved
        )
    columns["head_state_bytes"] += work.rows(reserved * head_buffer_bytes(work.rank.site))
    return columns | {
        "layer_saved_bytes": stays[:, :, None] * saved,
        "transient_bytes": reserved * _replay_bytes(work) + gathered[:, None],
        "embedding_saved_bytes": embedding_saved,
        "head_saved_bytes": work.rows(reserved * ends_saved_bytes[1]),
        "head_transient_bytes": work.rows(reserved * _logits_bytes(work)) + gathered,
        "fixed_bytes": outside,
    }


def least_columns(layouts: Layouts, work: Table, weights: Table) -> dict[str, Floats]:
    """Where passes are counted: bytes no more than any rank holds that are in the place of those
    columns of `memory_columns` that may be more; and what a pass of any rank needs beside what is
    saved at least, of a backward (of its last layer, with its gradient and weights whole), where
    weight products are put off, and of the loss.
    """
    reserved = work.rank.setting.tuning.reserved_over_working
    whole, ahead = Rank(work.setting, layouts), work.rows(run_ahead(work.rank))
    pairs = held_pairs(whole, layouts.num_micro_batches * 1.0, ahead)
    held = weights.stacked(states_of_parts(weights))
    kinds, site = work.rank.setting.model.kinds, work.rank.site
    steps = [backward_steps(site, kinds[kind]) for kind in work.layer_kinds]
    put_off = [peak_bytes(each, put_off=True) for each in steps]
    alone = layouts.pipeline_parallel == 1  # messages take what the head gives back
    given_back = work.rows(2 * input_bytes(site)) * alone
    zero, layers = weights.rank.layout.zero_stage, parts_of(weights)[: len(work.layer_kinds)]
    gathered = where(zero >= 3, float(site.itemsize), 0.0)
    begun, dense = (  # of the layer that a backward begins with
        -weights.most(-(where(zero >= 2, 4.0, 0.0) * of + gathered * (part.dense + part.expert))
                      for part, of in zip(layers, each, strict=True))
        for each in ([part.dense + part.expert for part in layers], [part.dense for part in layers])
    )  # fmt: skip
    messages = work.rows(2 * site.stream_bytes) * ~alone
    return {
        "layer_state_bytes": held[:, :-2],
        "embedding_state_bytes": held[:, -2],
        "head_state_bytes": held[:, -1],
        "fixed_bytes": context_bytes(whole) + constant_slack_bytes(whole, pairs) + 0.0 * pairs,
        "transient_bytes": reserved
        * (begun - work.most(-peak_bytes(each) for each in steps) - given_back),
        "put_off_bytes": reserved * (dense - work.most(-each for each in put_off) - given_back),
        "head_transient_bytes": reserved
        * (work.rows(loss_bytes(site) - site.stream_bytes) + messages),
    }


def one_layer_bytes(layouts: Layouts, work: Table, weights: Table) -> Floats:
    """[row, kind] where passes are counted, what a rank that holds a layer of the kind needs at
    least when its backward is there: its states, weights and gradient whole as in `least_columns`,
    all that the layer saves, kept or made anew, and what its pass makes.
    """
    reserved = work.rank.setting.tuning.reserved_over_working
    kinds, site = work.rank.setting.model.kinds, work.rank.site
    zero, parts = weights.rank.layout.zero_stage, parts_of(weights)[: len(kinds)]
    wide, gathered = where(zero >= 2, 4.0, 0.0), where(zero >= 3, float(site.itemsize), 0.0)
    steps = [backward_steps(site, kind) for kind in kinds]
    each = [gathered * (part.dense + part.expert) for part in parts]
    whole = [of + wide * (part.dense + part.expert) for of, part in zip(each, parts, strict=True)]
    dense = [of + wide * part.dense for of, part in zip(each, parts, strict=True)]
    passing = np.minimum(
        weights.stacked(whole) + work.stacked(peak_bytes(of) for of in steps),
        weights.stacked(dense) + work.stacked(peak_bytes(of, put_off=True) for of in steps),
    )
    alone = layouts.pipeline_parallel == 1  # messages take what the head gives back
    given_back = work.rows(2 * input_bytes(site)) * alone
    saved = work.by_kind(lambda kind: work.rank.layer_saved_bytes(kind, "none"))
    states = weights.stacked(states_of_parts(weights)[: len(kinds)])
    found: Floats = states + reserved * (saved + passing - given_back[:, None])
    return found + context_bytes(Rank(work.setting, layouts))


def received_by_row(layouts: Layouts, work: Table) -> Floats:
    """(N,) what a pipeline's ranks receive into all step long (`receive_buffers`)."""
    sent, apart = work.rows(work.rank.hops.sent_bytes), work.setting.engine.state.receives_apart
    m, pipelined = layouts.num_micro_batches * 1.0, layouts.pipeline_parallel * 1.0
    found: Floats = np.zeros(len(layouts))
    found += receive_buffer_bytes(pipelined, sent, m, apart=apart)
    return found


def _states(layouts: Layouts, weights: Table, reserved: float) -> dict[str, Floats]:
    """Weights, gradients and optimizer state, and what the optimizer step holds, of each part;
    gradients that come late are the step's.
    """
    rank, parts = weights.rank, parts_of(weights)
    states = states_of_parts(weights)
    alone = rank.layout.pipeline_parallel == 1
    beside = where(alone, embedding_gathered_bytes(rank, parts[-2]), 0)
    states[-2] = states[-2] + reserved * beside
    states[-1] = states[-1] + reserved * head_gathered_bytes(rank, parts[-1])
    held = weights.stacked(states)
    update = weights.stacked(updates_of_parts(weights))
    if rank.state.frees_gradients:
        late = late_gradient_bytes(layouts, weights)
        held, update = held - late, update + late
    return {
        "layer_state_bytes": held[:, :-2],
        "embedding_state_bytes": held[:, -2],
        "head_state_bytes": held[:, -1],
        "layer_update_bytes": update[:, :-2],
        "embedding_update_bytes": update[:, -2],
        "head_update_bytes": update[:, -1],
    }


def _largest_gathered_bytes(weights: Table) -> Floats:
    """(N,) two layers of the largest kind as ZeRO-3 holds them; where passes are counted, no less
    than `pass_memory` finds whole for a moment on any rank: of the two largest parts weights under
    ZeRO-3, gradients from ZeRO-2 and what arrives of them from ZeRO-1.
    """
    rank, parts = weights.rank, parts_of(weights)
    if not rank.setting.engine.kernels.counts_passes:
        return weights.most(2 * gathered_bytes(rank, part) for part in parts[:-2])
    zero, sharding = rank.layout.zero_stage, rank.traffic.sharding
    whole = where(zero >= 2, 8.0, 0.0) + where(zero >= 3, 4.0, 0.0)
    return weights.most(
        whole * (part.dense + part.expert) + where(zero >= 1, _arriving_bytes(part, sharding), 0.0)
        for part in parts
    )


def _arriving_bytes(part: RankParameters, sharding: Sharding) -> Number:
    """What arrives of a reduced fp32 gradient: of the experts or of the rest, each over the ranks
    that share it, which may be many for one and few for the other.
    """
    shared = (part.dense, sharding.dense_ranks), (part.expert, sharding.expert_ranks)
    dense, expert = (where(ranks > 1, 4.0 * count / ranks, 0.0) for count, ranks in shared)
    return maximum(dense, expert)


def _replay_bytes(work: Table) -> Floats:
    """(N, R) what the largest replayed layer holds beyond what it kept; where passes are counted,
    with the most alive for a moment in a backward pass.
    """
    rank = work.rank
    replayed = [
        work.most(rank.working_bytes(kind, mode) for kind in work.kinds) for mode in work.modes
    ]
    passing = np.zeros(len(work.of_row))
    if rank.setting.engine.kernels.counts_passes:
        kinds = rank.setting.model.kinds
        passing = work.most(most_passing_bytes(rank.site, kind) for kind in kinds)
    return np.stack(replayed, axis=1) + passing[:, None]


def _put_off(work: Table, weights: Table, reserved: float) -> dict[str, Floats]:
    """What is held where weight products are put off; where an engine's passes are not counted, 0:
    it keeps what it saved.
    """
    kinds, site = work.rank.setting.model.kinds, work.rank.site
    assert not (work.setting.places_modules and work.rank.setting.engine.kernels.counts_passes)
    if not work.rank.setting.engine.kernels.counts_passes:
        nothing = np.zeros((len(work.of_row), len(work.kinds)))
        waiting = {"layer_deferred_bytes": nothing, "layer_waiting_bytes": nothing}
        return waiting | {"put_off_bytes": nothing[:, 0]}
    whole = where(weights.rank.layout.zero_stage >= 2, 4.0 * reserved, 0.0)
    deferred = work.by_kind(
        lambda kind: (
            work.rank.layer_saved_bytes(kind, "none")
            + left_bytes(backward_steps(site, kinds[kind]))
        )
    )
    return {
        "layer_deferred_bytes": reserved * deferred,
        "layer_waiting_bytes": weights.stacked(
            whole * (part.dense + part.expert) for part in parts_of(weights)[:-2]
        ),
        "put_off_bytes": reserved * work.most(most_put_off_bytes(site, kind) for kind in kinds),
    }


def _logits_bytes(work: Table) -> Number:
    site = work.rank.site
    if work.rank.setting.engine.kernels.counts_passes:
        return loss_bytes(site) + 2 * input_bytes(site)  # and two messages of a pipeline
    return logits_bytes(site)


def _on_their_way_bytes(work: Table) -> Floats:
    """(N,) two layers of the largest kind on their way to the host or back."""
    some = work.rank.layout.activation_offload > 0
    return work.most(
        2 * some * work.rank.layer_saved_bytes(kind, "none") for kind in work.layer_kinds
    )


def beyond_host_bytes(layouts: Layouts, work: Table, weights: Table) -> Floats:
    """(N,) more than any device holds where the host cannot take what even the mean rank sends it
    (one micro-batch of activations), 0 elsewhere and where its size is not known.
    """
    setting, rank = work.rank.setting, weights.rank
    room = host_share_bytes(setting.cluster, layouts.world_size * 1.0)
    if room is None:
        return np.zeros(len(layouts))
    counts = [setting.stack.count(kind) for kind in work.kinds]
    states = (rank.state_memory(part) for part in parts_of(weights))
    away = weights.stacked(state.host for state in states) @ np.array([*counts, 1, 1], np.float64)
    least = work.by_kind(lambda kind: work.rank.layer_saved_bytes(kind, "full"))
    saved = layouts.activation_offload * (
        least[:, work.layer_kinds] @ np.array(counts, np.float64)[work.layer_kinds]
    )
    sent = (away + saved) / layouts.pipeline_parallel
    return np.where(sent > room, setting.cluster.gpu.memory_bytes + sent - room, 0.0)
