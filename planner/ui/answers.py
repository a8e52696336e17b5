"""What the page shows, as JSON: the numbers of a plan file and the lines that `plan` prints."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.units import format_count
from meshplan.hardware_profiles.built_in import cluster_names
from meshplan.hardware_profiles.engines import engine_names
from meshplan.hardware_profiles.load_models import UnknownModel, finite_config, model_names
from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.compare import Quantity, compare, yours_of
from meshplan.planner.answer.explain import PART_NAMES, PricedLayout, needed_bytes, priced
from meshplan.planner.answer.models import read_model
from meshplan.planner.answer.own_question import differences
from meshplan.planner.answer.question import Asked, BadQuestion, ask
from meshplan.planner.answer.sizes import TOP
from meshplan.planner.case.input_limits import check_braces
from meshplan.planner.case.memory_limit import crowded_words
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel, said
from meshplan.planner.case.reading import UnreadableConfig
from meshplan.planner.case.settings import one_line
from meshplan.planner.case.unsaid import noted
from meshplan.planner.report.comparison import assumed_line, difference, shown
from meshplan.planner.report.fit import misfit_lines, most_asked
from meshplan.planner.report.layout_words import batch_words
from meshplan.planner.report.proof import (
    proof_lines,
    search_lines,
)
from meshplan.planner.report.runners_up import (
    lost_text,
    slower_text,
)
from meshplan.planner.report.tables import (
    CATEGORIES,
    fits_line,
    memory_line,
    range_of,
    split_line,
    time_line,
    unmeasured_line,
)
from meshplan.planner.search.footprint import explain as explain_misfit
from meshplan.planner.search.progress import Progress
from meshplan.planner.search.result import NoLayoutFits, SearchEnded
from meshplan.planner.ui.layouts import case_of_choice, choice_of, shortest_choice
from meshplan.planner.ui.requests import CompareRequest, JobWords, PriceRequest, SolveRequest
from meshplan.planner.ui.stops import stops_of

KEPT_JOBS = 32


def catalogue(profiles: tuple[str, ...]) -> dict[str, Any]:
    """What may be picked; `profiles` are the files that were named when the page was started."""
    return {
        "models": model_names(),
        "clusters": [*profiles, *cluster_names()],
        "engines": list(engine_names()),
        "part_names": PART_NAMES,
        "categories": list(CATEGORIES),
    }


@lru_cache(maxsize=KEPT_JOBS)
def question_of(job: JobWords, pins: tuple[tuple[str, str], ...] = ()) -> Asked:
    """The job, looked up as `plan` does; raises `BadQuestion` and the loaders' errors."""
    arguments = job.arguments(dict(pins))
    if job.model_config_text is None:
        if job.model not in model_names():
            return ask(arguments, _refuse_files)
        return ask(arguments)
    return ask(arguments, lambda name: _uploaded(name, str(job.model_config_text)))


def _refuse_files(name: str) -> tuple[dict[str, Any], Model]:
    """A page reads no file of this machine by its name."""
    if "/" in name or name.endswith(".json"):
        raise BadQuestion(f"the page opens no file by name ({name}); upload the config.json")
    return read_model(name)


def _uploaded(name: str, text: str) -> tuple[dict[str, Any], Model]:
    """The model of a config.json that was uploaded under `name`."""
    try:
        check_braces(text)
        config = json.loads(text)
    except (UnreadableConfig, ValueError, RecursionError) as error:
        raise BadQuestion(f"{name} is not a config.json: {one_line(error)}") from None
    if not isinstance(config, dict):
        raise BadQuestion(f"{name} is JSON, but not an object with the fields of a model")
    try:
        config = finite_config(config, name)
    except UnknownModel as error:
        raise BadQuestion(str(error)) from None
    return config, model_from_config(config, name)


def price_document(request: PriceRequest) -> dict[str, Any]:
    """The layout of the sliders priced, or the rule that refuses it; and the stops of each slider.

    The numbers under `layout` and `prediction` are those of `plan --json` for the same layout.
    """
    asked = question_of(request.job)
    document = {"job": job_document(asked), "stops": stops_of(asked, request.choice)}
    try:
        case = case_of_choice(asked, request.choice)
    except InvalidLayout as error:
        return {**document, "refused": one_line(error), "choice": request.choice.model_dump()}
    return {**document, **layout_document(asked, priced(case))}


def layout_document(asked: Asked, found: PricedLayout) -> dict[str, Any]:
    """One priced layout: numbers, and the lines that `plan` prints of it."""
    plan = _plan(asked, found)
    prediction = found.prediction
    crowded = crowded_words(needed_bytes(prediction.memory), found.case.cluster)
    lines = [memory_line(prediction), fits_line(prediction), unmeasured_line(prediction)]
    layout = found.case.layout
    return {
        "refused": None,
        "choice": shortest_choice(found.case).model_dump(),
        "label": layout.label,
        "layout": said(layout),
        "prediction": prediction.model_dump(mode="json"),
        "parts": asdict(found.parts),
        "lacks": crowded or None,
        "time_line": time_line(prediction, found.case.cluster.device_nouns[0]).plain,
        "range_line": range_of(prediction).strip(" ()"),
        "cut_line": split_line(plan),
        "batch_line": batch_line(found),
        "lines": [line for line in lines if line],
    }


def batch_line(found: PricedLayout) -> str:
    """How the batch is reached, and over what ZeRO shards."""
    layout, training = found.case.layout, found.case.training
    line = batch_words(layout, training)
    return f"{line}; ZeRO shards over {layout.shard_group} ranks" if layout.shard_group else line


def job_document(asked: Asked) -> dict[str, Any]:
    """The job, and how it was understood."""
    q = asked.question
    tokens, batch = q.training.global_batch_tokens, q.training.global_batch_size
    return {
        "engine": q.engine.name,
        "line": f"{q.model.name} on {q.gpus:,} x {q.cluster.gpu.title}, {q.engine.name}; "
        f"{batch:,} sequences of {q.training.seq_len:,} = {format_count(tokens)} tokens a step",
        "notes": list(asked.notes),
        "is_moe": q.model.is_moe,
    }


def _plan(asked: Asked, found: PricedLayout) -> Plan:
    """The plan file of a layout that nobody searched for."""
    q = asked.question
    cluster = PlanCluster(name=asked.cluster_name, gpus=q.gpus, sha256=asked.cluster_sha256)
    return Plan(
        model=PlanModel.of(q.model.name, asked.model_config),
        cluster=cluster,
        training=q.training,
        engine=q.engine.name,
        layout=found.case.layout,
        prediction=found.prediction,
    )


def solve_document(
    request: SolveRequest, progress: Callable[[Progress], None] | None
) -> dict[str, Any]:
    """The best layout with its proof and the sliders that show it, or why nothing fits, as far as
    that is found in as long again as the search was given.
    """
    asked = question_of(request.job, tuple(request.pins.items()))
    try:
        result = solve(asked.question, TOP, request.time_limit_s, progress)
    except SearchEnded as error:
        return {"infeasible": [str(error)]}
    except NoLayoutFits as error:
        most, deadline = most_asked(asked.question), time.perf_counter() + request.time_limit_s
        why = explain_misfit(asked.question, most_gpus=most, deadline=deadline)
        return {"infeasible": [str(error), *misfit_lines(asked.question, why)]}
    plan = plan_of(asked, result)
    assert plan.search is not None
    return {
        "infeasible": None,
        "choice": choice_of(plan.layout).model_dump(),
        "proof": [*proof_lines(plan.search, plan.choice), *search_lines(plan.search)],
        "status": plan.search.status,
        "runners_up": [_runner(plan, other) for other in range(len(plan.runners_up))],
        "plan": plan.model_dump(mode="json"),
    }


def _runner(plan: Plan, index: int) -> dict[str, Any]:
    """A runner-up: its sliders, how much slower, and by what."""
    assert plan.prediction is not None
    other = plan.runners_up[index]
    return {
        "label": other.layout.label,
        "slower": slower_text(other, plan.prediction.step_time_s).replace("\n", ", "),
        "lost_by": lost_text(other),
        "choice": choice_of(other.layout).model_dump(),
    }


def compare_document(request: CompareRequest) -> dict[str, Any]:
    """An uploaded training config beside the layout of the sliders, quantity by quantity."""
    from meshplan.executor.frameworks import read_config

    asked = question_of(request.job)
    reading = noted(read_config(request.text, request.name, None), request.text)
    yours = yours_of(asked.question, asked.cluster_name, reading)
    differs = tuple(differences(asked.question, yours.case))
    found = compare(yours, case_of_choice(asked, request.choice), differs=differs)
    lines = [found.verdict, assumed_line(found), *found.differences, *found.notes]
    return {
        "name": request.name,
        "rows": [_compared(row) for row in found.rows],
        "notes": list(filter(None, lines)),
    }


def _compared(row: Quantity) -> dict[str, str]:
    return {
        "name": row.name,
        "yours": shown(row, row.yours),
        "ours": shown(row, row.ours),
        "change": difference(row),
    }
