"""Which class or function makes which part of what a command prints with `--json`."""

from collections.abc import Callable
from typing import Any

from meshplan.costmodels.layout import Layout
from meshplan.executor.dryrun.result import DryRun
from meshplan.executor.launch.results import RunResult, write_result
from meshplan.executor.onerank.result import OneRankRun
from meshplan.hardware_profiles.learned import Learned
from meshplan.planner.answer.compare import Comparison
from meshplan.planner.answer.explain import TimeParts
from meshplan.planner.case.plan_file import Plan, Prediction
from meshplan.planner.case.seal import sealed
from meshplan.planner.case.search_report import SearchReport
from meshplan.planner.check.output import as_json as check_document
from meshplan.planner.check.verdicts import Finding
from meshplan.planner.cli import explain
from meshplan.planner.cli.models import facts, model_document
from meshplan.planner.learn import diagnose
from meshplan.planner.learn.diagnose import MemoryLine
from meshplan.planner.learn.levers import Lever
from meshplan.planner.learn.reasons import Reason
from meshplan.planner.learn.teach import Lesson
from meshplan.planner.learn.usual import Usual
from meshplan.planner.logs.steady import Steady
from meshplan.planner.report.comparison import comparison_document
from meshplan.planner.report.fit import Fuller, misfit_document
from meshplan.planner.report.plan import cost_document
from meshplan.planner.runs.accuracy import Fitting, Ranking, Spread, step_cell, summary
from meshplan.planner.runs.validate import json_row
from meshplan.planner.search.least_memory import Fit, NearestMiss
from meshplan.planner.sweep import outcome
from meshplan.planner.sweep.cells import Series
from meshplan.planner.sweep.economics import RunCost
from meshplan.planner.whatif import report as what_if
from meshplan.planner.whatif.changes import Change

ANY = ".**"
"""After a key whose value is a document of somebody else's, such as a model's config.json."""

Part = tuple[str, type | Callable[..., Any]] | tuple[str, type, tuple[str, ...]]
PREDICTED = ("step_time_s", "step_time_low_s", "step_time_high_s", "mfu", "tokens_per_s_per_gpu")

MOVED = (*PREDICTED, *what_if.PARTS.values(), "gpu_memory_bytes")


def _asked(path: str) -> list[Part]:
    return [
        (path, what_if.asking_document), (f"{path}.layout", Layout), (path, Prediction, MOVED),
        (path, Change),
    ]  # fmt: skip


DOCUMENTS: dict[str, list[Part]] = {
    "plan": [
        ("", sealed),
        ("", Plan),
        ("cost", cost_document),
        ("comparison", comparison_document),
        ("comparison", Comparison),
    ],
    "plan, where nothing fits": [
        ("", misfit_document),
        ("nearest", NearestMiss),
        *(
            (path, Fit, ("gpus", "layout"))
            for path in ("relaxations.*", "enough", "fewer", "on_host", "beyond_host")
        ),
        ("fuller", Fuller),
    ],
    "explain": [
        ("", explain.document),
        ("", Plan),
        ("time_parts", TimeParts),
    ],
    "check": [("", check_document), ("findings[]", Finding)],
    "learn": [("", Learned)],
    "learn --which": [("", Lesson.document)],
    "diagnose": [
        ("", diagnose.document),
        ("steps", Steady),
        ("memory[]", MemoryLine),
        ("usual_mfu", Usual),
        ("reasons[]", Reason),
        ("levers[]", Lever),
    ],
    "validate": [
        ("rows[]", json_row),
        ("summary", summary),
        ("summary.allocated", Spread),
        ("summary.reserved", Spread),
        ("summary.step_time.*", step_cell),
        ("summary.step_time.*", Spread),
        ("summary.by_grade.*", step_cell),
        ("summary.by_grade.*", Spread),
        ("summary.fits", Fitting),
        ("summary.choice", Ranking),
    ],
    "what-if": [("", what_if.changes_document), *_asked("before"), *_asked("after[]")],
    "what-if, each figure moved": [
        ("", what_if.tornado_document),
        *_asked("before"),
        ("arms[]", what_if.arm_document),
        *_asked("arms[].down"),
        *_asked("arms[].up"),
    ],
    "what-if --break-even": [
        ("", what_if.break_even_document),
        *((path, what_if.point_document) for path in ("now", "below", "above")),
    ],
    "sweep": [
        ("", outcome.document),
        ("series[]", Series),
        ("series[]", outcome.standing_out),
        ("fronts[]", outcome.front_document),
        ("fronts[].cells[]", Series, ("cluster", "engine")),
        ("fronts[].cells[]", RunCost, ("gpus",)),
        ("cells[]", Series),
        ("cells[]", outcome.record),
        ("cells[].layout", Layout),
        ("cells[]", Prediction, (*PREDICTED, "gpu_memory_bytes")),
        ("cells[]", SearchReport, ("bound_s", "gap")),
        (
            "cells[]",
            RunCost,
            ("tokens_per_s", "goodput", "days", "gpu_hours", "price_per_gpu_hour", "cost"),
        ),
    ],
    "execute": [("", RunResult), ("", write_result)],
    "execute --dry-run": [("[]", DryRun)],
    "execute --one-rank": [("", OneRankRun)],
    "models": [("models[]", facts)],
    "models MODEL": [("", facts), ("", model_document)],
}
"""By command: a path in its document ("": all of it), and what makes the object there."""
