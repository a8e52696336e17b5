"""What `plan` prints: the answer in the three steps of the procedure, and what it is compared with.

1 fit the model         the fewest GPUs that hold a step, and what fills them
2 hit the batch         replicas x micro-batch x accumulation = global batch
3 maximise throughput   the best layout, the proof, the runners-up and what they lost by
"""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshplan.costmodels.model.parameters import active_parameters, model_parameters
from meshplan.costmodels.units import format_bytes, format_count, format_seconds
from meshplan.planner.answer.compare import Comparison, Row, compare, cost_per_trillion_tokens
from meshplan.planner.answer.question import Asked, BadQuestion
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.reading import Reading, UnreadableConfig
from meshplan.planner.case.trained import optimizer_words, packed_words, trained_line
from meshplan.planner.report.evidence import evidence_line
from meshplan.planner.report.fit import print_fit
from meshplan.planner.report.output import console, listing
from meshplan.planner.report.tables import (
    bullets,
    fits_line,
    host_line,
    indented,
    layout_legend,
    memory_bars,
    memory_legend,
    memory_line,
    proof_lines,
    runners_table,
    stages_line,
    step_heading,
    time_line,
    unmeasured_line,
)
from meshplan.planner.search.priced_space import Question
from meshplan.planner.search.search import SearchResult
from meshplan.planner.space.axis_rules import divisors

SHOWN_REASONS = 3


def print_answer(asked: Asked, result: SearchResult, plan: Plan) -> None:
    """The whole answer on stdout."""
    out = console()
    print_question(out, asked)
    print_fit(out, asked.question)
    print_batch(out, asked.question, plan)
    print_best(out, result, plan)


def print_question(out: Console, asked: Asked) -> None:
    """What was asked, and what was assumed."""
    q, count = asked.question, model_parameters(asked.question.model).without_mtp
    active = active_parameters(q.model).without_mtp
    size = f"{format_count(count)} parameters"
    if active != count:
        size += f", {format_count(active)} active"
    batch, tokens = q.training.global_batch_size, q.training.global_batch_tokens
    out.print(
        Text(q.model.name, style="bold") + f" ({size}) on {q.gpus} x {q.cluster.gpu.title} "
        f"({asked.cluster_name}), {q.engine.name}, {q.training.precision}, "
        + optimizer_words(q.training)
    )
    out.print(
        f"{batch:,} sequences of {q.training.seq_len:,} = {format_count(tokens)} tokens a step"
        + packed_words(q.training)
    )
    if line := trained_line(q):
        out.print(line)
    for note in asked.notes:
        out.print(Text(f"assumed: {note}", style="dim"))


def print_batch(out: Console, question: Question, plan: Plan) -> None:
    """Step 2: the replicas that can reach the batch, and how the plan does."""
    batch, layout = question.training.global_batch_size, plan.layout
    reach = [d for d in divisors(question.gpus) if batch % d == 0]
    replicas, size = layout.data_parallel, layout.micro_batch_size
    passes = batch // (replicas * size)
    out.print(step_heading(2, "Hit the batch"))
    shown = ", ".join(map(str, reach)) if len(reach) <= 12 else f"{reach[0]} to {reach[-1]}"
    out.print(indented(f"{shown} replicas divide {batch:,} sequences ({len(reach)} ways)"))
    out.print(
        indented(
            f"{replicas} replicas x {size} sequences x {passes} micro-batches = {batch:,}, exactly"
        )
    )


def print_best(out: Console, result: SearchResult, plan: Plan) -> None:
    """Step 3: the layout, its time and memory, the proof, the others."""
    assert plan.prediction is not None
    assert plan.search is not None
    out.print(step_heading(3, "Maximise throughput"))
    out.print(indented(Text(plan.layout.label, style="bold green")))
    out.print(indented(layout_legend(plan.layout)))
    out.print(indented(time_line(plan.prediction)))
    out.print(indented(f"{plan.layout.schedule}, by stage: {stages_line(plan)}"))
    out.print(indented(memory_bars(plan.prediction.memory, plan.prediction.gpu_memory_bytes)))
    out.print(indented(memory_legend()))
    out.print(indented(memory_line(plan.prediction)))
    for line in (
        unmeasured_line(plan.prediction), fits_line(plan.prediction), host_line(plan)
    ):  # fmt: skip
        if line:
            out.print(indented(line))
    for run in plan.evidence[:1]:
        out.print(indented(f"nearest measured run: {evidence_line(run)}"))
    out.print(indented(bullets([*proof_lines(plan.search), _counts(result)])))
    if plan.runners_up:
        out.print()
        out.print(indented(runners_table(plan, out.width)))
    if plan.reasons:
        out.print()
        out.print(indented(bullets(plan.reasons[:SHOWN_REASONS])))


def _counts(result: SearchResult) -> str:
    """How many layouts do not fit, were bounded away and were solved, under the closed form."""
    fates = (
        f"{result.misfits:,} do not fit, {result.bounded:,} bounded away, {result.solved:,} solved"
    )
    return f"under the closed form {fates}; the best of them were simulated first"


def print_cost(plan: Plan, price_per_gpu_hour: float) -> None:
    """What a step and a trillion tokens cost at that price, in its currency."""
    assert plan.prediction is not None
    rate = plan.prediction.tokens_per_s_per_gpu
    step = plan.prediction.step_time_s * plan.cluster.gpus / 3600 * price_per_gpu_hour
    tokens = cost_per_trillion_tokens(rate, price_per_gpu_hour)
    at = f"\nat {price_per_gpu_hour:g} per GPU-hour"
    console().print(f"{at}: {step:,.2f} a step, {tokens:,.0f} a trillion tokens")


def read_beside(config: Path) -> Reading:
    """The config to compare with the plan; raises `BadQuestion`."""
    from meshplan.executor.frameworks import read_config

    try:
        return read_config(text_of(config), str(config), None)
    except UnreadableConfig as error:
        raise BadQuestion(f"--compare {config}: {error}") from None


def print_comparison(plan: Plan, reading: Reading, price: float | None, *, to_stderr: bool) -> None:
    """Print the current config beside the plan; raises `MissingFacts` and `InvalidLayout`."""
    found = compare(plan, reading, predicted, gpu_hour_price=price)
    out = Console(stderr=True) if to_stderr else console()
    out.print(Text(f"\n{reading.path} beside the plan", style="bold"))
    out.print(indented(comparison_table(found)))
    for note in found.notes:
        out.print(indented(Text(f"note: {note}", style="dim")))


def comparison_table(found: Comparison) -> Table:
    """Each quantity of both, and the change."""
    table = listing("", "yours", "ours", "change", left=("",))
    for row in found.rows:
        change = "" if row.change is None else f"{row.change:+.1%}"
        table.add_row(row.name, shown(row, row.yours), shown(row, row.ours), change)
    return table


def shown(row: Row, value: float | str | None) -> str:
    """A quantity with its unit, by the suffix of its name."""
    if value is None:
        return "n/a"
    if isinstance(value, str):
        return value
    if row.name.endswith("_s"):
        return format_seconds(value)
    if row.name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:.1%}" if row.name in ("mfu", "hfu") else f"{value:,.0f}"
