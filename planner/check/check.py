"""`check`: every plan file and framework config at some paths, re-priced; one finding for each.

The reader of framework configs and the price are given by the caller: this module opens no
accelerator library, and runs in milliseconds per file.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engines import UnknownEngine
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load_models import UnknownModel
from meshplan.planner.case.config_files import Candidate, candidates, text_of
from meshplan.planner.case.input_limits import MAX_STAGES
from meshplan.planner.case.memory_limit import as_planned
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.plan_file import (
    IS_PLAN,
    Plan,
    UnreadablePlan,
    check_gpus,
    check_runners_up,
)
from meshplan.planner.case.reading import (
    UNRECOGNISED,
    NothingToRead,
    Reading,
    Start,
    UnreadableConfig,
)
from meshplan.planner.case.resolve import (
    Case,
    check_levels,
    cluster_named,
    engine_named,
    resolve,
)
from meshplan.planner.case.settings import (
    Settings,
    UnreadableSettings,
    error_line,
    one_line,
    settings_near,
)
from meshplan.planner.case.trained import not_priced
from meshplan.planner.case.unsaid import Unsaid, check_left, notes_of, unsaid_in
from meshplan.planner.check.fixes import Price
from meshplan.planner.check.not_taken import not_taken, read_started
from meshplan.planner.check.verdicts import (
    PASSED,
    USAGE,
    Best,
    Finding,
    Limits,
    Place,
    Verdict,
    judge,
)
from meshplan.planner.space.engine_rules import check_adapted, unpriced

NOT_SAID = Start()


class Reader(Protocol):
    """Text, path and the framework the user named (or None) to a reading; None when none claims it.

    `start`: what the file is started with.
    """

    def __call__(
        self, text: str, path: str, framework: str | None, start: Start = NOT_SAID, /
    ) -> Reading | None: ...


UNKNOWN = (UnknownProfile, UnknownEngine, UnknownModel, UnsupportedModel, UnreadableSettings)
LOG = logging.getLogger("meshplan.check")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What checking needs from elsewhere; `best` only for `--slack`."""

    read: Reader
    price: Price
    best: Best | None = None


def check_paths(
    paths: list[Path],
    tools: Tools,
    given: Settings | None = None,
    *,
    limits: Limits | None = None,
    framework: str | None = None,
    looked: Callable[[Path], None] | None = None,
) -> list[Finding]:
    """One finding per file, in order; a folder is walked and what is no config there is skipped.

    Where all is skipped, the last finding says that nothing was checked: a gate that reads nothing
    does not pass. `looked` is told of each file before it is read.
    """
    found = []
    for candidate in candidates(paths):
        if looked:
            looked(candidate.path)
        if candidate.skip:
            found.append(_skipped(candidate, candidate.skip))
        else:
            found += check_file(
                candidate, tools, given or Settings(), limits or Limits(), framework=framework
            )
    if all(finding.verdict == "skipped" for finding in found):
        found.append(_nothing_checked(paths, len(found)))
    return found


def _nothing_checked(paths: list[Path], skipped: int) -> Finding:
    """A finding about the folders themselves, none of whose files is a plan or a config."""
    folders = ", ".join(str(path) for path in paths)
    files = f"none of {skipped} files is" if skipped else "no file there is"
    text = (
        f"nothing was checked below {folders}: {files} a plan or a config of a format that is read;"
        " name a folder that has one, or a file to see why it is not read"
    )
    return Finding(path=str(paths[0]), verdict="empty", text=text)


def exit_code(findings: list[Finding]) -> int:
    """0 all good, 1 findings, 2 when any file could not be judged."""
    if any(finding.verdict in USAGE for finding in findings):
        return 2
    return int(any(finding.verdict not in PASSED for finding in findings))


def check_file(
    candidate: Candidate,
    tools: Tools,
    given: Settings,
    limits: Limits,
    *,
    framework: str | None,
) -> list[Finding]:
    """A finding for each case of one file, whatever it holds: a file never takes the others' report
    along.

    Every user error becomes one line. What else is raised is a defect of ours: its finding says so
    with the place, and its traceback goes to the log `meshplan.check`.
    """
    readings: list[Reading] = []
    unsaid: list[Unsaid] = []

    def read() -> Finding:
        text = text_of(candidate.path)
        if framework is None and IS_PLAN.search(text):
            return _check_plan(text, str(candidate.path), tools, given, limits)
        start = given.fill(settings_near(candidate.path)).start
        reading = read_started(
            partial(tools.read, text, str(candidate.path), framework), start, given
        )
        if reading is None:
            if not candidate.named:
                return _skipped(candidate, "no format recognised")
            raise UnreadableConfig(UNRECOGNISED)
        readings.extend((reading, *reading.others))
        unsaid.extend(unsaid_in(text))
        return _check_reading(reading, tuple(unsaid), candidate.path, tools, given, limits)

    found = [_finding(candidate, read)]
    for other in readings[1:]:
        judged = partial(_check_reading, other, tuple(unsaid), candidate.path, tools, given, limits)
        found.append(_finding(candidate, judged))
    if len(found) == 1:
        return found
    return [
        replace(finding, text=f"case {at} of {len(found)}: {finding.text}")
        for at, finding in enumerate(found, start=1)
    ]


def _finding(candidate: Candidate, judged: Callable[[], Finding]) -> Finding:
    """What `judged` says, or its error as a finding."""
    path = str(candidate.path)
    try:
        return judged()
    except UnreadableConfig as error:
        if not candidate.named and isinstance(error, NothingToRead):
            return _skipped(candidate, str(error))
        return _refused(path, "unreadable", error)
    except MissingFacts as error:
        return _refused(path, "incomplete", error)
    except InvalidLayout as error:
        return _refused(path, "illegal", error)
    except (UnreadablePlan, *UNKNOWN) as error:
        return _refused(path, "unreadable", error)
    except Exception as error:
        LOG.debug("check of %s", path, exc_info=error)
        return Finding(path=path, verdict="unreadable", text=_defect(error))


def _refused(path: str, verdict: Verdict, error: Exception) -> Finding:
    """A user's error as a finding, at the line that it names."""
    line = getattr(error, "line", 1)
    return Finding(path=path, verdict=verdict, text=error_line(error), line=line)


DEFECT = "meshplan failed on this file: a defect of meshplan; please report it with the file"


def _defect(error: Exception) -> str:
    """A defect in one line: what was raised, and where."""
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    code = frame.tb_frame.f_code if frame else None
    place = f" in {Path(code.co_filename).name}:{frame.tb_lineno}" if frame and code else ""
    return one_line(ValueError(f"{DEFECT}: {type(error).__name__}{place}: {str(error)[:200]}"))


def _check_stages(case: Case, line: int) -> None:
    if (stages := len(case.layout.stages)) > MAX_STAGES:
        raise UnreadableConfig(
            f"{stages} pipeline stages; at most {MAX_STAGES} are priced: lower pipeline_parallel "
            "or virtual_stages",
            line,
        )


def _skipped(candidate: Candidate, why: str) -> Finding:
    return Finding(path=str(candidate.path), verdict="skipped", text=why)


def _as_exported(
    reading: Reading, unsaid: tuple[Unsaid, ...], given: Settings, near: Settings
) -> Case:
    """The case of a reading, held against what its file says that it cannot say of its plan."""
    try:
        case = resolve(reading, given, near)
    except InvalidLayout:
        check_left(unsaid, None, given.fill(near))
        raise
    check_left(unsaid, case, given.fill(near))
    return replace(case, notes=(*notes_of(unsaid, case), *case.notes))


def _check_reading(
    reading: Reading, unsaid: tuple[Unsaid, ...], path: Path, tools: Tools, given: Settings,
    limits: Limits,
) -> Finding:  # fmt: skip
    try:
        case = _as_exported(reading, unsaid, given, settings_near(path))
    except InvalidLayout as error:  # which a default may have made, and a note says so
        return replace(_refused(str(path), "illegal", error), notes=reading.notes)
    check_levels(case, reading)
    _check_stages(case, reading.line("pipeline_parallel", "virtual_stages"))

    def line_of(text: str) -> int:
        words = re.findall(r"[a-z_]+", text)
        named = [word for word in words if word in reading.facts]
        return reading.line(*named, *_LIKELY)

    place = Place(path=str(path), framework=reading.framework, line_of=line_of)
    return judge(case, place, tools.price, limits, best=tools.best)


_LIKELY = ("tensor_parallel", "data_parallel", "micro_batch_size", "global_batch_size")


def _check_plan(text: str, path: str, tools: Tools, given: Settings, limits: Limits) -> Finding:
    plan = Plan.from_yaml(text, path)
    case = case_of(plan)
    check_runners_up(plan, case.model)
    case = replace(case, notes=(*not_taken(given, plan, case.model), *case.notes))
    _check_stages(case, 1)
    check_adapted(plan.training, case.model, case.engine)

    def line_of(text_of_finding: str) -> int:
        for word in re.findall(r"[a-z_]+", text_of_finding):
            if match := re.search(rf"^[ \t-]*{word}:", text, re.M):
                return text[: match.end()].count("\n") + 1
        return 1

    place = Place(path=path, framework="plan", line_of=line_of)
    return judge(case, place, tools.price, limits, planned=plan, best=tools.best)


def case_of(plan: Plan) -> Case:
    """A plan file as a case; raises the loaders' errors for names that are unknown here."""
    cluster = cluster_named(plan.cluster.name)
    layout = plan.layout
    check_gpus(layout, plan)
    changed = plan.cluster.sha256 not in (cluster_hash(cluster), "0" * len(plan.cluster.sha256))
    note = f"the profile {plan.cluster.name} changed since the plan was written"
    engine = engine_named(plan.engine).model_copy(update={"learned": plan.learned})
    model = model_from_config(plan.model.config, plan.model.name)
    return Case(
        model=model,
        layout=layout,
        training=plan.training,
        cluster=as_planned(cluster, plan),
        engine=engine,
        notes=(
            *([plan.doubt] if plan.doubt else []),
            *([note] if changed else []),
            *not_priced(plan.model.config, model, plan.training),
            *unpriced(layout, engine),
        ),
    )
