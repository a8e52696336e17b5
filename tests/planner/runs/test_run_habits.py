"""What a row's words say of how its framework ran, and the constants that engines share."""

import pytest
from rows import ROW, TITAN, engine_of

from meshplan.costmodels.operations.kinds import Pointwise
from meshplan.costmodels.step.memory import step_memory
from meshplan.costmodels.step.step import StepModel
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.tunings import Tuning, load_fit
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import predict_rows, step_model


@pytest.mark.parametrize(
    ("framework", "note", "engine"),
    [
        ("nanotron v0.5", "pp_fix=0", "nanotron-2024"),
        ("nanotron v0.5", "pp_fix=1", "nanotron"),
        ("megatron-bridge (NeMo 25.11)", "", "megatron-bridge-2025"),
        ("megatron-bridge (NeMo 26.04.01)", "", "megatron-bridge-2025"),
        ("megatron-bridge (NeMo 26.06)", "", "megatron-bridge"),
        ("megatron-bridge (NeMo 26.06.01)", "", "megatron-bridge-2025"),
        ("megatron-bridge (NeMo 26.08)", "", "megatron-bridge"),
        ("nemo-automodel (FSDP2)", "", "automodel"),
        ("native", "", "native"),
        ("PyTorch native FSDP2", "", "torchtitan"),
        ("Megatron-SWIFT (megatron-core 0.16.1)", "", "megatron-swift"),
    ],
)
def test_releases_have_engines_of_their_own(framework: str, note: str, engine: str) -> None:
    """A release that is known to run differently is priced as it ran."""
    assert engine_of({"framework": framework, "note": note}).name == engine


@pytest.mark.parametrize(
    ("framework", "year", "engine"),
    [
        ("Megatron-LM (SC21)", "2021", "megatron-deepspeed"),
        ("Megatron-LM", "2022", "megatron-deepspeed"),
        ("Megatron-LM", "2023", "megatron"),
        ("Megatron-LM", "", "megatron"),
        ("nemo-megatron", "2022", "megatron"),
        ("NeMo Megatron", "2022", "megatron"),
        ("GPT-NeoX (Megatron + DeepSpeed)", "2023", "gpt-neox"),
        ("GPT-NeoX / DeeperSpeed", "2022", "gpt-neox-unfused"),
        ("PyTorch FSDP1 (fms-fsdp)", "2024", "llm-foundry"),
        ("fsdp2", "2024", "torchtitan"),
        ("DeepSpeed ZeRO-3", "2021", "deepspeed-2021"),
        ("DeepSpeed ZeRO-3", "2022", "deepspeed"),
        ("Megatron-DeepSpeed", "2024", "megatron-deepspeed"),
    ],
)
def test_frameworks_have_the_engine_of_their_time(framework: str, year: str, engine: str) -> None:
    """Before FlashAttention Megatron-LM ran Megatron-DeepSpeed's kernels; llm-foundry is FSDP1;
    DeepSpeed 0.6.0 of January 2022 gathers without lists of ranks.
    """
    assert engine_of({"framework": framework, "year": year}).name == engine


@pytest.mark.parametrize(
    ("year", "gathers"),
    [
        pytest.param("2023", False, id="MLPerf v3.1 has no fp8_params"),
        pytest.param("2024", True, id="v4.0 has"),
        pytest.param("", True, id="no year: as today"),
    ],
)
def test_weights_were_gathered_in_16_bits_at_first(year: str, gathers: bool) -> None:
    """Of NVIDIA's recipes; Megatron-LM does so where it is told."""
    for framework in ("nemo/megatron-lm (MLPerf)", "nemo", "megatron-bridge"):
        assert engine_of({"framework": framework, "year": year}).state.gathers_8bit == gathers
    assert not engine_of({"framework": "Megatron-LM", "year": year}).state.gathers_8bit


@pytest.mark.parametrize(
    ("framework", "year", "gated", "fused"),
    [
        pytest.param("Megatron-LM", "2023", "1", False, id="SwiGLU and RoPE by PyTorch's kernels"),
        pytest.param("Megatron-LM", "2023", "0", True, id="a GPT has neither"),
        pytest.param("Megatron-LM", "2024", "1", True, id="both are fused"),
        pytest.param("Megatron-LM", "", "1", True, id="no year: as today"),
        pytest.param("NeMo 1 (Megatron)", "2023", "1", True, id="NeMo's tree"),
    ],
)
def test_megatron_of_2023_fuses_no_llama(
    framework: str, year: str, gated: str, fused: bool
) -> None:
    """Norms and the loss are as they are today; a Llama's layer moves more bytes."""
    kernels = engine_of({"framework": framework, "year": year, "gated_mlp": gated}).kernels
    assert (kernels.fused_gated, kernels.fused_rope) == (fused, fused)
    assert kernels.fused_norm


def test_a_note_says_that_nothing_was_compiled() -> None:
    """Eager PyTorch, under FSDP2 or FSDP1, fuses no pointwise kernels and is slower; words of
    others mean nothing.
    """
    unknown = "litgpt"  # is run by PyTorch alone where its row says so
    for framework in (
        "torchtitan",
        "nemo-automodel",
        "PyTorch FSDP1",
        "litgpt FSDP1 eager",
        unknown,
    ):
        eager = engine_of({"framework": framework, "note": "eager"}).kernels
        assert (eager.fused_norm, eager.fused_gated, eager.fused_rope) == (False,) * 3
    eager = engine_of({"framework": "torchtitan", "note": "FSDP2 eager"}).kernels
    assert eager.weighs_apart
    assert eager.context_merge == "operators"
    said = engine_of({"framework": "torchtitan", "note": "no torch.compile"}).kernels
    assert said == eager
    for framework, note in (("torchtitan", "torch.compile"), ("nanotron", "eager")):
        kernels = engine_of({"framework": framework, "note": note}).kernels
        unsaid = {"attention": "flash2"} if framework == "torchtitan" else {}  # of PyTorch's own
        assert kernels == load_engine(framework).kernels.model_copy(update=unsaid)
    compiled, slow = (
        row.time.step_time_s for row in predict_rows([TITAN, TITAN | {"note": "eager"}])
    )
    assert slow > 1.03 * compiled


def test_trainers_and_compilers_of_memory() -> None:
    """A Trainer has no gradients at the loss of one micro-batch; XLA's buffers have no slack."""
    trainer, xla, other = (
        engine_of({"framework": each}).state
        for each in ("HF transformers + PEFT", "MaxText (JAX)", "somebody's")
    )
    assert (trainer.frees_gradients, trainer.step_copies) == (True, True)
    assert [each.plans_buffers for each in (trainer, xla, other)] == [False, True, False]
    assert not other.frees_gradients
    fsdp2 = engine_of({"framework": "HF trl (FSDP2)"}).state
    assert (fsdp2.frees_gradients, fsdp2.step_copies) == (True, False)
    assert [each.whole_gradient_bytes for each in (xla, other)] == [2.0, 0.0]


def test_jax_keeps_no_weights_in_16_bits() -> None:
    """MaxText's weights are fp32 and cast where they are used (base.yml, linears.py): 12 bytes of a
    parameter with its moments, and 4 of its gradient, where others have 2 more.
    """
    for zero, ranks in (("0", "1"), ("3", "8")):
        row = ROW | {"zero": zero, "dp": ranks, "gpus": ranks}
        jax, other = (
            step_model(run_of(row | {"framework": name}), Tuning())
            for name in ("MaxText (JAX)", "somebody's")
        )
        assert jax.memory()[0].weights == 0
        assert other.memory()[0].weights > 0
        assert jax.memory()[0].optimizer == other.memory()[0].optimizer
    assert engine_of({"framework": "MaxText (JAX)", "zero": "1"}).state.weight_bytes == 2.0


def test_a_recipe_that_fuses_less_is_issued_in_more_kernels() -> None:
    """Megatron-Bridge's library leaves activation and choice of experts to PyTorch's kernels, which
    its tuned recipes fuse: 2 and 12 more each way. A rotation is as many operators.
    """
    row = ROW | {
        "framework": "megatron-bridge (NeMo 26.04.01)", "model": "Qwen3-30B-A3B", "experts": "128",
        "top_k": "8", "moe_ffn": "768", "ep": "8",
    }  # fmt: skip
    tuned, library = (
        step_model(run_of(row | {"fused_kernels": words}), Tuning())
        for words in ("", "no_rope no_gated no_choosing")
    )
    more = _forward_launches(library) - _forward_launches(tuned)
    assert more == (3 - 1) + (22 - 10)
    assert [_operators(model) for model in (tuned, library)] == [(0, 0), (26, 20)]


def test_packed_documents_are_rotated_and_put_in_order_one_by_one() -> None:
    """64 documents of 512 tokens in a sequence of 32,768 over two ranks that exchange heads: each
    rotated by 26 operators and 20 backward, and cut in four chunks, whose place takes 3 x 11 + 7
    operators forward and 11 + 3 x 7 backward.
    """
    row = ROW | {
        "framework": "megatron-bridge (NeMo 26.06)", "seq_len": "32768", "dp": "4", "cp": "2",
        "packed_mean_length": "512", "micro_batch": "1", "cp_kind": "all_to_all",
    }  # fmt: skip
    said, plain = (
        _operators(step_model(run_of(row | {"fused_kernels": words}), Tuning()))
        for words in ("no_rope no_reorder", "")
    )
    assert plain == (0, 0)
    assert said == (64 * (26 + 4 * 40), 64 * (20 + 4 * 32))


@pytest.mark.parametrize(
    ("micro_batch", "bytes_each"),
    [
        pytest.param("4", 20, id="the step: weights 4, gradients 4, moments 8 and a list of 4"),
        pytest.param("32", 12, id="the loss: no gradients yet, but activations"),
    ],
)
def test_gradients_of_a_trainers_only_micro_batch_come_late(
    micro_batch: str, bytes_each: int
) -> None:
    """fp32 states of 8.03e9 parameters over 4 ranks of FSDP1 (measured: 37.41 GiB with four
    sequences, published as fmsacc-llama3-8b-full-foak-liger-g4-b4-amp).
    """
    row = ROW | {
        "framework": "HF transformers + PyTorch FSDP1", "seq_len": "4096", "gpu": "a100-80gb-sxm",
        "gpus": "4", "dp": "4", "zero": "3", "recompute": "full", "fused_kernels": "liger",
        "micro_batch": micro_batch, "global_batch": str(4 * int(micro_batch)),
    }  # fmt: skip
    memory = step_memory(step_model(run_of(row), Tuning()))[0]
    states = bytes_each * 8.03e9 / 4
    held = float(memory.activations)
    assert (held > 0) == (micro_batch == "32")
    working = float(memory.transient) if held else 0.0
    assert float(memory.allocated) - held - working == pytest.approx(states, rel=0.001)


def _operators(model: StepModel) -> tuple[float, float]:
    """Of PyTorch's own in a layer, forward and backward."""
    found = [op.operators for op in model.operations(0) if isinstance(op, Pointwise)]
    return sum(op[0] for op in found), sum(op[1] for op in found)


def _forward_launches(model: StepModel) -> float:
    """Kernels that the host issues for a layer of experts forward."""
    return float(model.pricer.launches(model.operations(0)))


def test_a_row_with_dropout_keeps_the_masks_of_hidden_states() -> None:
    """A byte a number of hidden states, behind attention and behind the feed-forward layer."""
    row = ROW | {"framework": "Megatron-LM (main, 2026)"}
    both = ({"fused_kernels": "dropout"}, {})
    said, unsaid = (engine_of(row | words).kernels for words in both)
    assert said == unsaid.model_copy(update={"dropout": True})
    with_masks, without = (
        sum(op.saved_bytes for op in step_model(run_of(row | words), Tuning()).operations(0))
        for words in both
    )
    assert with_masks > without


def test_casts_without_a_compiler() -> None:
    """torchao's tensorwise cast is six kernels of PyTorch's, 33 bytes a number, and runs twice."""
    eager = engine_of(TITAN | {"precision": "fp8", "compiled": "0"}).kernels
    assert eager.cast_bytes == 2 * (4 + 2 + 6 + 8 + 8 + 5)
    by_row = engine_of(TITAN | {"precision": "fp8", "compiled": "0", "fp8_scaling": "rowwise"})
    assert by_row.kernels.cast_bytes == 14


def test_hybridep_permutes_in_its_own_kernels() -> None:
    """Compiled or not, no copy of its rows is PyTorch's indexing."""
    row = {"framework": "torchtitan", "compiled": "0"}
    plain, hybrid = (engine_of(row | said).kernels for said in ({}, {"dispatcher": "hybridep"}))
    assert plain.permutes_by_index
    assert plain.sums_by_index
    assert not hybrid.permutes_by_index
    assert not hybrid.sums_by_index


def test_a_note_names_fused_kernels_of_hugging_face_modules() -> None:
    """Liger kernels take the loss in chunks, and FA3 is no FlashAttention-2; "no Liger" is none."""
    row = {"framework": "DeepSpeed 0.19.2 + HF transformers", "note": "Liger kernels; FA3"}
    kernels, plain = engine_of(row).kernels, load_engine("deepspeed").kernels
    assert (kernels.chunked_loss, kernels.fused_norm, kernels.attention) == (True, True, "flash3")
    assert (plain.chunked_loss, plain.fused_norm, plain.attention) == (False, False, "flash2")
    assert engine_of(row | {"note": "no Liger kernels"}).kernels == plain
    liger, without = predict_rows(
        [ROW | row | {"zero": "2"}, ROW | row | {"zero": "2", "note": ""}]
    )
    logits = 8192 * 128256 * 4 / 2**30
    assert without.allocated_gib - liger.allocated_gib > logits


@pytest.mark.parametrize(
    ("framework", "model", "modules"),
    [
        ("megatron-bridge (NeMo 26.02)", "DeepSeekV3", 1),
        ("megatron-core", "deepseek-v3", 1),
        ("megatron-bridge (NeMo 25.11)", "DeepSeekV3 (w/o MTP)", 0),
        ("nemo-automodel (FSDP2)", "DeepSeek V3 671B", 0),
        ("nemo-automodel (FSDP2)", "DeepSeek V3 (w/ MTP)", 1),
        ("megatron-bridge (NeMo 26.02)", "Llama 3.1 405B", 0),
    ],
)
def test_recipes_of_deepseek_train_its_module(framework: str, model: str, modules: int) -> None:
    """NVIDIA's recipes do, unless the row says without; others only if it says with."""
    row = ROW | {"framework": framework, "model": model}
    assert run_of(row).model.mtp_layers == modules


def test_many_chunks_leave_the_last_to_the_heads() -> None:
    """DeepSeek-V3 on 8 ranks of 4 chunks: 30 of two layers, one with the module, the heads."""
    row = ROW | {
        "framework": "megatron-core", "model": "deepseek-v3", "layers": "61", "gpus": "8",
        "dp": "1", "tp": "1", "pp": "8", "vpp": "4",
    }  # fmt: skip
    layout = run_of(row).layout
    assert [stage.layers for stage in layout.stages] == [*[2] * 30, 1, 0]
    assert layout.modules_apart
    assert not run_of(row | {"vpp": "2"}).layout.modules_apart


def test_casts_by_row_move_more_and_gather_wide() -> None:
    """torchao's scales by row and column: 14 bytes a number instead of 8, gathers of 16 bits."""
    usual = engine_of(TITAN | {"note": "torch.compile, fp8-tensorwise"}).kernels
    by_row = engine_of(TITAN | {"note": "torch.compile, fp8-rowwise, async TP"}).kernels
    assert (usual.cast_bytes, usual.gathers_cast) == (8.0, True)
    assert (by_row.cast_bytes, by_row.gathers_cast) == (14.0, False)
    other = engine_of({"framework": "megatron-core", "note": "fp8-rowwise"}).kernels
    assert other.cast_bytes == 0


@pytest.mark.parametrize(
    ("note", "dispatch"),
    [
        ("recompute from recipe X; dispatcher hybridep; MoE dropless", "hybridep"),
        ("dispatcher DeepEP", "deduplicated"),
        ("bf16 main grads; DeepEP flex dispatcher; overlap on", "deduplicated"),
        ("mock data; alltoall dispatcher, capacity factor 1", "all_to_all"),
        ("step 0; dispatcher AlltoAll; layout TP1", "all_to_all"),
        ("recompute from recipe X; MoE force-balanced routing", "all_to_all"),
        ("MoE force-balanced routing, dropless", "deduplicated"),
    ],
)
def test_a_note_names_the_dispatcher(note: str, dispatch: str) -> None:
    """A recipe that names none leaves Megatron's own; nothing said, what most recipes set."""
    row = {"framework": "megatron-bridge (NeMo 26.06)", "note": note}
    assert engine_of(row).kernels.dispatch == dispatch


def test_rows_that_experts_receive_in_8_bits() -> None:
    """FP8-Flow-MoE sends what experts read in 8 bits: kept in one byte, not two, of each number of
    two copies a token in two layers; in 16-bit training nothing is cast.
    """
    experts = {"experts": "8", "top_k": "2", "moe_ffn": "512", "shared_experts": "0"}
    row = ROW | experts | {"layers": "2", "tp": "1", "pp": "1", "dp": "8", "gpus": "8"}
    row |= {"ep": "8", "micro_batch": "1", "recompute": "selective: moe_expert"}
    tuning = load_fit("megatron", "h100-sxm").tuning

    def kept(precision: str, note: str) -> float:
        run = run_of(row | {"precision": precision, "note": note})
        return float(step_model(run, tuning).rank_costs[0].saved_bytes)

    run = run_of(row)
    copies = 2 * run.training.seq_len * run.model.hidden
    flow = "blockwise + fp8 dataflow/comm"
    assert kept("fp8", "blockwise") - kept("fp8", flow) == 2 * copies
    assert kept("bf16", flow) == kept("bf16", "")


@pytest.mark.parametrize(
    ("note", "expert_parallel"),
    [
        pytest.param("kernels: TE + DeepEP", 8, id="gcd(128 experts, 8 ranks)"),
        pytest.param("kernels: TE", 1, id="not said"),
    ],
)
def test_deepep_without_a_degree_dispatches_over_all_ranks(note: str, expert_parallel: int) -> None:
    """As the benchmark's own configuration does, where its table leaves the degree out."""
    experts = {"experts": "128", "top_k": "8", "moe_ffn": "768", "layers": "4", "ep": ""}
    run = run_of(ROW | experts | {"framework": "nemo-automodel", "note": note})
    assert run.layout.expert_parallel == expert_parallel


def test_engines_share_constants() -> None:
    """A release of Megatron-Bridge is priced with all its releases' constants; AutoModel
    with those of all engines.
    """
    assert load_fit("megatron-bridge-2025", "b200") == load_fit("megatron-bridge", "b200")
    assert load_fit("automodel", "b200") == load_fit("generic", "b200")


@pytest.mark.parametrize(
    ("framework", "expected"), [("Megatron-DeepSpeed", "fp16"), ("megatron-lm", "bf16")]
)
def test_16_bits_that_a_row_does_not_name(framework: str, expected: str) -> None:
    """bf16 has an optimizer of its own in DeepSpeed's Megatron, which sums gradients in fp32."""
    run = run_of(ROW | {"framework": framework, "precision": ""})
    assert run.training.precision == expected


def test_words_of_a_row_that_say_what_a_gpt_runs() -> None:
    """Megatron-LM of October 2023 under PyTorch 2.3: its own layers, and no nvFuser."""
    row = {"framework": "megatron-lm (f7727433)", "gated_mlp": "0"}
    said = engine_of(row | {"fused_kernels": "dropout no_jit no_rope local"}).kernels
    assert (said.own_gelu, said.drops_apart, said.copies_heads) == ((23.0, 45.0), True, True)
    assert (said.biases, said.norms_in_products, said.fused_rope) == ("apart", False, False)
    masks = engine_of(row | {"fused_kernels": "dropout drops_apart multiplied_masks"}).kernels
    assert (masks.own_masks, masks.drops_apart, masks.own_gelu) == ("multiplied", True, ())
    assert engine_of(row | {"fused_kernels": "filled_masks"}).kernels.own_masks == "filled"
    today = engine_of(row).kernels
    assert (today.own_gelu, today.biases, today.pads_vocabulary) == ((), "in_product", True)
    wide = engine_of({"framework": "a trainer", "fused_kernels": "autocast sums_biases"}).kernels
    assert (wide.wide_stream, wide.biases, wide.pads_vocabulary) == (True, "summed", False)
    trainer = {"framework": "HF transformers (Trainer, DDP)", "gated_mlp": "0"}
    assert engine_of(trainer | {"fused_kernels": "gelu_operators"}).kernels.own_gelu == (38.0, 59.0)
    assert engine_of({"framework": "JAX (MaxText)"}).kernels.pads_vocabulary
