"""What `what-if` prints and writes: before and after, the tornado, the break-even."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from meshplan.costmodels.units import GB, counted, format_bytes, format_seconds
from meshplan.planner.answer.explain import AS_FAST, needed_bytes
from meshplan.planner.case.plan_file import Prediction, said
from meshplan.planner.report.output import listing
from meshplan.planner.report.tables import bullets, indented
from meshplan.planner.sweep.cells import NOT_FOUND, WITHOUT_PLAN
from meshplan.planner.sweep.economics import RunCost, Terms, run_cost
from meshplan.planner.sweep.outcome import LACKING, facts
from meshplan.planner.sweep.report import days_text, short_count
from meshplan.planner.whatif.asking import Asking
from meshplan.planner.whatif.break_even import WIDEST, BreakEven, Point
from meshplan.planner.whatif.tornado import Arm, Tornado, factor_of

PREDICTIONS = (
    "all figures are predictions of the cost model; each range of 8 of 10 runs is for its own "
    "step, and the error that two steps share is not modelled"
)
PARTS = {
    "compute": "compute_s",
    "exposed communication": "exposed_comm_s",
    "pipeline bubble": "bubble_s",
    "weight update": "optimizer_s",
}
"""They add up to the step."""


def cost_of(asking: Asking, terms: Terms, price: float | None) -> RunCost | None:
    """What the whole run costs; None where there is no plan."""
    step_s = asking.step_time_s
    if step_s is None:
        return None
    return run_cost(asking.asked.question.gpus, step_s, asking.tokens, terms, price)


def print_changes(
    out: Console, askings: Sequence[Asking], terms: Terms, price: float | None
) -> None:
    """The question as it was and with all changes beside each other, then what each does alone."""
    before, *others = askings
    q, cluster = before.asked.question, before.asked.cluster_name
    out.print(Text(f"{q.model.name} on {q.counted(q.gpus)} of {cluster}", style="bold"))
    after, *alone = others
    for note in _notes(before, after):
        out.print(Text(note, style="dim"))
    table = listing("", "as planned", after.change.text, left=("",))
    for name, values in _rows((before, after), terms, price):
        table.add_row(name, *values)
    out.print(indented(table))
    lines = [_verdict(before, after), *(f"alone: {_verdict(before, each)}" for each in alone)]
    out.print(indented(bullets([*lines, PREDICTIONS])))


def _notes(*askings: Asking) -> list[str]:
    """What was assumed or is not priced of the questions, each once."""
    return list(dict.fromkeys(note for each in askings for note in each.asked.notes))


def _rows(
    askings: Sequence[Asking], terms: Terms, price: float | None
) -> Iterator[tuple[str, list[str]]]:
    yield "layout", [_layout(each) for each in askings]
    yield "step", [_seconds(each.step_time_s) for each in askings]
    yield "in 8 of 10 runs", [_interval(each) for each in askings]
    for words, name in PARTS.items():
        yield f"  {words}", [_part(each, name) for each in askings]
    if len({each.tokens for each in askings}) > 1:
        tokens = askings[0].tokens
        yield "step for the same tokens", [_seconds(each.same_tokens_s(tokens)) for each in askings]
    predictions = [each.prediction for each in askings]
    rates = [f"{p.tokens_per_s_per_gpu:,.0f}" if p else "" for p in predictions]
    yield f"tokens/s per {askings[0].asked.question.cluster.device_nouns[0]}", rates
    yield "MFU", ["" if p is None or p.mfu is None else f"{p.mfu:.1%}" for p in predictions]
    yield "memory, fullest rank", [_memory(p) if p else "" for p in predictions]
    if terms.tokens is not None:
        costs = [cost_of(each, terms, price) for each in askings]
        days = [days_text(cost) if cost else "" for cost in costs]
        yield f"days for {short_count(terms.tokens)} tokens", days
        yield "GPU-hours", [_short(cost.gpu_hours if cost else None) for cost in costs]
        if price is not None:
            prices = [_short(cost.cost if cost else None) for cost in costs]
            yield f"cost at {price:g} per GPU-hour", prices


def _memory(p: Prediction) -> str:
    return f"{format_bytes(needed_bytes(p.memory))} of {format_bytes(p.gpu_memory_bytes)}"


def _layout(asking: Asking) -> str:
    if asking.plan is None or asking.answer is None:
        return asking.verdict
    return asking.plan.layout.full_label + " (not proved)" * (not asking.answer.proved)


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)


def _interval(asking: Asking) -> str:
    p = asking.prediction
    if p is None or p.step_time_low_s is None or p.step_time_high_s is None:
        return ""
    return f"{format_seconds(p.step_time_low_s)} to {format_seconds(p.step_time_high_s)}"


def _part(asking: Asking, name: str) -> str:
    return _seconds(getattr(asking.prediction, name)) if asking.prediction else ""


def _short(value: float | None) -> str:
    return "" if value is None else short_count(value)


def _verdict(before: Asking, after: Asking) -> str:
    """By how much the change moves the seconds of as many tokens."""
    old, new = before.step_time_s, after.same_tokens_s(before.tokens)
    text = after.change.text
    if after.refusal:
        return f"{text}: {after.refusal}"
    if old is None or new is None:
        return f"{text}: not comparable, as one of the two has no plan"
    same = " for the same tokens" if after.tokens != before.tokens else ""
    if abs(new / old - 1) < AS_FAST:
        return f"{text}: as fast{same}"
    word = "shorter" if new < old else "longer"
    return f"{text}: step {abs(new / old - 1):.1%} {word}{same} ({old / new:.2f} x the throughput)"


def changes_document(
    askings: Sequence[Asking], terms: Terms, price: float | None
) -> dict[str, Any]:
    """Before and after as one JSON document.

    meshplan_what_if  version of the document
    kind              always `changes`
    notes             what was assumed of the question
    before            the plan's own question, asked anew
    after             each changed question
    """
    before, *others = askings
    return {
        "meshplan_what_if": 1,
        "kind": "changes",
        "notes": _notes(before, others[0]),
        "before": asking_document(before, before, terms, price),
        "after": [asking_document(each, before, terms, price) for each in others],
    }


def asking_document(
    each: Asking, before: Asking, terms: Terms | None = None, price: float | None = None
) -> dict[str, Any]:
    """One question and its answer with the units in the keys; what is not changed is absent.

    status           `OPTIMAL`, `FEASIBLE`, `INFEASIBLE`, `UNKNOWN`, `REFUSED`; `OPEN`: ended before
    reason           why there is no plan; absent where there is one
    lacking_bytes    of each GPU in the nearest miss; absent where there is a plan
    lacking_host_bytes  of each GPU's share of the host, where that alone lacks; absent likewise
    label            of the layout, in short
    layout           as a plan file has it
    same_tokens_s    for as many tokens as a step of `before` has
    change_fraction  of these to the step before, minus 1
    needed_bytes     of the fullest rank
    days, gpu_hours  of the whole run, where its tokens are given
    cost             of the whole run, in the currency of the price
    """
    p, plan, change = each.prediction, each.plan, each.change
    same_s, old_s = each.same_tokens_s(before.tokens), before.step_time_s
    cost = cost_of(each, terms or Terms(), price)
    settings = ("cluster", "gpu", "gpus", "seq_len", "global_batch_size", "precision", "engine")
    return {
        "factors": dict(change.factors),
        **{name: value for name in settings if (value := getattr(change, name)) is not None},
        "status": each.answer.status if each.answer else "OPEN",
        **({"reason": each.refusal, **facts(each.answer, *LACKING)} if each.refusal else {}),
        "label": plan.layout.full_label if plan else None,
        "layout": said(plan.layout) if plan else None,
        **facts(p, "step_time_s", "step_time_low_s", "step_time_high_s"),
        "same_tokens_s": same_s,
        "change_fraction": None if same_s is None or old_s is None else same_s / old_s - 1,
        **facts(p, *PARTS.values(), "tokens_per_s_per_gpu", "mfu"),
        "needed_bytes": needed_bytes(p.memory) if p else None,
        **facts(p, "gpu_memory_bytes"),
        **facts(cost, "days", "gpu_hours", "cost"),
    }


def print_tornado(out: Console, found: Tornado) -> None:
    """The arms, the longest first, and what was not moved."""
    before, q = found.before, found.before.asked.question
    gpus = q.counted(q.gpus)
    title = f"{q.model.name} on {gpus} of {before.asked.cluster_name}: each figure moved by "
    out.print(Text(f"{title}{found.by:.0%} either way", style="bold"))
    for note in _notes(before):
        out.print(Text(note, style="dim"))
    out.print(indented(f"as planned: {_layout(before)}"))
    interval = _interval(before)
    out.print(indented(f"step {_seconds(before.step_time_s)}" + f" ({interval} in 8 of 10 runs)"))
    table = listing("", "moved", "step", "moved", "step", "swing", left=("",))
    for arm in found.arms:
        table.add_row(arm.words, *_arm_cells(arm, before), _swing(arm, before))
    out.print()
    out.print(indented(table))
    lines = ["step: change of the time for the same tokens; *: another layout is best there"]
    if found.unseen:
        lines.append(f"not moved, as the plan does not depend on it: {', '.join(found.unseen)}")
    out.print(indented(bullets([*lines, PREDICTIONS])))


def _arm_cells(arm: Arm, before: Asking) -> Iterator[str]:
    old = before.step_time_s
    for end in (arm.down, arm.up):
        yield f"{factor_of(end.change, before.asked) - 1:+.0%}"
        new = end.same_tokens_s(before.tokens)
        if old is None or new is None:
            yield _layout(end)
        else:
            yield f"{_percent(new / old - 1)}{'*' * other_layout(end, before)}"


def _percent(change: float) -> str:
    """With its sign, which a rounded zero has not."""
    return "0.0%" if abs(change) < AS_FAST else f"{change:+.1%}"


def other_layout(end: Asking, before: Asking) -> bool:
    """Whether the best layout is another than before."""
    if end.plan is None or before.plan is None:
        return False
    return end.plan.layout != before.plan.layout


def _swing(arm: Arm, before: Asking) -> str:
    if before.step_time_s is None:
        return ""
    swing = arm.swing(before.tokens, before.step_time_s)
    return "" if math.isinf(swing) else f"{swing:.1%}"


def tornado_document(found: Tornado) -> dict[str, Any]:
    """The tornado as one JSON document.

    meshplan_what_if   version of the document
    kind               always `tornado`
    notes              what was assumed of the question
    moved_by_fraction  how far each figure was moved, up and down
    before             the plan's own question, asked anew
    arms               one for each figure, the longest first
    not_moved          figures on which the plan does not depend
    """
    old = found.before.step_time_s
    arms = []
    for arm in found.arms:
        swing = math.inf if old is None else arm.swing(found.before.tokens, old)
        arms.append(arm_document(arm, swing, found.before))
    return {
        "meshplan_what_if": 1,
        "kind": "tornado",
        "notes": _notes(found.before),
        "moved_by_fraction": found.by,
        "before": asking_document(found.before, found.before),
        "arms": arms,
        "not_moved": list(found.unseen),
    }


def arm_document(arm: Arm, swing: float, before: Asking) -> dict[str, Any]:
    """One figure, moved either way.

    name, words     the figure, as `what-if` takes it and for people
    swing_fraction  what lies between both ends, of the step; None where an end has no plan
    down, up        the question with the figure moved so
    """
    return {
        "name": arm.name,
        "words": arm.words,
        "swing_fraction": None if math.isinf(swing) else swing,
        "down": asking_document(arm.down, before),
        "up": asking_document(arm.up, before),
    }


def print_break_even(out: Console, asked_of: str, found: BreakEven) -> None:
    """The two sizes today, and the bandwidth at which they swap."""
    out.print(
        Text(f"{asked_of}: {counted(found.gpus, 'GPU')} against {found.than:,}", style="bold")
    )
    for note in found.notes:
        out.print(Text(note, style="dim"))
    table = listing("network", "bandwidth", *_sizes(found), "", left=("network", ""))
    points = [p for p in (found.below, found.now, found.above) if p is not None]
    for point in sorted(set(points), key=lambda p: p.factor):
        table.add_row(*_point_cells(found, point))
    out.print(indented(table))
    out.print(indented(bullets([*break_even_words(found), PREDICTIONS])))


def _sizes(found: BreakEven) -> tuple[str, str]:
    return counted(found.gpus, "GPU"), counted(found.than, "GPU")


def _point_cells(found: BreakEven, point: Point) -> list[str]:
    name = "as it is" if point is found.now or point == found.now else f"{point.factor:.3g} x"
    winner = found.gpus if point.beats else found.than
    tied = point.step_time_s == point.than_step_time_s
    return [
        name,
        bandwidth_text(found, point.factor),
        *(_step(s, point.gap) for s in (point.step_time_s, point.than_step_time_s)),
        "neither is faster" if tied else f"{winner} GPUs are faster",
    ]


def _step(seconds: float, gap: float) -> str:
    without = NOT_FOUND if math.isinf(gap) else WITHOUT_PLAN["INFEASIBLE"]
    return without if math.isinf(seconds) else format_seconds(seconds)


def bandwidth_text(found: BreakEven, factor: float) -> str:
    """The bandwidth of a node's cards together, and of one GPU's."""
    node, gpu = found.node_bytes_per_s * factor / GB, found.gpu_bytes_per_s * factor * 8 / GB
    return f"{node:.3g} GB/s per node, {gpu:.3g} Gb/s per GPU"


def break_even_words(found: BreakEven) -> Iterator[str]:
    """What the two sizes come to, what "beat" means, and what is not proved."""
    large, small = _sizes(found)
    if found.above is not None:
        need = bandwidth_text(found, found.above.factor)
        today = "they do" if found.now.beats else "they do not"
        yield (
            f"{large} beat {small} with {need} (as nccl-tests prints busbw), and not with 1 % "
            f"less; today {today}. Other crossings were not looked for"
        )
    elif found.now.beats:
        yield f"{large} beat {small} even with a {WIDEST:g}th of today's bandwidth"
    else:
        yield (
            f"{large} do not beat {small} even with {WIDEST:g} x today's bandwidth: latency, the "
            "batch or the layouts that these sizes allow decide"
        )
    gap = max(point.gap for point in (found.below, found.now, found.above) if point)
    if math.isinf(gap):
        yield f"{NOT_FOUND}: it is not proved that nothing does"
    elif gap > 0:
        yield f"not all of these steps are proved: steps up to {gap:.1%} shorter may exist"
    share = found.than / found.gpus
    yield (
        "beat: take a shorter step for the same batch; a token costs less only if the step takes "
        f"less than {share:.0%} of that on {small}"
    )


def break_even_document(found: BreakEven) -> dict[str, Any]:
    """The break-even as one JSON document.

    meshplan_what_if  version of the document
    kind              always `break_even`
    notes             what was assumed of the question
    gpus, than_gpus   the larger and the smaller size
    now               at today's bandwidth
    below, above      the ends between which the sizes swap; None where no factor from 1/64 to 64
                      swaps them
    """
    return {
        "meshplan_what_if": 1,
        "kind": "break_even",
        "notes": found.notes,
        "gpus": found.gpus,
        "than_gpus": found.than,
        **{name: point_document(found, getattr(found, name)) for name in ("now", "below", "above")},
    }


def point_document(found: BreakEven, point: Point | None) -> dict[str, Any] | None:
    """Both sizes at one bandwidth of the network, as nccl-tests prints busbw.

    factor       of today's bandwidth
    node_bytes_per_s, gpu_bytes_per_s
                 of all cards of a node together, and of one GPU
    step_time_s, than_step_time_s
                 of the larger and of the smaller size; None: nothing fits
    gap          fraction by which a shorter step of one may exist; 0: both are proved
    """
    if point is None:
        return None
    return {
        "factor": point.factor,
        "node_bytes_per_s": found.node_bytes_per_s * point.factor,
        "gpu_bytes_per_s": found.gpu_bytes_per_s * point.factor,
        **facts(point, "step_time_s", "than_step_time_s", "gap"),
    }
