"""LoRA from the command line to a plan file, an explanation, an export and a check."""

import json
from pathlib import Path

import pytest
from called import run
from tiny_runs import CPU

from meshplan.costmodels.training import Lora
from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.adapters import _HF, _MEGATRON
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.plan_file import read_plan
from meshplan.planner.case.trained import trained_line

ONE = ("plan", "llama-3.1-8b", "--gpus", "1", "--cluster", "dgx-h100", "--global-batch", "8")
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
datasets: [{path: x, type: alpaca}]
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_torch
bf16: true
lora_r: 16
lora_alpha: 32
"""
FACTORY = """model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: lora
lora_rank: 16
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
fsdp: ""
bf16: true
"""


AUTOMODEL = ("--engine", "automodel", "--optimizer-states", "bf16")


def test_lora_from_a_question_to_an_export(tmp_path: Path) -> None:
    """What is trained is said by `plan`, its JSON, `explain` and Megatron-Bridge's overrides, which
    `check` reads back to the same price.
    """
    file, out = tmp_path / "plan.yaml", tmp_path / "run"
    asked = (*ONE, "--lora-rank", "16", "-o", str(file))
    text = " ".join(run(*asked).stdout.split())
    assert "LoRA of rank 16 on all linear layers (35.7M of 8.03B parameters, 0.44%)" in text
    plan = read_plan(file)
    assert plan.training.lora == Lora(rank=16, targets="all_linear")
    document = json.loads(run("explain", str(file), "--json").stdout)
    assert document["training"]["lora"]["rank"] == 16
    assert document["prediction"]["trained_parameters"] == 32 * 16 * 69632
    assert "LoRA of rank 16" in run("explain", str(file)).stdout
    assert run("export", str(file), "--to", "bridge", "-o", str(out)).exit_code == 0
    overrides = (out / "overrides.txt").read_text()
    assert "peft.dim=16" in overrides
    given = ("--cluster", "dgx-h100", "--gpus", "1", "--model", "llama-3.1-8b")
    (checked,) = json.loads(
        run("check", str(out / "overrides.yaml"), *given, "--format", "json").stdout
    )["findings"]
    assert plan.prediction is not None
    assert checked["step_time_s"] == pytest.approx(plan.prediction.step_time_s)


@pytest.mark.parametrize(("model", "beside"), [("mixtral-8x7b", " but routed experts"),
                                               ("llama-3.1-8b", "")])  # fmt: skip
def test_routed_experts_are_said_to_have_no_adapters(model: str, beside: str) -> None:
    """Adapters beside them are not modelled."""
    asked = ask(Arguments(model=model, gpus=8, cluster="dgx-h100", global_batch=64, lora_rank=16))
    assert f"LoRA of rank 16 on all linear layers{beside} (" in trained_line(asked.question)


def test_a_plan_of_all_weights_does_not_speak_of_lora() -> None:
    """Its file and its text are what they were before there was LoRA."""
    pins = ("--recompute", "full", "--micro-batch", "1", "--tp", "1", "--pp", "1", "--gpus", "8")
    document = json.loads(run(*ONE, *pins, "--engine", "generic", "--json").stdout)
    assert "lora" not in document["training"]
    assert document["prediction"]["trained_parameters"] is None


def test_lora_and_quantised_bases_need_less_memory() -> None:
    """All weights > LoRA > QLoRA, of the same layout on one GPU; a 16-bit 70B fits no H100."""
    pins = ("--engine", "deepspeed", "--recompute", "full", "--micro-batch", "1", "--gpus", "8")
    needed = []
    for kind in ((), ("--lora-rank", "8"), ("--lora-rank", "8", "--base-precision", "nf4")):
        document = json.loads(run(*ONE, *pins, "--zero", "0", *kind, "--json").stdout)
        stages = (document.get("prediction") or {}).get("memory")
        needed.append(stages[0]["allocated"] if stages else float("inf"))
    assert needed == sorted(needed, reverse=True)
    assert len(set(needed)) == 3
    large = ("plan", "llama-3.1-70b", *ONE[2:], "--engine", "automodel", "--lora-rank", "8")
    assert run(*large).exit_code == 3
    assert run(*large, "--base-precision", "nf4").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lora-rank", "16", "--engine", "nanotron"), "nanotron has none"),
        (("--lora-rank", "16", "--engine", "native"), "has none"),
        (("--lora-rank", "16", "--engine", "torchtitan", "--lora-targets", "qkv"), "all_linear"),
        (("--lora-rank", "16", "--base-precision", "nf4"), "automodel-fp32-loss, deepspeed"),
        (("--lora-rank", "16", "--base-precision", "int3"), "bf16, int8, nf4"),
        (("--lora-rank", "16", "--lora-targets", "mlp"), "qkv, attention, all_linear"),
        (("--lora-rank", "99999"), "between 1 and 16384"),
        (("--lora-targets", "qkv"), "add --lora-rank"),
        (("--base-precision", "nf4"), "add --lora-rank"),
        (
            ("--lora-rank", "8", "--engine", "deepspeed", "--base-precision", "nf4",
             "--precision", "fp8"), "unpacked to 16 bits",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused(words: tuple[str, ...], said: str) -> None:
    """One line with the value, the rule and what would do."""
    result = run(*ONE, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "lora"),
    [
        (AXOLOTL + "adapter: lora\nlora_target_linear: true\n", Lora(rank=16)),
        (
            AXOLOTL + "adapter: qlora\nload_in_4bit: true\n"
            "lora_target_modules: [q_proj, k_proj, v_proj, o_proj]\n",
            Lora(rank=16, targets="attention", base_precision="nf4"),
        ),
        (
            AXOLOTL + "adapter: lora\nlora_target_linear: true\nlora_dropout: 0.05\n"
            "gradient_checkpointing: true\n",
            Lora(rank=16, dropout=0.05),
        ),
        # axolotl-ai-cloud/axolotl@067b021c examples/gemma3/gemma-3-4b-qlora.yml (Apache-2.0)
        (
            AXOLOTL + "adapter: lora\nlora_target_modules: 'model.language_model.layers.[\\d]+."
            "(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj'\n",
            Lora(rank=16),
        ),
        (
            AXOLOTL + "adapter: lora\nlora_target_modules: [self_attn.q_proj, self_attn.k_proj, "
            "self_attn.v_proj]\n",
            Lora(rank=16, targets="qkv"),
        ),
        (AXOLOTL + "adapter: lora\nlora_target_modules: all-linear\n", Lora(rank=16)),
        (FACTORY + "lora_target: all\n", Lora(rank=16)),
        (FACTORY + "lora_dropout: 0.1\n", Lora(rank=16, dropout=0.1)),
        (FACTORY + "quantization_bit: 8\n", Lora(rank=16, base_precision="int8")),
    ],
)
def test_trainers_say_what_they_train(tmp_path: Path, text: str, lora: Lora) -> None:
    """axolotl's and LLaMA-Factory's adapters are read, and priced."""
    reading = read_config(text, "train.yaml")
    assert reading.facts["lora"].value == lora
    assert reading.unread == ()
    path = tmp_path / "train.yaml"
    path.write_text(text)
    assert run("check", str(path), "--cluster", "dgx-h100", "--gpus", "1").exit_code == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (AXOLOTL + "adapter: lora\nlora_target_modules: [q_proj, k_proj]\n", "q_proj"),
        (AXOLOTL + "adapter: lora\nlora_target_linear: true\nlora_dropout: 1.5\n",
         "lora_dropout 1.5 (it is a probability below 1)"),
        (AXOLOTL + "adapter: lora\nlora_target_modules: 'model.layers.0.self_attn.(q|k|v)_proj'\n",
         "beside this set of modules"),
        (AXOLOTL + "adapter: lora\nlora_target_modules: '" + "(m|.)" * 40 + "'\n",
         "beside this set of modules"),
        (AXOLOTL + "adapter: lora\nlora_target_linear: true\npeft_use_dora: true\n", "dora"),
        (FACTORY + "quantization_bit: 3\n", "quantization_bit 3"),
        (FACTORY.replace("lora\n", "oft\n", 1), "finetuning_type 'oft'"),
        ("train: {micro_batch_size: 1, global_batch_size: 8}\n"
         "model: {tensor_model_parallel_size: 1, seq_length: 4096}\n"
         "peft: {dim: 8, target_modules: [linear_fc1]}\n", "linear_fc1"),
        ("train: {micro_batch_size: 1, global_batch_size: 8}\n"
         "model: {tensor_model_parallel_size: 1, seq_length: 4096}\n"
         "peft: {dim: 8, dropout: 0.1, dropout_position: post}\n", "dropout_position"),
    ],
)  # fmt: skip
def test_other_adapters_are_named(tmp_path: Path, text: str, named: str) -> None:
    """What is not modelled of adapters makes the verdict incomplete, by name."""
    path = tmp_path / "train.yaml"
    path.write_text(text)
    given = ("--cluster", "dgx-h100", "--gpus", "8", "--model", "llama-3.1-8b")
    result = run("check", str(path), *given)
    assert "incomplete" in result.stdout
    assert named in result.stdout


def test_dropout_of_adapters_is_priced_and_exported(tmp_path: Path) -> None:
    """It takes time and memory, is said with what is trained, and Megatron-Bridge's overrides say
    it and are read back.
    """
    file, out = tmp_path / "plan.yaml", tmp_path / "run"
    assert run(*ONE, "--lora-rank", "16", "-o", str(file)).exit_code == 0
    dry = read_plan(file)
    text = file.read_text()
    assert "dropout: 0.0" in text
    file.write_text(text.replace("dropout: 0.0", "dropout: 0.05"))
    assert run("export", str(file), "--to", "bridge", "-o", str(out)).exit_code == 0
    assert "peft.dropout=0.05" in (out / "overrides.txt").read_text()
    given = ("--cluster", "dgx-h100", "--gpus", "1", "--model", "llama-3.1-8b", "--format", "json")
    (checked,) = json.loads(run("check", str(out / "overrides.yaml"), *given).stdout)["findings"]
    assert dry.prediction is not None
    assert checked["step_time_s"] > dry.prediction.step_time_s


def test_bf16_states_from_a_question_to_an_export(tmp_path: Path) -> None:
    """torchtitan trains in bf16 alone: the plan says so, its configuration too, which reads back;
    what AutoModel does anyway is not said; other engines are refused with those that do.
    """
    file, out = tmp_path / "plan.yaml", tmp_path / "run"
    asked = ("--engine", "torchtitan", "--gpus", "8", "--zero", "3", "--optimizer-states", "bf16")
    result = run(*ONE, *asked, "-o", str(file))
    assert "adamw with bf16 states" in " ".join(result.stdout.split())
    assert read_plan(file).training.optimizer_states == "bf16"
    assert run("export", str(file), "--to", "torchtitan-0.2", "-o", str(out)).exit_code == 0
    written = out / "torchtitan.toml"
    assert 'dtype = "bfloat16"' in written.read_text()
    reading = read_config(written.read_text(), written.name)
    assert reading.facts["optimizer_states"].value == "bf16"
    same = run(*ONE, "--gpus", "8", *AUTOMODEL, "--json").stdout
    assert "optimizer_states" not in json.loads(same)["training"]
    refused = run(*ONE, "--optimizer-states", "bf16")
    assert refused.exit_code == 2
    assert "engines that do: accelerate, automodel, automodel-fp32-loss, generic" in refused.stderr


@pytest.mark.parametrize(
    ("text", "states"),
    [
        (AXOLOTL.replace("bf16: true", "bf16: full"), "bf16"),
        (AXOLOTL, "bf16"),  # loads its weights so
        (AXOLOTL + "fsdp: [full_shard]\n", None),
        (FACTORY.replace("finetuning_type: lora\nlora_rank: 16\n", "finetuning_type: full\n")
         + "pure_bf16: true\n", "bf16"),
    ],
)  # fmt: skip
def test_trainers_in_bf16_alone(text: str, states: str | None) -> None:
    """axolotl's `bf16: full` and LLaMA-Factory's `pure_bf16`."""
    reading = read_config(text.replace("lora_r: 16\nlora_alpha: 32\n", ""), "train.yaml")
    assert reading.unread == ()
    assert getattr(reading.facts.get("optimizer_states"), "value", None) == states


def test_packed_sequences_from_a_question_to_an_explanation(tmp_path: Path) -> None:
    """A plan of packed documents is faster than one of whole sequences, and says what it is of; an
    engine that computes what a mask hides is refused.
    """
    file = tmp_path / "plan.yaml"
    asked = (*ONE, "--gpus", "8", "--seq-len", "8k")
    whole = json.loads(run(*asked, "--json").stdout)["prediction"]["step_time_s"]
    packed = run(*asked, "--packed-mean-length", "512", "--json", "-o", str(file))
    assert json.loads(packed.stdout)["prediction"]["step_time_s"] < 0.95 * whole
    assert read_plan(file).training.packed_mean_length == 512
    assert "packed of documents of 512" in run("explain", str(file)).stdout
    for words, said in (
        (("--packed-mean-length", "9000"), "more than the 8192"),
        (("--packed-mean-length", "x"), "--packed-mean-length 'x'"),
        (("--packed-mean-length", "512", "--engine", "bigscience"), "no FlashAttention"),
    ):
        refused = run(*asked, *words)
        assert refused.exit_code == 2
        assert said in refused.stderr


def test_adapters_that_take_longer_than_they_spare_are_said() -> None:
    """Small layers: an adapter's kernels cost more than the gradient of its frozen weight. What all
    weights would take is what the plan of the same pins takes; of an 8B nothing is said.
    """
    pins = ("--gpus", "8", "--cluster", "dgx-h100", "--global-batch", "16", "--seq-len", "2048",
            "--engine", "automodel", "--dp", "8", "--zero", "2", "--micro-batch", "2",
            "--recompute", "none", "--json")  # fmt: skip
    adapted, whole = (
        json.loads(run("plan", "qwen3-0.6b", *pins, *more).stdout)
        for more in (("--lora-rank", "16"), ())
    )
    gain = 1 - whole["prediction"]["step_time_s"] / adapted["prediction"]["step_time_s"]
    assert gain > 0.1
    first = adapted["reasons"][0]
    told = "all weights trained instead of adapters, whether it fits or not"
    assert first.startswith(f"{told}: {gain:.1%} faster: host overhead -")
    large = json.loads(run("plan", "llama-3.1-8b", *pins, "--lora-rank", "16").stdout)
    assert not any("all weights" in each for each in (*large["reasons"], *whole["reasons"]))


def test_no_pin_beats_the_proved_plan() -> None:
    """With adapters alone trained the search's bounds hold too: whatever is pinned is no faster."""
    asked = ("plan", "llama-3.2-1b", "--gpus", "4", "--cluster", "dgx-h100", "--global-batch", "32",
             "--lora-rank", "64", "--top", "1", "--json")  # fmt: skip
    free = json.loads(run(*asked).stdout)
    assert free["search"]["status"] == "OPTIMAL"
    for pins in (("--tp", "1"), ("--pp", "2"), ("--zero", "0"), ("--micro-batch", "8")):
        pinned = json.loads(run(*asked, *pins).stdout)["prediction"]["step_time_s"]
        assert pinned >= free["prediction"]["step_time_s"] * (1 - 1e-6)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("torchtitan", "would run without training.lora"),
        ("megatron", "has none"),
        ("native", "has none"),
    ],
)
def test_what_would_train_all_weights_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, said: str
) -> None:
    """A run whose files cannot say the adapters would measure something else."""
    monkeypatch.setattr("meshplan.executor.cli.placing.find_hardware", lambda: CPU)
    file = tmp_path / "plan.yaml"
    asked = ("--gpus", "8", "--engine", "torchtitan", "--zero", "3", "--lora-rank", "16")
    assert run(*ONE, *asked, "-o", str(file)).exit_code == 0
    refused = run("execute", str(file), "--engine", engine, "--print")
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_what_configs_may_adapt_is_what_their_engines_do() -> None:
    """A set of modules that a format states is one that `plan` can ask of the engine that runs it,
    and the other way round: PEFT and AutoModel match any names, Megatron-Bridge has fused ones.
    """
    for names, engines in ((_HF, ("accelerate", "automodel", "deepspeed")),
                           (_MEGATRON, ("megatron-bridge", "nemo", "mlperf"))):  # fmt: skip
        for engine in engines:
            assert set(load_engine(engine).legality.lora_targets) == set(names), engine
