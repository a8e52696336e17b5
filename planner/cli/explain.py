"""`meshplan explain`: memory, time, timeline, why this layout, and what the others lost by."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshplan.costmodels.units import format_bytes, format_seconds
from meshplan.planner.answer.answer import reasons
from meshplan.planner.answer.explain import Priced, TimeParts, lacking_bytes, priced
from meshplan.planner.case.plan_file import Plan, read_plan
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.check.check import case_of
from meshplan.planner.report.output import console, print_json
from meshplan.planner.report.tables import (
    bullets,
    dropped_table,
    host_line,
    indented,
    memory_bars,
    memory_legend,
    memory_line,
    memory_table,
    parts_table,
    proof_lines,
    runners_table,
    stages_line,
    time_line,
    unmeasured_line,
)
from meshplan.planner.report.timeline import chrome_trace, step_timeline
from meshplan.planner.text_files import write_text

DRIFT = 0.001


def explain(
    plan: Annotated[Path, typer.Argument(help="Plan file that `meshplan plan -o` wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page here.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the step's timeline as a Chrome trace here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show why a plan is what it is: memory, time, timeline, and what the runners-up lost by.

    Example: meshplan explain plan.yaml --html plan.html --trace plan.json
    """
    loaded = read_plan(plan)
    case = case_of(loaded)
    now = priced(case)
    current = repriced(loaded, now)
    if as_json:
        print_json(document(current, now.parts))
    else:
        print_explanation(current, now.parts)
    if html:
        from meshplan.planner.report.explain_html import page

        write_text(html, page(current, case))
        print(f"wrote {html}", file=sys.stderr)
    if trace:
        timeline = step_timeline(step_model_of(case))
        title = f"{current.model.name} {current.layout.label}"
        write_text(trace, json.dumps(chrome_trace(timeline, title)))
        print(f"wrote {trace}; open it at ui.perfetto.dev", file=sys.stderr)


def repriced(plan: Plan, now: Priced) -> Plan:
    """`plan` with today's prediction; says on stderr when that is no longer the one in the file."""
    for note in now.case.notes:
        print(f"note: {note}", file=sys.stderr)
    step_time_s = now.prediction.step_time_s
    before = plan.prediction.step_time_s if plan.prediction else step_time_s
    if abs(step_time_s / before - 1) > DRIFT:
        print(
            f"note: the file predicts {format_seconds(before)}, this version "
            f"{format_seconds(step_time_s)}",
            file=sys.stderr,
        )
    return plan.model_copy(
        update={"prediction": now.prediction, "reasons": plan.reasons or reasons(now)}
    )


def document(plan: Plan, parts: TimeParts) -> dict[str, Any]:
    """The plan with the parts of its step time, as JSON."""
    return {**plan.model_dump(mode="json"), "time_parts": asdict(parts)}


def print_explanation(plan: Plan, parts: TimeParts) -> None:
    """The explanation on stdout."""
    out, layout = console(), plan.layout
    prediction = plan.prediction
    assert prediction is not None
    out.print(Text(f"{plan.model.name} on {plan.cluster.gpus} GPUs of {plan.cluster.name}: ")
              + Text(layout.label, style="bold"))  # fmt: skip
    out.print(indented(time_line(prediction)))
    out.print(indented(f"by stage: {stages_line(plan)}"))
    out.print(Text("\nTime of one step", style="bold"))
    out.print(indented(parts_table(parts)))
    out.print(Text("\nMemory by pipeline rank", style="bold"))
    out.print(indented(memory_bars(prediction.memory, prediction.gpu_memory_bytes)))
    out.print(indented(memory_legend()))
    out.print(indented(memory_table(prediction.memory)))
    out.print(indented(memory_line(prediction)))
    for line in (unmeasured_line(prediction), host_line(plan)):
        if line:
            out.print(indented(line))
    lacks = lacking_bytes(prediction)
    if lacks > 0:
        out.print(indented(Text(f"does not fit: lacks {format_bytes(lacks)}", style="bold red")))
    if plan.search:
        out.print(Text("\nProof", style="bold"))
        out.print(indented(bullets(proof_lines(plan.search))))
        if plan.search.dropped:
            out.print(indented("dropped before pricing:"))
            out.print(indented(dropped_table(plan.search.dropped)))
    if plan.runners_up:
        out.print(Text("\nWhat the others lost by", style="bold"))
        out.print(indented(runners_table(plan)))
    if plan.reasons:
        out.print(Text("\nWhy not a little different", style="bold"))
        out.print(indented(bullets(plan.reasons)))
