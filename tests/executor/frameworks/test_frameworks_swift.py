"""ms-swift's scripts and YAML, worked by hand from its arguments (v3.9.3, v4.5.2).

The scripts are like those of its examples and of shiwei-dev/vlm-4financial-qa, JJH12234/ScaleBench
and ligw1998/PRIV-QA; written for these tests.
"""

import json
from pathlib import Path

import pytest

from meshplan.costmodels.training import Lora
from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.reading import Reading, Start, UnreadableConfig
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

HEAD = "nproc=4\nCUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=$nproc \\\nswift sft \\\n"
MODEL = "    --model Qwen/Qwen3-8B --dataset a.jsonl b.jsonl#500 --torch_dtype bfloat16 \\\n"
FULL = HEAD + MODEL + "    --max_length 4096 --train_type full --deepspeed zero3"


def _read(text: str, path: str = "train.sh", start: Start | None = None) -> Reading:
    return read_config(text, path, None, start)


def _facts(text: str, path: str = "train.sh") -> dict[str, object]:
    return {name: fact.value for name, fact in _read(text, path).facts.items()}


def _named(text: str) -> str:
    return ", ".join(str(fact.value) for fact in _read(text).unread)


@pytest.mark.parametrize(
    ("flag", "engine"),
    [("", "deepspeed-chunked-loss"), (" --enable_dft_loss true", "deepspeed"),
     (" --enable_channel_loss true", "deepspeed")],
)  # fmt: skip
def test_a_loss_of_its_own_has_all_logits_beside_liger(flag: str, engine: str) -> None:
    """ms-swift warns so itself: "the cross_entropy loss function defined in Liger Kernel will not
    take effect" (modelscope/ms-swift@3602360a swift/trainers/seq2seq_trainer.py).
    """
    assert _read(f"{FULL} --use_liger_kernel true{flag}").engine == engine


def test_defaults_of_a_full_training() -> None:
    """A micro-batch of 1, 16 sequences a step on 4 processes, and all layers recompute."""
    reading = _read(FULL)
    facts = {name: fact.value for name, fact in reading.facts.items()}
    said = {"gpus": 4, "model": "qwen3-8b", "seq_len": 4096, "micro_batch_size": 1,
            "num_micro_batches": 4, "zero_stage": 3, "precision": "bf16"}  # fmt: skip
    assert said.items() <= facts.items()
    assert "lora" not in facts
    assert "optimizer_states" not in facts  # DeepSpeed keeps fp32 masters
    assert (reading.framework, reading.engine, reading.recompute.mode) == (
        "ms-swift", "deepspeed", "full",
    )  # fmt: skip
    assert not reading.unread


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        pytest.param("", 4, id="16 = 1 x 4 GPUs x 4"),
        pytest.param(" --per_device_train_batch_size 3", 2, id="rounded up: 24 = 3 x 4 x 2"),
        pytest.param(" --per_device_train_batch_size 8", 1, id="32 = 8 x 4: never below one"),
        pytest.param(" --gradient_accumulation_steps $(expr 32 / $nproc)", 8, id="stated: 32 / 4"),
    ],
)
def test_accumulation(arguments: str, steps: int) -> None:
    """At least 16 sequences a step where no accumulation is stated."""
    assert _facts(FULL + arguments)["num_micro_batches"] == steps


@pytest.mark.parametrize(
    ("arguments", "lora"),
    [
        pytest.param("", Lora(rank=8, targets="all_linear", dropout=0.05), id="the default"),
        pytest.param(" --lora_rank 64 --target_modules q_proj v_proj --lora_dropout 0",
                     Lora(rank=64, targets="qv"), id="two modules"),
        pytest.param(" --quant_method bnb --quant_bits 4",
                     Lora(rank=8, targets="all_linear", dropout=0.05, base_precision="nf4"),
                     id="4 bits"),
    ],
)  # fmt: skip
def test_adapters_unless_full(arguments: str, lora: Lora) -> None:
    """LoRA is what is trained where no type of tuning is stated."""
    assert _facts(HEAD + MODEL + "    --max_length 2048" + arguments)["lora"] == lora


def test_the_format_that_nobody_states_is_the_checkpoints() -> None:
    """For all that follows from it: 4 bits beside products of 16, weights and states of 16."""
    text = FULL.replace(" --torch_dtype bfloat16", "").replace(" --deepspeed zero3", "")
    reading = _read(text)
    assert {reading.facts[name].value for name in ("precision", "optimizer_states")} == {"bf16"}
    assert any("torch_dtype is not stated" in note for note in reading.notes)
    assert not _named(text.replace("full", "lora") + " --quant_method bnb --quant_bits 4")


@pytest.mark.parametrize("word", ["bf16", "fp32"])
def test_a_format_that_ms_swift_does_not_take_is_named(word: str) -> None:
    """Its `torch_dtype` is one of three words (argparse refuses others): not fp32 by default."""
    with pytest.raises(MissingFacts, match=f"torch_dtype '{word}'"):
        read_config(FULL.replace("bfloat16", word), "run.sh")


def test_weights_of_16_bits_without_a_sharder() -> None:
    """`torch_dtype bfloat16` loads the weights so, and AdamW keeps states of that format; FSDP2
    keeps fp32 ones, and recomputes by itself.
    """
    alone = FULL.replace(" --deepspeed zero3", "")
    assert _facts(alone)["optimizer_states"] == "bf16"
    sharded = _read(alone + " --fsdp fsdp2 --gradient_checkpointing false")
    assert "optimizer_states" not in sharded.facts
    assert (sharded.facts["zero_stage"].value, sharded.recompute.mode) == (3, "full")


@pytest.mark.parametrize(
    ("head", "gpus", "named"),
    [
        pytest.param("NNODES=2 NPROC_PER_NODE=8 swift sft \\\n", 16, "", id="2 x 8"),
        pytest.param("export NPROC_PER_NODE=8\nswift sft \\\n", 8, "", id="exported"),
        pytest.param("NNODES=2 swift sft \\\n", 2, "", id="torchrun starts one on each node"),
        pytest.param("CUDA_VISIBLE_DEVICES=3 swift sft \\\n", 1, "", id="one GPU is seen"),
        pytest.param("NNODES=$WORLD_SIZE NPROC_PER_NODE=8 swift sft \\\n", None, "", id="unknown"),
        pytest.param("swift sft \\\n", None, "layers on the GPUs", id="one process for all"),
        pytest.param("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 swift sft \\\n", None,
                     "fewer than the 4 GPUs", id="two GPUs for each process"),
        pytest.param("deepspeed --hostfile=hosts swift/cli/sft.py \\\n", None, "",
                     id="its program under DeepSpeed's launcher"),
        pytest.param("torchrun --nproc_per_node=4 --nnodes=2 swift/cli/sft.py \\\n", 8, "",
                     id="its program under torchrun"),
    ],
)  # fmt: skip
def test_processes(head: str, gpus: int | None, named: str) -> None:
    """One GPU for each process of torchrun, which `swift` starts by its environment."""
    text = FULL.replace(HEAD, head)
    assert _facts(text).get("gpus") == gpus
    assert named in _named(text) if named else not _named(text)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param("--tuner_type adalora", "finetuning_type 'adalora'", id="other adapters"),
        pytest.param("--freeze_parameters_ratio 0.5", "freeze_parameters_ratio", id="frozen"),
        pytest.param("--use_galore true", "use_galore", id="GaLore"),
        pytest.param("--sequence_parallel_size 2", "sequence_parallel_size", id="Ulysses"),
        pytest.param("--deepspeed zero3_offload", "offload_param", id="weights on the host"),
        pytest.param("--task_type embedding", "task_type", id="another objective"),
        pytest.param("--quant_method hqq --quant_bits 4", "quant_method 'hqq'", id="HQQ"),
        pytest.param("--attn_impl eager", "attn_impl", id="eager attention"),
        pytest.param("--my_own_flag 1", "my_own_flag (not known)", id="a flag of no list"),
    ],
)
def test_what_no_price_holds_is_named(arguments: str, named: str) -> None:
    """By the flag, or by its value where the flag itself is read."""
    assert named in _named(HEAD + MODEL + "    --max_length 2048 " + arguments)


FSDP = """{"_note": "a word", "fsdp": "shard_grad_op auto_wrap",
           "fsdp_config": {"reshard_after_forward": false, "activation_checkpointing": false}}"""


@pytest.mark.parametrize("here", [True, False], ids=["a file", "JSON"])
def test_fsdp_is_a_file_or_json(tmp_path: Path, here: bool) -> None:
    """Stage 2 by its words; layers recompute by the trainer's own default; keys that only explain
    say nothing.
    """
    (tmp_path / "own.json").write_text(FSDP)
    said = "own.json" if here else f"'{FSDP}'"
    text = FULL.replace("--deepspeed zero3", f"--fsdp {said}")
    off = _read(f"{text} --gradient_checkpointing false", f"{tmp_path}/train.sh")
    assert (off.facts["zero_stage"].value, off.recompute.mode, off.unread) == (2, "none", ())
    assert _read(text, f"{tmp_path}/train.sh").recompute.mode == "full"


@pytest.mark.parametrize(
    ("said", "stage"),
    [
        ('{"fsdp_config": {"fsdp_version": 2, "reshard_after_forward": false}}', 2),
        ('{"fsdp": "shard_grad_op", "fsdp_config": {"reshard_after_forward": true}}', 3),
        ('{"fsdp": "shard_grad_op", "fsdp_config": {"version": 1}}', 2),
        ('{"fsdp": "no_shard", "fsdp_config": {"reshard_after_forward": false}}', 0),
        ('{"fsdp_config": {"version": 1, "reshard_after_forward": false}}', 3),
        ("{}", 3),
    ],
)
def test_whether_fsdp2_reshards_counts_before_its_words(said: str, stage: int) -> None:
    """transformers sets what a word stands for only where `fsdp_config` is silent of it."""
    reading = _read(FULL.replace("--deepspeed zero3", f"--fsdp '{said}'"))
    assert (reading.facts["zero_stage"].value, reading.unread) == (stage, ())


def test_an_fsdp_file_of_the_run_lies_beside_its_script(tmp_path: Path) -> None:
    """Copied from where the run was."""
    (tmp_path / "own.json").write_text(FSDP)
    text = FULL.replace("--deepspeed zero3", "--fsdp /opt/my_fsdp/own.json")
    reading = _read(text, f"{tmp_path}/train.sh")
    assert (reading.facts["zero_stage"].value, reading.unread) == (2, ())


def test_an_fsdp_file_that_is_not_there_is_named() -> None:
    """Once, by its path, not word by word of it."""
    named = _named(FULL.replace("--deepspeed zero3", "--fsdp /opt/my_fsdp/own.json"))
    assert named.startswith("fsdp '/opt/my_fsdp/own.json' (what is sharded is in that file")
    assert named.count("fsdp '") == 1


def test_yaml_leaves_the_processes_to_its_start() -> None:
    """GPUs and micro-batches are open, unless the file sets `NPROC_PER_NODE`."""
    text = "model: Qwen/Qwen3-8B\ntuner_type: full\ntorch_dtype: bfloat16\nmax_length: 2048\n"
    reading = _read(text + "deepspeed: zero2\n", "sft.yaml")
    assert not reading.unread
    assert "gpus" not in reading.facts
    assert "num_micro_batches" not in reading.facts  # 16 sequences over an unknown number
    assert _facts(text + "ENV:\n  NPROC_PER_NODE: 2\n", "sft.yaml")["gpus"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("NPROC_PER_NODE=4 swift sft --model_id_or_path x --sft_type full\n",
                     "ms-swift 2", id="other names"),
        pytest.param("swift rlhf --rlhf_type grpo --model x\n", "swift rlhf", id="reinforcement"),
        pytest.param("NPROC_PER_NODE=4 megatron sft --model x\n", "on Megatron", id="Megatron"),
        pytest.param("swift sft $SWIFT_ARGS\n", "no --model in the command", id="all left open"),
    ],
)  # fmt: skip
def test_refused_in_one_line(text: str, said: str) -> None:
    """Other versions, methods and backends, and a command that leaves all open."""
    with pytest.raises(UnreadableConfig, match=said) as error:
        _read(text)
    assert "\n" not in str(error.value)


def test_a_model_below_a_folder_left_open_is_known_by_its_name() -> None:
    """LIyvqi/ms-swift-learn course/25: `${ROOT}/models/Qwen3.5-0.8B-Base` was no --model at all."""
    left = FULL.replace("Qwen/Qwen3-8B", "${ROOT}/models/Qwen3-8B")
    assert _facts(left)["model"] == "qwen3-8b"
    unknown = FULL.replace("Qwen/Qwen3-8B", "$MODEL")
    with pytest.raises(UnreadableConfig, match="--env MODEL=VALUE"):
        _read(unknown)
    said = _read(unknown, start=Start(instead=frozenset({"model"})))
    assert "model" not in said.facts
    assert said.facts["seq_len"].value == 4096


def test_accelerate_may_launch_it_by_json(tmp_path: Path) -> None:
    """Accelerate takes JSON as it takes YAML (modelscope/ms-swift examples, fsdp2_lora)."""
    sharded = {"fsdp_version": 2, "fsdp_reshard_after_forward": True,
               "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
               "fsdp_activation_checkpointing": True}  # fmt: skip
    config = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 2,
              "num_machines": 1, "fsdp_config": sharded}  # fmt: skip
    (tmp_path / "fsdp2.json").write_text(json.dumps(config))
    head = "accelerate launch --config_file fsdp2.json swift/cli/sft.py \\\n"
    text = HEAD.replace(HEAD, head) + MODEL + "    --max_length 2048 --train_type full"
    reading = _read(text, str(tmp_path / "train.sh"))
    said = {name: fact.value for name, fact in reading.facts.items()}
    assert (said["zero_stage"], said["gpus"], reading.recompute.mode) == (3, 2, "full")
    assert not reading.unread


def test_a_verdict(tmp_path: Path) -> None:
    """8 billion parameters of 16 bytes and their gradients fit four GPUs of 80 GB by ZeRO-3."""
    (tmp_path / "train.sh").write_text(FULL)
    (found,) = check_paths([tmp_path / "train.sh"], tools(), Settings(cluster="dgx-h100"))
    assert found.verdict == "fits"
    assert recognise("train.sh", FULL).name == "ms-swift"


@pytest.mark.parametrize("said", ["$FSDP.json", '\'{"fsdp": "$FSDP"}\''])
def test_an_fsdp_file_that_nobody_names_is_asked_for(said: str) -> None:
    """Not taken to be a file that is elsewhere, nor JSON."""
    with pytest.raises(UnreadableConfig, match="--env FSDP="):
        _read(FULL.replace("--deepspeed zero3", f"--fsdp {said}"))


def test_a_file_that_the_script_writes_into_a_folder_that_a_command_names() -> None:
    """The sharding of a run's own folder, as ms-swift's `--fsdp FILE` takes it."""
    script = """RUN=out/run_$(date +%s)
cat > "$RUN/fsdp.json" <<'EOF'
{"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": true}}
EOF
NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --tuner_type full --torch_dtype bfloat16 \\
  --max_length 2048 --per_device_train_batch_size 1 --fsdp $RUN/fsdp.json
"""
    assert read_config(script, "run.sh").facts["zero_stage"].value == 3
