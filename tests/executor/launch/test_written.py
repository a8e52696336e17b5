"""A plan as a SkyPilot task and as a Kubeflow PyTorchJob.

`test_its_own_parser_takes_it` needs them installed (group `frameworks`, docs/frameworks.md).
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from called import executed
from parse_with import MISSING
from tiny_runs import DP2, tiny_plan, tiny_prediction

from meshplan.executor.launch.preflight import CannotRun
from meshplan.executor.launch.written import file_text
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.case.plan_file import Plan, PlanCluster, write_plan

PYTHONS = os.environ.get("MESHPLAN_FRAMEWORKS_PYTHON", sys.executable).split(os.pathsep)
PARSE = Path(__file__).parents[2] / "support" / "parse_with.py"
SKYPILOT = ("--launcher", "skypilot", "--set", "setup=pip install 'a b[torch]'")
KUBEFLOW = ("--launcher", "kubeflow", "--set", "image=me/it:1", "--set", "claim=shared")


def _gpu_plan() -> Plan:
    """Sixteen ranks on two nodes of eight H100."""
    cluster = PlanCluster(name="dgx-h100", gpus=16, sha256=cluster_hash(load_cluster("dgx-h100")))
    plan = tiny_plan(replace(DP2, data_parallel=16))
    return plan.model_copy(update={"cluster": cluster, "runners_up": ()})


def _said(folder: Path, plan: Plan, *options: str) -> tuple[int, str]:
    write_plan(plan, folder / "plan.yaml")
    answer = executed([str(folder / "plan.yaml"), *options])
    return answer.exit_code, answer.output


def test_a_skypilot_task_by_hand(tmp_path: Path) -> None:
    """Two machines of eight H100, the plan brought to each, one torchrun on each."""
    options = ("--print", "--set", "infra=aws", "--data", str(tmp_path / "my tokens"))
    code, said = _said(tmp_path, _gpu_plan(), *SKYPILOT, *options)
    assert code == 0, said
    task = yaml.safe_load(said)
    assert task["num_nodes"] == 2
    assert task["resources"] == {"accelerators": {"H100": 8, "H100-SXM": 8}, "infra": "aws"}
    assert task["setup"] == "pip install 'a b[torch]'"
    assert task["file_mounts"] == {
        "~/meshplan.run/plan.yaml": str(tmp_path / "plan.run" / "plan.yaml"),
        "~/meshplan.run/tokens.bin": str(tmp_path / "my tokens"),
    }
    assert '--data "$RUN"/tokens.bin' in task["run"]
    for words in ("--nnodes=2 ", "--nproc-per-node=8 ", "is_host=$((SKYPILOT_NODE_RANK == 0))"):
        assert words in task["run"]
    assert not (tmp_path / "plan.run").exists()


def test_a_pytorch_job_by_hand(tmp_path: Path) -> None:
    """One master and one worker with eight GPUs each, the plan in a ConfigMap beside them."""
    code, said = _said(tmp_path, _gpu_plan(), *KUBEFLOW, "--print", "--set", "namespace=ml")
    assert code == 0, said
    config, job = yaml.safe_load_all(said)
    assert config["data"]["plan.yaml"] == (tmp_path / "plan.yaml").read_text()
    assert config["metadata"] == job["metadata"] == {"name": "meshplan", "namespace": "ml"}
    assert job["spec"]["nprocPerNode"] == "8"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {kind: each["replicas"] for kind, each in replicas.items()} == {"Master": 1, "Worker": 1}
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert container["image"] == "me/it:1"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"' in container["command"][-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--launcher", "skypilot"], "give --set setup="),
        (["--launcher", "kubeflow", "--set", "image=x"], "--set claim="),
        ([*KUBEFLOW, "--set", "imag=x"], "it has image, claim, name, namespace"),
        ([*KUBEFLOW, "--set", "name=It's"], "small letters, digits and dashes"),
        ([*KUBEFLOW, "--data", "tokens.bin"], "which a pod does not have"),
        ([*SKYPILOT, "--job", "cancel"], "add --launcher slurm"),
        (["--set", "name=x"], "it has none"),
    ],
)
def test_what_a_launcher_cannot_say(tmp_path: Path, options: list[str], said: str) -> None:
    """Exit 2 with one line, and nothing is written."""
    code, answer = _said(tmp_path, _gpu_plan(), *options)
    assert code == 2
    assert said in answer
    assert len(answer.strip().splitlines()) == 1
    assert not (tmp_path / "plan.run").exists()


def test_a_node_runs_the_task_and_its_records_are_collected(tmp_path: Path) -> None:
    """The script of a node trains in its own home; what it left is compared by --job collect."""
    plan = tiny_plan(replace(DP2, data_parallel=1), prediction=tiny_prediction(1.0))
    one = plan.cluster.model_copy(update={"gpus": 1})
    plan = plan.model_copy(update={"cluster": one, "runners_up": ()})
    options = (*SKYPILOT, "--steps", "2", "--warmup", "1", "--band", "1e9")
    code, said = _said(tmp_path, plan, *options)
    assert code == 0, said
    assert "sky launch -c meshplan" in said
    task = yaml.safe_load((tmp_path / "plan.run" / "skypilot.yaml").read_text())
    home = tmp_path / "a home"
    ((there, here),) = task["file_mounts"].items()
    brought = home / there.removeprefix("~/")
    brought.parent.mkdir(parents=True)
    brought.write_text(Path(here).read_text())
    environment = {
        **os.environ, "HOME": str(home), "SKYPILOT_NODE_IPS": "127.0.0.1",
        "SKYPILOT_NODE_RANK": "0", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", task["run"]], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    code, said = _said(tmp_path, plan, *options, "--job", "collect")
    assert code == 1
    assert "has no steps of rank 0 (1 such)" in said
    (brought.parent / "ranks").rename(tmp_path / "moved")
    for path in (tmp_path / "moved").iterdir():
        path.rename(tmp_path / "plan.run" / "ranks" / path.name)
    code, said = _said(tmp_path, plan, *options, "--job", "collect")
    assert code == 0, said
    result = json.loads((tmp_path / "plan.run" / "result.json").read_text())
    assert (result["status"], len(result["step_times_s"])) == ("complete", 2)


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("parser", "options", "understood"),
    [
        pytest.param(
            "skypilot", SKYPILOT,
            {"name": "meshplan", "num_nodes": 2, "accelerators": [{"H100": 8}, {"H100-SXM": 8}]},
            id="sky.Task.from_yaml",
        ),
        pytest.param(
            "kubeflow", KUBEFLOW,
            {"kind": "PyTorchJob", "nproc_per_node": "8", "Master": 1, "Worker": 1},
            id="kubeflow.training's models",
        ),
    ],
)  # fmt: skip
def test_its_own_parser_takes_it(
    tmp_path: Path, parser: str, options: tuple[str, ...], understood: dict[str, object]
) -> None:
    """Names, numbers and kinds are understood as the plan means them.

    Schema of the PyTorchJob: the models of the package kubeflow-training (1.9.4), which are made
    from the operator's Go types as the CRD is.
    """
    code, said = _said(tmp_path, _gpu_plan(), *options)
    assert code == 0, said
    (written,) = [path for path in (tmp_path / "plan.run").glob("*.yaml") if path.stem != "plan"]
    for python in PYTHONS:
        done = subprocess.run(
            [python, PARSE, parser, written, "16"], capture_output=True, text=True, check=False
        )
        if done.returncode != MISSING:
            break
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == understood


def test_a_profile_that_is_not_at_hand_is_named() -> None:
    """A file asks for the GPU of the plan's profile, so it cannot be written without."""
    nothing: Any = None
    with pytest.raises(CannotRun, match="give its file with --cluster"):
        file_text(tiny_plan(DP2), nothing, {}, None, Path())
