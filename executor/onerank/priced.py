"""A plan as the native engine would run it, priced by the profile at hand. No torch."""

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.step.step import StepModel
from meshplan.executor.launch.preflight import CannotRun, profile_of
from meshplan.hardware_profiles.engines import NATIVE, load_engine
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.resolve import Case


def priced(plan: Plan, cluster: str | None) -> StepModel:
    """The layout of `plan`. Raises `CannotRun` without a profile to say what messages take."""
    by = profile_of(plan, cluster)
    if by is None:
        raise CannotRun(
            f"profile {plan.cluster.name!r} is not at hand, and nothing else says what messages "
            "take: give it with --cluster"
        )
    case = Case(
        model=model_from_config(plan.model.config, plan.model.name), layout=plan.layout,
        training=plan.training, cluster=by, engine=load_engine(NATIVE),
    )  # fmt: skip
    return step_model_of(case)
