"""What Megatron-Core holds beside states and what layers save, by hand, on Llama 3 8B."""

from dataclasses import replace

import pytest
from rows import ROW

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.memory.kept_buffers import (
    gather_buffer_bytes,
    head_buffer_bytes,
    stand_in_bytes,
)
from meshplan.costmodels.operations.embedding_head import logits_bytes
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import shard_of
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.kernel_habits import KernelHabits
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model

MEGATRON = load_engine("megatron").kernels
H, F, KV, V, S = 4096, 14336, 1024, 128256, 8192


def site(changes: dict[str, str], kernels: KernelHabits = MEGATRON) -> Site:
    run = run_of(ROW | {"framework": "megatron-lm"} | changes)
    return Site(run.model, shard_of(run.layout, run.training), kernels)


def stand_ins(where: Site, kinds: tuple[int, ...]) -> Number:
    """Of one layer of each of `kinds`."""
    layers = [op for kind in kinds for op in layer_operations(where, where.model.kinds[kind])]
    return stand_in_bytes(where, layers)


@pytest.mark.parametrize("tp", [pytest.param(1, id="whole"), pytest.param(2, id="halves")])
def test_one_stand_in_for_each_shape_of_weight(tp: int) -> None:
    """2 (h (h + 2 kv) + h h + 3 h f) / tp bytes, however many layers there are."""
    layer = 2 * (H * (H + 2 * KV) + H * H + 3 * H * F) / tp
    for layers in ("32", "64"):
        where = site({"tp": str(tp), "dp": str(8 // tp), "layers": layers})
        assert stand_ins(where, (0,)) == layer


def test_experts_share_one_stand_in() -> None:
    """Of 8 experts on the rank each has the same shape: 3 h f of one, none for the router."""
    moe = {"experts": "8", "top_k": "2", "moe_ffn": str(F), "ep": "1", "dp": "8"}
    dense = stand_ins(site({}), (0,))
    assert stand_ins(site(moe), (0,)) == dense


@pytest.mark.parametrize(
    ("shared", "kinds", "shapes"),
    [
        pytest.param(0, (1,), 3 * H * 1280, id="experts: 3 h f"),
        pytest.param(1, (1,), 3 * H * 1280, id="a shared expert of their shape: none more"),
        pytest.param(2, (1,), 9 * H * 1280, id="of twice their width: 3 h 2 f more"),
        pytest.param(0, (0, 1), 3 * H * 1280 + 3 * H * F, id="a dense layer too: 3 h ffn"),
    ],
)
def test_stand_ins_of_layers_of_several_kinds(
    shared: int, kinds: tuple[int, ...], shapes: float
) -> None:
    """By shape, whatever the weights are called; attention's 2 h h + 2 h kv are in both kinds."""
    row = {"experts": "8", "top_k": "2", "moe_ffn": "1280", "shared_experts": str(shared),
           "dense_layers": "1", "ep": "1", "dp": "8", "params_b": ""}  # fmt: skip
    held = stand_ins(site(row), kinds)
    assert held == 2 * (2 * H * H + 2 * H * KV + shapes)


def test_frozen_weights_have_none() -> None:
    """LoRA beside a frozen model: no gradient of a weight."""
    run = run_of(ROW | {"framework": "megatron-lm"})
    frozen = run_of(ROW | {"framework": "megatron-lm", "model": "Llama 3 8B LoRA"})
    assert step_model(run, Tuning()).site.kernels.keeps_buffers
    assert not step_model(frozen, Tuning()).site.kernels.keeps_buffers


def test_each_rank_keeps_what_its_layers_need() -> None:
    """Two stages: the head's buffers on the last only, and a dense layer's on the first only."""
    row = ROW | {
        "framework": "megatron-lm", "layers": "4", "experts": "8", "top_k": "2", "moe_ffn": "1024",
        "dense_layers": "1", "pp": "2", "dp": "4", "ep": "1", "global_batch": "64",
    }  # fmt: skip
    run = run_of(row)
    plain = run.engine.kernels.model_copy(update={"keeps_buffers": False})
    without = replace(run, engine=run.engine.model_copy(update={"kernels": plain}))
    kept = [
        more.transient - less.transient
        for more, less in zip(
            step_model(run, Tuning()).memory(), step_model(without, Tuning()).memory(), strict=True
        )
    ]
    attention, experts = 2 * H * H + 2 * H * KV, 3 * H * 1024
    assert kept == [2 * (attention + experts + 3 * H * F), 2 * (attention + experts + V * H)]


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        pytest.param(1, 2 * V * H, id="2 V h: the table's stand-in"),
        pytest.param(4, 2 * S * H + 2 * V * H / 4, id="2 t h gathered, 2 V h / 4"),
    ],
)
def test_the_head_keeps_its_gathered_input(tp: int, expected: float) -> None:
    """128,256 columns divide by 128 x 4."""
    assert head_buffer_bytes(site({"tp": str(tp), "dp": str(8 // tp)})) == expected


def test_the_table_is_filled_up_to_equal_rows_of_the_ranks() -> None:
    """128,257 columns on 4 ranks: 128,260 / 4 of them on each."""
    held = head_buffer_bytes(site({"tp": "4", "dp": "2", "vocab": str(V + 1)}))
    assert held == 2 * S * H + 2 * (V + 4) / 4 * H


def test_other_engines_keep_none() -> None:
    """FSDP's gradients are autograd's own."""
    where = site({}, load_engine("torchtitan").kernels)
    held = stand_ins(where, (0,)), head_buffer_bytes(where)
    assert held == (0.0, 0.0)


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        pytest.param(8.0, 8 * S * V, id="the loss: 8 t V"),
        pytest.param(2.0, 2 * S * (V + H), id="the head's backward: 2 t V + 2 t h"),
    ],
)
def test_the_gradient_of_the_heads_input_comes_beside_that_of_the_logits(
    each: float, expected: float
) -> None:
    """Where the loss works in place, the head's own backward holds more."""
    kernels = MEGATRON.model_copy(update={"logits_bytes": each})
    assert logits_bytes(site({}, kernels)) == expected


def test_heads_exchanged_for_tokens() -> None:
    """Each way q, k and v of the rank's tokens, then the output, all seen: 2 t (h + 2 kv + h).
    The kernel keeps the output of other tokens, 2 t h, unless it is replayed.
    """
    kernels = MEGATRON.model_copy(update={"context": "all_to_all"})
    ring, exchanged = (site({"cp": "4", "dp": "2"}, habits) for habits in (MEGATRON, kernels))
    tokens = S / 4
    (sent,) = (
        op for op in layer_operations(exchanged, exchanged.model.kinds[0])
        if isinstance(op, Communication) and op.axis == "cp"
    )  # fmt: skip
    assert (sent.kind, sent.hidden_by) == ("all_to_all", "nothing")
    assert sent.size_bytes == 2 * tokens * (2 * H + 2 * KV)
    saved = [
        sum(op.saved_bytes for op in layer_operations(where, where.model.kinds[0]))
        for where in (ring, exchanged)
    ]
    assert saved[1] - saved[0] == 2 * tokens * H
    (core,) = (
        op for op in layer_operations(exchanged, exchanged.model.kinds[0])
        if isinstance(op, AttentionCore)
    )  # fmt: skip
    assert core.saved_bytes == 2 * tokens * H + 4 * tokens * 32  # and a number for each query head
    assert core.modules == ("core_attention", "attention")


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        pytest.param(1, 0.0, id="nothing is gathered"),
        pytest.param(4, 2 * 2 * S * H, id="2 t h of inputs, 2 t h of output gradients"),
    ],
)
def test_gathers_write_to_buffers_that_stay(tp: int, expected: float) -> None:
    """nanotron's two, whatever the layer; Megatron's layers have none."""
    changes = {"tp": str(tp), "dp": str(8 // tp)}
    assert gather_buffer_bytes(site(changes, load_engine("nanotron").kernels)) == expected
    assert gather_buffer_bytes(site(changes)) == 0.0


def test_every_rank_keeps_them() -> None:
    """Of a pipeline each rank gathers: 2 x 2 t h on both."""
    run = run_of(ROW | {"framework": "nanotron", "layers": "4", "pp": "2", "tp": "2", "dp": "2"})
    plain = run.engine.kernels.model_copy(update={"gather_buffers": 0})
    without = replace(run, engine=run.engine.model_copy(update={"kernels": plain}))
    pairs = zip(
        step_model(run, Tuning()).memory(), step_model(without, Tuning()).memory(), strict=True
    )
    assert [more.transient - less.transient for more, less in pairs] == [4.0 * S * H] * 2
