"""A plan as a Kubeflow PyTorchJob: one pod per host, each of which runs torchrun.

The plan comes in a ConfigMap; ranks leave their records and logs on a volume that all pods share.

Source: kubeflow/training-operator@ee116291 `manifests/base/crds/kubeflow.org_pytorchjobs.yaml` (the
schema), `pkg/controller.v1/pytorch/envvar.go` and `master.go` (MASTER_ADDR, MASTER_PORT and RANK,
which is the pod's number; the container is called `pytorch`).
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from meshplan.executor.launch.plain_yaml import plain_yaml
from meshplan.executor.launch.preflight import CannotRun
from meshplan.executor.launch.torchrun import TorchrunJob, shell_command

FILE = "pytorchjob.yaml"
KEYS = ("image", "claim", "name", "namespace")
PLAN_FOLDER, RUN_FOLDER = "/meshplan/plan", "/meshplan/run"
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""A GPU as the vendor's device plugin counts it, by the vendor of the profile."""


def job_files(job: TorchrunJob, given: Mapping[str, str], *, vendor: str, plan_text: str) -> str:
    """The ConfigMap with the plan and the PyTorchJob, as one YAML stream. The job's folder is
    `@run@`, which is one of the job's own on the shared volume.

    given   `image` (with meshplan and torch), `claim` (a PersistentVolumeClaim that pods of several
            hosts can write), `name`, `namespace`
    vendor  of the profile's GPU; "cpu" asks for none

    Raises `CannotRun` where one of the first two is missing.
    """
    if missing := [key for key in ("image", "claim") if key not in given]:
        raise CannotRun(
            f"a PyTorchJob needs --set {missing[0]}=...: image is one with meshplan[torch], claim "
            "a PersistentVolumeClaim that pods of several hosts can write"
        )
    name = given.get("name", "meshplan")
    about: dict[str, object] = {"name": name}
    if "namespace" in given:
        about["namespace"] = given["namespace"]
    config = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": about,
        "data": {"plan.yaml": plan_text},
    }  # fmt: skip
    pod = _pod(job, given, name, RESOURCES.get(vendor))
    # not begun anew: what was measured would be of two runs
    pods: dict[str, object] = {"restartPolicy": "Never", "template": {"spec": pod}}
    replicas = {"Master": {"replicas": 1, **pods}}
    if job.nodes > 1:
        replicas["Worker"] = {"replicas": job.nodes - 1, **pods}
    pytorch_job = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": about,
        "spec": {
            "nprocPerNode": str(job.processes_per_node),
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": replicas,
        },
    }  # fmt: skip
    return plain_yaml(config, pytorch_job)


def _pod(
    job: TorchrunJob, given: Mapping[str, str], name: str, resource: str | None
) -> dict[str, object]:
    container: dict[str, object] = {
        "name": "pytorch",
        "image": given["image"],
        "command": ["bash", "-c", _command(job, name)],
        "env": [{"name": key, "value": value} for key, value in job.environment.items()],
        "volumeMounts": [
            {"name": "plan", "mountPath": PLAN_FOLDER},
            {"name": "run", "mountPath": RUN_FOLDER},
            {"name": "shm", "mountPath": "/dev/shm"},  # NCCL's, which a pod has 64 MiB of
        ],
    }
    if resource is not None:
        container["resources"] = {"limits": {resource: str(job.processes_per_node)}}
    return {
        "containers": [container],
        "volumes": [
            {"name": "plan", "configMap": {"name": name}},
            {"name": "run", "persistentVolumeClaim": {"claimName": given["claim"]}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _command(job: TorchrunJob, name: str) -> str:
    command = shell_command(
        job, '"$RUN/logs/$RANK"', endpoint='"$MASTER_ADDR:$MASTER_PORT"', python="python3",
        is_first="$((RANK == 0))",
    )  # fmt: skip
    command = command.replace("@run@/plan.yaml", f"{PLAN_FOLDER}/plan.yaml")
    command = command.replace("@run@", '"$RUN"')
    return "\n".join(
        (
            "set -eu",
            f"RUN={RUN_FOLDER}/{name}.run",
            'mkdir -p "$RUN/ranks" "$RUN/logs/$RANK"',
            f"exec {command}",
        )
    )


def next_commands(given: Mapping[str, str], file: Path) -> tuple[str, ...]:
    """The commands that start the job, and bring back what its ranks measured."""
    name = given.get("name", "meshplan")
    where = ["--namespace", given["namespace"]] if "namespace" in given else []
    records = f"{RUN_FOLDER}/{name}.run/ranks"
    return (
        shlex.join(["kubectl", "apply", "-f", str(file)]),
        shlex.join(["kubectl", "cp", *where, f"POD:{records}", str(file.parent / "ranks")])
        + "  # POD: one that runs and has the volume",
    )
