"""`meshplan what-if`: the question of a plan file asked again with hardware or settings changed."""

import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from meshplan.hardware_profiles.local_cpu import num_cores
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Asked
from meshplan.planner.answer.sizes import BadQuestion, parse_length
from meshplan.planner.case.plan_file import Plan, read_plan
from meshplan.planner.cli import what_if_options as options
from meshplan.planner.cli.sweep import answered, check_outputs
from meshplan.planner.report.output import console, print_json
from meshplan.planner.search.result import NoLayoutFits, SearchEnded
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.sweep.cache import Cache
from meshplan.planner.sweep.cells import Answer, Cell
from meshplan.planner.sweep.economics import Terms
from meshplan.planner.sweep.ranges import run_tokens
from meshplan.planner.text_files import check_apart
from meshplan.planner.whatif.asking import Answers, Asking, ask_each, beside_file
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

USUAL_BY = "20%"
LEAST_BY, MOST_BY = 0.001, 0.9


def what_if(
    plan: options.PlanFile,
    network: options.Network = None,
    network_latency: options.NetworkLatency = None,
    nvlink: options.Nvlink = None,
    hbm: options.Hbm = None,
    memory: options.Memory = None,
    matmul: options.Matmul = None,
    attention: options.Attention = None,
    host_link: options.HostLink = None,
    gpu: options.Gpu = None,
    cluster: options.Cluster = None,
    gpus: options.Gpus = None,
    seq_len: options.SeqLen = None,
    global_batch: options.GlobalBatch = None,
    precision: options.Precision = None,
    engine: options.Engine = None,
    tokens: options.Tokens = None,
    price_per_gpu_hour: options.PricePerGpuHour = None,
    by: options.By = None,
    break_even_of: options.BreakEvenOf = None,
    than: options.Than = None,
    cache: options.CacheFile = None,
    jobs: options.Jobs = None,
    time_limit: options.TimeLimit = None,
    plot: options.Plot = None,
    as_json: options.AsJson = False,
) -> None:
    """Plan again with hardware or settings changed; without a change: say what moves the step most.

    Example: meshplan what-if plan.yaml --network 2x --hbm +50% --tokens 15T
    """
    change, terms = _change(locals()), _terms(tokens, price_per_gpu_hour)
    _check_together(change, plot, break_even_of, than, by)
    check_outputs(None, plot)
    check_apart(cache, plot)
    loaded = read_plan(plan)
    asked = question_of(loaded)
    if break_even_of:
        _break_even(changed(asked, change), than, time_limit, as_json=as_json)
        return
    kept = Cache(cache)
    answers = _answers(kept, jobs, time_limit)
    if change == Change():
        _tornado(asked, loaded, _fraction(by or USUAL_BY), answers, as_json=as_json, plot=plot)
    else:
        found = _askings(asked, loaded, change, answers)
        _changes(found, terms, price_per_gpu_hour, as_json=as_json)
    kept.check_kept()


def _change(given: dict[str, Any]) -> Change:
    """What the options change; raises `BadQuestion`."""
    seq_len = given["seq_len"]
    return Change(
        factors={
            name: parse_factor(f"--{name.replace('_', '-')}", given[name])
            for name in FIGURES
            if given[name] is not None
        },
        seq_len=None if seq_len is None else parse_length(seq_len),
        global_batch_size=given["global_batch"],
        **{name: given[name] for name in ("cluster", "gpu", "gpus", "precision", "engine")},
    )


def _terms(tokens: str | None, price: float | None) -> Terms:
    if price is not None and tokens is None:
        raise BadQuestion("--price-per-gpu-hour needs --tokens, as in 15T")
    return Terms(tokens=None if tokens is None else run_tokens(tokens))


def _check_together(
    change: Change, plot: Path | None, break_even_of: str | None, than: int | None, by: str | None
) -> None:
    """Refuse options that say nothing together; raises `BadQuestion`."""
    if than is not None and break_even_of is None:
        raise BadQuestion("--than needs --break-even network")
    if break_even_of is not None and break_even_of in change.factors:
        raise BadQuestion("--break-even network starts from the plan's: leave out --network")
    if plot is not None and (break_even_of or change != Change()):
        raise BadQuestion(
            "--plot draws what moves the step most: leave out the changes and --break-even"
        )
    if by is not None and (break_even_of or change != Change()):
        raise BadQuestion("--by moves each figure: leave out the changes and --break-even")


def _fraction(text: str) -> float:
    """How far figures are moved; raises `BadQuestion`."""
    share = re.fullmatch(r"\+?(\d{1,6}(?:\.\d{1,6})?)%", text.strip())
    moved = float(share[1]) / 100 if share else 0.0
    if not LEAST_BY <= moved <= MOST_BY:
        raise BadQuestion(
            f"--by {text!r} is not between {LEAST_BY:.1%} and {MOST_BY:.0%}; write 20%"
        )
    return moved


def _answers(kept: Cache, jobs: int | None, time_limit_s: float | None) -> Answers:
    workers = jobs or num_cores()

    def answers(cells: Sequence[Cell]) -> Sequence[Answer | None]:
        return answered(cells, kept, workers, time_limit_s)

    return answers


def _askings(asked: Asked, plan: Plan, change: Change, answers: Answers) -> list[Asking]:
    """Before, all changes together, and where they are several each alone."""
    single = change.single()
    alone = single if len(single) > 1 else ()
    before, *others = ask_each(asked, [Change(), change, *alone], answers)
    return [beside_file(before, plan), *others]


def _changes(
    askings: Sequence[Asking], terms: Terms, price: float | None, *, as_json: bool
) -> None:
    document = changes_document(askings, terms, price)
    _write(document, lambda: print_changes(console(), askings, terms, price), as_json=as_json)
    _end([each.answer for each in askings])


def _tornado(
    asked: Asked, plan: Plan, by: float, answers: Answers, *, as_json: bool,
    plot: Path | None,
) -> None:  # fmt: skip
    found = tornado(asked, plan, by, answers)
    _write(tornado_document(found), lambda: print_tornado(console(), found), as_json=as_json)
    _end([each.answer for each in found.askings])
    if plot is not None:
        from meshplan.planner.whatif.plot import draw  # matplotlib is an extra

        draw(found, plot)
        print(f"wrote {plot}", file=sys.stderr)


def _break_even(
    asked: Asked, than: int | None, time_limit_s: float | None, *, as_json: bool
) -> None:
    smaller = next_smaller(asked.question) if than is None else than
    if smaller >= asked.question.gpus:
        raise BadQuestion(f"--than {smaller} is not below the {asked.question.gpus} of the plan")

    def step(question: Question) -> BestStep:
        try:
            found = solve(question, 1, time_limit_s)
        except SearchEnded as error:
            raise BadQuestion(f"--time-limit {time_limit_s:g}: {error}") from None
        except NoLayoutFits as error:
            return BestStep(math.inf, gap=0.0 if error.proved else math.inf)
        gap = 0.0 if found.status == "OPTIMAL" else found.gap
        return BestStep(found.solutions[0].step_time_s, gap)

    found = break_even(asked, smaller, step)
    title = f"{asked.question.model.name} on {asked.cluster_name}"
    _write(
        break_even_document(found),
        lambda: print_break_even(console(), title, found),
        as_json=as_json,
    )


def _write(document: dict[str, Any], show: Callable[[], None], *, as_json: bool) -> None:
    """The answer on stdout."""
    if as_json:
        print_json(document)
    else:
        show()


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
