"""`meshplan what-if`: the question of a plan file asked again with hardware or settings changed."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Asked, BadQuestion, parse_length
from meshplan.planner.case.plan_file import Plan, read_plan
from meshplan.planner.cli.sweep import STDOUT, answered, check_outputs
from meshplan.planner.report.output import console, print_json
from meshplan.planner.search.priced_space import Question
from meshplan.planner.search.search import NoLayoutFits, SearchEnded
from meshplan.planner.sweep.cache import Cache
from meshplan.planner.sweep.cells import Answer, Cell
from meshplan.planner.sweep.economics import Terms
from meshplan.planner.sweep.ranges import run_tokens
from meshplan.planner.text_files import write_text
from meshplan.planner.whatif.asking import Answers, ask_each
from meshplan.planner.whatif.break_even import BestStep, break_even, next_smaller
from meshplan.planner.whatif.changes import Change, changed, parse_factor, question_of
from meshplan.planner.whatif.figures import FIGURES
from meshplan.planner.whatif.report import (
    break_even_document,
    changes_document,
    print_break_even,
    print_changes,
    print_tornado,
    tornado_document,
)
from meshplan.planner.whatif.tornado import tornado

HARDWARE, JOB = "Hardware: 2x, 0.5x, +50%, -20%, or another part", "The job"
RUN, INSTEAD, OUTPUT = "The run", "Instead of one change", "The answer"
LEAST_BY, MOST_BY = 0.001, 0.9


def factor(words: str) -> Any:
    """An option that moves a figure."""
    return typer.Option(help=f"{words[0].upper()}{words[1:]}.", metavar="FACTOR",
                        rich_help_panel=HARDWARE)  # fmt: skip


def setting(help_text: str, panel: str = JOB) -> Any:
    """An option that changes a setting."""
    return typer.Option(help=help_text, rich_help_panel=panel)


def what_if(
    plan: Annotated[Path, typer.Argument(help="Plan file that `meshplan plan -o` wrote.")],
    network: Annotated[str | None, factor(FIGURES["network"].words)] = None,
    network_latency: Annotated[str | None, factor(FIGURES["network_latency"].words)] = None,
    nvlink: Annotated[str | None, factor(FIGURES["nvlink"].words)] = None,
    hbm: Annotated[str | None, factor(FIGURES["hbm"].words)] = None,
    memory: Annotated[str | None, factor(FIGURES["memory"].words)] = None,
    matmul: Annotated[str | None, factor(FIGURES["matmul"].words)] = None,
    attention: Annotated[str | None, factor(FIGURES["attention"].words)] = None,
    host_link: Annotated[str | None, factor(FIGURES["host_link"].words)] = None,
    gpu: Annotated[
        str | None, setting("Another GPU in the same nodes and links.", HARDWARE)
    ] = None,
    cluster: Annotated[str | None, setting("Another machine.", HARDWARE)] = None,
    gpus: Annotated[int | None, typer.Option(help="So many.", min=1, rich_help_panel=JOB)] = None,
    seq_len: Annotated[str | None, setting("Tokens of a sequence.")] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Sequences per step.", min=1, rich_help_panel=JOB)
    ] = None,
    precision: Annotated[str | None, setting("bf16, fp8, ...")] = None,
    engine: Annotated[str | None, setting("Another framework.")] = None,
    tokens: Annotated[
        str | None, setting("Of the whole run, 15T: adds days, GPU-hours.", RUN)
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(help="With --tokens: adds the cost.", min=0.0, rich_help_panel=RUN),
    ] = None,
    by: Annotated[
        str, setting("With no change named: how far each figure is moved.", INSTEAD)
    ] = "20%",
    break_even_of: Annotated[
        Literal["network"] | None,
        typer.Option(
            "--break-even",
            help="A bandwidth at which this size begins to beat a smaller one.",
            rich_help_panel=INSTEAD,
        ),
    ] = None,
    than: Annotated[
        int | None,
        typer.Option(
            help="With --break-even: the smaller size in GPUs; one node less unless said.",
            min=1,
            rich_help_panel=INSTEAD,
        ),
    ] = None,
    cache: Annotated[Path | None, setting("Keeps the answers, as `sweep` does.", OUTPUT)] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Processes; one per core unless said.", min=1, max=256, rich_help_panel=OUTPUT
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds per search at most.", min=0.0, rich_help_panel=OUTPUT),
    ] = None,
    plot: Annotated[Path | None, setting("The tornado as a picture (.png, .svg).", OUTPUT)] = None,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", help="One JSON document ('-': stdout).", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Ask a plan's question again with hardware or settings changed; unchanged: what moves it most.

    Example: meshplan what-if plan.yaml --network 2x --hbm +50% --tokens 15T
    """  # fmt: skip
    given = locals()
    change = Change(
        factors={
            name: parse_factor(f"--{name.replace('_', '-')}", given[name])
            for name in FIGURES
            if given[name] is not None
        },
        cluster=cluster,
        gpu=gpu,
        gpus=gpus,
        seq_len=None if seq_len is None else parse_length(seq_len),
        global_batch_size=global_batch,
        precision=precision,
        engine=engine,
    )
    terms = _terms(tokens, price_per_gpu_hour)
    _check_together(change, plot, break_even_of, than)
    check_outputs(None, json_out, plot)
    loaded = read_plan(plan)
    asked = question_of(loaded)
    if break_even_of:
        _break_even(changed(asked, change), than, time_limit, json_out)
        return
    answers = _answers(cache, jobs, time_limit)
    if change == Change():
        _tornado(asked, loaded, _fraction(by), answers, json_out=json_out, plot=plot)
    else:
        _changes(asked, change, answers, terms, price_per_gpu_hour, json_out=json_out)


def _terms(tokens: str | None, price: float | None) -> Terms:
    if price is not None and tokens is None:
        raise BadQuestion("--price-per-gpu-hour needs --tokens, as in 15T")
    return Terms(tokens=None if tokens is None else run_tokens(tokens))


def _check_together(
    change: Change, plot: Path | None, break_even_of: str | None, than: int | None
) -> None:
    """Refuse options that say nothing together; raises `BadQuestion`."""
    if than is not None and break_even_of is None:
        raise BadQuestion("--than needs --break-even network")
    if plot is not None and (break_even_of or change != Change()):
        raise BadQuestion(
            "--plot draws what moves the step most: leave out the changes and --break-even"
        )


def _fraction(text: str) -> float:
    """How far figures are moved; raises `BadQuestion`."""
    moved = parse_factor("--by", f"+{text.lstrip('+')}") - 1
    if not LEAST_BY <= moved <= MOST_BY:
        raise BadQuestion(f"--by {text!r} is not between {LEAST_BY:.1%} and {MOST_BY:.0%}")
    return moved


def _answers(cache: Path | None, jobs: int | None, time_limit_s: float | None) -> Answers:
    kept, workers = Cache(cache), jobs or num_cores()

    def answers(cells: Sequence[Cell]) -> Sequence[Answer | None]:
        return answered(cells, kept, workers, time_limit_s)

    return answers


def _changes(
    asked: Asked,
    change: Change,
    answers: Answers,
    terms: Terms,
    price: float | None,
    *,
    json_out: Path | None,
) -> None:
    """Before, all changes together, and where they are several each alone."""
    single = change.single()
    alone = single if len(single) > 1 else ()
    askings = ask_each(asked, [Change(), change, *alone], answers)
    document = changes_document(askings, terms, price)
    _write(document, json_out, lambda: print_changes(console(), askings, terms, price))
    _end([each.answer for each in askings])


def _tornado(
    asked: Asked, plan: Plan, by: float, answers: Answers, *, json_out: Path | None,
    plot: Path | None,
) -> None:  # fmt: skip
    found = tornado(asked, plan, by, answers)
    _write(tornado_document(found), json_out, lambda: print_tornado(console(), found))
    _end([each.answer for each in found.askings])
    if plot is not None:
        from meshplan.planner.whatif.plot import draw  # matplotlib is an extra

        draw(found, plot)
        print(f"wrote {plot}", file=sys.stderr)


def _break_even(
    asked: Asked, than: int | None, time_limit_s: float | None, json_out: Path | None
) -> None:
    smaller = next_smaller(asked.question) if than is None else than
    if smaller >= asked.question.gpus:
        raise BadQuestion(f"--than {smaller} is not below the {asked.question.gpus} of the plan")

    def step(question: Question) -> BestStep:
        try:
            found = solve(question, 1, time_limit_s)
        except SearchEnded as error:
            raise BadQuestion(f"--time-limit {time_limit_s:g}: {error}; give it longer") from None
        except NoLayoutFits:
            return BestStep(math.inf)
        gap = 0.0 if found.status == "OPTIMAL" else found.gap
        return BestStep(found.solutions[0].step_time_s, gap)

    found = break_even(asked, smaller, step)
    title = f"{asked.question.model.name} on {asked.cluster_name}"
    _write(break_even_document(found), json_out, lambda: print_break_even(console(), title, found))


def _write(document: dict[str, Any], json_out: Path | None, show: Any) -> None:
    """The answer on stdout, for people unless JSON is to go there; raises `CannotWrite`."""
    if json_out == STDOUT:
        print_json(document)
        return
    show()
    if json_out is not None:
        write_text(json_out, json.dumps(document, indent=1) + "\n")
        print(f"wrote {json_out}", file=sys.stderr)


def _end(found: Sequence[Answer | None]) -> None:
    """Exit 1 where Ctrl-C ended it, 3 where the question itself has no plan."""
    left = found.count(None)
    if left:
        print(f"error: ended with {left} of {len(found)} searches open", file=sys.stderr)
        raise typer.Exit(1)
    before = found[0]
    if before is None or before.plan is None:
        print("error: the question of the plan has no plan any more", file=sys.stderr)
        raise typer.Exit(3)
