"""The command of a job (Kubernetes, SkyPilot, Azure ML) that starts a trainer: read as a script.

`shell.jobs.documents` says which strings of a YAML or JSON document are commands; Megatron's and
Megatron-Bridge's arguments in one have readers that ask it themselves.
"""

import re
from dataclasses import replace

from meshplan.executor.frameworks.calling import Find
from meshplan.executor.frameworks.shell.jobs.documents import DOCUMENTS, Job, job_of
from meshplan.planner.case.reading import NothingToRead, Reading, Start, UnreadableConfig

_MARKS = ("--per_device_train_batch_size", "--per-device-train-batch-size", "--job.config_file",
          "--job.config-file", "llamafactory-cli", "axolotl", "trl", "swift", "accelerate",
          "deepspeed", "torchrun", "tune")  # fmt: skip
"""Words of a command that starts a trainer; the first that a document has says which."""
_SAYS_NODES = re.compile(
    r"--(?:nnodes|num[_-](?:nodes|machines|processes)|nodes|include|hostfile)\b|\bmpirun\b"
)
_SCRIPT = ".sh"


def claims(name: str, text: str, find: Find) -> bool:
    """Whether a document holds a command that a reader of scripts takes."""
    if not name.endswith(DOCUMENTS) or not any(mark in text for mark in _MARKS):
        return False
    try:
        return find(name + _SCRIPT, _job(text).script) is not None
    except UnreadableConfig:
        return False


def read(text: str, path: str, start: Start | None, find: Find) -> Reading:
    """The command as its script is read, with what the document sets and the GPUs that it asks for;
    raises `UnreadableConfig` and `IllegalConfig`.
    """
    job, start = _job(text), start or Start()
    reader = find(path + _SCRIPT, job.script)
    assert reader is not None, "claimed"
    known = {**job.variables, **start.environment}
    reading = reader(job.script, path + _SCRIPT, replace(start, environment=known))
    return _of_job(reading, path, job)


def _job(text: str) -> Job:
    for mark in _MARKS:
        if mark in text:
            try:
                return job_of(text, mark)
            except NothingToRead:
                continue
    raise NothingToRead("no command in this document starts a trainer")


def _of_job(reading: Reading, path: str, job: Job) -> Reading:
    """The reading as the document's; where its command states no number of nodes, the operator of
    the job does, and all its GPUs are the launch's.
    """
    facts = dict(reading.facts)
    if job.gpus is not None and ("gpus" not in facts or not _SAYS_NODES.search(job.script)):
        facts.pop("gpus", None)
        facts |= {"gpus": job.gpus} if job.gpus.value else {}
    others = tuple(_of_job(other, path, job) for other in reading.others)
    return replace(reading, path=path, facts=facts, others=others)
