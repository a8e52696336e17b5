"""The legal space against a naive enumeration, the counts of what was dropped, and the pins."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layout import InvalidLayout, Layout, check_layout, even_stages
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.axis_rules import divisors
from meshplan.planner.space.legal_layouts import Space, Variant, enumerate_space
from meshplan.planner.space.pins import PinError, Pins, parse_pin, parse_pins
from meshplan.planner.space.stage_splits import can_split, splits

Questions = Callable[..., Question]


def space_of(question: Question) -> Space:
    """The space of `question`."""
    q = question
    return enumerate_space(q.model, q.training, q.gpus, q.engine, q.pins, q.cluster.gpus_per_node)


def degrees_of(space: Space) -> set[tuple[int, ...]]:
    """(tp, cp, pp, ep, mbs, zero) of each row."""
    layouts = space.layouts
    columns = (
        layouts.tensor_parallel, layouts.context_parallel, layouts.pipeline_parallel,
        layouts.expert_parallel, layouts.micro_batch_size, layouts.zero_stage,
    )  # fmt: skip
    return set(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("pattern", [(0, 0, 0, 0), (0, 1, 1, 1)])
@pytest.mark.parametrize(("gpus", "batch"), [(4, 8), (6, 12), (8, 16)])
def test_space_is_what_check_layout_allows(
    pattern: tuple[int, ...], gpus: int, batch: int, question: Questions
) -> None:
    """Trying every product of degrees against `check_layout` gives the same rows."""
    asked = question(
        pattern, gpus, batch, micro_batches_at_least_pp=False, schedules=("1f1b",),
        hybrid_shard=False, kv_heads_divide=False,
    )  # fmt: skip
    legal = set()
    for tp, cp, pp, ep, mbs, zero in itertools.product(
        range(1, gpus + 1), range(1, gpus + 1), range(1, 5), range(1, 5), range(1, 17),
        range(4),
    ):  # fmt: skip
        dp, rest = divmod(gpus, tp * cp * pp)
        if rest or dp == 0 or (dp * cp == 1 and zero > 0):
            continue
        layout = Layout(
            data_parallel=dp, tensor_parallel=tp, context_parallel=cp, pipeline_parallel=pp,
            expert_parallel=ep, micro_batch_size=mbs, zero_stage=zero,
            stages=even_stages(len(pattern), pp),
        )  # fmt: skip
        try:
            check_layout(layout, asked.model, asked.training)
        except InvalidLayout:
            continue
        legal.add((tp, cp, pp, ep, mbs, zero))
    assert degrees_of(space_of(asked)) == legal


@pytest.mark.parametrize("engine", engine_names())
def test_rows_use_all_gpus_and_reach_the_batch(engine: str, question: Questions) -> None:
    """In every engine's space dp tp cp pp is the number of GPUs and mbs dp m the batch, exactly."""
    asked = replace(question((0, 0, 1, 1, 1, 1), 16, 32), engine=load_engine(engine))
    layouts = space_of(asked).layouts
    world = layouts.data_parallel * layouts.tensor_parallel * layouts.context_parallel
    assert len(layouts)
    assert (world * layouts.pipeline_parallel == 16).all()
    assert (
        layouts.micro_batch_size * layouts.data_parallel * layouts.num_micro_batches == 32
    ).all()
    assert np.isin(layouts.zero_stage, asked.engine.legality.zero_stages).all()
    assert (layouts.data_parallel * layouts.context_parallel % layouts.shard_group == 0).all()


@pytest.mark.parametrize("engine", ["generic", "megatron", "native"])
def test_rows_by_variant_are_those_of_each_row(engine: str, question: Questions) -> None:
    """Grouped at once as row by row, in any order of the rows; with activations on the host, where
    Megatron recomputes none.
    """
    asked = replace(question((0, 0, 1, 1, 1, 1), 16, 32), engine=load_engine(engine))
    if asked.engine.legality.activation_offload != "never":
        asked = replace(asked, pins=parse_pins({"activation_offload": "off,on"}))
    space = space_of(asked)
    rows = np.random.default_rng(18).permutation(len(space.layouts))
    groups: dict[tuple[int, Variant], list[int]] = {}
    for row in rows.tolist():
        for variant in space.variants(row):
            pp = int(space.layouts.pipeline_parallel[row])
            groups.setdefault((pp, variant), []).append(row)
    found = [(variant, same.tolist()) for variant, same in space.by_variant(rows)]
    assert found == [(variant, same) for (_, variant), same in groups.items()]


def test_shards_are_those_of_all_ranks_or_of_a_node(question: Questions) -> None:
    """24 GPUs, 8 a node: of dp x cp ranks that shard, all together, and where whole nodes of them
    make it up also the 8 / tp of one node; without sharding each alone.
    """
    asked = question((0, 0, 1, 1), 24, 48, hybrid_shard=True)
    asked = replace(asked, cluster=asked.cluster.model_copy(update={"gpus_per_node": 8}))
    layouts = space_of(asked).layouts
    found: dict[tuple[int, int, bool], set[int]] = {}
    for tp, dp, cp, zero, group in zip(
        layouts.tensor_parallel.tolist(), layouts.data_parallel.tolist(),
        layouts.context_parallel.tolist(), layouts.zero_stage.tolist(),
        layouts.shard_group.tolist(), strict=True,
    ):  # fmt: skip
        found.setdefault((tp, dp * cp, zero > 0), set()).add(group)
    for (tp, ranks, sharded), groups in found.items():
        node = 8 // tp
        hybrid = {node} if 1 < node < ranks and ranks % node == 0 else set()
        assert groups == ({ranks} | hybrid if sharded else {1})
    assert found[1, 24, True] == {8, 24}
    assert found[2, 12, True] == {4, 12}


@pytest.mark.parametrize(
    ("rule", "pin", "expected"),
    [("optional", None, {0, 1}), ("optional", "off", {0}), ("always", None, {1}),
     ("never", None, {0}), ("never", "on", set())],
)  # fmt: skip
def test_sequence_parallelism_is_a_choice_where_the_engine_has_it(
    rule: str, pin: str | None, expected: set[int], question: Questions
) -> None:
    """Of tensor-parallel ranks; there is nothing to cut on one."""
    pins = parse_pins({"sequence_parallel": pin} if pin else {})
    asked = replace(question((0, 0), 4, 8, sequence_parallel=rule), pins=pins)
    layouts = space_of(asked).layouts
    several = layouts.tensor_parallel > 1
    assert set(layouts.sequence_parallel[several].tolist()) == expected
    assert not layouts.sequence_parallel[~several].any()


@pytest.mark.parametrize(("gpus", "expected"), [
    pytest.param(16, {2, 16}, id="8 x 2: of four nodes two groups are left"),
    pytest.param(64, {2, 8, 64}, id="64 / 8 = 8 groups of four nodes; of 16 nodes two"),
    pytest.param(256, {2, 8, 32, 256}, id="256 / 32 = 8 groups of 16 nodes; of 64 two"),
    pytest.param(1024, {2, 8, 32, 128, 1024}, id="1024 / 128 = 8 groups of 64 nodes"),
])  # fmt: skip
def test_shard_groups_of_several_nodes_leave_eight(
    gpus: int, expected: set[int], question: Questions
) -> None:
    """Nodes of two GPUs, each a replica: groups of 1, 4, 16 and 64 nodes, and all."""
    asked = question((0, 0), gpus, gpus, hybrid_shard=True, zero_stages=(1,))
    asked = replace(
        asked, cluster=asked.cluster.model_copy(update={"gpus_per_node": 2}),
        pins=parse_pins({"data_parallel": str(gpus)}),
    )  # fmt: skip
    assert set(space_of(asked).layouts.shard_group.tolist()) == expected


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_shard_group_of_0_is_all_ranks(hybrid: bool, question: Questions) -> None:
    """As in a layout: the pin 0 leaves what shards over all of dp x cp, or does not shard."""
    asked = question((0, 0), 8, 8, hybrid_shard=hybrid)
    free = space_of(asked).layouts
    kept = space_of(replace(asked, pins=parse_pins({"shard_group": "0"}))).layouts
    sharded = kept.zero_stage > 0
    replicas = kept.data_parallel * kept.context_parallel
    assert (kept.shard_group == np.where(sharded, replicas, 1)).all()
    whole = np.where(free.zero_stage > 0, free.data_parallel * free.context_parallel, 1)
    assert len(kept) == np.count_nonzero(free.shard_group == whole) > 0


def test_pins_only_remove(question: Questions) -> None:
    """A pinned space is the free space's rows that the pins allow, and says how many it dropped."""
    asked = question((0, 0, 1, 1), 8, 16)
    free = space_of(asked)
    pinned = space_of(
        replace(asked, pins=parse_pins({"pipeline_parallel": "2,4", "zero_stage": "1.."}))
    )
    assert degrees_of(pinned) == {
        row for row in degrees_of(free) if row[2] in (2, 4) and row[5] >= 1
    }
    assert pinned.dropped["pinned: pipeline_parallel 2,4"] > 0
    assert pinned.dropped["pinned: zero_stage 1.."] > 0


def test_pinned_axes_lift_default_ranges(question: Questions) -> None:
    """Tensor parallelism beyond a node and micro-batches of 22 are there where asked for."""
    asked = question((0, 0), 16, 44, kv_heads_divide=False)
    assert set(space_of(asked).layouts.micro_batch_size.tolist()) == {1, 2, 4, 11}
    wide = replace(asked, pins=parse_pins({"micro_batch_size": "22"}))
    assert set(space_of(wide).layouts.micro_batch_size.tolist()) == {22}


def test_every_dropped_row_has_a_reason(question: Questions) -> None:
    """Four GPUs and a batch of eighteen, by hand: what each rule on the batch drops."""
    asked = question(
        (0, 0), 4, 18, zero_stages=(0,), context_parallel=False, kv_heads_divide=False,
        micro_batches_at_least_pp=False,
    )  # fmt: skip
    # (tp, pp) of 4 GPUs: (1,1) (1,2) (2,1) (2,2) (4,1), so dp 4 2 2 1 1; mbs 1 2 3 6 9, not 18
    dropped = space_of(asked).dropped
    assert dropped["micro_batch_size not 1 to 16, 20, 24, 32, 40, 48 or 64 (a pin opens it)"] == 5
    # dp 4 never divides 18: five; dp 2, twice: not with mbs 2 or 6
    assert dropped["data_parallel x micro_batch_size misses the global batch"] == 9


def test_one_rank_is_not_chunked(question: Questions) -> None:
    """A single pipeline rank has one variant per set of recompute modes: nothing to interleave."""
    space = space_of(question((0, 0), 2, 4))
    for row in np.flatnonzero(space.layouts.pipeline_parallel == 1):
        assert [v.virtual_stages for v in space.variants(int(row))] == [1]


def test_a_pin_of_chunks_leaves_no_others(question: Questions) -> None:
    """Of 1F1B and up to four chunks of eight layers on two ranks."""
    asked = question((0,) * 8, 2, 4, schedules=("1f1b", "interleaved_1f1b"))
    for text, chunks in (("2", {2}), ("1,4", {1, 4}), ("1..4", {1, 2, 3, 4})):
        space = space_of(replace(asked, pins=parse_pins({"virtual_stages": text})))
        rows = np.flatnonzero(space.layouts.pipeline_parallel == 2).tolist()
        found = {each.virtual_stages for row in rows for each in space.variants(row)}
        assert found == chunks, text


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param("any", {((0, 1, 2), False)}, id="each layer as it likes"),
        pytest.param(
            "first", {((0, 2), True), ((1,), False)}, id="the first in full, or all alike"
        ),
        pytest.param("alike", {((0,), False), ((1,), False), ((2,), False)}, id="all alike"),
    ],
)
def test_which_layers_recompute_is_the_engines_rule(
    rule: str, expected: set[tuple[tuple[int, ...], bool]], question: Questions
) -> None:
    """Modes that layers mix, and whether those in full are the first of each stage."""
    asked = question((0,) * 4, 2, 4, recompute_layers=rule, uneven_stages="even")
    space = space_of(asked)
    rows = range(len(space.layouts))
    assert {(each.modes, each.first) for row in rows for each in space.variants(row)} == expected


def test_gpipe_stands_back_for_1f1b_where_passes_wait_for_sends(question: Questions) -> None:
    """GPipe then takes 1F1B's time and more memory: it is a variant only where 1F1B is not."""
    hidden = space_of(question((0, 0, 0, 0), 4, 8, schedules=("gpipe", "1f1b")))
    row = int(np.flatnonzero(hidden.layouts.pipeline_parallel == 2)[0])
    assert [v.schedule for v in hidden.variants(row)] == ["1f1b", "gpipe"]
    waits = {"hides_sends": False}
    both = space_of(question((0, 0, 0, 0), 4, 8, schedules=("gpipe", "1f1b"), **waits))
    alone = space_of(question((0, 0, 0, 0), 4, 8, schedules=("gpipe",)))
    row = int(np.flatnonzero(both.layouts.pipeline_parallel == 2)[0])
    assert {v.schedule for v in both.variants(row)} == {"1f1b"}
    row = int(np.flatnonzero(alone.layouts.pipeline_parallel == 2)[0])
    assert {v.schedule for v in alone.variants(row)} == {"gpipe"}


@pytest.mark.parametrize(
    ("rules", "pp", "vpp", "expected"),
    [
        pytest.param(("even", False), 4, 1, {(2, 2, 2, 2)}, id="8 / 4"),
        pytest.param(("even", True), 2, 1, {(4, 4), (4, 4)}, id="(8 + 0) / 2; 9 / 2 does not go"),
        pytest.param(("even", True), 5, 1, {(1, 2, 2, 2, 1)}, id="(8 + 2) / 5, less the ends"),
        pytest.param(("ends", False), 3, 2, {(1, 1, 2, 1, 1, 2), (1, 2, 1, 1, 2, 1),
                                             (2, 1, 1, 2, 1, 1)}, id="two rounds of a + b + c = 4"),
        pytest.param(("ends", False), 6, 1, {(1, 1, 1, 1, 1, 3), (2, 1, 1, 1, 1, 2),
                                             (3, 1, 1, 1, 1, 1)}, id="4 of 1 leave 4 to the ends"),
    ],
)  # fmt: skip
def test_engine_splits_by_hand(
    rules: tuple[str, bool], pp: int, vpp: int, expected: set[tuple[int, ...]], question: Questions
) -> None:
    """Eight layers as an engine with its own rule cuts them."""
    asked = question((0,) * 8, 2, 2, uneven_stages=rules[0], layers_count_ends=rules[1])
    ways = splits(asked.model, asked.engine.legality, pp, vpp)
    assert set(ways or ()) == expected
    assert can_split(asked.model, asked.engine.legality, pp, vpp)


@given(st.integers(1, 10**6))
def test_divisors(number: int) -> None:
    """Every divisor divides, they come in pairs, and 1 and the number are among them."""
    found = divisors(number)
    assert found[0] == 1
    assert found[-1] == number
    assert all(number % d == 0 and number // d in found for d in found)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("8", 8, 4), ("1,3", 3, 2), ("1..16", 16, 17), ("4..", 10**9, 3), ("..8", 1, 0)],
)
def test_pins_are_read(text: str, inside: int, outside: int) -> None:
    """A pin is a value, a list or a range, open at either end."""
    pin = parse_pin("tensor_parallel", text)
    assert pin.allows(inside)
    assert not pin.allows(outside)
    assert pin.allows_each(np.array([inside, outside])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("axis", "text", "part"),
    [
        ("tensor_parallel", "eight", "'eight'"),
        ("tensor_parallel", "16..1", "'16..1'"),
        ("tensor_parallel", "", "whole number"),
        ("tensor_parallel", "0", "at least 1"),
        ("zero_stage", "4", "from 0 to 3"),
        ("pipeline_parallel", "0..4", "'0..4' does not exist; it is at least 1"),
        ("pipeline_parallel", "-1", "'-1' does not exist; it is at least 1"),
        ("pipeline_parallel", "9" * 20, "does not exist; it is from 1 to 4611686018427387904"),
        ("micro_batch_size", "0..", "at least 1"),
        ("zero_stage", "4..9", "from 0 to 3"),
        ("zero_stage", "1..9", "from 0 to 3"),
        ("recompute", "some", "none, selective, full"),
        ("schedule", "dualpipe", "dualpipe_v over 8"),
        ("tensors", "8", "tensor_parallel"),
    ],
)
def test_unreadable_pins(axis: str, text: str, part: str) -> None:
    """A pin that cannot be read gives one line with the value and what would do."""
    with pytest.raises(PinError, match=r".+") as error:
        parse_pin(axis, text)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_pins_without_an_axis() -> None:
    """Dropping a pin frees its axis and leaves the others."""
    pins = parse_pins({"tensor_parallel": "8", "recompute": "full"})
    assert pins.describe() == ("tensor_parallel 8", "recompute full")
    freed = pins.without("tensor_parallel")
    assert freed.allows("tensor_parallel", 3)
    assert not freed.allows("recompute", "none")
    assert Pins().allows("zero_stage", 3)


@pytest.mark.parametrize("gpus_per_node", [1, 4, 8])
def test_tensor_parallelism_leaves_small_nodes(question: Questions, gpus_per_node: int) -> None:
    """Up to 8 ranks without a pin."""
    asked = question((0, 0), 16, 16, kv_heads_divide=False)
    cluster = asked.cluster.model_copy(update={"gpus_per_node": gpus_per_node})
    assert space_of(replace(asked, cluster=cluster)).layouts.tensor_parallel.max() == 8


def test_tensor_parallelism_fills_large_nodes(question: Questions) -> None:
    """16 GPUs in one node: 16 ranks without a pin, however many sequences there are."""
    q = question((0, 0), 16, 64, kv_heads_divide=False)
    q = with_heads(replace(q, cluster=q.cluster.model_copy(update={"gpus_per_node": 16})), 16)
    assert space_of(q).layouts.tensor_parallel.max() == 16


def with_heads(q: Question, heads: int) -> Question:
    """`q` of a model with so many heads in each layer."""
    kinds = tuple(
        replace(kind, attention=replace(kind.attention, heads=heads)) for kind in q.model.kinds
    )
    return replace(q, model=replace(q.model, kinds=kinds))


@pytest.mark.parametrize(
    ("batch", "widest"),
    [
        pytest.param(2, 8, id="2 sequences on 16 / 8 = 2 nodes: a node's 8"),
        pytest.param(1, 16, id="1 sequence on 2 nodes: 16"),
    ],
)
def test_tensor_parallelism_leaves_nodes_where_sequences_are_fewer(
    question: Questions, batch: int, widest: int
) -> None:
    """Of 16 GPUs, also where 32 are asked about at once."""
    q = with_heads(question((0, 0), 16, batch, kv_heads_divide=False), 16)
    assert space_of(q).layouts.tensor_parallel.max() == widest
    both = enumerate_space(q.model, q.training, [16, 32], q.engine, q.pins, 8).layouts
    ranks = both.tensor_parallel * both.context_parallel * both.pipeline_parallel
    of_16 = both.data_parallel * ranks == 16
    assert both.tensor_parallel[of_16].max() == widest


def test_a_schedule_that_the_engine_lacks_is_the_reason(question: Questions) -> None:
    """Not the pipeline and the accumulation, which other schedules run."""
    asked = question((0, 0, 0, 0), 4, 8, schedules=("1f1b",))
    space = space_of(replace(asked, pins=parse_pins({"schedule": "zb_v"})))
    assert not degrees_of(space)
    assert list(space.dropped)[-1] == "the engine runs none of the pinned schedules"
    both = space_of(replace(asked, pins=parse_pins({"schedule": "zb_v,1f1b"})))
    assert degrees_of(both) == degrees_of(space_of(asked))
