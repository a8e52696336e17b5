"""Two layouts of Llama 3.1 8B on eight GPUs, as plans: what two logs are of."""

from random_plans import plan_of

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.check.check import case_of

TRAINING = Training(seq_len=4096, global_batch_size=64)
LAYOUTS = (
    Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1, "full")),
    Layout(data_parallel=4, tensor_parallel=2, sequence_parallel=True, zero_stage=1,
           stages=even_stages(32, 1, "full")),
)  # fmt: skip
PLANS = [plan_of("llama-3.1-8b", layout, TRAINING) for layout in LAYOUTS]


def model_of(plan: Plan) -> StepModel:
    """The plan as it is priced."""
    return step_model_of(case_of(plan))
