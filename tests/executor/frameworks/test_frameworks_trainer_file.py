"""Scripts that start a trainer with its file: `KEY=VALUE` and `--key value` win over the file."""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import NothingToRead, Reading, Start, UnreadableConfig

FACTORY = """\
model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3.1-8B
datasets: [{path: x, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_torch
bf16: auto
"""
TRL = """\
model_name_or_path: Qwen/Qwen3-8B
dataset_num_proc: 4
max_length: 2048
per_device_train_batch_size: 1
bf16: true
"""
SWIFT = """\
model: Qwen/Qwen3-8B
train_type: full
torch_dtype: bfloat16
deepspeed: zero2
max_length: 2048
ENV:
  NPROC_PER_NODE: '4'
"""


def _read(tmp_path: Path, file: str, command: str, start: Start | None = None) -> Reading:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").write_text(file, encoding="utf-8")
    return read_config(command, str(tmp_path / "run.sh"), None, start)


@pytest.mark.parametrize(
    ("file", "command", "gpus", "micro_batch", "seq_len"),
    [
        pytest.param(
            FACTORY,
            "CUDA_VISIBLE_DEVICES=0,1,2,3 llamafactory-cli train conf/a.yaml cutoff_len=4096 "
            "per_device_train_batch_size=2\n", 4, 2, 4096, id="llamafactory-cli",
        ),
        pytest.param(
            FACTORY,
            "NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train conf/a.yaml\n", 16, 1, 2048,
            id="two nodes",
        ),
        pytest.param(
            AXOLOTL,
            "accelerate launch --num_processes 8 -m axolotl.cli.train conf/a.yaml "
            "--micro-batch-size 2 --sequence-len=8192\n", 8, 2, 8192, id="axolotl",
        ),
        pytest.param(
            TRL,
            "N=4\naccelerate launch --num_processes 8 sft.py --config conf/a.yaml \\\n"
            "  --per_device_train_batch_size $N\n", 8, 4, 2048, id="TRL",
        ),
        pytest.param(
            SWIFT, "swift sft --config conf/a.yaml --max_length 1024\n", 4, 1, 1024, id="swift",
        ),
        pytest.param(
            SWIFT, 'HERE="$(cd "$(dirname "$0")" && pwd)"\n'
            'swift sft --config "$HERE/conf/a.yaml"\n', 4, 1, 2048, id="the script's folder",
        ),
        pytest.param(
            SWIFT, "NPROC_PER_NODE=2 swift sft conf/a.yaml\n", 2, 1, 2048, id="swift, first word",
        ),
    ],
)  # fmt: skip
def test_the_file_is_followed_and_words_win(
    tmp_path: Path, file: str, command: str, gpus: int, micro_batch: int, seq_len: int
) -> None:
    """Each trainer's own way to start with a file."""
    facts = _read(tmp_path, file, command, Start(launched_by="none")).facts
    found = [facts[name].value for name in ("gpus", "micro_batch_size", "seq_len")]
    assert found == [gpus, micro_batch, seq_len]


def test_a_file_that_is_not_there_is_named_as_before(tmp_path: Path) -> None:
    """In a folder the script is passed over; alone it says what to check."""
    script = str(tmp_path / "run.sh")
    with pytest.raises(NothingToRead, match=r"a launch script of LLaMA-Factory: not read"):
        read_config("llamafactory-cli train nobodys-file.yaml learning_rate=1e-5\n", script)
    with pytest.raises(NothingToRead, match="check that file itself"):
        read_config("swift sft --config nobodys-file.yaml\n", script)


def test_the_file_is_looked_for_up_to_the_repository(tmp_path: Path) -> None:
    """Another repository's file of the same name is another file; the one that is read is named."""
    (tmp_path / "a.yaml").write_text(SWIFT)
    scripts = tmp_path / "own" / "scripts"
    scripts.mkdir(parents=True)
    command, start = "swift sft --config a.yaml\n", Start(launched_by="none")
    notes = read_config(command, str(scripts / "run.sh"), start=start).notes
    assert f"its file is {tmp_path / 'a.yaml'}" in notes
    (tmp_path / "own" / ".git").mkdir()
    with pytest.raises(NothingToRead, match="check that file itself"):
        read_config(command, str(scripts / "run.sh"), start=start)


def test_changes_of_the_model_that_change_no_size_are_read(tmp_path: Path) -> None:
    """modal-labs/llm-finetuning config/mixtral.yml has `output_router_logits`; layers are named."""
    for inside, named in (("output_router_logits: true", False), ("num_hidden_layers: 4", True)):
        text = f"{AXOLOTL}model_config:\n  {inside}\n"
        unread = read_config(text, str(tmp_path / "a.yaml")).unread
        assert any("model_config" in str(fact.value) for fact in unread) is named


@pytest.mark.parametrize(
    "program", ["grpo.py", "dpo_trainer.py", "run_mlm.py", "train_reward.py", "train_rm.py"]
)
def test_a_program_that_trains_otherwise_is_named(tmp_path: Path, program: str) -> None:
    """Its name says preferences, rewards or masks, whatever the file's keys are."""
    command = f"accelerate launch {program} --config conf/a.yaml\n"
    reading = _read(tmp_path, TRL, command, Start(launched_by="none"))
    assert any(program in str(fact.value) for fact in reading.unread)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("train_qlora.py", True),
        ("sft-lora.py", True),
        ("-m pkg.train.train_lora", True),
        ("peft_sft.py", True),
        ("explorations.py", False),
        ("florals_train.py", False),
    ],
)
def test_a_program_whose_name_says_adapters_is_named(program: str, named: bool) -> None:
    """With no switch of adapters among its arguments its name alone says that not all trains."""
    arguments = "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --bf16"
    launch = f"torchrun --nproc_per_node 8 {program} --model_name_or_path Qwen/Qwen3-8B {arguments}"
    unread = read_config(f"{launch} --max_seq_length 4096\n", "run.sh").unread
    assert any("its name says adapters" in str(fact.value) for fact in unread) is named


def test_adapters_that_a_trainers_file_states_are_not_the_programs_own(tmp_path: Path) -> None:
    """LLaMA-Factory's keys say its adapters, whatever the program that reads them is called."""
    command = "accelerate launch --use_fsdp train_lora.py conf/a.yaml\n"
    unread = _read(tmp_path, FACTORY, command).unread
    assert not any("its name says adapters" in str(fact.value) for fact in unread)


def test_a_file_that_a_variable_above_the_launch_names(tmp_path: Path) -> None:
    """The YAML's name is assigned first, and the command stands in quotes of `bash -c`."""
    script = """#!/bin/bash
#SBATCH --nodes=1
CONFIG={}
CMD="-m axolotl.cli.train $CONFIG"
LAUNCHER="accelerate launch --multi_gpu --num_machines 1 --num_processes 8"
srun bash -c "$LAUNCHER $CMD"
"""
    reading = _read(tmp_path, AXOLOTL, script.format("conf/a.yaml"))
    assert (reading.framework, reading.facts["gpus"].value) == ("axolotl", 8)
    with pytest.raises(NothingToRead, match="a launch script of axolotl: not read"):
        read_config(script.format("conf/b.yaml"), str(tmp_path / "run.sh"))


def test_a_file_that_the_script_writes_into_a_folder_that_a_command_names() -> None:
    """Nothing runs `date`; the file is known by the words that write it and that name it."""
    script = """RUN=out/run_$(date +%s)
cat > "$RUN/ds.json" <<'EOF'
{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}
EOF
deepspeed --num_gpus 8 train.py --model_name_or_path Qwen/Qwen3-8B --deepspeed $RUN/ds.json \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_seq_length 4096 --bf16
"""
    assert read_config(script, "run.sh").facts["zero_stage"].value == 3
    other = script.replace("--deepspeed $RUN", "--deepspeed $OTHER")
    with pytest.raises(UnreadableConfig, match="--env OTHER=VALUE"):
        read_config(other, "run.sh")


def test_a_count_that_a_command_decides_says_the_option_instead() -> None:
    """Accumulation by the GPUs that torch counts: `--global-batch` says the same."""
    script = """N=$(python -c 'import torch; print(torch.cuda.device_count())')
torchrun --nproc_per_node $N train.py --model_name_or_path Qwen/Qwen3-8B --bf16 True \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps $((128 / N / 2)) \\
  --max_seq_length 4096
"""
    with pytest.raises(UnreadableConfig, match="; or give --global-batch"):
        read_config(script, "run.sh")
    said = Start(instead=frozenset({"global_batch_size"}))
    assert "num_micro_batches" not in read_config(script, "run.sh", start=said).facts


def test_a_switch_of_flash_attention_is_a_note() -> None:
    """open_instruct/finetune_trainer.py and LongLoRA's programs call it so: the engine's runs."""
    script = (
        "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen3-8B --bf16 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_seq_length 4096 "
        "--use_flash_attn True\n"
    )
    reading = read_config(script, "run.sh")
    assert reading.unread == ()
    assert any("use_flash_attn" in note for note in reading.notes)


def test_the_keys_of_an_array_are_numbers() -> None:
    """LHL3341/Caco scripts/sft.sh loops over `${!names[@]}`: each a launch of its own."""
    script = (
        'names=("Qwen/Qwen2.5-7B" "Qwen/Qwen2.5-14B")\nfor i in "${!names[@]}"; do\n'
        "torchrun --nproc_per_node=4 train.py --model_name_or_path ${names[$i]} --bf16 "
        "--per_device_train_batch_size 2 --model_max_length 1024\ndone\n"
    )
    first = read_config(script, "run.sh")
    models = [each.facts["model"].value for each in (first, *first.others)]
    assert models == ["qwen2.5-7b", "qwen2.5-14b"]


def test_a_precision_that_a_command_decides_is_asked_for() -> None:
    """Kkuntal990/vlm-self-reflection-ms-swift scripts/run_sft_ddp.sh: not fp32 without a word."""
    script = (
        'DTYPE="${DTYPE:-auto}"\nif [ "$DTYPE" = "auto" ]; then DTYPE=$(python dtype.py); fi\n'
        "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen3-8B --torch_dtype $DTYPE\n"
    )
    with pytest.raises(UnreadableConfig, match="--torch_dtype is"):
        read_config(script, "run.sh")
    known = read_config(script, "run.sh", None, Start(environment={"DTYPE": "bfloat16"}))
    assert known.facts["precision"].value == "bf16"


SBATCH = """\
#SBATCH --gpus-per-node=8
srun torchrun --nproc_per_node $SLURM_GPUS_PER_NODE --nnodes {nodes} pretrain_gpt.py \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --micro-batch-size 1
"""


@pytest.mark.parametrize(("nodes", "gpus"), [("$SLURM_NNODES", None), ("1", 8), ("4", 32)])
def test_nodes_left_to_sbatch_are_not_one(nodes: str, gpus: int | None) -> None:
    """Azure/ai-infrastructure-on-azure examples/megatron-lm/GPT3-175B/slurm: `sbatch -N 64 ...`."""
    stated = read_config(SBATCH.format(nodes=nodes), "run.slurm").facts.get("gpus")
    assert (stated.value if stated else None) == gpus


NEMO = """\
trainer:
  devices: 8
{nodes}  precision: bf16
model:
  mcore_gpt: true
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  encoder_seq_length: 8192
  mcore_customization_config:
    new_decoder_architecture: {other}
    parallel_attention: false
  optim:
    name: distributed_fused_adam
"""


@pytest.mark.parametrize(("nodes", "gpus"), [("", None), ("  num_nodes: 32\n", 256)])
def test_nemo_says_on_how_many_nodes_or_is_asked(nodes: str, gpus: int | None) -> None:
    """AI-Hypercomputer/gpu-recipes: `+trainer.num_nodes` is the launcher's; not one node."""
    stated = read_config(NEMO.format(nodes=nodes, other="false"), "a.yaml").facts.get("gpus")
    assert (stated.value if stated else None) == gpus


def test_a_section_that_is_all_off_says_nothing() -> None:
    """NeMo's own defaults below `mcore_customization_config`; one that is on is named."""
    for other, named in (("false", False), ("true", True)):
        unread = read_config(NEMO.format(nodes="", other=other), "a.yaml").unread
        assert any("mcore_customization" in str(fact.value) for fact in unread) is named


def test_bridge_has_megatron_cores_name_of_the_length() -> None:
    """youngeunkwon0405/Megatron-Bridge examples/recipes/llama/conf: `dataset.sequence_length`."""
    text = "train:\n  micro_batch_size: 1\ndataset:\n  sequence_length: 4096\n"
    assert read_config(text, "a.yaml").facts["seq_len"].value == 4096
    both = read_config(f"{text}model:\n  seq_length: 2048\n", "a.yaml")
    assert any("4096" in str(fact.value) for fact in both.unread)


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --num-layers 4 "
    "--hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 --bf16 "
)


@pytest.mark.parametrize(
    ("more", "engine"),
    [
        ("--deepspeed --deepspeed_config a.json --use-flash-attn-v2", "megatron-deepspeed-flash"),
        ("--deepspeed --deepspeed_config a.json", "megatron-deepspeed"),
        ("--use-flash-attn", "megatron"),
    ],
)
def test_megatron_deepspeed_keeps_scores_unless_told(more: str, engine: str) -> None:
    """Its `ParallelAttention` has one or the other; the price holds which."""
    assert read_config(MEGATRON + more, "a.sh").engine == engine


def test_bigcodes_fork_keeps_scores_unless_told() -> None:
    """loubnabnl/nanotron-smol-cluster examples/leoardo_13b.slurm has no --use-flash-attn."""
    fork = MEGATRON + "--attention-head-type multiquery "
    assert any("--use-flash-attn" in str(f.value) for f in read_config(fork, "a.sh").unread)
    assert not read_config(f"{fork}--use-flash-attn", "a.sh").unread


def test_deepspeed_refuses_a_key_that_is_there_twice() -> None:
    """deepspeedai/DeepSpeed runtime/config_utils.py, dict_raise_error_on_duplicate_keys."""
    text = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "bf16": {}}'
    with pytest.raises(UnreadableConfig, match="'bf16' is there twice"):
        read_config(text, "ds_config.json")


def test_a_launchers_deepspeed_takes_its_own_arguments_alone() -> None:
    """SmallDoges/small-doge recipes/accelerate_configs/zero3.yaml; a degree above 1 is named."""
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n"
        "  zero_stage: 3\n  data_parallel_size: 8\n  timeout: 60\n  tensor_parallel_size: {}\n"
        "  bf16: {{enabled: true}}\nnum_processes: 8\n"
    )
    assert not read_config(text.format(1), "zero3.yaml").unread
    assert read_config(text.format(2), "zero3.yaml").unread


@pytest.mark.parametrize(
    ("repository", "model"),
    [
        ("allenai/OLMo-2-1124-7B-Instruct", "olmo-2-7b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
    ],
)
def test_a_repositorys_name_less_its_date(tmp_path: Path, repository: str, model: str) -> None:
    """Dates stand in the middle of a name, and `v3` is none of a tuning where a model has it."""
    file = FACTORY.replace("Qwen/Qwen3-8B", repository)
    assert read_config(file, str(tmp_path / "a.yaml")).facts["model"].value == model


@pytest.mark.parametrize(
    ("start", "engine"),
    [
        ("trl sft --config sft.yaml", "accelerate-chunked-loss"),
        ("accelerate launch --use_fsdp trl/scripts/sft.py --config sft.yaml",
         "accelerate-chunked-loss"),
        ("accelerate launch --use_fsdp train.py sft.yaml", "accelerate"),
    ],
)  # fmt: skip
def test_a_file_that_trl_starts_has_trls_defaults(tmp_path: Path, start: str, engine: str) -> None:
    """Without a key that only TRL has the file is a Trainer's, whose loss has all logits."""
    keys = "model_name_or_path: Qwen/Qwen3-8B\nmax_length: 2048\nbf16: true\n"
    batch = "per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\n"
    (tmp_path / "sft.yaml").write_text(keys + batch)
    assert read_config(f"{start}\n", str(tmp_path / "run.sh")).engine == engine
