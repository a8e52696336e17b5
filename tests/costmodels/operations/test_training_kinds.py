"""States in 16 bits and packed documents, by hand: what they change, and what they do not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_steps import ALONE, LLAMA, step

from meshplan.costmodels.model.parameters import model_parameters


@pytest.mark.parametrize(
    ("engine", "zero", "ranks", "each"),
    [
        pytest.param("generic", 0, 1, 2 + 2 + 4, id="weights 2, gradients 2, moments 4"),
        pytest.param("torchtitan", 3, 8, (2 + 2 + 4) / 8, id="FSDP: an eighth of the same"),
    ],
)
def test_bf16_states_by_hand(engine: str, zero: int, ranks: int, each: float) -> None:
    """AdamW on 16-bit weights keeps no fp32 copy; an update moves half the bytes and rounds none:
    28 / 2 + 12 / 2 for each number.
    """
    layout = replace(ALONE, data_parallel=ranks, zero_stage=zero)
    narrow = step(None, layout, engine, optimizer_states="bf16")
    wide = step(None, layout, engine)
    (memory,), (usual,) = narrow.memory(), wide.memory()
    assert memory.states == pytest.approx(each * model_parameters(LLAMA).total, rel=1e-4)
    assert usual.states > 1.9 * memory.states
    assert memory.allocated < usual.allocated
    numbers = narrow.layer_parameters(0)
    updated = narrow.optimizer_s(numbers) / wide.optimizer_s(numbers)
    assert updated == pytest.approx((14 + 6) / (28 + 12 + 6), rel=1e-6)


@pytest.mark.parametrize(
    ("mean", "keys"),
    [
        pytest.param(512, 256.0, id="512 / 2 of a document"),
        pytest.param(4096, 2048.0, id="4096 / 2: one document is the sequence"),
        pytest.param(None, 2048.0, id="not packed"),
    ],
)
def test_packed_documents_by_hand(mean: int | None, keys: float) -> None:
    """A query meets half of its document on average, and nothing else of a layer changes."""
    packed, whole = step(None, packed_mean_length=mean), step(None)
    (core,) = (op for op in packed.operations(0) if op.name == "core_attention")
    assert core.keys == keys
    assert core.forward_flops == 2 * 4096 * keys * 32 * (128 + 128)
    found, usual = packed.plain_cost(0, "none"), whole.plain_cost(0, "none")
    assert found.forward.matmul_s == usual.forward.matmul_s
    assert found.saved_bytes == usual.saved_bytes
    assert found.model_flops == usual.model_flops - 3 * 2 * 4096 * (2048 - keys) * 32 * 256


@given(lengths=st.tuples(st.integers(1, 4096), st.integers(1, 4096)))
@settings(max_examples=20, deadline=None)
def test_longer_documents_never_take_less(lengths: tuple[int, int]) -> None:
    """Of the same tokens in a sequence, longer documents attend to more."""
    short, long = (
        float(step(None, packed_mean_length=each).plain_cost(0, "none").total_s)
        for each in sorted(lengths)
    )
    assert short <= long * (1 + 1e-12)
