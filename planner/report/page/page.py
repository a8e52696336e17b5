"""The explanation of a plan as one self-contained page: its sections, style and script together."""

import json
from collections.abc import Iterator
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template

from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.units import format_bytes, format_count, format_seconds
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.answer.alternatives import Alternative
from meshplan.planner.answer.explain import PricedLayout
from meshplan.planner.case.plan_file import Plan, Prediction
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.reading import Exported
from meshplan.planner.case.trained import (
    image_words,
    optimizer_words,
    packed_words,
    trained_line,
)
from meshplan.planner.report.layout_words import meanings
from meshplan.planner.report.page import facts
from meshplan.planner.report.page.markup import element, legend, listed, note, number, section
from meshplan.planner.report.page.memory import (
    fullest_number,
    phases_note,
    phases_picture,
    ranks_picture,
)
from meshplan.planner.report.page.scatter import scatter
from meshplan.planner.report.page.steps import steady_period, step_data
from meshplan.planner.report.page.waterfall import waterfall
from meshplan.planner.report.proof import proof_lines, search_lines
from meshplan.planner.report.runners_up import ONE_CHANGE, OTHERS, runners_notes
from meshplan.planner.report.streams import STREAMS, Traffic
from meshplan.planner.report.tables import (
    CATEGORIES,
    WHEN_WRITTEN,
    host_line,
    memory_line,
    range_of,
    stages_line,
)
from meshplan.planner.report.timeline import NAMES, StepTimeline, step_timeline

FOLDER = Path(__file__).parent
MOST_EVENTS = 40_000
"""Of the timeline; a longer step is played with fewer micro-batches, and the page says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What the page is made of.

    plan      with today's prediction and the nearest runs
    commands  that run the plan, and `exported` its own engine's files, None where it has none
    moved     today's prediction is not the file's, whose proof it is
    """

    plan: Plan
    now: PricedLayout
    alternatives: tuple[Alternative, ...]
    commands: tuple[str, ...]
    exported: Exported | None
    moved: bool = False


def page(explained: Explained) -> str:
    """The page as text."""
    plan, case = explained.plan, explained.now.case
    assert plan.prediction is not None
    layout, training = case.layout, case.training
    tokens = format_count(training.global_batch_tokens)
    model = step_model_of(case)
    timeline, traffic = played(model), Traffic(model)
    data = step_data(timeline, traffic, layout)
    return Template(_file("page.html")).substitute(
        title=escape(f"{plan.model.name}: {layout.full_label}"),
        heading=escape(f"{plan.model.name} on {plan.cluster.gpus:,} x {case.cluster.gpu.title}"),
        question=escape(
            f"{plan.cluster.name}, {plan.engine}, {training.precision}, "
            f"{optimizer_words(training)}; "
            f"{training.global_batch_size:,} sequences of {training.seq_len:,} = {tokens} tokens "
            "a step"
            + image_words(training)
            + packed_words(training)
            + (f"; {line}" if (line := trained_line(case)) else "")
        ),
        label=_label(plan),
        cards=_cards(plan.prediction, case.cluster.device_nouns[0]),
        sections="".join(_sections(explained, traffic, timeline)),
        footer=escape(f"Written by meshplan {version('meshplan')}; this page needs no network."),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        style=_file("page.css"),
        script=_file("page.js"),
    )


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def played(model: StepModel) -> StepTimeline:
    """The timeline, of as many micro-batches as a page can hold."""
    per_micro_batch = 3 * model.layout.pipeline_parallel * model.layout.virtual_stages
    return step_timeline(model, max(1, MOST_EVENTS // per_micro_batch))


def _label(plan: Plan) -> str:
    words = "".join(
        element("div", element("dt", escape(word)), element("dd", escape(meaning)))
        for word, meaning in meanings(plan.layout)
    )
    label = element("p", escape(plan.layout.full_label), class_="label")
    return label + element("dl", words, class_="words")


def _cards(prediction: Prediction, device: str) -> str:
    step, rate = prediction.step_time_s, prediction.tokens_per_s_per_gpu
    mfu = prediction.mfu
    figures = [
        (
            number("prediction.step_time_s", step, format_seconds(step)),
            f"a step{range_of(prediction)}",
        ),
        (number("prediction.tokens_per_s_per_gpu", rate, f"{rate:,.0f}"), f"tokens/s per {device}"),
        ("n/a" if mfu is None else number("prediction.mfu", mfu, f"{mfu:.1%}"), "MFU"),
        (
            fullest_number(prediction.memory),
            f"of {format_bytes(prediction.gpu_memory_bytes)}, fullest rank",
        ),
    ]
    return "".join(
        element("div", element("b", value), element("span", escape(what)), class_="card")
        for value, what in figures
    )


def _sections(explained: Explained, traffic: Traffic, timeline: StepTimeline) -> Iterator[str]:
    plan, case = explained.plan, explained.now.case
    prediction = plan.prediction
    assert prediction is not None
    yield section(
        "From the ideal step to the predicted one", waterfall(explained.now.parts, prediction),
        name="time",
    )  # fmt: skip
    yield section(
        f"One step on the pipeline ({case.layout.schedule})", *_timeline(traffic, timeline),
        name="step",
    )  # fmt: skip
    yield _memory(plan, traffic.model, timeline)
    yield _others(explained, prediction)
    yield section("Measured runs nearby", facts.evidence(plan), name="evidence")
    yield section("Assumptions", facts.assumptions(plan, case), name="assumptions")
    if plan.search:
        heading = f"Proof, {WHEN_WRITTEN}" if explained.moved else "Proof"
        claims, searched = proof_lines(plan.search, plan.choice), search_lines(plan.search)
        told = listed(claims), element("h3", "The space that was searched"), listed(searched)
        yield section(heading, *told, name="proof")
    run = facts.launch(explained.commands, explained.exported)
    yield section("Run it", run, name="launch")


def _memory(plan: Plan, model: StepModel, timeline: StepTimeline) -> str:
    prediction = plan.prediction
    assert prediction is not None
    memory, whole = prediction.memory, prediction.gpu_memory_bytes
    parts = [
        ranks_picture(memory, whole),
        legend((name, name) for name in CATEGORIES),
        note(f"{memory_line(prediction)}; by stage: {stages_line(plan)}. {host_line(plan)}"),
        element("h3", "The fullest rank over the phases of a step"),
    ]
    if plan.layout.activation_offload:
        parts.append(note("Not drawn: activations are copied to the host and back."))
    else:
        parts += [phases_picture(model, memory, timeline, whole), phases_note(memory)]
    return section("Memory", *parts, name="memory")


BUTTONS = {
    "first": "Close-up", "period": "One steady period", "whole": "Whole step", "start": "Start",
    "end": "End", "left": "\u25c0", "right": "\u25b6", "closer": "+", "farther": "\u2212",
}  # fmt: skip
SPOKEN = {"left": "earlier", "right": "later", "closer": "zoom in", "farther": "zoom out"}


def _timeline(traffic: Traffic, timeline: StepTimeline) -> Iterator[str]:
    model = traffic.model
    buttons = [
        element("button", text, type="button", data_shows=name, aria_label=SPOKEN.get(name))
        for name, text in BUTTONS.items()
        if name != "period" or steady_period(timeline, model.layout)
    ]
    toggle = element(
        "button", "communication", type="button", data_shows="streams", aria_pressed="true"
    )
    yield element("div", *buttons, toggle, class_="buttons")
    label = f"timeline of {timeline.ranks} pipeline ranks; arrow keys move, plus and minus zoom"
    yield element("canvas", id="timeline", tabindex=0, role="img", aria_label=label)
    yield element("div", id="timeline-range", class_="note")
    yield element(
        "output", "Point at an action, or tap it, for details. Drag moves, Ctrl and wheel zoom.",
        id="timeline-said", class_="said", aria_live="polite",
    )  # fmt: skip
    kinds = {event.kind for event in timeline.events}
    yield legend([
        *((kind, name) for kind, name in NAMES.items() if kind in kinds),
        *((f"s-{stream}", name) for stream, name in STREAMS.items() if _sends(traffic, stream)),
    ])  # fmt: skip
    yield note(" ".join(_timeline_notes(model, timeline)))
    yield element("noscript", note("The timeline needs JavaScript, which is switched off."))


def _sends(traffic: Traffic, stream: str) -> bool:
    if stream == "pipeline":
        return traffic.message.whole_s > 0
    once = stream == "weights" and any(
        traffic.reduction(rank).whole_s > 0
        for rank in range(traffic.model.layout.pipeline_parallel)
    )
    return once or any(stream in sent for sent in traffic.by_action.values())


def _timeline_notes(model: StepModel, timeline: StepTimeline) -> Iterator[str]:
    la = model.layout
    if period := steady_period(timeline, la):
        group = la.pipeline_parallel if la.schedule == "interleaved_1f1b" else 1
        batches = f"{group} micro-batch{'es' if group > 1 else ''}"
        yield f"One steady period: {batches} in {format_seconds(period[1] - period[0])}."
    if la.virtual_stages > 1:
        yield "Lighter boxes are odd virtual stages."
    yield (
        "Thin lanes are communication. Their length is predicted; where within an action they run "
        "is not, so each begins with its action."
    )
    if timeline.micro_batches != model.m:
        yield f"Drawn with {timeline.micro_batches} of {model.m} micro-batches."


def _others(explained: Explained, prediction: Prediction) -> str:
    plan = explained.plan
    parts = []
    if len(explained.alternatives) > 1:
        parts += [
            scatter(explained.alternatives, prediction.gpu_memory_bytes),
            note(
                "The plan, its runners-up, and each of them with one axis changed: what one would "
                "try, not a sample. The proof covers more than these."
            ),
        ]
    if plan.runners_up:
        parts += [element("h3", OTHERS), facts.runners(plan)]
        parts += [note(line) for line in runners_notes(plan)]
    if plan.reasons:
        parts += [element("h3", ONE_CHANGE), listed(plan.reasons)]
    return section("Alternatives", *parts, name="alternatives")
