"""Two layouts of Llama 3.1 8B on eight GPUs, as plans: what two logs are of."""

from collections.abc import Sequence
from pathlib import Path

from random_plans import plan_of

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.check.check import case_of
from meshplan.planner.learn.cases import run_of_case
from meshplan.planner.runs.rows import Measured
from meshplan.planner.runs.runs import Run

TRAINING = Training(seq_len=4096, global_batch_size=64)
LAYOUTS = (
    Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1, "full")),
    Layout(data_parallel=4, tensor_parallel=2, sequence_parallel=True, zero_stage=1,
           stages=even_stages(32, 1, "full")),
)  # fmt: skip
PLANS = [plan_of("llama-3.1-8b", layout, TRAINING) for layout in LAYOUTS]
APART = tuple(plan_of("llama-3.1-8b", layout, TRAINING) for layout in (
    Layout(data_parallel=64, zero_stage=1, stages=even_stages(32, 1)),
    Layout(data_parallel=4, tensor_parallel=8, sequence_parallel=True, pipeline_parallel=2,
           zero_stage=1, stages=even_stages(32, 2)),
))  # fmt: skip
"""On 64 GPUs: one step hides its reduction under computing, the other's tensors are not hidden."""


def model_of(plan: Plan) -> StepModel:
    """The plan as it is priced."""
    return step_model_of(case_of(plan))


def timed(plans: Sequence[Plan], step_times_s: list[float]) -> list[Run]:
    """The two plans, measured."""
    return [
        run_of_case(Path("x"), case_of(plan), Measured(  
            step_time_s=s, allocated_gib=None, reserved_gib=None, rank_0=False, oom=False
        ))
        for plan, s in zip(plans, step_times_s, strict=True)
    ]  # fmt: skip


def megatron_log(path: Path, step_time_s: float) -> Path:
    """A log in Megatron-LM's format, of a run that takes so long for a step."""
    line = " iteration %8d/ 100 | elapsed time per iteration (ms): %.1f | lm loss: 1.0E+00 |\n"
    path.write_text("".join(line % (step, step_time_s * 1e3) for step in range(1, 13)))
    return path
