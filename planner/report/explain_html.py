"""The explanation of a plan as one self-contained page: SVG pictures, no script."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template

from meshplan.costmodels.units import format_bytes, format_count, format_seconds
from meshplan.planner.answer.explain import PART_NAMES, TimeParts, needed_bytes, time_parts
from meshplan.planner.case.plan_file import Plan, Prediction
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.report.svg import memory_picture, parts_picture, timeline_picture
from meshplan.planner.report.tables import (
    CATEGORIES,
    host_line,
    lost_text,
    proof_lines,
    range_of,
    stages_line,
)
from meshplan.planner.report.timeline import NAMES, StepTimeline, step_timeline

TEMPLATE = Path(__file__).parent / "explain.html"
MOST_EVENTS = 12_000
"""Of the timeline's picture; a longer step shows its first micro-batches and its end."""


def page(plan: Plan, case: Case) -> str:
    """The page as text."""
    assert plan.prediction is not None
    layout, training = case.layout, case.training
    tokens = format_count(training.global_batch_tokens)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{plan.model.name}: {layout.label}"),
        heading=escape(f"{plan.model.name} on {plan.cluster.gpus} x {case.cluster.gpu.title}"),
        question=escape(
            f"{plan.cluster.name}, {plan.engine}, {training.precision}, {training.optimizer}; "
            f"{training.global_batch_size:,} sequences of {training.seq_len:,} = {tokens} tokens "
            "a step"
        ),
        label=escape(layout.label),
        cards=_cards(plan.prediction),
        sections="".join(_sections(plan, case)),
        footer=escape(f"Written by meshplan {version('meshplan')}."),
    )


def _cards(prediction: Prediction) -> str:
    fullest = needed_bytes(prediction.memory)
    figures = [
        (format_seconds(prediction.step_time_s), f"a step{range_of(prediction)}"),
        (f"{prediction.tokens_per_s_per_gpu:,.0f}", "tokens/s per GPU"),
        ("n/a" if prediction.mfu is None else f"{prediction.mfu:.1%}", "MFU"),
        (format_bytes(fullest), f"of {format_bytes(prediction.gpu_memory_bytes)}, fullest rank"),
    ]
    return "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
        for value, what in figures
    )


def _sections(plan: Plan, case: Case) -> Iterable[str]:
    assert plan.prediction is not None
    step_model = step_model_of(case)
    parts = time_parts(step_model)
    yield _section("Time of one step", parts_picture(parts), _parts_legend(parts))
    memory = plan.prediction.memory
    yield _section(
        "Memory by pipeline rank",
        memory_picture(memory, plan.prediction.gpu_memory_bytes),
        legend((name, name) for name in CATEGORIES),
        f"<p class='note'>By stage: {escape(stages_line(plan))}.</p>",
        f"<p class='note'>{escape(host_line(plan))}</p>",
    )
    la = case.layout
    per_micro_batch = 3 * la.pipeline_parallel * la.virtual_stages
    timeline = step_timeline(step_model, max(1, MOST_EVENTS // per_micro_batch))
    yield _section(
        f"Timeline of one step ({la.schedule})",
        timeline_picture(timeline, la.virtual_stages),
        legend((kind, NAMES[kind]) for kind in _kinds(timeline)),
        _cut_note(timeline, step_model.m),
    )
    if plan.search:
        yield _section("Proof", _list(proof_lines(plan.search)))
    if plan.runners_up:
        yield _section("What the others lost by", _runners(plan))
    if plan.reasons:
        yield _section("Why not a little different", _list(plan.reasons))


def _section(heading: str, *parts: str) -> str:
    return f"<h2>{escape(heading)}</h2>{''.join(parts)}"


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Colour (by class) and meaning of each entry."""
    items = (f'<li><i class="{name}"></i>{escape(text)}</li>' for name, text in entries)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _parts_legend(parts: TimeParts) -> str:
    return legend(
        (name, f"{PART_NAMES[name]} {format_seconds(seconds)}")
        for name, seconds in parts.items()
        if seconds / parts.total_s >= 0.001
    )


def _kinds(timeline: StepTimeline) -> list[str]:
    present = {event.kind for event in timeline.events}
    return [kind for kind in NAMES if kind in present]


def _cut_note(timeline: StepTimeline, micro_batches: int) -> str:
    if timeline.micro_batches == micro_batches:
        return ""
    return (
        f"<p class='note'>Drawn with {timeline.micro_batches} of {micro_batches} micro-batches; "
        "the middle repeats.</p>"
    )


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _runners(plan: Plan) -> str:
    assert plan.prediction is not None
    rows = [
        "<tr><th>layout</th><th class='number'>step</th><th class='number'>slower</th>"
        "<th class='number'>reserved</th><th>lost by</th></tr>"
    ]
    for other in plan.runners_up:
        slower = other.step_time_s / plan.prediction.step_time_s - 1
        rows.append(
            f"<tr><td><code>{escape(other.layout.label)}</code></td>"
            f"<td class='number'>{format_seconds(other.step_time_s)}</td>"
            f"<td class='number'>{slower:+.1%}</td>"
            f"<td class='number'>{format_bytes(other.reserved_bytes)}</td>"
            f"<td>{escape(lost_text(other, most=3))}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"
