"""When one rank did what: a line of JSON for each step, in the order of the steps.

A line is a list of [phase, start in seconds after the step's first phase, seconds, action], an
action [stage, kind, micro-batch] or null.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from meshplan.costmodels.schedule.actions import Action
from meshplan.executor.engine.watch.clock import Span


def write_spans(spans: Iterable[Span], path: Path) -> None:
    """Append the line of one step."""
    plain = [[span.name, span.start_s, span.seconds, span.action] for span in spans]
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain, separators=(",", ":")) + "\n")


def read_spans(path: Path, step: int) -> list[Span]:
    """What the line of `step` says."""
    plain = json.loads(path.read_text(encoding="utf-8").splitlines()[step])
    return [
        Span(name, seconds, start_s, action and Action(*action))
        for name, start_s, seconds, action in plain
    ]
