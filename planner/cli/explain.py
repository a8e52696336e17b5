"""`meshplan explain`: memory, time, timeline, why this layout, and what the others lost by."""

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.units import counted, format_seconds
from meshplan.planner.answer.alternatives import Alternative, alternatives_of
from meshplan.planner.answer.answer import reasons
from meshplan.planner.answer.explain import (
    PricedLayout,
    TimeParts,
    ideal_s,
    needed_bytes,
    priced,
)
from meshplan.planner.case.memory_limit import crowded_words
from meshplan.planner.case.plan_file import Plan, read_plan
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.reading import Exported, UnreadableConfig
from meshplan.planner.case.resolve import check_case
from meshplan.planner.case.seal import MOVED
from meshplan.planner.case.trained import image_words, packed_words, trained_line
from meshplan.planner.check.check import case_of
from meshplan.planner.cli.options import AsJson
from meshplan.planner.report.evidence import evidence_lines
from meshplan.planner.report.output import console, print_json
from meshplan.planner.report.proof import proof_lines, search_lines
from meshplan.planner.report.runners_up import ONE_CHANGE, OTHERS, runners_parts
from meshplan.planner.report.streams import Traffic
from meshplan.planner.report.tables import (
    WHEN_WRITTEN,
    bullets,
    dropped_table,
    fits_line,
    host_line,
    indented,
    layout_legend,
    memory_bars,
    memory_legend,
    memory_line,
    memory_table,
    parts_table,
    stages_line,
    time_line,
    unmeasured_line,
)
from meshplan.planner.report.timeline import step_timeline
from meshplan.planner.report.trace import chrome_trace
from meshplan.planner.runs.evidence import nearest_runs
from meshplan.planner.text_files import check_writable, write_text


def explain(
    plan: Annotated[Path, typer.Argument(help="Plan file that `meshplan plan -o` wrote.")],
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page here.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline of the step as a Chrome trace here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show why a plan is what it is: time, memory, and what the runners-up lose by.

    Example: meshplan explain plan.yaml --html plan.html --trace plan.json
    """
    check_writable(html, trace, read=(plan,))
    loaded = read_plan(plan)
    now = priced(case_of(loaded))
    current, moved = repriced(loaded, now), has_moved(loaded, now)
    others = alternatives_of(current, now.case) if html or as_json else ()
    if as_json:
        print_json(document(current, now.parts, others))
    else:
        print_explanation(current, now, loaded if moved else None)
    if html:
        write_page(html, plan, current, now, others, moved=moved)
    if trace:
        model = step_model_of(now.case)
        title = f"{current.model.name} {current.layout.label}"
        traced = chrome_trace(step_timeline(model), Traffic(model), title)
        write_text(trace, json.dumps(traced, separators=(",", ":")))
        print(f"wrote {trace}; open it at ui.perfetto.dev", file=sys.stderr)


def write_page(
    html: Path,
    file: Path,
    plan: Plan,
    now: PricedLayout,
    others: tuple[Alternative, ...],
    *,
    moved: bool,
) -> None:
    """Write the page to `html`, with the commands that run `file` and its engine's own files."""
    from meshplan.planner.report.page.page import Explained, page

    commands, exported = launch_of(file, plan, now)
    explained = Explained(
        plan=plan, now=now, alternatives=others, commands=commands, exported=exported, moved=moved
    )
    write_text(html, page(explained))
    print(f"wrote {html}", file=sys.stderr)


def launch_of(file: Path, plan: Plan, now: PricedLayout) -> tuple[tuple[str, ...], Exported | None]:
    """What runs the plan: its own engine's files and command, or meshplan's engine."""
    from meshplan.executor.frameworks import exporter_named
    from meshplan.executor.launch.preflight import gpus_of_a_host

    quoted = shlex.quote(str(file))
    try:
        exported = exporter_named(plan.engine)(plan, gpus_of_a_host(now.case.cluster))
    except (UnreadableConfig, UnsupportedModel, InvalidLayout):  # no format of the engine takes it
        return (f"meshplan execute {quoted}",), None
    written = f"meshplan export {quoted} --to {plan.engine} -o run/"
    return (written, f"cd run && {exported.launch}"), exported


def repriced(plan: Plan, now: PricedLayout) -> Plan:
    """`plan` with today's prediction; says on stderr when that is no longer the file's, and
    what refuses the layout.
    """
    for note in now.case.notes:
        print(f"note: {note}", file=sys.stderr)
    try:
        check_case(now.case)
    except InvalidLayout as error:
        print(f"note: illegal in this version: {error}", file=sys.stderr)
    if plan.prediction and has_moved(plan, now):
        print(
            f"note: the file predicts {format_seconds(plan.prediction.step_time_s)}, this version "
            f"{format_seconds(now.prediction.step_time_s)}",
            file=sys.stderr,
        )
    return plan.model_copy(
        update={
            "prediction": now.prediction, "reasons": plan.reasons or reasons(now),
            "evidence": nearest_runs(now.case),
        }
    )  # fmt: skip


def has_moved(plan: Plan, now: PricedLayout) -> bool:
    """Whether today's prediction is not the file's: by another version, or an edit by hand."""
    if plan.prediction is None:
        return False
    return abs(now.prediction.step_time_s / plan.prediction.step_time_s - 1) > MOVED


def document(plan: Plan, parts: TimeParts, others: tuple[Alternative, ...] = ()) -> dict[str, Any]:
    """The plan with the parts of its step time and the alternatives, as JSON.

    ideal_step_time_s  at the peak of all GPUs; None where no MFU is defined
    needed_bytes       of the fullest rank
    time_parts         where the step goes
    below_peak_s       what matrix products and attention take beyond that on the busiest rank
    alternatives        runners-up and layouts near by, the plan first
    alternatives[].layout
                        in short
    alternatives[].family
                        its degrees of tp and pp
    alternatives[].fits
                        whether its fullest rank needs no more than its GPU has
    alternatives[].step_time_s
                        of its step
    alternatives[].needed_bytes
                        of its fullest rank
    """
    assert plan.prediction is not None
    ideal = ideal_s(plan.prediction)
    return {
        **plan.model_dump(mode="json"),
        "time_parts": asdict(parts),
        "ideal_step_time_s": ideal,
        "below_peak_s": None if ideal is None else parts.matmul_s + parts.attention_s - ideal,
        "needed_bytes": needed_bytes(plan.prediction.memory),
        "alternatives": [
            {
                "layout": each.layout.label, "family": each.family, "fits": each.fits,
                "step_time_s": each.step_time_s, "needed_bytes": each.needed_bytes,
            }
            for each in others
        ],
    }  # fmt: skip


def print_explanation(plan: Plan, now: PricedLayout, written: Plan | None) -> None:
    """The explanation on stdout; `written` is the plan as its file has it, where that is another
    prediction's, of which the proof and what follows are then.
    """
    out, gpus = console(), counted(plan.cluster.gpus, *now.case.cluster.device_nouns)
    out.print(Text(f"{plan.model.name} on {gpus} of {plan.cluster.name}: ")
              + Text(plan.layout.full_label, style="bold"))  # fmt: skip
    for title, parts in _sections(plan, now, out.width, written).items():
        if title and parts:
            out.print(Text(f"\n{title}", style="bold"))
        for part in parts:
            out.print(indented(part))


def _sections(
    plan: Plan, now: PricedLayout, width: int, written: Plan | None
) -> dict[str, list[RenderableType]]:
    """What is printed under which heading; of empty sections nothing is."""
    prediction, search, nouns = plan.prediction, plan.search, now.case.cluster.device_nouns
    assert prediction is not None
    said = (image_words(plan.training), packed_words(plan.training))
    trained = (trained_line(now.case), *(words.removeprefix(", ") for words in said))
    notes = (unmeasured_line(prediction), fits_line(prediction), host_line(plan))
    crowded = crowded_words(needed_bytes(prediction.memory), now.case.cluster)
    then = f", {WHEN_WRITTEN}" if written else ""
    dropped: list[RenderableType] = []
    if search and search.dropped:
        dropped = ["excluded before pricing:", dropped_table(search.dropped)]
    return {
        "": [*filter(None, trained), layout_legend(plan.layout), time_line(prediction, nouns[0]),
             f"by stage: {stages_line(plan)}"],
        "Time of one step": [parts_table(now.parts)],
        "Memory by pipeline rank": [
            memory_bars(prediction.memory, prediction.gpu_memory_bytes), memory_legend(),
            memory_table(prediction.memory), memory_line(prediction), *filter(None, notes),
            *([Text(crowded, style="bold red")] if crowded else []),
        ],
        f"{OTHERS}{then}": runners_parts(written or plan, width) if plan.runners_up else [],
        f"{ONE_CHANGE}{then if written and written.reasons else ''}":
            [bullets(plan.reasons)] if plan.reasons else [],
        "Measured runs nearby": [bullets(evidence_lines(plan.evidence))],
        f"Proof{then}": [bullets(proof_lines(search, plan.choice))] if search else [],
        f"The space that was searched{then}":
            [bullets(search_lines(search)), *dropped] if search else [],
    }  # fmt: skip
