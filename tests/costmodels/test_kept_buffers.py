"""What Megatron-Core holds beside states and what layers save, by hand, on Llama 3 8B."""

import pytest
from rows import ROW

from costmodels.blocks import layer_operations
from costmodels.ends import logits_bytes
from costmodels.feed_forward import Site
from costmodels.kept_buffers import head_buffer_bytes, stand_in_bytes
from costmodels.operations import Communication
from costmodels.shard import shard_of
from hardware_profiles.engine_schema import KernelHabits
from hardware_profiles.engines import load_engine
from planner.runs import run_of

MEGATRON = load_engine("megatron").kernels
H, F, KV, V, S = 4096, 14336, 1024, 128256, 8192


def site(changes: dict[str, str], kernels: KernelHabits = MEGATRON) -> Site:
    run = run_of(ROW | {"framework": "megatron-lm"} | changes)
    return Site(run.model, shard_of(run.layout, run.training), kernels)


@pytest.mark.parametrize("tp", [pytest.param(1, id="whole"), pytest.param(2, id="halves")])
def test_one_stand_in_for_each_shape_of_weight(tp: int) -> None:
    """2 (h (h + 2 kv) + h h + 3 h f) / tp bytes, however many layers there are."""
    layer = 2 * (H * (H + 2 * KV) + H * H + 3 * H * F) / tp
    for layers in ("32", "64"):
        where = site({"tp": str(tp), "dp": str(8 // tp), "layers": layers})
        assert stand_in_bytes(where) == layer


def test_experts_share_one_stand_in() -> None:
    """Of 8 experts on the rank each has the same shape: 3 h f of one, none for the router."""
    moe = {"experts": "8", "top_k": "2", "moe_ffn": str(F), "ep": "1", "dp": "8"}
    assert stand_in_bytes(site(moe)) == stand_in_bytes(site({}))


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


def test_other_engines_keep_none() -> None:
    """FSDP's gradients are autograd's own."""
    where = site({}, load_engine("torchtitan").kernels)
    assert (stand_in_bytes(where), head_buffer_bytes(where)) == (0.0, 0.0)


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
    """Each way q, k and v of the rank's tokens, then the output: 2 t (h + 2 kv + h); the kernel
    keeps the output of other tokens, 2 t h, and communication is seen.
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
