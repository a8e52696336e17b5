"""How a run's gradients add up, and in how many bits: by its row, else as its framework does."""

import pytest
from rows import ROW, engine_of

from meshplan.costmodels.setting import gradient_bytes
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model


def test_gradients_added_by_a_kernel_of_their_own() -> None:
    """A weight's gradient of 16 bits comes to its fp32 buffer by 2 + 4 + 4 bytes instead of none,
    and no tensor takes its place for autograd.
    """
    said, plain = (
        run_of(ROW | {"framework": "Megatron-LM", "gradient_add": word}) for word in ("added", "")
    )
    moved = [gradient_bytes(run.engine, 2.0) for run in (said, plain)]
    assert moved == [10.0, 0.0]
    assert [run.engine.kernels.keeps_buffers for run in (said, plain)] == [False, True]


ALONE = {
    "framework": "torchtitan", "gpus": "1", "dp": "1", "tp": "1", "pp": "1", "zero": "0",
    "micro_batch": "2", "global_batch": "2", "optimizer_states": "bf16",
}  # fmt: skip


@pytest.mark.parametrize(("said", "bytes_"), [
    pytest.param({}, 0.0, id="the product's own output is the gradient"),
    pytest.param({"framework": "HF transformers + PyTorch FSDP1"}, 0.0, id="FSDP1's engine"),
    pytest.param({"zero": "3"}, 6.0, id="FSDP copies: 2 + 4 bytes"),
    pytest.param({"optimizer_states": ""}, 6.0, id="an fp32 weight's is cast: 2 + 4"),
    pytest.param({"global_batch": "4"}, 6.0, id="the second is added: 2 + 2 + 2"),
    pytest.param({"gpus": "2", "dp": "2", "global_batch": "4"}, 6.0, id="to be sent, copied"),
    pytest.param({"framework": "DeepSpeed"}, 4.0, id="DeepSpeed's bucket: 2 + 2"),
])  # fmt: skip
def test_gradients_stay_where_fsdp_does_not_run(said: dict[str, str], bytes_: float) -> None:
    """What is moved of a 16-bit gradient after its product, on one GPU."""
    assert gradient_bytes(engine_of(ALONE | said), 2.0) == bytes_


@pytest.mark.parametrize(
    ("framework", "word", "micro_batches", "whole"),
    [
        pytest.param("KempnerForge (FSDP2)", "unsynced", 2, True, id="as the row says"),
        pytest.param("KempnerForge (FSDP2)", "unsynced", 1, False, id="one micro-batch"),
        pytest.param("KempnerForge (FSDP2)", "", 2, False, id="not said"),
        pytest.param("HF transformers + PyTorch FSDP1", "", 2, True, id="the Trainer's no_sync"),
        pytest.param("HF transformers + PyTorch FSDP1", "synced", 2, False, id="another loop"),
        pytest.param("own trainer (FSDP2)", "", 2, False, id="no Trainer of Hugging Face's"),
        pytest.param("HF transformers + DeepSpeed", "", 2, False, id="not under DeepSpeed"),
    ],
)
def test_gradients_that_add_up_whole(
    framework: str, word: str, micro_batches: int, whole: bool
) -> None:
    """FSDP scatters gradients after the last micro-batch alone where nothing syncs before."""
    row = ROW | {"framework": framework, "gradient_add": word, "pp": "1", "tp": "1", "dp": "8"}
    row |= {"gpus": "8", "micro_batch": "1", "global_batch": str(8 * micro_batches)}
    assert run_of(row).engine.state.sums_before_reducing == whole


def test_gradients_of_queries_that_a_row_sums_in_16_bits() -> None:
    """AMD's kernel sums them in 32 bits unless its environment says otherwise."""
    said, plain = (
        run_of(ROW | {"framework": "Primus (Megatron-LM)", "fused_kernels": word})
        for word in ("sums16", "")
    )
    assert [run.engine.kernels.sums_in_16_bits for run in (said, plain)] == [True, False]
    assert [step_model(r, Tuning()).device.sums_in_16_bits for r in (said, plain)] == [True, False]


@pytest.mark.parametrize(("words", "bytes_"), [
    pytest.param({}, 2.0, id="performance recipes: grad_reduce_in_fp32 false"),
    pytest.param({"gradient_add": "32"}, 4.0, id="bf16_mixed: true"),
    pytest.param({"gradient_add": "added 32"}, 4.0, id="beside another word"),
])  # fmt: skip
def test_in_how_many_bits_megatron_bridge_adds_gradients(
    words: dict[str, str], bytes_: float
) -> None:
    """Of a recipe that names its precision in 32, kept and sent so."""
    state = run_of(ROW | {"framework": "megatron-bridge (NeMo 26.06)"} | words).engine.state
    assert (state.gradient_bytes, state.reduce_bytes) == (bytes_, bytes_)


@pytest.mark.parametrize(("words", "bytes_"), [
    pytest.param({}, 4.0, id="main_grads_dtype is fp32"),
    pytest.param({"gradient_add": "16"}, 2.0, id="releases of early 2026, as a row says"),
    pytest.param({"framework": "megatron-core"}, 2.0, id="NVIDIA's recipes"),
])  # fmt: skip
def test_in_how_many_bits_megatron_swift_adds_gradients(
    words: dict[str, str], bytes_: float
) -> None:
    """Kept and sent so."""
    state = run_of(ROW | {"framework": "Megatron-SWIFT (megatron-core)"} | words).engine.state
    assert (state.gradient_bytes, state.reduce_bytes) == (bytes_, bytes_)
