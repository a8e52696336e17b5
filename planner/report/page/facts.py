"""What the page says in words: evidence, assumptions, proof, the others, and how to launch it."""

from collections.abc import Iterator
from html import escape

from meshplan.costmodels.units import counted, format_bytes, format_seconds
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.plan_findings import MeasuredRun
from meshplan.planner.case.reading import Exported
from meshplan.planner.case.resolve import Case
from meshplan.planner.report.evidence import NONE, predicted_text, unseen_text
from meshplan.planner.report.page.markup import element, listed, note, number, table
from meshplan.planner.report.runners_up import lost_text, slower_text
from meshplan.planner.report.tables import unmeasured_line
from meshplan.planner.runs.evidence import NEAR


def evidence(plan: Plan) -> str:
    """The nearest measured runs, a row each."""
    if not plan.evidence:
        return note(f"{NONE[0].upper()}{NONE[1:]}.")
    headings = (
        "run",
        "engine",
        "GPUs",
        "layout",
        "measured",
        "predicted",
        "source unseen",
        "distance",
    )
    rows = (_run(index, run) for index, run in enumerate(plan.evidence))
    return table(headings, rows, right=(4, 5, 6, 7)) + note(
        'The published runs nearest to this plan. "Predicted": with the constants that ship, which '
        'may be fitted to that run. "Source unseen": with constants fitted without any run of its '
        "source. A distance of 1: a model twice as large, another GPU of the same family, or two "
        "of tp, pp, cp, ep four times as large. Near: the same kind of model at a distance of at "
        f"most {NEAR:g}" + (": none is." if not any(run.near for run in plan.evidence) else ".")
    )


def _run(index: int, run: MeasuredRun) -> tuple[str, ...]:
    path = f"evidence.{index}"
    seconds = run.measured_step_time_s
    tokens = f"{run.precision}, {run.seq_len:,} tokens x {run.global_batch_size:,}"
    return (
        f"{escape(run.model)}<br>{element('small', escape(tokens))}",
        escape(run.framework),
        f"{run.gpus:,} x {escape(run.gpu)}",
        element("code", escape(run.layout)),
        number(f"{path}.measured_step_time_s", seconds, format_seconds(seconds)),
        number(f"{path}.predicted_step_time_s", run.predicted_step_time_s, predicted_text(run)),
        escape(unseen_text(run)),
        number(f"{path}.distance", run.distance, f"{run.distance:.1f}"),
    )


def assumptions(plan: Plan, case: Case) -> str:
    """What the numbers rest on."""
    return listed(_assumed(plan, case))


def _assumed(plan: Plan, case: Case) -> Iterator[str]:
    cluster, training = case.cluster, case.training
    kind = "measured on the cluster itself" if cluster.is_measured else "published figures"
    usable = format_bytes(cluster.fillable_bytes)
    yield f"{plan.cluster.name}: {kind}; a plan may fill {usable} of each GPU"
    fit = load_fit(case.engine.name, cluster.gpu.name)
    if fit.rows:
        yield (
            f"constants of {case.engine.name} on this GPU family: learnt from "
            f"{counted(fit.rows, 'run')} on {fit.date}, median error {fit.error_fraction:.1%}; "
            f"{fit.source}"
        )
    else:
        yield f"no constants were learnt for {case.engine.name} on these GPUs: {fit.source}"
    if training.expert_imbalance != 1 or case.model.is_moe:
        yield f"the busiest experts get {training.expert_imbalance:g} times the mean of the tokens"
    assert plan.prediction is not None
    if line := unmeasured_line(plan.prediction):
        yield line
    yield from case.notes
    yield (
        "a healthy cluster: stragglers, other jobs on the network, data loading and checkpoints "
        "are not modelled"
    )


def runners(plan: Plan) -> str:
    """The runners-up, a row each."""
    assert plan.prediction is not None
    rows = []
    for index, other in enumerate(plan.runners_up):
        path, reserved = f"runners_up.{index}", other.reserved_bytes
        slower = slower_text(other, plan.prediction.step_time_s).replace("\n", ", ")
        rows.append((
            element("code", escape(other.layout.full_label)),
            number(f"{path}.step_time_s", other.step_time_s, format_seconds(other.step_time_s)),
            escape(slower),
            number(f"{path}.reserved_bytes", reserved, format_bytes(reserved)),
            escape(lost_text(other, most=3)),
        ))  # fmt: skip
    return table(("runner-up", "step", "slower", "reserved", "lost by"), rows, right=(1, 2, 3))


def launch(commands: tuple[str, ...], exported: Exported | None) -> str:
    """Commands with a button that copies them, and the framework's own files."""
    parts = [_copied("\n".join(commands))]
    if exported is not None:
        for name, text in exported.files.items():
            title = element("summary", escape(f"{name} for {exported.framework}"))
            parts.append(element("details", title, _copied(text)))
        if exported.cannot_say:
            said = [
                f"not expressed in these files: {each}" for each in map(str, exported.cannot_say)
            ]
            parts.append(listed(said))
    return "".join(parts)


def _copied(text: str) -> str:
    button = element("button", "copy", type="button", class_="copy")
    return element("div", button, element("pre", escape(text)), class_="copied")
