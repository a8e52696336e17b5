"""What a row's words say of collectives that hide under computing."""

import pytest
from rows import TITAN, engine_of

from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.runs.validate import predict_rows


def test_a_note_says_that_tensor_parallel_is_asynchronous() -> None:
    """Part of its collectives hides under matmuls."""
    two = TITAN | {"dp": "4", "tp": "2"}
    plain, hidden = (row.time.tensor_s for row in predict_rows([two, two | {"note": "async TP"}]))
    assert hidden < 0.7 * plain


def test_a_note_says_that_exchanges_are_hidden() -> None:
    """Megatron's recipes hide them behind another micro-batch, in one NVLink domain too."""
    row = {"framework": "megatron-bridge (NeMo 26.06)"}
    hidden = engine_of(row | {"note": "EP all-to-all overlapped (1F1B); dispatcher hybridep"})
    assert hidden.overlap.expert == load_engine("megatron-bridge").overlap.expert_interleaved > 0
    assert engine_of(row).overlap.expert == 0


@pytest.mark.parametrize(
    ("note", "hidden"),
    [
        pytest.param("", (0.9, 0.9, 0.5), id="not said: as it usually runs"),
        pytest.param("distributed optimizer without overlap", (0.0, 0.0, 0.0), id="none"),
        pytest.param(
            "gradient and parameter exchange overlapped", (0.9, 0.9, 0.5), id="both exchanges"
        ),
    ],
)
def test_a_note_says_what_is_overlapped(note: str, hidden: tuple[float, float, float]) -> None:
    """Megatron-LM hides 0.4 of tensor parallel's collectives by itself, whatever a switch does."""
    overlap = engine_of({"framework": "Megatron-LM", "year": "2024", "note": note}).overlap
    assert (overlap.data_reduce, overlap.weight_gather, overlap.pipeline) == hidden
    assert overlap.tensor == 0.4


def test_recipes_of_nvidia_hide_more_of_tensor_parallel() -> None:
    """By userbuffers, which Megatron-LM runs without unless told."""
    hidden = [load_engine(name).overlap.tensor for name in ("nemo", "megatron-bridge", "mlperf")]
    assert hidden == [0.7, 0.7, 0.7]


def test_notes_of_a_run_without_overlap() -> None:
    """Losses in place of the logits, heads exchanged, and nothing hidden that a switch hides."""
    megatron = {"framework": "megatron-lm 23e00ed, TE 2.11.0"}
    note = "TE fused cross entropy; TP/DP/PP comm overlap all disabled; CP by all-to-all (Ulysses)"
    said, plain = engine_of(megatron | {"note": note}), engine_of(megatron)
    assert (said.kernels.fused_cross_entropy, said.kernels.logits_bytes) == (True, 2.0)
    assert (said.kernels.context, plain.kernels.context) == ("all_to_all", "ring")
    assert said.overlap.data_reduce == said.overlap.pipeline == 0
    assert said.overlap.tensor == pytest.approx(2 / 5), "what Transformer Engine always hides"
    assert said.overlap.context == plain.overlap.context
    other = engine_of({"framework": "Megatron-DeepSpeed", "note": note})
    assert other.overlap.tensor == 0, "what never hides stays seen"


def test_a_recipe_that_hides_its_gradients_alone() -> None:
    """Weights and tensor parallel's exchanges are seen, the gradients' reduction is not."""
    note = {"framework": "nemo 25.04", "note": "only gradient reduction overlapped"}
    said, plain = engine_of(note).overlap, engine_of(note | {"note": ""}).overlap
    assert (said.weight_gather, said.tensor) == (0, pytest.approx(2 / 5))
    assert said.data_reduce == plain.data_reduce > 0


@pytest.mark.parametrize(
    ("note", "hidden"),
    [
        pytest.param("EP all-to-all not overlapped", (0.0, 0.0), id="said not to be"),
        pytest.param("EP all-to-all overlapped (1F1B)", (0.6, 0.6), id="wherever it goes"),
        pytest.param("", (0.0, 0.6), id="not said: between nodes under several chunks"),
    ],
)
def test_exchanges_are_hidden_as_said(note: str, hidden: tuple[float, float]) -> None:
    """Megatron-Bridge's recipes differ in whether another micro-batch hides the exchange."""
    overlap = engine_of({"framework": "megatron-bridge", "note": note}).overlap
    assert (overlap.expert, overlap.expert_interleaved) == hidden


def test_a_row_says_that_user_buffers_hide_tensor_parallel() -> None:
    """Megatron-LM's --tp-comm-overlap: what NVIDIA's recipes hide, and nothing else changes."""
    row = {"framework": "Megatron-LM", "year": "2024"}
    said, plain = (engine_of(row | {"comm_overlap": value}).overlap for value in ("tensor", ""))
    assert (said.tensor, plain.tensor) == (0.7, 0.4)
    assert said == plain.model_copy(update={"tensor": 0.7})


def test_a_row_says_that_the_host_waits_for_each_kernel() -> None:
    """CUDA_LAUNCH_BLOCKING: nothing runs beside anything, not even another collective."""
    row = {"framework": "Megatron-DeepSpeed", "attention_kernel": "flash2"}
    blocked, usual = (engine_of(row | {"fused_kernels": word}) for word in ("blocking", ""))
    assert (blocked.name, usual.kernels.launches_block) == ("megatron-deepspeed-flash", False)
    assert blocked.kernels.launches_block
    hidden = blocked.overlap
    assert (hidden.data_reduce, hidden.weight_gather, hidden.pipeline, hidden.tensor) == (0,) * 4
    without = engine_of(row | {"fused_kernels": "no_dropout"})
    assert (usual.kernels.dropout, without.kernels.dropout) == (True, False)
