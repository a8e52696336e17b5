"""A plan file that was edited, or that another state of meshplan wrote, is said to be so."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_priced import LAYOUT, a_plan, check_plan, check_text
from tiny_runs import tiny_prediction

from meshplan.planner.case.plan_file import Plan, RunnerUp, UnreadablePlan
from meshplan.planner.case.seal import EDITED, SEAL, UNSEALED, moved_figures, sealed

OTHER = RunnerUp(
    layout=replace(LAYOUT, micro_batch_size=2 * LAYOUT.micro_batch_size),
    step_time_s=9.0, reserved_bytes=1e10, lost_by={"bubble": 1.0}, faster_probability=0.6,
)  # fmt: skip
PLAN = a_plan().model_copy(
    update={"runners_up": (OTHER,), "reasons": ("it is faster",), "pins": {"tp": "8"}}
)


def scalars(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every scalar below `document`."""
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from scalars(value, (*path, key))
    else:
        yield path


def changed(document: Any, path: tuple[Any, ...]) -> dict[str, Any]:
    """A copy in which the scalar at `path` has another value of its kind."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    *above, last = path
    part: Any = copy
    for key in above:
        part = part[key]
    value = part[last]
    other = {bool: not value, int: 3, float: 0.5, str: f"{value}x"}.get(type(value), "none")
    part[last] = 4 if other == value else other
    return copy


@pytest.mark.parametrize("written", [PLAN.to_yaml(), json.dumps(PLAN.document())])
def test_what_plan_wrote_is_not_edited(written: str) -> None:
    """Neither as YAML nor as JSON, its keys in any order, with what `--json` prints beside it."""
    plan = Plan.from_yaml(written)
    assert plan == PLAN
    assert plan.doubt != EDITED
    turned = dict(reversed(list(PLAN.document().items())))
    assert Plan.from_yaml(json.dumps(turned | {"cost": {"price": 2.0}})).doubt != EDITED


def test_every_edit_is_seen() -> None:
    """Any one scalar with another value: the file is refused, or known to be edited."""
    document = PLAN.document()
    paths = [path for path in scalars(document) if path != ("sha256",)]
    assert [path for path in paths if not seen(json.dumps(changed(document, path)))] == []
    assert len(paths) > 60


def test_the_same_plan_found_faster_has_the_same_seal() -> None:
    """How long the search took is all that a second answer to the same question says otherwise."""
    slow, fast, open_end = (
        sealed({"search": {"status": status, "wall_s": wall_s}})["sha256"]
        for status, wall_s in (("OPTIMAL", 1.0), ("OPTIMAL", 0.5), ("FEASIBLE", 1.0))
    )
    assert slow == fast != open_end


def seen(text: str) -> bool:
    """Whether a file is refused, or known to be edited."""
    try:
        return Plan.from_yaml(text).doubt == EDITED
    except UnreadablePlan:
        return True


def test_a_file_of_before_is_not_called_edited() -> None:
    """Files had no seal, and say nothing of fields that came later."""
    document = PLAN.model_dump(mode="json")
    del document["spare_memory"]
    assert Plan.from_yaml(json.dumps(document) + "\n").doubt != EDITED


def test_check_says_that_a_file_was_edited(tmp_path: Path) -> None:
    """The status of the search is in no figure that `check` computes."""
    path = tmp_path / "plan.yaml"
    assert check_plan(path, PLAN).notes == ()
    edited = path.read_text().replace("it is faster", "it is the fastest")
    finding = check_text(path, edited)
    assert finding.verdict == "fits"
    assert finding.notes == (EDITED,)


def test_a_runner_up_of_other_gpus_is_illegal(tmp_path: Path) -> None:
    """It is no layout of the question, whatever it is said to take."""
    layout = replace(LAYOUT, data_parallel=2 * LAYOUT.data_parallel)
    plan = PLAN.model_copy(update={"runners_up": (OTHER.model_copy(update={"layout": layout}),)})
    finding = check_plan(tmp_path / "plan.yaml", plan)
    assert finding.verdict == "illegal"
    assert f"runners_up.0: cluster.gpus is {LAYOUT.world_size}" in finding.text


def test_figures_that_moved() -> None:
    """By more than 0.1 %, at any depth, and not what the file leaves out."""
    written = {"a": 1.0, "b": [{"c": 2.0}], "d": None, "e": 5.0, "f": ["x"], "g": True}
    now = {"a": 1.0009, "b": [{"c": 2.003}], "d": 7.0, "e": None, "f": ["x"], "g": True, "h": 1}
    assert list(moved_figures(written, now)) == ["b", "e"]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_a_file_that_is_cut_is_not_read(share: float) -> None:
    """Cut at a line's end its YAML is whole; its seal stands at the top, and its end is missing."""
    lines = PLAN.to_yaml().splitlines(keepends=True)
    with pytest.raises(UnreadablePlan):
        Plan.from_yaml("".join(lines[: int(share * len(lines))]))


def test_a_file_without_seal_that_ends_early_is_not_read() -> None:
    """Cut at the end of any line up to the last part that every version wrote."""
    lines = [line for line in PLAN.to_yaml().splitlines(keepends=True)
             if not line.startswith(SEAL)]  # fmt: skip
    starts = {line.partition(":")[0]: at for at, line in enumerate(lines)}
    for end in range(starts["prediction"] + 1, starts["reasons"] + 1):
        with pytest.raises(UnreadablePlan):
            Plan.from_yaml("".join(lines[:end]))


def test_a_file_without_seal_is_doubted() -> None:
    """It is read, as older versions wrote it; that nobody edited it is more than it shows. One that
    predicts nothing is of hands.
    """
    predicting = PLAN.model_copy(update={"prediction": tiny_prediction(1.0)})
    bare = predicting.model_dump(mode="json")
    assert Plan.from_yaml(f"{json.dumps(bare)}\n").doubt == UNSEALED
    assert Plan.from_yaml(json.dumps(sealed(bare))).doubt == ""
    assert Plan.from_yaml(json.dumps(sealed(bare) | {"engine": "native"})).doubt == EDITED
    by_hand = {key: bare[key] for key in ("meshplan", "model", "cluster", "training", "engine",
                                          "layout")}  # fmt: skip
    assert Plan.from_yaml(f"{json.dumps(by_hand)}\n").doubt == ""


def test_a_file_without_seal_that_stops_within_a_line_was_edited() -> None:
    """Of before the seal: `plan` ended each file with a line's end."""
    document = json.dumps(PLAN.model_dump(mode="json"))
    assert Plan.from_yaml(document).doubt == EDITED
