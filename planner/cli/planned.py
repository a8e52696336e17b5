"""`meshplan plan` at work: the question that was typed, the search, the answer in three steps.

What only some answers need (a comparison, tables, what would fit) is imported when they are made.
"""

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.fewest_gpus import FewestGpus, NoFewer, fewest_gpus
from meshplan.planner.answer.full_plan import Beside, full_plan
from meshplan.planner.answer.question import Arguments, Asked, BadQuestion, ask
from meshplan.planner.answer.ties import ROBUST_CANDIDATES
from meshplan.planner.case.input_limits import MOST
from meshplan.planner.case.plan_file import Plan, write_plan
from meshplan.planner.case.plan_findings import Sizes
from meshplan.planner.cli.progress import SearchLine
from meshplan.planner.processes.second_core import done_meanwhile
from meshplan.planner.processes.until import done_by
from meshplan.planner.report.output import console, print_json
from meshplan.planner.search.ctrl_c import unheard_once
from meshplan.planner.search.progress import Fastest, Progress
from meshplan.planner.search.result import NoLayoutFits, SearchEnded, SearchResult
from meshplan.planner.text_files import check_writable

if TYPE_CHECKING:
    from meshplan.planner.answer.compare import Comparison, Yours

MOST_DIGITS = 18
"""Of a number that is read; `MOST` says how large it may be."""

PIN_AXES = {
    "dp": "data_parallel",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_stages",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "zero": "zero_stage",
    "shard_group": "shard_group",
    "micro_batch": "micro_batch_size",
    "schedule": "schedule",
    "recompute": "recompute",
    "recompute_modules": "recompute_modules",
    "sequence_parallel": "sequence_parallel",
    "cp_kind": "context_kind",
    "dispatcher": "dispatcher",
    "modules_apart": "modules_apart",
    "offload_optimizer": "optimizer_offload",
    "offload_activations": "activation_offload",
}
"""The axis that each flag pins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to print and to write, and where: the options by name."""

    out: Path | None
    top: int
    robust: bool
    time_limit: float | None
    price_per_gpu_hour: float | None
    compare: Path | None
    dry_run: bool
    as_json: bool


def arguments_of(given: Mapping[str, Any]) -> Arguments:
    """The arguments among the options `given` by name, without the number of GPUs."""
    names = Arguments.__dataclass_fields__.keys() - {"pins", "gpus"}
    pins = {axis: given[flag] for flag, axis in PIN_AXES.items() if given[flag] is not None}
    return Arguments(**{name: given[name] for name in names}, gpus=1, pins=pins)


def _refuse_lists(a: Arguments, gpus: str) -> None:
    """Raise `BadQuestion` for several of what `sweep` takes several of."""
    given = {"MODEL": a.model, "--gpus": gpus, "--cluster": a.cluster, "--engine": a.engine,
             "--seq-len": a.seq_len}  # fmt: skip
    for name, text in given.items():
        if text and "," in text and "/" not in text and not Path(text).exists():
            raise BadQuestion(f"{name} {text!r} names several: `meshplan sweep` plans each of them")


def answer(arguments: Arguments, gpus: str, wanted: Wanted) -> None:
    """Print the answer and write the plan; where nothing fits say why, and exit with 3."""
    check_writable(wanted.out)
    if wanted.dry_run:
        from meshplan.executor.launch.probe import check_torch

        check_torch()
    _refuse_lists(arguments, gpus)
    asked, sizes, yours = _asked(arguments, gpus, wanted)
    limit_s = wanted.time_limit
    deadline = None if limit_s is None else time.perf_counter() + limit_s
    with Beside(asked, deadline) as beside:
        result, fewest = _searched(asked, wanted, beside.begin, deadline)
        plan = full_plan(
            beside, result, robust=wanted.robust, top=wanted.top, left_out=_say_left_out
        )
    with unheard_once():
        plan = plan.model_copy(update={"sizes": sizes})
        if wanted.out:
            write_plan(plan, wanted.out)
    found, unmet = _beside_plan(asked, plan, yours, wanted)
    with unheard_once():
        if wanted.as_json:
            _print_document(plan, wanted, found)
        else:
            from meshplan.planner.report.plan import print_answer

            print_answer(asked, result, plan, fewest)
            _print_beside(plan, wanted, found)
        sys.stdout.flush()
    _print_dry_run(asked, plan, wanted)
    if wanted.out:
        print(f"wrote {wanted.out}, for meshplan explain, execute and export", file=sys.stderr)
    elif not wanted.as_json:
        print("next: -o plan.yaml keeps the plan for meshplan explain, execute and export")
    if unmet:
        raise unmet


def _asked(
    arguments: Arguments, gpus: str, wanted: Wanted
) -> tuple[Asked, Sizes | None, "Yours | None"]:
    """The question, the sizes that were tried for it, and the config to compare with."""
    beside = None
    if wanted.compare:
        from meshplan.planner.report.plan import read_beside

        beside = read_beside(wanted.compare)
    taken = beside.engine if beside and not (arguments.engine or arguments.learned) else None
    if taken:
        arguments = replace(arguments, engine=taken)
    sizes = _sizes(arguments, wanted) if gpus == "auto" else None
    asked = ask(replace(arguments, gpus=sizes.knee_gpus if sizes else _count(gpus)))
    if taken:
        name = asked.question.engine.name
        note = f"assumed: engine {name}, that of {wanted.compare} (--engine chooses another)"
        asked = replace(asked, notes=(*asked.notes, note))
    if beside is None or wanted.compare is None:
        return asked, sizes, None
    from meshplan.planner.cli.comparing import yours_on

    return asked, sizes, yours_on(asked, beside, wanted.compare)


def _print_document(plan: Plan, wanted: Wanted, found: "Comparison | None") -> None:
    added = {}
    if wanted.price_per_gpu_hour is not None:
        from meshplan.planner.report.plan import cost_document

        added["cost"] = cost_document(plan, wanted.price_per_gpu_hour)
    if found:
        from meshplan.planner.report.comparison import comparison_document

        added["comparison"] = comparison_document(str(wanted.compare), found)
    print_json({**plan.document(), **added})


def _print_beside(plan: Plan, wanted: Wanted, found: "Comparison | None") -> None:
    """What was asked beside the answer, for people."""
    if wanted.price_per_gpu_hour is not None:
        from meshplan.planner.report.plan import print_cost

        print_cost(plan, wanted.price_per_gpu_hour)
    if found:
        from meshplan.planner.report.comparison import print_comparison

        print_comparison(console(), str(wanted.compare), found)


def _print_dry_run(asked: Asked, plan: Plan, wanted: Wanted) -> None:
    if not wanted.dry_run:
        return
    from meshplan.planner.report.dry_run import dry_run_line

    try:
        line = dry_run_line(plan, asked.question)
    except KeyboardInterrupt:
        print("interrupted: there is no dry run", file=sys.stderr)
    else:
        print(line, file=sys.stderr if wanted.as_json else sys.stdout)


def _searched(
    asked: Asked, wanted: Wanted, proved: Callable[[Fastest], None], deadline: float | None
) -> tuple[SearchResult, FewestGpus | NoFewer | None]:
    """The search, which tells `proved` what is fastest, and meanwhile, for people, the fewest GPUs
    unless the time limit leaves none for them; where nothing fits, or nothing was found in time,
    exits with 3.
    """
    top = max(wanted.top, ROBUST_CANDIDATES) if wanted.robust else wanted.top
    done = list[SearchResult]()

    def search() -> SearchResult:
        done.append(searched(asked, top, wanted.time_limit, proved))
        return done[0]

    try:
        if wanted.as_json:
            return search(), None
        result, fewest = done_meanwhile(search, partial(fewest_gpus, asked.question), deadline)
        if fewest is None:
            _say_left_out("the fewest GPUs that hold a step", "time limit")
        return result, fewest
    except KeyboardInterrupt:
        if not done:
            raise
        _say_left_out("the fewest GPUs that hold a step")
        return done[0], None
    except SearchEnded as error:
        if wanted.as_json:
            print_json({"status": "UNKNOWN", "gpus": asked.question.gpus})
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(3) from None
    except NoLayoutFits as error:
        _refuse(asked, error, wanted)


def _say_left_out(what: str, why: str = "interrupted") -> None:
    """What Ctrl-C or the time limit left out of a finished plan."""
    print(f"{why}: the plan is printed without {what}", file=sys.stderr)


def _beside_plan(
    asked: Asked, plan: Plan, yours: "Yours | None", wanted: Wanted
) -> tuple["Comparison | None", NoLayoutFits | None]:
    """The comparison, or why there is none: no reason to keep the plan back."""
    if yours is None:
        return None, None
    from meshplan.planner.cli.comparing import compared

    price, limit_s = wanted.price_per_gpu_hour, wanted.time_limit
    try:
        return compared(asked, plan, yours, gpu_hour_price=price, time_limit_s=limit_s), None
    except NoLayoutFits as error:
        return None, error
    except KeyboardInterrupt:
        _say_left_out(f"a comparison with {wanted.compare}")
        return None, None


def _count(text: str) -> int:
    """The number of accelerators; raises `BadQuestion`."""
    digits = text.strip().lstrip("0")
    if not re.fullmatch(r"[0-9]+", digits):
        raise BadQuestion(f"--gpus {text!r} is not a whole number of at least 1; write 8, or auto")
    if len(digits) > MOST_DIGITS:
        raise BadQuestion(f"--gpus {text!r} is more than {MOST['gpus']:.12g}; take at most these")
    return int(digits)


def _sizes(arguments: Arguments, wanted: Wanted) -> Sizes:
    """The sizes tried for `--gpus auto`, each named on stderr as it is planned."""
    from meshplan.planner.sweep.auto import find_sizes

    ask(arguments)  # what is wrong with the question is said before any size is tried

    def told(number: int) -> None:
        if sys.stderr.isatty():
            print(f"\rplanning {counted(number, 'GPU')} ...", end="\r", file=sys.stderr, flush=True)

    return find_sizes(
        arguments, price=wanted.price_per_gpu_hour, time_limit_s=wanted.time_limit, told=told
    )


def searched(
    asked: Asked, top: int, time_limit_s: float | None, proved: Callable[[Fastest], None]
) -> SearchResult:
    """The search, with a line on stderr once it takes longer than a second; `proved` is told what
    is fastest when that is settled.
    """
    line = SearchLine()

    def told(progress: Progress) -> None:
        line(progress)
        if progress.fastest:
            proved(progress.fastest)

    try:
        return solve(asked.question, top, time_limit_s, told)
    finally:
        line.close()


def _refuse(asked: Asked, error: NoLayoutFits, wanted: Wanted) -> NoReturn:
    """Say what came closest, what it lacks and what would do, as far as that is found in as long
    again as the search was given; exit code 3.
    """
    from meshplan.planner.report.fit import (
        LESS_FREE,
        fits_fuller,
        misfit_document,
        misfit_lines,
        most_asked,
    )
    from meshplan.planner.search.footprint import explain as explain_misfit

    question, limit_s = asked.question, wanted.time_limit
    deadline = None if limit_s is None else time.perf_counter() + limit_s
    why = explain_misfit(question, most_gpus=most_asked(question), deadline=deadline)
    fuller = done_by(lambda: fits_fuller(asked), deadline)
    why = why if fuller else replace(why, ended=(*why.ended, LESS_FREE))
    less_free = fuller.answer if fuller else None
    if wanted.as_json:
        print_json(misfit_document(asked, why, less_free, proved=error.proved))
    lines = [str(error), *misfit_lines(question, why, less_free)]
    print("error: " + "\n  ".join(lines), file=sys.stderr)
    raise typer.Exit(3)
