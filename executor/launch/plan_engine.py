"""Which engine runs a plan: its own, or another that its layout is priced anew for."""

import math
from pathlib import Path

from meshplan.costmodels.layout import InvalidLayout, Layout, check_layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.executor.engine.step.legality import check_engine_layout
from meshplan.executor.launch.other_engines import HOMES, check_installed
from meshplan.executor.launch.preflight import CannotRun
from meshplan.hardware_profiles.engines import NATIVE, load_engine
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan, Prediction, RunnerUp
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.seal import MOVED
from meshplan.planner.space.engine_rules import check_engine, unpriced
from meshplan.planner.space.exchange_rules import with_kinds_of

LAUNCHED = (NATIVE, *HOMES)


def engine_of(plan: Plan, asked: str | None) -> str:
    """The engine that is to run: `asked`, else the plan's own. Raises `CannotRun` for one that is
    never launched from here.
    """
    name = asked or plan.engine
    if name in LAUNCHED:
        return name
    raise CannotRun(
        f"{name} is not launched by execute (it launches {', '.join(LAUNCHED)}); give --engine "
        "native, which prices the layout anew, or take the plan there with `meshplan export`"
    )


def check_can_start(name: str, folder: Path, priced_by: Cluster | None) -> None:
    """Raise `CannotRun`, or `NotInstalled` with the command that installs it, unless the engine
    `name` starts from `folder` on the devices of the plan.
    """
    if name == NATIVE:
        return
    why = HOMES[name].no_cpu
    if priced_by is not None and priced_by.gpu.vendor == "cpu" and why:
        raise CannotRun(
            f"{name} trains on GPUs only ({why}) and the plan is for CPUs; give --engine native"
        )
    check_installed(name, folder)


def for_engine(plan: Plan, name: str, priced_by: Cluster | None) -> Plan:
    """The plan as the engine `name` would run it: the same layouts, with its own kinds of exchanges
    where it has not theirs, priced anew where it is another than the plan's, or where the file's
    prediction is not this layout's by the profile at hand (a file edited by hand, another version).
    Without a profile nothing is predicted. Raises `CannotRun` for a layout that the engine does not
    run.
    """
    if name == plan.engine:
        return _predicted_as_it_is(plan, priced_by)
    engine = load_engine(name)
    plan = plan.model_copy(
        update={
            "layout": with_kinds_of(engine, plan.layout),
            "runners_up": tuple(
                other.model_copy(update={"layout": with_kinds_of(engine, other.layout)})
                for other in plan.runners_up
            ),
        }
    )
    chosen = _priced(plan, plan.layout, name, priced_by)
    others = tuple(
        RunnerUp(
            layout=other.layout,
            step_time_s=price.step_time_s,
            reserved_bytes=max(stage.reserved for stage in price.memory),
            lost_by={},
        )
        for other in plan.runners_up
        if (price := _price_if_legal(plan, other.layout, name, priced_by))
    )
    return plan.model_copy(
        update={
            "engine": name, "prediction": chosen, "search": None, "runners_up": others,
            "reasons": (f"searched for {plan.engine}, priced anew for {name}",),
        }
    )  # fmt: skip


def _predicted_as_it_is(plan: Plan, priced_by: Cluster | None) -> Plan:
    """`plan`, with another prediction where its own is not what is predicted now."""
    before, now = plan.prediction, _priced(plan, plan.layout, plan.engine, priced_by)
    if before is None or now is None or _alike(before, now):
        return plan
    return plan.model_copy(update={"prediction": now})


def _alike(one: Prediction, other: Prediction) -> bool:
    """Both say the same of the step's time and of every stage's memory, to `MOVED`."""
    figures = [(one.step_time_s, other.step_time_s)]
    figures += [(a.reserved, b.reserved) for a, b in zip(one.memory, other.memory, strict=False)]
    same_stages = len(one.memory) == len(other.memory)
    return same_stages and all(math.isclose(a, b, rel_tol=MOVED) for a, b in figures)


def _price_if_legal(
    plan: Plan, layout: Layout, name: str, priced_by: Cluster | None
) -> Prediction | None:
    try:
        return _priced(plan, layout, name, priced_by)
    except CannotRun:
        return None


def _priced(plan: Plan, layout: Layout, name: str, priced_by: Cluster | None) -> Prediction | None:
    """What `name` takes for `layout`; None without a profile."""
    model, engine = model_from_config(plan.model.config, plan.model.name), load_engine(name)
    fix = "" if name == plan.engine else f"; plan with --engine {name}"
    try:
        check_layout(layout, model, plan.training)
        check_engine(layout, model, plan.training, engine)
        if name == NATIVE:
            check_engine_layout(layout, model, plan.training)
    except InvalidLayout as error:
        raise CannotRun(f"{error}{fix}") from None
    if unknown := unpriced(layout, engine):
        raise CannotRun(f"{unknown[0]}{fix}")
    if priced_by is None:
        return None
    if name == plan.engine:
        engine = engine.model_copy(update={"learned": plan.learned})
    return predicted(
        Case(
            model=model, layout=layout, training=plan.training, cluster=priced_by, engine=engine
        )
    )  # fmt: skip


def repriced_line(before: Plan, after: Plan) -> str:
    """What a reader should know of a plan that is priced anew, for its engine or for another."""
    if after.engine == before.engine:
        assert before.prediction is not None
        assert after.prediction is not None
        return (
            f"the file predicts {before.prediction.step_time_s:.4g} s a step; its layout takes "
            f"{after.prediction.step_time_s:.4g} s by the profile at hand and this version: "
            "compared with that"
        )
    if after.prediction is None:
        return (
            f"planned for {before.engine}, run by {after.engine}: nothing is predicted, since the "
            f"profile {before.cluster.name!r} is not at hand (--cluster gives its file)"
        )
    said = f"{after.prediction.step_time_s:.4g} s a step"
    if before.prediction is not None:
        said += f" where {before.engine} takes {before.prediction.step_time_s:.4g} s"
    return f"planned for {before.engine}, run by {after.engine}: priced anew, {said}"
