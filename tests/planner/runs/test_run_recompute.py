"""What a row recomputed: what it says, and what it must have where it says nothing."""

import re

import pytest
from rows import ROW

from meshplan.planner.runs.accuracy import choice
from meshplan.planner.runs.rows import SkippedRow, row_of
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import Predicted, predict_rows


@pytest.mark.parametrize(
    ("recompute", "note", "layers"),
    [
        pytest.param("full layer on 8 of 32 layers", "", 8, id="8 of 32"),
        pytest.param("selective (every other layer)", "", 16, id="32 / 2"),
        pytest.param(
            "selective: fraction of blocks, not stated",
            "printed HFU/MFU 0.55/0.50 (H100)",
            10,
            id="3 (0.55 / 0.50 - 1) x 32 = 9.6",
        ),
        pytest.param(
            "selective: fraction of blocks, not stated",
            "printed HFU/MFU 0.74/0.55 (H100)",
            32,
            id="3 (0.74 / 0.55 - 1) = 1.04: rounded figures, all of them",
        ),
        pytest.param("selective: fraction of blocks, not stated", "", 0, id="not said"),
        pytest.param("full", "recompute: full, block, 8 of 32 layers (ACL=8)", 8, id="in a note"),
        pytest.param("full", "", 32, id="all of them"),
    ],
)
def test_some_layers_are_recomputed(recompute: str, note: str, layers: int) -> None:
    """Their share is stated, or follows from what the hardware did beside what the model needs."""
    run = run_of(ROW | {"recompute": recompute, "note": note})
    assert [stage.full_layers for stage in run.layout.stages] == [layers]
    assert run.model.num_layers == 32


def test_jax_replays_what_its_policy_names_and_its_backward_reads() -> None:
    """Saved products leave attention and the kernels between products; XLA drops dead ones."""
    words = "selective: core_attn pointwise (saves matmul outputs)"
    run = run_of(ROW | {"framework": "MaxText (JAX)", "recompute": words})
    assert run.layout.selective_modules == ("core_attention", "norm", "pointwise")
    assert run.engine.kernels.drops_unread_replay
    assert not run_of(ROW | {"framework": "nanotron"}).engine.kernels.drops_unread_replay


@pytest.mark.parametrize(
    ("framework", "early"),
    [
        pytest.param("llm-foundry (composer FSDP), image torch 2.1.0_cu121", True, id="since 2.1"),
        pytest.param("llm-foundry (composer FSDP), torch 1.13.1", False, id="before"),
        pytest.param("llm-foundry", True, id="no release: as today"),
        pytest.param("HF transformers + PyTorch FSDP1", False, id="the reentrant checkpoint"),
        pytest.param("Megatron-LM", False, id="Megatron's own checkpoint"),
    ],
)
def test_which_checkpoints_end_their_replay_early(framework: str, early: bool) -> None:
    """PyTorch's that is not reentrant, since its release 2.1; a row may say that it is not."""
    kernels = run_of(ROW | {"framework": framework}).engine.kernels
    assert kernels.drops_unread_replay == early
    holds = "transformers" in framework
    assert kernels.holds_input_gradients == holds
    said = run_of(ROW | {"framework": framework, "fused_kernels": "no_reentrant"}).engine.kernels
    assert (said.drops_unread_replay, said.holds_input_gradients) == (True, False)


def test_a_share_is_no_more_than_all() -> None:
    """A cell that makes no sense skips the row."""
    reason = "recomputed_share is 1.5; it takes a number from 0 to 1"
    with pytest.raises(SkippedRow, match=re.escape(reason)):
        row_of(ROW | {"recomputed_share": "1.5"})


def test_a_run_that_ran_recomputed_what_it_had_to() -> None:
    """70 billion parameters' activations on 8 GPUs: with an engine that recomputes all or nothing,
    a run that leaves it open recomputed; one that had room did not, nor one that says so.
    """
    large = ROW | {
        "framework": "nemo-automodel", "model": "70B LoRA", "layers": "80", "hidden": "8192",
        "ffn": "28672", "heads": "64", "recompute": "", "zero": "3",
    }  # fmt: skip
    assert run_of(large).layout.stages[0].full_layers == 80
    assert run_of(large | {"recompute": "none"}).layout.stages[0].full_layers == 0
    assert run_of(large | {"oom": "1"}).layout.stages[0].full_layers == 0
    assert run_of(large | {"layers": "2"}).layout.stages[0].full_layers == 0
    assert run_of(large | {"framework": "nemo"}).layout.stages[0].full_layers == 0


def test_what_does_not_fit_is_not_chosen() -> None:
    """The fastest of four layouts is said not to fit: the next one is ranked first."""
    rows = [ROW | {"id": mbs, "micro_batch": mbs, "step_time_s": seconds, "seq_len": "2048"}
            for mbs, seconds in (("1", "11"), ("2", "12"), ("4", "13"), ("16", "50"))]  # fmt: skip
    found = [row for row in predict_rows(rows) if isinstance(row, Predicted)]
    assert [row.fits for row in found] == [True, True, False, False]
    assert min(found, key=lambda row: row.time.step_time_s).run.id == "16"
    ranked = choice(found)
    assert ranked is not None
    assert ranked.mean_regret == pytest.approx(12 / 11 - 1)
