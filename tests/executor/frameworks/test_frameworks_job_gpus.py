"""What a cluster gives a job: a container's GPUs and words (Kubernetes), the tasks of an array."""

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.shell.script import read_script
from meshplan.planner.case.reading import UnreadableConfig

GPT = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size"
)
TRAINER = """\
        containers:
        - name: pytorch
          env: [{{name: TP, value: "4"}}, {{name: NAME, valueFrom: {{fieldRef: {{}}}}}}]
          command: [bash, -c]
          args: ["torchrun {launcher} {gpt} {degree}"]
          resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""
JOB = """\
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
{pod}    Worker:
      replicas: {workers}
      template:
{pod}"""


def job(gpus: object = 8, workers: object = 3, launcher: str = "", degree: str = "$(TP)") -> str:
    pod = TRAINER.format(launcher=launcher, gpt=GPT, degree=degree, gpus=gpus)
    return JOB.format(pod=pod, workers=workers)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        pytest.param(job(), 32, id="8 of a master and of three workers: 8 + 3 x 8"),
        pytest.param(job(launcher="--nproc_per_node=8"), 32, id="the operator says the nodes"),
        pytest.param(job(launcher="--nnodes=2 --nproc_per_node=8"), 16, id="the launcher does"),
        pytest.param(job(launcher="--nnodes=$N --nproc_per_node=8"), 32, id="left to the operator"),
        pytest.param(job(gpus='"4"', workers=0), 4, id="no workers"),
        pytest.param(job(workers="${N}"), None, id="a template's number"),
        pytest.param(job().replace("spec:", "spec:\n  nprocPerNode: '4'", 1), 16,
                     id="4 processes of each pod's 8 GPUs: 4 + 3 x 4"),
        pytest.param(job().replace("spec:", "spec:\n  nprocPerNode: auto", 1), 32, id="all"),
        pytest.param(job().replace("spec:", "spec:\n  nprocPerNode: cpu", 1), None, id="of CPUs"),
        pytest.param(job() + "---\n" + job(), None, id="two jobs in one file"),
        pytest.param(
            "kind: Job\nspec:\n  parallelism: 2\n  template:\n"
            + TRAINER.format(launcher="", gpt=GPT, degree=2, gpus=8), 16, id="two pods of a job",
        ),
        pytest.param(
            "kind: LeaderWorkerSet\nspec:\n  leaderWorkerTemplate:\n"
            + TRAINER.format(launcher="", gpt=GPT, degree=2, gpus=8), None, id="a size not read",
        ),
    ],
)  # fmt: skip
def test_gpus_are_those_of_all_containers(text: str, gpus: int | None) -> None:
    """A container's limit counts once for each replica of what holds it."""
    stated = read_config(text, "job.yaml").facts.get("gpus")
    assert (stated and stated.value) == gpus


def test_a_container_takes_its_own_variables_in_its_words() -> None:
    """`$(TP)` is replaced before any shell sees it; `$$(TP)` is not, and is a command then."""
    assert read_config(job(), "job.yaml").facts["tensor_parallel"].value == 4
    with pytest.raises(UnreadableConfig, match="tensor-model-parallel-size"):
        read_config(job(degree="$$(TP)"), "job.yaml")
    with pytest.raises(UnreadableConfig, match="tensor-model-parallel-size"):
        read_config(job(degree="$(NAME)"), "job.yaml")


ARRAY = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
#SBATCH --array={array}
DEGREES=(1 2 4 8)
torchrun --nnodes 2 --nproc_per_node 8 {gpt} ${{DEGREES[$SLURM_ARRAY_TASK_ID]}}
"""


@pytest.mark.parametrize(
    ("array", "degrees"),
    [("0-3", [1, 2, 4, 8]), ("0-3%1", [1, 2, 4, 8]), ("0-3:2", [1, 4]), ("3,1", [8, 2]),
     ("2", [4])],
)  # fmt: skip
def test_each_task_of_an_array_is_a_case(array: str, degrees: list[int]) -> None:
    reading = read_config(ARRAY.format(array=array, gpt=GPT), "sweep.slurm")
    cases = [reading, *reading.others]
    assert [case.facts["tensor_parallel"].value for case in cases] == degrees


def test_a_task_that_is_started_alone_is_one_case() -> None:
    text = ARRAY.format(array="0-3", gpt=GPT)
    assert len(read_script(text, {"SLURM_ARRAY_TASK_ID": "2"}).commands) == 1


def test_the_first_sixteen_tasks_are_followed_and_the_rest_counted() -> None:
    script = read_script("#SBATCH -a 0-99%4\nrun $SLURM_ARRAY_TASK_ID\n")
    assert [words[1].value for words in script.commands] == [str(at) for at in range(16)]
    assert script.notes == ["a job array of 100 tasks: the first 16 are judged"]


def test_each_task_finds_the_file_that_it_wrote() -> None:
    text = "#SBATCH --array=0-1\necho a > same\necho $SLURM_ARRAY_TASK_ID > other\ntrain same other"
    script = read_script(text)
    files = [script.files_of(words) for words in script.commands]
    assert files == [{"same": "a\n", "other": "0\n"}, {"same": "a\n", "other": "1\n"}]
