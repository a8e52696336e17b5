"""NeMo AutoModel's YAML, in. The text is ours and states what its benchmark recipes state
(NVIDIA-NeMo/Automodel@36044ad examples/llm_benchmark/qwen, Apache-2.0).
"""

from pathlib import Path

import pytest
import typer
from trainer_texts import AUTOMODEL, AUTOMODEL_DENSE
from typer.testing import CliRunner
from unread import unread_of

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.training import Lora
from meshplan.executor.frameworks import read_config
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.case.reading import (
    IllegalConfig,
    NothingToRead,
    Reading,
    Recompute,
)
from meshplan.planner.case.resolve import Case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.cli.check import check

PEFT = "peft: {{_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 16{}}}\n"


def edited(old: str, new: str, text: str = AUTOMODEL) -> Reading:
    """The text with one change."""
    assert old in text
    return read_config(text.replace(old, new), "a.yaml")


def case_of(reading: Reading, gpus: int) -> Case:
    """Priced on so many GPUs."""
    return resolve(reading, Settings(cluster="dgx-h100", gpus=gpus), Settings())


def test_a_benchmark_of_experts_is_read() -> None:
    """48 layers in stages of 5 are 10 stages, rounded up to 12 over 4 ranks: 3 of 4 layers each;
    32 GPUs / pp 4 = dp 8; experts keep their gathered weights (ZeRO-2).
    """
    reading = read_config(AUTOMODEL, "a.yaml")
    assert (reading.framework, reading.engine) == ("automodel", "automodel")
    assert not reading.unread
    case = case_of(reading, 32)
    la, training = case.layout, case.training
    assert (la.data_parallel, la.pipeline_parallel, la.virtual_stages) == (8, 4, 3)
    assert (la.expert_parallel, la.zero_stage, la.micro_batch_size) == (8, 2, 2)
    assert [stage.layers for stage in la.stages] == [4] * 12
    assert la.recompute == "full"
    assert (training.seq_len, training.global_batch_size) == (4096, 512)
    assert case.model.name == "qwen3-30b-a3b"


@pytest.mark.parametrize(
    ("rounds", "chunks"),
    [("up", 3), ("down", 2)],
    ids=["48/5 = 10 stages, up to 12", "48/5 = 10 stages, down to 8"],
)
def test_stages_are_rounded_to_whole_ranks(rounds: str, chunks: int) -> None:
    """The first stages hold the layers that are left over: 48 in 8 is 6 each."""
    case = case_of(edited("multiple: up", f"multiple: {rounds}"), 32)
    assert case.layout.virtual_stages == chunks
    assert {stage.layers for stage in case.layout.stages} == {48 // (4 * chunks)}


def test_stages_that_nobody_rounds_are_illegal() -> None:
    """10 stages over 4 ranks: AutoModel raises."""
    reading = edited("    round_virtual_stages_to_pp_multiple: up\n", "")
    with pytest.raises(InvalidLayout, match="10 stages, not a multiple of pipeline_parallel 4"):
        case_of(reading, 32)


@pytest.mark.parametrize(
    ("layers", "match"),
    [(12, "make 4 stages; the schedule needs 2 on each of 4"), (24, "make 0 stages")],
    ids=["48/12 = 4 stages: one of a rank is not interleaved", "48/24 = 2 stages, down to none"],
)
def test_too_few_stages(layers: int, match: str) -> None:
    """AutoModel raises where a rank of an interleaved schedule has fewer than two."""
    text = AUTOMODEL.replace("multiple: up", "multiple: down")
    reading = edited("layers_per_stage: 5", f"layers_per_stage: {layers}", text)
    with pytest.raises(InvalidLayout, match=match):
        case_of(reading, 32)


@pytest.mark.parametrize(
    ("old", "new", "stage"),
    [
        ("reshard_after_forward: false", "reshard_after_forward: true", 3),
        ("pp_size: 4", "pp_size: 1", 2),
        ("ep_size: 8", "ep_size: 1", 2),
        ("ep_size: 8", "ep_size: 1\n  reshard_after_forward: true", 3),
        ("tp_size: 1", "tp_size: 1\n  reshard_after_forward: true", 3),
    ],
    ids=["experts' own", "experts without pp", "pp alone", "stated", "stated beside experts'"],
)
def test_sharding_of_the_weights(old: str, new: str, stage: int) -> None:
    """What layers do after the forward, stated and by default."""
    assert edited(old, new).facts["zero_stage"].value == stage


def test_a_dense_recipe_shards_everything() -> None:
    """Without a pipeline or experts all layers but the last free their weights: ZeRO-3; the loss
    casts logits to 32 bits.
    """
    reading = read_config(AUTOMODEL_DENSE, "a.yaml")
    case = case_of(reading, 8)
    assert not reading.unread
    assert (case.layout.zero_stage, case.layout.data_parallel) == (3, 8)
    assert reading.engine == "automodel-fp32-loss"
    assert any("not packed" in note for note in reading.notes)


def test_replicas_of_the_shards() -> None:
    """dp 8 in two copies: each copy has 4 ranks."""
    case = case_of(edited("dp_size: none", "dp_size: 8, dp_replicate_size: 2", AUTOMODEL_DENSE), 8)
    assert (case.layout.data_parallel, case.layout.shard_group) == (8, 4)


def _of_gradients(text: str, gpus: int) -> tuple[float, float]:
    """Bytes of gradients on the fullest rank, and seconds that the replicas' exchanges show."""
    model = step_model_of(case_of(read_config(text, "a.yaml"), gpus))
    return max(stage.gradients for stage in stage_memory(model)), model.time().data_s


SYNCED = AUTOMODEL_DENSE.replace("cp_size: 1", "cp_size: 1, defer_fsdp_grad_sync: false")


def test_gradients_that_wait_unsharded() -> None:
    """8 sequences over 4 GPUs are two micro-batches: their gradients of 8.03e9 weights add up
    whole, in fp32, and are reduced once. Reduced after each, a quarter stays, in bf16.
    """
    weights = 8_030_261_248
    waiting, each = _of_gradients(AUTOMODEL_DENSE, 4), _of_gradients(SYNCED, 4)
    assert waiting[0] == pytest.approx(4 * weights, rel=1e-3)
    assert each[0] == pytest.approx(2 * weights / 4, rel=1e-3)
    assert waiting[1] < each[1]


def test_one_micro_batch_has_nothing_to_wait_for() -> None:
    """8 sequences over 8 GPUs; adapters' gradients are small; a pipeline reduces as its own."""
    assert _of_gradients(AUTOMODEL_DENSE, 8) == _of_gradients(SYNCED, 8)
    adapted = [text.replace("loss_fn", PEFT.format("") + "loss_fn")
               for text in (AUTOMODEL_DENSE, SYNCED)]  # fmt: skip
    assert _of_gradients(adapted[0], 4) == _of_gradients(adapted[1], 4)
    assert not case_of(read_config(AUTOMODEL, "a.yaml"), 32).engine.state.sums_before_reducing


def test_experts_weights_that_stay_gathered() -> None:
    """Only where the backend says so, at its line, and there are several micro-batches."""
    once = AUTOMODEL.replace("pp_size: 4", "pp_size: 1")
    several = once.replace("local_batch_size: 16", "local_batch_size: 2")
    assert case_of(read_config(several, "a.yaml"), 32).engine.state.sums_before_reducing
    keeps = "  backend:\n    enable_fsdp_optimizations: true\n"
    for text, waits in ((once, False), (several, True)):
        stated = text.replace("  backend:\n", keeps)
        reading = read_config(stated, "a.yaml")
        assert not reading.unread
        if not waits:
            case_of(reading, 32)
            continue
        with pytest.raises(MissingFacts, match="enable_fsdp_optimizations") as raised:
            case_of(reading, 32)
        line = 1 + stated[: stated.index("enable_fsdp")].count("\n")
        assert raised.value.line == line


def test_logits_of_32_bits_take_more() -> None:
    """14 bytes a logit as torch's allocations count, 2 of them the logits of 16 bits."""
    casts, keeps = load_engine("automodel-fp32-loss"), load_engine("automodel")
    assert casts.kernels.logits_bytes == 2 + 4 + 4 + 4
    assert casts.kernels.logits_bytes > keeps.kernels.logits_bytes
    assert casts.state == keeps.state


def test_multi_token_prediction_only_where_it_is_built() -> None:
    """DeepSeek-V3's configuration has a module, AutoModel's class of it none."""
    reading = edited("Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3")
    assert reading.model_config is not None
    assert reading.model_config["num_nextn_predict_layers"] == 0
    assert "model" not in reading.facts
    kept = edited("Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V4-Flash")
    assert kept.facts["model"].value == "deepseek-v4-flash"


def test_a_shape_of_its_own() -> None:
    """Sizes beside a configuration's class: its family is the class's module."""
    own = """config:
    _target_: transformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig
    hidden_size: 2048
    intermediate_size: 1024
    moe_intermediate_size: 1024
    num_hidden_layers: 8
    num_attention_heads: 8
    num_key_value_heads: 4
    num_experts: 16
    num_experts_per_tok: 2
    vocab_size: 151936
"""
    at, end = AUTOMODEL.index("config:\n"), AUTOMODEL.index("  torch_dtype")
    text = AUTOMODEL[:at] + own + AUTOMODEL[end:].replace("layers_per_stage: 5\n", "")
    case = case_of(read_config(text.replace("    layers_per_stage: 5\n", ""), "a.yaml"), 32)
    assert (case.model.num_layers, case.model.hidden, case.model.is_moe) == (8, 2048, True)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", Lora(rank=16, targets="all_linear")),
        (", target_modules: ['*q_proj', '*k_proj', '*v_proj', '*o_proj'], dropout: 0.1",
         Lora(rank=16, targets="attention", dropout=0.1)),
    ],
    ids=["*_proj by default", "attention"],
)  # fmt: skip
def test_adapters(said: str, expected: Lora) -> None:
    """Wildcards of modules' names; nothing is left to say."""
    reading = edited("loss_fn", PEFT.format(said) + "loss_fn", AUTOMODEL_DENSE)
    assert not reading.unread
    assert reading.facts["lora"].value == expected


def test_adapters_on_four_bits() -> None:
    """bitsandbytes' nf4, its constants quantised too unless the file says not."""
    bits = "quantization: {load_in_4bit: true, bnb_4bit_quant_type: nf4}\n"
    reading = edited("loss_fn", PEFT.format("") + bits + "loss_fn", AUTOMODEL_DENSE)
    assert reading.facts["lora"].value.base_precision == "nf4"
    once = bits.replace("nf4}", "nf4, bnb_4bit_use_double_quant: false}")
    named = unread_of(edited("loss_fn", PEFT.format("") + once + "loss_fn", AUTOMODEL_DENSE))
    assert "double_quant" in named
    assert "without adapters" in unread_of(edited("loss_fn", bits + "loss_fn", AUTOMODEL_DENSE))


@pytest.mark.parametrize(
    ("section", "precision"),
    [
        ("fp8: {enabled: true, recipe_name: tensorwise, filter_fqns: [lm_head]}", "fp8"),
        ("fp8: {enabled: false}", None),
    ],
)
def test_eight_bits(section: str, precision: str | None) -> None:
    """torchao's section counts where it is enabled."""
    reading = edited("loss_fn", section + "\nloss_fn", AUTOMODEL_DENSE)
    assert not reading.unread
    assert (reading.facts["precision"].value if "precision" in reading.facts else None) == precision


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("strategy: fsdp2", "strategy: megatron_fsdp", "only FSDP2"),
        ("strategy: fsdp2", "strategy: ddp", "only FSDP2"),
        ("strategy: fsdp2", "strategy: fsdp2\n  tp_plan: {a: b}", "distributed.tp_plan"),
        ("strategy: fsdp2", "strategy: fsdp2\n  offload_policy: {pin_memory: true}", "host"),
        ("strategy: fsdp2", "strategy: fsdp2\n  mp_policy: {reduce_dtype: bfloat16}", "reduced"),
        ("strategy: fsdp2", "strategy: fsdp2\n  mp_policy: {param_dtype: bfloat16}", "reduced"),
        ("strategy: fsdp2", "strategy: fsdp2\n  of_a_later_release: 2", "later_release (not known"),
        ("checkpointing: true", "checkpointing: selective", "selective"),
        ("ep_size: 8", "ep_size: 1", "each keep their input"),
        ("interleaved1f1b", "InterleavedZeroBubble", "this schedule"),
        ("attn: te", "attn: eager", "this attention"),
        ("attn: te", "attn: te\n    of_a_later_release: 2", "later_release (not known"),
        ("dispatcher: deepep", "dispatcher: torch", "this exchange of tokens"),
        ("torch_dtype: bf16", "torch_dtype: float32", "weights in this format"),
        ("torch_dtype: bf16", "num_hidden_layers: 2", "model.num_hidden_layers (not known)"),
        ("Qwen3-30B-A3B", "Qwen3-30B-A3B\n    num_hidden_layers: 2", "another shape"),
        ("torch.optim.Adam", "flashoptim.FlashAdamW", "bytes of its states"),
        ("lr: 1.0e-4", "lr: 1.0e-4, exp_avg_dtype: torch.bfloat16", "optimizer.exp_avg_dtype"),
        ("ForCausalLM.from_config", "ForImageTextToText.from_config", "of images"),
        ("BenchmarkingRecipeForNextTokenPrediction", "FinetuneRecipeForVLM", "recipe"),
        ("loss.masked_ce.MaskedCrossEntropy", "loss.kd_loss.KDLoss", "another loss"),
        ("dist_env:", "freeze_config: {freeze_embeddings: true}\ndist_env:", "frozen weights"),
        ("dist_env:", "teacher_model: {x: y}\ndist_env:", "teacher_model"),
        ("dist_env:", "of_a_later_release: 2\ndist_env:", "of_a_later_release (not known)"),
        ("dist_env:", PEFT.format("") + "dist_env:", "beside routed experts"),
        ("dist_env:", PEFT.format(", match_all_linear: true") + "dist_env:", "beside the head"),
        ("dist_env:", PEFT.format(", use_dora: true") + "dist_env:", "use_dora"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_named(old: str, new: str, named: str) -> None:
    """Nothing that changes memory, batch or layout is passed over."""
    assert named in unread_of(edited(old, new))


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("local_batch_size: 16", "local_batch_size: 6", "at least pp_size 4"),
        ("checkpointing: true", "checkpointing: 7", "known are"),
        ("  pipeline:\n", "  pipelined:\n", "needs a section"),
    ],
    ids=[
        "6 / 2 = 3 micro-batches on 4 ranks",
        "a number",
        "no section",
    ],
)
def test_what_automodel_refuses(old: str, new: str, match: str) -> None:
    """Its own asserts, in one line each."""
    with pytest.raises(IllegalConfig, match=match):
        edited(old, new)


def test_recompute_of_transformers_own_layers() -> None:
    """Of families that AutoModel has no class for, whole layers recompute."""
    on = AUTOMODEL_DENSE.replace("cp_size: 1", "cp_size: 1, activation_checkpointing: true")
    assert "each keep their input" in unread_of(read_config(on, "a.yaml"))
    unknown = edited("meta-llama/Llama-3.1-8B-Instruct", "of/another-family", on)
    assert "each keep their input" in unread_of(unknown)
    reading = edited("meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-v0.1", on)
    assert (reading.recompute, reading.unread) == (Recompute("full"), ())


def test_a_file_that_trains_nothing_is_skipped() -> None:
    """Generation has no optimizer."""
    with pytest.raises(NothingToRead, match="trains nothing"):
        edited("optimizer: {_target_: torch.optim.AdamW, lr: 1e-5}\n", "", AUTOMODEL_DENSE)


def test_from_the_command_line(tmp_path: Path) -> None:
    """What a file leaves out is asked for by name; given, it is priced."""
    path = tmp_path / "recipe.yaml"
    path.write_text(AUTOMODEL)
    words = [str(path), "--cluster", "dgx-h100"]
    app = typer.Typer()
    app.command()(check)
    asked = CliRunner().invoke(app, words)
    assert asked.exit_code == 2
    assert "missing: gpus; give --gpus" in asked.output
    priced = CliRunner().invoke(app, [*words, "--gpus", "32"])
    assert priced.exit_code == 0, priced.output
    assert "fits" in priced.output


@pytest.mark.parametrize(
    ("target", "optimizer"),
    [("torch.optim.Adam", "adamw"), ("torch.optim.AdamW", "adamw"), ("torch.optim.SGD", "sgd")],
)
def test_optimizers_by_their_classes(target: str, optimizer: str) -> None:
    """Of PyTorch's own."""
    reading = edited("torch.optim.AdamW", target, AUTOMODEL_DENSE)
    assert reading.facts["optimizer"].value == optimizer
