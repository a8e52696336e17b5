"""What `plan` prints: the answer in the three steps of the procedure, and what it is compared with.

1 fit the model         the fewest GPUs that hold a step, and what fills them
2 hit the batch         replicas x micro-batch x accumulation = global batch
3 maximise throughput   the best layout, the proof, the runners-up and what they lost by
"""

import math
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from meshplan.costmodels.model.parameters import active_parameters, model_parameters
from meshplan.costmodels.units import counted, format_count, format_seconds
from meshplan.planner.answer.compare import cost_per_trillion_tokens
from meshplan.planner.answer.fewest_gpus import FewestGpus, NoFewer
from meshplan.planner.answer.question import Asked, BadQuestion
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.plan_file import (
    IS_PLAN,
    Plan,
    UnreadablePlan,
    read_plan,
)
from meshplan.planner.case.plan_findings import Sizes
from meshplan.planner.case.reading import Reading, UnreadableConfig
from meshplan.planner.case.search_report import SearchReport
from meshplan.planner.case.trained import (
    image_words,
    optimizer_words,
    packed_words,
    trained_line,
    whole_parameters,
)
from meshplan.planner.case.unsaid import noted
from meshplan.planner.report.evidence import nearest_line
from meshplan.planner.report.fit import print_fit
from meshplan.planner.report.layout_words import batch_words
from meshplan.planner.report.output import console, listing
from meshplan.planner.report.proof import proof_lines, search_lines
from meshplan.planner.report.runners_up import ONE_CHANGE, runners_parts
from meshplan.planner.report.tables import (
    bullets,
    fits_line,
    host_line,
    indented,
    layout_legend,
    memory_bars,
    memory_legend,
    memory_line,
    spare_lines,
    split_line,
    step_heading,
    time_line,
    unmeasured_line,
)
from meshplan.planner.search.result import SearchResult
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.axis_rules import divisors

SHOWN_REASONS = 3
MOST_SHOWN = 12
"""Numbers of replicas that are listed."""


def print_answer(
    asked: Asked, result: SearchResult, plan: Plan, fewest: FewestGpus | NoFewer | None
) -> None:
    """The whole answer on stdout."""
    out = console()
    print_question(out, asked)
    if plan.sizes:
        print_sizes(out, plan.sizes)
    print_fit(out, asked.question, fewest)
    print_batch(out, asked.question, plan)
    device = asked.question.cluster.device_nouns[0]
    print_best(out, result, plan, device, legend=not isinstance(fewest, FewestGpus))


def print_question(out: Console, asked: Asked) -> None:
    """What was asked, and how it was understood."""
    q, count = asked.question, whole_parameters(asked.question)
    text = model_parameters(q.model).without_mtp
    active = active_parameters(q.model).without_mtp + count - text
    size = f"{format_count(count)} parameters"
    if active != count:
        size += f", {format_count(active)} active"
    batch, tokens = q.training.global_batch_size, q.training.global_batch_tokens
    out.print(
        Text(q.model.name, style="bold") + f" ({size}) on {q.gpus:,} x {q.cluster.gpu.title} "
        f"({asked.cluster_name}), {q.engine.name}, {q.training.precision}, "
        + optimizer_words(q.training)
    )
    out.print(
        f"{counted(batch, 'sequence')} of {q.training.seq_len:,} = "
        f"{format_count(tokens)} tokens a step" + image_words(q.training) + packed_words(q.training)
    )
    if line := trained_line(q):
        out.print(line)
    for note in asked.notes:
        out.print(Text(note, style="dim"))


def print_batch(out: Console, question: Question, plan: Plan) -> None:
    """Step 2: the replicas that can reach the batch, and how the plan does."""
    batch, layout = question.training.global_batch_size, plan.layout
    reach = [d for d in divisors(question.gpus) if batch % d == 0]
    out.print(step_heading(2, "Hit the batch"))
    shown = ", ".join(f"{d:,}" for d in reach)
    if len(reach) > MOST_SHOWN:
        shown = f"{len(reach)} numbers from 1 to {reach[-1]:,}"
    both = f"{question.counted(question.gpus)} and {counted(batch, 'sequence')}"
    out.print(indented(f"replicas that divide {both}: {shown}"))
    out.print(indented(batch_words(layout, question.training)))
    if better := plan.better_batch:
        out.print(
            indented(
                f"{batch:,} sequences divide badly: a batch of {better.global_batch_size:,} is at "
                f"least {math.floor(100 * better.faster_fraction)}% faster per sequence "
                f"({format_seconds(better.step_time_s)} a step with {better.label})"
            )
        )


def print_sizes(out: Console, sizes: Sizes) -> None:
    """The numbers of GPUs that were tried, and those that stand out."""
    out.print(Text("\nHow many GPUs", style="bold"))
    priced = all(size.cost_per_trillion_tokens is not None for size in sizes.tried)
    table = listing("GPUs", "layout", "step", "MFU", "tokens/s", _PAID[priced], left=("layout",))
    for size in sizes.tried:
        paid = size.cost_per_trillion_tokens if priced else size.gpu_hours_per_trillion_tokens
        table.add_row(
            f"{size.gpus:,}",
            size.label + " (not proved)" * (size.status != "OPTIMAL"),
            format_seconds(size.step_time_s),
            "n/a" if size.mfu is None else f"{size.mfu:.1%}",
            format_count(float(f"{size.tokens_per_s:.3g}")),
            "" if paid is None else format_count(float(f"{paid:.3g}")),
        )
    out.print(indented(table))
    out.print(indented(bullets(list(_sizes_words(sizes)))))


_PAID = {True: "cost of 1T tokens", False: "GPU-hours for 1T tokens"}


def _sizes_words(sizes: Sizes) -> Iterator[str]:
    least, knee = sizes.least_gpus, sizes.knee_gpus
    yield f"fewest that hold a training step: {least:,}"
    if sizes.cheapest_gpus is not None:
        yield f"cheapest of these per token: {sizes.cheapest_gpus:,}"
    last = "; it may lie beyond this largest size" * (knee == sizes.tried[-1].gpus)
    yield f"knee (least step time x cost of these doubling sizes): {knee:,}, planned below{last}"


def print_best(
    out: Console, result: SearchResult, plan: Plan, device: str, *, legend: bool
) -> None:
    """Step 3: the layout, its time on each `device`, the proof, its memory, the others, the space.

    legend  of the memory's letters, where step 1 has printed none
    """
    assert plan.search is not None
    out.print(step_heading(3, "Maximise throughput"))
    for part in _best_parts(plan, plan.search, device):
        out.print(indented(part))
    if legend:
        out.print(indented(memory_legend()))
    out.print(indented(bullets(_memory_facts(plan))))
    if plan.runners_up:
        out.print()
        for part in runners_parts(plan, out.width):
            out.print(indented(part))
    if plan.reasons:
        out.print(indented(Text(f"\n{ONE_CHANGE.lower()}:")))
        out.print(indented(bullets(plan.reasons[:SHOWN_REASONS])))
    out.print(indented(Text("\nthe space that was searched:")))
    *space, work = search_lines(plan.search)
    misfits = f"{result.misfits:,} layouts do not fit by the closed form"
    out.print(indented(bullets([*space, f"{work}; {misfits}"])))


def _best_parts(plan: Plan, search: SearchReport, device: str) -> Iterator[RenderableType]:
    """The layout, its time, what is proved of it, its stages and the memory of each rank."""
    assert plan.prediction is not None
    yield Text(plan.layout.full_label, style="bold green")
    yield layout_legend(plan.layout)
    yield time_line(plan.prediction, device)
    yield bullets(proof_lines(search, plan.choice))
    yield split_line(plan)
    yield memory_bars(plan.prediction.memory, plan.prediction.gpu_memory_bytes)


def _memory_facts(plan: Plan) -> Iterator[str]:
    """Reserved memory, whether it fits, what more would buy, and the nearest measured run."""
    assert plan.prediction is not None
    yield memory_line(plan.prediction)
    yield from filter(None, (fits_line(plan.prediction), unmeasured_line(plan.prediction)))
    if plan.spare_memory:
        yield from spare_lines(plan.spare_memory)
    if line := host_line(plan):
        yield line
    yield f"nearest measured run: {nearest_line(plan.evidence)}"


def cost_document(plan: Plan, price_per_gpu_hour: float) -> dict[str, float]:
    """What a step and a trillion tokens cost at that price, in its currency.

    price_per_gpu_hour  as given
    step                the cost of a step
    trillion_tokens     the cost of 1e12 tokens
    """
    assert plan.prediction is not None
    rate, step_s = plan.prediction.tokens_per_s_per_gpu, plan.prediction.step_time_s
    return {
        "price_per_gpu_hour": price_per_gpu_hour,
        "step": step_s * plan.cluster.gpus / 3600 * price_per_gpu_hour,
        "trillion_tokens": cost_per_trillion_tokens(rate, price_per_gpu_hour),
    }


def print_cost(plan: Plan, price_per_gpu_hour: float) -> None:
    """The same for people."""
    cost = cost_document(plan, price_per_gpu_hour)
    paid = f"{cost['step']:,.2f} a step, {cost['trillion_tokens']:,.0f} a trillion tokens"
    console().print(f"\nat {price_per_gpu_hour:g} per GPU-hour: {paid}")


def read_beside(config: Path) -> Reading | Plan:
    """The config, or the plan file, to compare with the plan; raises `BadQuestion`."""
    from meshplan.executor.frameworks import read_config

    try:
        text = text_of(config)
        if IS_PLAN.search(text):
            return read_plan(config)
        return noted(read_config(text, str(config), None), text)
    except (UnreadableConfig, UnreadablePlan) as error:
        raise BadQuestion(f"--compare {config}: {error}") from None
