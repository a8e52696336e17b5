"""`plan --dry-run`: the engine's own program of the fullest rank beside what the cost model says.

It runs in a process of its own, since it needs torch: fake tensors and a process group that answers
at once, so that no GPU is needed.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshplan.costmodels.units import format_bytes
from meshplan.hardware_profiles.engines import NATIVE, load_engine
from meshplan.planner.answer.answer import case_at
from meshplan.planner.case.plan_file import Plan, write_plan
from meshplan.planner.case.predict import predicted
from meshplan.planner.check.verdicts import fullest
from meshplan.planner.search.rows.priced_space import Question


class DryRunFailed(RuntimeError):
    """The dry run could not be done; one line with its reason."""


def dry_run_line(plan: Plan, question: Question) -> str:
    """Peak bytes of the fullest rank as the native engine's program has them, and as predicted for
    that engine; what is predicted for the plan's own beside it.

    question  the one that `plan` answers

    Raises `DryRunFailed`, without torch for instance.
    """
    assert plan.prediction is not None
    stage, memory = fullest(plan.prediction)
    rank = stage * (plan.cluster.gpus // plan.layout.pipeline_parallel)
    print(f"dry run of rank {rank}: up to a minute for a large model", file=sys.stderr)
    measured = float(_dry_run(plan, rank)["peak_bytes"])
    native = replace(case_at(question, plan.layout), engine=load_engine(NATIVE))
    said = predicted(native).memory[stage].allocated
    line = (
        f"dry run of rank {rank} on the native engine: {format_bytes(measured)} of live tensors at "
        f"the peak; predicted for it {format_bytes(said)} ({said / measured - 1:+.1%})"
    )
    if plan.engine == NATIVE:
        return line
    return (
        f"{line}, and for {plan.engine}, which keeps other things, {format_bytes(memory.allocated)}"
    )


def _dry_run(plan: Plan, rank: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.yaml"
        write_plan(plan, path)
        command = [
            sys.executable,
            "-m",
            "meshplan.executor.dryrun.dry_run",
            str(path),
            "--rank",
            str(rank),
        ]
        ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if ran.returncode:
        reason = ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else "no reason given"
        raise DryRunFailed(f"the dry run failed: {reason.removeprefix('error: ')}")
    document = json.loads(ran.stdout)
    found: dict[str, Any] = document[0] if isinstance(document, list) else document
    return found
