"""Trainers inside the documents of jobs, and the options of sbatch as sbatch takes them."""

import json
from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import NothingToRead

HF = (
    "train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 8 --bf16 True --max_seq_length 4096"
)
GPT = (
    "srun python pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 2 --global-batch-size 128 --bf16"
)
POD = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: {replicas}
      template:
        spec:
          containers:
          - image: x
            command: {command}
            env: [{{name: BS, value: "4"}}]
            resources: {{limits: {{nvidia.com/gpu: 8}}}}
"""


def _pod(command: list[str], replicas: str = "2") -> str:
    return POD.format(command=json.dumps(command), replicas=replicas)


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        (["torchrun", "--nproc_per_node", "8", *HF.split()], 16),  # the operator says the nodes
        (["bash", "-c", f"pip install x\ntorchrun --nproc_per_node 8 {HF}"], 16),
        (["bash", "-c", f"torchrun --nproc_per_node 8 --nnodes 1 {HF}"], 8),
        (["bash", "-c", f"accelerate launch --num_processes 4 {HF}"], 4),
    ],
)
def test_the_command_of_a_job_is_read(command: list[str], gpus: int) -> None:
    """As its script is, at the line of the document."""
    text = _pod(command)
    reading = read_config(text, "job.yaml")
    assert reading.path == "job.yaml"
    assert reading.facts["gpus"].value == gpus
    assert reading.facts["micro_batch_size"].value == 2
    assert reading.facts["micro_batch_size"].line >= 1 + text[: text.index("command")].count("\n")


def test_the_variables_of_a_job_are_its_scripts() -> None:
    """A container's `env`."""
    command = f"torchrun --nproc_per_node 8 {HF} --per_device_train_batch_size $BS"
    reading = read_config(_pod(["bash", "-c", command]), "job.yaml")
    assert reading.facts["micro_batch_size"].value == 4


def test_a_number_that_a_template_says_leaves_the_gpus_open() -> None:
    """torchrun's 8 are those of one node."""
    command = ["torchrun", "--nproc_per_node", "8", *HF.split()]
    assert "gpus" not in read_config(_pod(command, "{{ .Values.n }}"), "job.yaml").facts


def test_a_trainers_file_is_found_beside_the_job(tmp_path: Path) -> None:
    """`llamafactory-cli train FILE` in SkyPilot's task."""
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\n"
        "bf16: true\nper_device_train_batch_size: 2\ncutoff_len: 2048\n"
    )
    task = "num_nodes: 1\nresources: {accelerators: H100:8}\nrun: llamafactory-cli train sft.yaml\n"
    reading = read_config(task, str(tmp_path / "task.yaml"))
    assert reading.framework == "llama-factory"
    assert reading.facts["micro_batch_size"].value == 2


@pytest.mark.parametrize(
    "text", ["a: torchrun\nb: [1, 2]\n", "run: accelerate env\n", "- deepspeed\n- swift\n"]
)
def test_a_document_that_starts_nothing_is_no_job(text: str) -> None:
    """Words that a trainer's command has are not one."""
    found = recognise("a.yaml", text)
    if found is not None:
        with pytest.raises(NothingToRead):
            found.read(text, "a.yaml", None)


@pytest.mark.parametrize(
    ("header", "gpus"),
    [
        ("#SBATCH --nodes=2\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8", 32),  # the last counts
        ("#SBATCH --gpus-per-node=8\nmodule load x\n#SBATCH --nodes=4", 8),  # behind a command
        ("#SBATCH --gpus-per-node=8\n\n# text\n##SBATCH --nodes=4\n#SBATCH -N2", 16),
    ],
)
def test_the_options_of_sbatch_are_those_above_the_first_command(header: str, gpus: int) -> None:
    """SchedMD/slurm, man page of sbatch."""
    assert read_config(f"#!/bin/bash\n{header}\n{GPT}", "run.sh").facts["gpus"].value == gpus
