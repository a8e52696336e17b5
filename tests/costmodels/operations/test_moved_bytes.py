"""Bytes that elementwise kernels move, by hand: tensors that each reads and writes, forward and
backward, in 16 bits. A kernel that is not measured takes these over the memory's bandwidth.
"""

from dataclasses import replace

import pytest
from sites import S, site

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.embedding_head import embedding_operations
from meshplan.costmodels.operations.experts import choose
from meshplan.costmodels.operations.kinds import Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.hardware_profiles.load_models import load_model_config

LLAMA, NEXT = "llama-3.1-8b", "qwen3-next-80b-a3b"


@pytest.mark.parametrize(
    ("name", "kernel", "elements", "forward", "backward"),
    [
        pytest.param(LLAMA, "embedding", 4096, 2, 3, id="a row out, in; its gradient added"),
        pytest.param(LLAMA, "attention_norm", 4096, 2, 3, id="x in, y out; dy, x in, dx out"),
        pytest.param(LLAMA, "attention_residual", 4096, 3, 3, id="two in, their sum out"),
        pytest.param(LLAMA, "rotary", (32 + 8) * 128, 2, 2, id="q and k in and out"),
        pytest.param(LLAMA, "activation", 14336, 3, 5, id="gate, up in; dy, gate, up in, two out"),
        pytest.param(NEXT, "gated_output", 16 * 256, 3, 5, id="y, gate in; dy, both in, two out"),
        pytest.param(
            NEXT, "convolution", 2 * 16 * 128 + 32 * 128, 2, 4,
            id="x in, y out; dy, x, y (its SiLU) in, dx out",
        ),
        pytest.param(NEXT, "recurrent_norm", 32 * 128, 3, 5, id="normed and gated as gated_output"),
        pytest.param(
            NEXT, "gated_shared", 2048, 2, 4, id="y in and out; dy in, dx out, both for the gate"
        ),
    ],
)  # fmt: skip
def test_tensors_read_and_written(
    name: str, kernel: str, elements: int, forward: int, backward: int
) -> None:
    """`elements` of each token in 2 bytes, so often."""
    model = model_from_config(load_model_config(name), name)
    where = site(model, 1, 1, sequence_parallel=False)
    where = replace(where, kernels=where.kernels.model_copy(update={"dropout": False}))
    operations = (
        *embedding_operations(where),
        *(op for kind in model.kinds for op in layer_operations(where, kind)),
    )
    moved = {
        (op.forward_bytes, op.backward_bytes)
        for op in operations
        if isinstance(op, Pointwise) and op.name == kernel
    }
    once = 2 * S * elements
    assert moved == {(forward * once, backward * once)}


def test_a_router_moves_fp32_scores() -> None:
    """Of 3 tokens and 8 experts: read, written by the softmax and read by the choice; backward the
    softmax's output read and the scores' gradient written.
    """
    op = choose(3, 8)
    assert (op.forward_bytes, op.backward_bytes) == (3 * 4 * 24, 2 * 4 * 24)
