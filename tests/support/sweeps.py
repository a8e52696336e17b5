"""`meshplan sweep` in this process, and what plans its cells, counted."""

import json
import signal
from typing import Any

import pytest
from called import run

import meshplan.planner.sweep.solve
from meshplan.planner.answer.question import Asked
from meshplan.planner.sweep.cells import Answer, answer

JOB = ("--cluster", "dgx-h100", "--global-batch", "256")
SMALL = ("llama-3.1-8b", "--gpus", "8,16,32", *JOB)


def swept(*arguments: str) -> dict[str, Any]:
    """The JSON document of a sweep that has a plan."""
    result = run("sweep", *arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


class Planner:
    """`answer`, counted; with a limit, Ctrl-C comes while the next cell is planned."""

    def __init__(self, most: int | None = None) -> None:
        self.gpus: list[int] = []
        self.most = most

    def __call__(self, asked: Asked, time_limit_s: float | None) -> Answer:
        if len(self.gpus) == self.most:
            signal.raise_signal(signal.SIGINT)
        self.gpus.append(asked.question.gpus)
        return answer(asked, time_limit_s)


def counted_planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    """What plans the cells, to be counted and stopped."""
    counted = Planner()
    monkeypatch.setattr(meshplan.planner.sweep.solve, "answer", counted)
    return counted
