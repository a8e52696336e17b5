"""Launchers' own options: Accelerate's, srun's, and programs whose defaults are TRL's."""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import IllegalConfig, Reading
from meshplan.planner.case.resolve import resolve
from meshplan.planner.case.settings import Settings

PROGRAM = (
    "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --bf16 "
    "--gradient_accumulation_steps 4 --max_seq_length 4096\n"
)
ZERO_3 = """distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4}
"""
BY_FILE = """distributed_type: DEEPSPEED
num_processes: 16
deepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: true}
"""


def read(folder: Path, launcher: str, program: str = PROGRAM) -> Reading:
    """A script of one command in `folder`, which has two of Accelerate's files and a JSON."""
    (folder / "zero3.yaml").write_text(ZERO_3)
    (folder / "by_file.yaml").write_text(BY_FILE)
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    return read_config(f"{launcher} {program}", str(folder / "run.sh"))


@pytest.mark.parametrize(
    ("options", "engine", "stage", "gpus"),
    [
        pytest.param("--num_processes 8 --use_deepspeed --zero_stage 3", "deepspeed", 3, 8,
                     id="DeepSpeed"),
        pytest.param("--num_processes 8 --use_deepspeed", "deepspeed", 2, 8,
                     id="its stage where none is stated"),
        pytest.param("--use_deepspeed --deepspeed_config_file ds.json --num_processes 4",
                     "deepspeed", 1, 4, id="its file"),
        pytest.param("--num_processes 16 --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP "
                     "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP", "accelerate", 2, 16,
                     id="FSDP"),
        pytest.param("--multi_gpu --num_processes 8", "accelerate", 0, 8, id="copies"),
        pytest.param("--config_file zero3.yaml", "deepspeed", 3, 8, id="a file"),
        pytest.param("--config_file zero3.yaml --zero_stage 2 --num_processes 4", "deepspeed", 2, 4,
                     id="options win over it"),
        pytest.param("--config_file by_file.yaml", "deepspeed", 1, 16,
                     id="a file that names DeepSpeed's"),
    ],
)  # fmt: skip
def test_options_of_accelerate_launch(
    tmp_path: Path, options: str, engine: str, stage: int, gpus: int
) -> None:
    """As _validate_launch_command of huggingface/accelerate puts them together."""
    reading = read(tmp_path, f"accelerate launch {options}")
    facts = {name: fact.value for name, fact in reading.facts.items()}
    assert (reading.engine, facts["zero_stage"], facts["gpus"]) == (engine, stage, gpus)
    assert reading.unread == ()


def test_no_of_the_command_line_is_a_word(tmp_path: Path) -> None:
    """`--mixed_precision no` is fp32, not YAML's false; it wins over the file's."""
    program = PROGRAM.replace("--bf16 ", "")
    launcher = "accelerate launch --config_file zero3.yaml --mixed_precision"
    for word, precision in (("no", "fp32"), ("fp16", "fp16")):
        reading = read(tmp_path, f"{launcher} {word}", program)
        assert reading.facts["precision"].value == precision


def test_a_format_alone_says_nothing_of_the_sharding(tmp_path: Path) -> None:
    """`--mixed_precision bf16` is the format; a default file of Accelerate's may still shard."""
    program = PROGRAM.replace("--bf16 ", "")
    reading = read(tmp_path, "accelerate launch --mixed_precision bf16 --num_processes 8", program)
    assert (reading.facts["precision"].value, reading.facts["gpus"].value) == ("bf16", 8)
    assert "an Accelerate file may shard" in reading.unread[0].value


def test_another_layout_of_accelerate_is_named(tmp_path: Path) -> None:
    """Megatron-LM under Accelerate has degrees of its own."""
    reading = read(tmp_path, "accelerate launch --use_megatron_lm --megatron_lm_tp_degree 2")
    assert "distributed_type 'MEGATRON_LM'" in reading.unread[0].value


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("srun --nodes=8 --ntasks-per-node=8 --gpus-per-node=8 python", 64),
        ("srun --nodes=4 --gpus-per-node=a100:4 python", 16),
        ("srun --nodes=4 --ntasks-per-node=1 torchrun --nproc_per_node 8 --nnodes $N", 32),
        ("srun --nodes=4 torchrun --nproc_per_node 8 --nnodes 2", 16),
        ("srun --nodes=$N --gpus-per-node=8 python", None),
        ("srun --ntasks-per-node=8 python", None),
    ],
)
def test_gpus_by_options_of_srun(launcher: str, gpus: int | None) -> None:
    """Nodes times those of a node; what torchrun counts itself wins."""
    flags = "--tensor-model-parallel-size 2 --num-layers 8 --hidden-size 512 --bf16 "
    text = f"{launcher} pretrain_gpt.py {flags}--num-attention-heads 8 --micro-batch-size 1\n"
    found = read_config(text, "run.sh").facts.get("gpus")
    assert (found and found.value) == gpus


@pytest.mark.parametrize(
    "command", ["trl sft", "accelerate launch --multi_gpu examples/scripts/sft.py",
                "torchrun --nproc_per_node 8 -m trl.scripts.sft"],
)  # fmt: skip
def test_programs_of_trl_have_its_defaults(tmp_path: Path, command: str) -> None:
    """bf16 and checkpoints are on, the loss is in pieces, and adapters are read."""
    words = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --max_length 2048"
    more = " --use_peft --lora_r 8 --lora_target_modules all-linear"
    plain, adapted = (read(tmp_path, command, words + each) for each in ("", more))
    assert (plain.framework, plain.recompute.mode) == ("trl", "full")
    assert plain.facts["precision"].value == "bf16"
    assert "lora" not in plain.facts
    assert adapted.facts["lora"].value.rank == 8


@pytest.mark.parametrize("switch", ["--use_peft", "--lora_enable True", "--finetuning_type lora"])
def test_adapters_of_another_program_are_named(tmp_path: Path, switch: str) -> None:
    """Without a word on what it adapts they are not taken for training all weights."""
    reading = read(tmp_path, "torchrun --nproc_per_node 8", f"{PROGRAM[:-1]} {switch}\n")
    assert "what this program adapts is not known" in reading.unread[0].value


FSDP = '--fsdp "full_shard auto_wrap" --fsdp_config'


@pytest.mark.parametrize(
    ("stated", "recompute", "unread"),
    [
        pytest.param("fsdp.json", "full", 0, id="a file beside the script"),
        pytest.param("""'{"activation_checkpointing": true}'""", "full", 0, id="JSON itself"),
        pytest.param("""'{"transformer_layer_cls_to_wrap": ["X"]}'""", "none", 0, id="no word"),
        pytest.param("elsewhere.json", "none", 1, id="a file that is not there"),
    ],
)
def test_fsdp_config_is_a_file_or_json(
    tmp_path: Path, stated: str, recompute: str, unread: int
) -> None:
    """transformers reads either (training_args.py): whether layers recompute is in there."""
    (tmp_path / "fsdp.json").write_text('{"activation_checkpointing": true}')
    program = f"{PROGRAM[:-1]} {FSDP} {stated}\n"
    reading = read(tmp_path, "torchrun --nproc_per_node 8", program)
    assert reading.facts["zero_stage"].value == 3
    assert reading.recompute.mode == recompute
    assert len(reading.unread) == unread


HOSTS = "# ours\na slots=8\n\nb slots=8\nc slots=4\n"


@pytest.mark.parametrize(
    ("options", "gpus", "nodes"),
    [
        pytest.param("--num_nodes=2 --num_gpus 8", 16, None, id="2 x 8"),
        pytest.param("--num_nodes=2", None, 2, id="two whole nodes"),
        pytest.param("--hostfile hosts", 20, None, id="8 + 8 + 4"),
        pytest.param("--hostfile hosts --num_nodes 2", 16, None, id="of them the first two"),
        pytest.param("--hostfile hosts --num_nodes 1", 8, None, id="the first"),
        pytest.param("--num_nodes 2 --num_gpus $N", None, None, id="left to the start"),
        pytest.param("--hostfile hosts --num_gpus 4", 12, None, id="4 of each of three"),
        pytest.param("--hostfile hosts --include a@c:0,1", 10, None, id="8 + 2"),
        pytest.param("--hostfile hosts --exclude a:0@b", 11, None, id="7 + 4"),
        pytest.param("--hostfile elsewhere --num_gpus 4", None, None, id="hosts that are not here"),
        pytest.param("--hostfile elsewhere --num_nodes 3 --num_gpus 4", 12, None, id="3 x 4"),
        pytest.param("--hostfile odd --num_gpus 4", None, None, id="a file that DeepSpeed refuses"),
        pytest.param("--hostfile twice", None, None, id="which it refuses too"),
        pytest.param("-H hosts -i a@c:0,1", 10, None, id="the same by short options"),
    ],
)
def test_gpus_of_deepspeeds_hosts(
    tmp_path: Path, options: str, gpus: int | None, nodes: int | None
) -> None:
    """As its launcher trims a file of hosts (DeepSpeed 0.19.8 apply_num_nodes_and_gpus)."""
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "odd").write_text(f"{HOSTS}d\n")
    (tmp_path / "twice").write_text(f"{HOSTS}a slots=8\n")
    facts = read(tmp_path, f"deepspeed {options}").facts
    found = [facts[name].value if name in facts else None for name in ("gpus", "nodes")]
    assert found == [gpus, nodes]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--hostfile hosts --include a --exclude b", "DeepSpeed takes no --exclude beside"),
        ("--hostfile hosts --exclude a:0@z", "the file of hosts has no 'z'"),
        ("--hostfile hosts --num_gpus 4 --exclude a", "DeepSpeed takes no --num_gpus beside"),
    ],
)
def test_hosts_that_deepspeed_refuses_are_illegal(tmp_path: Path, options: str, why: str) -> None:
    """They had the GPUs of what the one filter left, or of the settings file."""
    (tmp_path / "hosts").write_text(HOSTS)
    with pytest.raises(IllegalConfig, match=why):
        read(tmp_path, f"deepspeed {options}")


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        pytest.param("CUDA_VISIBLE_DEVICES=0,1,2 deepspeed", 3, id="those of the host"),
        pytest.param("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 4", 4, id="but a number"),
        pytest.param("CUDA_VISIBLE_DEVICES=0,1 python", None, id="not of another launcher"),
        pytest.param("CUDA_VISIBLE_DEVICES=$SEEN deepspeed", None, id="left to the start"),
    ],
)
def test_deepspeed_takes_the_devices_that_are_visible(
    tmp_path: Path, launcher: str, gpus: int | None
) -> None:
    """Where no option says which (DeepSpeed 0.19.8 launcher/runner.py, main)."""
    found = read(tmp_path, launcher).facts.get("gpus")
    assert (found and found.value) == gpus


def test_whole_nodes_have_the_gpus_of_the_cluster(tmp_path: Path) -> None:
    """Two nodes of eight win over a settings file's 64, which a note says; an option over both."""
    near = Settings(cluster="dgx-h100", gpus=64, model="qwen3-8b", seq_len=4096)
    reading = read(tmp_path, "deepspeed --num_nodes 2")
    case = resolve(reading, Settings(), near)
    assert case.layout.world_size == 16
    assert "line 1: 2 x 8 GPUs of whole nodes, as dgx-h100 has them" in case.notes
    case = resolve(reading, Settings(gpus=32), near)
    assert case.layout.world_size == 32
    assert "--gpus 32 instead of the 16 of line 1" in case.notes


@pytest.mark.parametrize(
    ("launcher", "gpus", "nodes"),
    [
        pytest.param("torchrun --nnodes 2 --nproc-per-node gpu", None, 2, id="whole nodes"),
        pytest.param("torchrun --nnodes 2:2 --nproc-per-node 8", 16, None, id="from two to two"),
        pytest.param("torchrun --nnodes 1:4 --nproc-per-node 8", None, None, id="as many as come"),
        pytest.param("mpirun -np 16 --hostfile hosts python", 16, None, id="not of their slots"),
        pytest.param("srun -N 4 --gres=gpu:h100:8 python", 32, None, id="4 x 8"),
        pytest.param("srun -N 4 --gres=nvme:1,gpu:8 python", 32, None, id="4 x 8, not of nvme"),
        pytest.param("starter --gpus 16 python", None, None, id="not of an unknown one"),
        pytest.param("srun -N 4 -G 16 python", 16, None, id="16 of the job"),
        pytest.param("srun -N 2 -G 16 torchrun --nnodes 2 --nproc-per-node auto", 16, None,
                     id="all of the job"),
    ],
)  # fmt: skip
def test_gpus_of_other_launchers(
    tmp_path: Path, launcher: str, gpus: int | None, nodes: int | None
) -> None:
    """What they state counts, and no more."""
    (tmp_path / "hosts").write_text(HOSTS)
    facts = read(tmp_path, launcher).facts
    found = [facts[name].value if name in facts else None for name in ("gpus", "nodes")]
    assert found == [gpus, nodes]


@pytest.mark.parametrize(
    ("header", "gpus"),
    [
        pytest.param("-N 4 --gpus-per-node=8", 32, id="4 x 8"),
        pytest.param("<OPTIONS> --nodes=2 --exclusive --gpus-per-node 4", 8, id="behind a switch"),
        pytest.param("--nodes=2 # --nodes=16\n#SBATCH --gres=gpu:8", 16, id="not of a remark"),
        pytest.param("-N4 -p gpu-n16 -n 32", 32, id="tasks, not of the partition's name"),
        pytest.param('-N 2 --comment="as --nodes=4" --gres=gpu:8', 16, id="not of a comment"),
        pytest.param("-N 2 --gres=nvme:1,gpu:a100:8", 16, id="not of another resource"),
        pytest.param("-N 2 --gres=gpu", 2, id="one of each"),
        pytest.param("-N 2 --ntasks-per-node=4 --gpus-per-task=2", 16, id="2 x 4 tasks of two"),
    ],
)
def test_a_line_of_a_header_may_have_several_options(
    tmp_path: Path, header: str, gpus: int
) -> None:
    """As sbatch takes them: Megatron-LM's `#SBATCH <SLURM OPTIONS> --nodes=128 --exclusive ...`."""
    (tmp_path / "zero3.yaml").write_text(ZERO_3)
    text = f"#!/bin/bash\n#SBATCH {header}\nsrun python {PROGRAM}"
    assert read_config(text, str(tmp_path / "run.sh")).facts["gpus"].value == gpus


MEGATRON = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 1 --vocab-size 512 "
    "--max-position-embeddings 64 --bf16\n"
)


@pytest.mark.parametrize(
    ("launcher", "left"),
    [
        pytest.param("torchrun --nproc-per-node 8 --nnodes $N",
                     "--nnodes '$N' leaves the number of GPUs open", id="a variable"),
        pytest.param("torchrun --nproc-per-node 8 --nnodes 1:4",
                     "--nnodes '1:4' leaves the number of GPUs open", id="as many as come"),
        pytest.param("deepspeed --hostfile elsewhere",
                     "the hosts of --hostfile 'elsewhere' are not known", id="a file elsewhere"),
        pytest.param("accelerate launch --num_machines 2",
                     "accelerate launch has no --num_processes", id="Accelerate's processes"),
        pytest.param("accelerate launch --num_processes $N",
                     "--num_processes '$N' leaves the number of GPUs open", id="of a variable"),
        pytest.param("srun -n $N python",
                     "a number of processes '$N' leaves the number of GPUs open", id="srun"),
        pytest.param("nohup python -u", "python without a launcher starts one process, and "
                     "WORLD_SIZE is not set", id="no launcher"),
        pytest.param('"$BIN/bind.sh"', "'$BIN/bind.sh' does not state how many GPUs "
                     "there are in all", id="a program that is not known"),
        pytest.param("torchrun --nnodes 2 --nproc-per-node 8", None, id="all is said"),
    ],
)  # fmt: skip
def test_whose_gpus_are_taken_where_a_launch_leaves_them_open(
    tmp_path: Path, launcher: str, left: str | None
) -> None:
    """A note says what leaves them open, and whether a settings file or an option says them."""
    near = Settings(cluster="dgx-h100", gpus=64)
    reading = read(tmp_path, f"true\n{launcher}", MEGATRON)
    taken = {
        "the 64 of the settings file are taken": resolve(reading, Settings(), near),
        "--gpus 32 is taken": resolve(reading, Settings(gpus=32), near),
    }
    for said, case in taken.items():
        notes = [note for note in case.notes if note.endswith("taken")]
        assert notes == ([f"line 2: {left}: {said}"] if left else [])


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        pytest.param("export WORLD_SIZE=1\npython", 1, id="exported"),
        pytest.param("RANK=0 WORLD_SIZE=2 python -u", 2, id="of the command alone"),
        pytest.param("WORLD_SIZE=2\npython", None, id="of the shell alone"),
        pytest.param(
            "export WORLD_SIZE=2\ntorchrun --nproc-per-node 4", 4, id="a launcher sets it"
        ),
        pytest.param("deepspeed -H hosts -i a", 8, id="DeepSpeed's short options"),
        pytest.param("mpirun --hostfile hosts -N 4 python", 12, id="mpirun: 4 of each of three"),
        pytest.param("mpirun -machinefile hosts python", 20, id="mpirun: all slots"),
    ],
)
def test_gpus_that_the_environment_or_hosts_say(
    tmp_path: Path, launcher: str, gpus: int | None
) -> None:
    """WORLD_SIZE counts where nothing else starts the processes (torch's env://)."""
    (tmp_path / "hosts").write_text(HOSTS)
    fact = read(tmp_path, launcher, MEGATRON).facts.get("gpus")
    assert (fact and fact.value) == gpus


def test_processes_that_a_trainers_launch_leaves_open(tmp_path: Path) -> None:
    """Accelerate's as torchrun's: nothing is counted, and what leaves them open is kept."""
    facts = read(tmp_path, "accelerate launch --multi_gpu --num_processes $N").facts
    assert "gpus" not in facts
    assert facts["gpus_open"].value == "--num_processes '$N' leaves the number of GPUs open"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes $N swift/cli/sft.py --model Qwen/Qwen3-8B --torch_dtype bfloat16 "
        "--max_length 4096 --per_device_train_batch_size 1 --gradient_accumulation_steps 4",
        "torchrun --nnodes $N run_recipe.py model.tensor_model_parallel_size=2 "
        "train.micro_batch_size=1 train.global_batch_size=64",
    ],
    ids=["ms-swift", "Megatron-Bridge"],
)
def test_programs_that_are_read_otherwise_leave_them_open_too(tmp_path: Path, command: str) -> None:
    """The launcher's words are the same."""
    facts = read_config(command, str(tmp_path / "run.sh")).facts
    assert facts["gpus_open"].value == "--nnodes '$N' leaves the number of GPUs open"
