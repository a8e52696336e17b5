"""A configuration inside a ConfigMap of Kubernetes, as cloud guides publish it (the form of
crusoecloud/solutions-library: torchtitan's TOML and the PyTorchJob that mounts it).
"""

import pytest

from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import UnreadableConfig

TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
"""


def _map(files: dict[str, str]) -> str:
    entries = ""
    for name, text in files.items():
        entries += f"  {name}: |\n" + "".join(f"    {line}\n" for line in text.splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\ndata:\n{entries}"


JOB = """\
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: &pod
      replicas: 1
      template:
        spec:
          containers:
          - command: ["bash", "-c", "torchrun --nproc_per_node 8 -m torchtitan.train \
--job.config_file /config/llama3_8B.toml%s"]
            resources: {limits: {nvidia.com/gpu: 8}}
    Worker:
      replicas: 3
      template:
        spec:
          containers:
          - command: ["bash", "-c", "torchrun --nproc_per_node 8 -m torchtitan.train \
--job.config_file /config/llama3_8B.toml"]
            resources: {limits: {nvidia.com/gpu: 8}}
"""


def test_the_file_is_read_with_the_jobs_gpus() -> None:
    """One master and three workers of 8; lines are the document's."""
    text = _map({"llama3_8B.toml": TITAN}) + JOB % ""
    reading = read_config(text, "job.yaml")
    alone = read_config(TITAN, "llama3_8B.toml")
    assert (reading.framework, reading.path, reading.unread) == ("torchtitan", "job.yaml", ())
    assert reading.facts["gpus"].value == 32
    lines = text.splitlines()
    for name, fact in alone.facts.items():
        assert reading.facts[name].value == fact.value
    assert lines[reading.facts["seq_len"].line - 1].strip() == "seq_len = 8192"


def test_without_a_job_its_gpus_are_open() -> None:
    """As those of the file alone."""
    assert "gpus" not in read_config(_map({"llama3_8B.toml": TITAN}), "map.yaml").facts


@pytest.mark.parametrize(
    "said", ["--training.local_batch_size=4", "training.local_batch_size=4", "+a.b=1"]
)
def test_options_of_the_command_are_named(said: str) -> None:
    """They replace what the file states: the verdict would be of another run."""
    text = _map({"llama3_8B.toml": TITAN}) + JOB % f" {said}"
    (option,) = read_config(text, "job.yaml").unread
    assert str(option.value).startswith(f"{said} (an option of the job's")
    assert "save data.llama3_8B.toml as llama3_8B.toml" in str(option.value)
    assert "torchtitan.train" in text.splitlines()[option.line - 1]


def test_a_job_that_aliases_repeat_is_looked_at_once() -> None:
    """An option that two replicas share by an alias is named once."""
    job = "---\na: &a [x, /c/llama3_8B.toml, --steps=5]\nb: *a\n"
    (option,) = read_config(_map({"llama3_8B.toml": TITAN}) + job, "job.yaml").unread
    assert str(option.value).startswith("--steps=5 ")


def test_of_two_files_none_is_chosen() -> None:
    """Their names say what to save."""
    text = _map({"a.toml": TITAN, "notes.txt": "x", "b.toml": TITAN})
    with pytest.raises(UnreadableConfig, match=r"data\.a\.toml, data\.b\.toml.*save the one"):
        read_config(text, "map.yaml")


@pytest.mark.parametrize(
    "text",
    [_map({"x.toml": "[server]\nport = 1\n"}), _map({"run.sh": "echo"}), "kind: ConfigMap\n",
     "kind: ConfigMap\ndata: [1]\n", "kind: ConfigMap\n{{ if }}\n"],
    ids=["another program's", "a script", "empty", "no files", "a template"],
)  # fmt: skip
def test_what_holds_no_configuration_is_not_one(text: str) -> None:
    """Nothing is claimed."""
    assert recognise("map.yaml", text) is None
