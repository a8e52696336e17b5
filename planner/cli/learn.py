"""The commands `learn` and `diagnose`: parse, call, print."""

import datetime
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from meshplan.planner.case.learned_file import with_learned, write_learned
from meshplan.planner.case.settings import Settings
from meshplan.planner.cli.check import settings_of, tools
from meshplan.planner.cli.options import (
    AsJson,
    ClusterName,
    EnvironmentWords,
    FrameworkName,
    GlobalBatch,
    Gpus,
    JoinedWith,
    LaunchedBy,
    LearnedFile,
    MicroBatch,
    ModelName,
    RecomputeMode,
    SeqLen,
    VocabSize,
)
from meshplan.planner.learn.cases import (
    LoggedRun,
    LogSource,
    UnusableRun,
    case_at,
    distinct,
    measured_run,
)
from meshplan.planner.report.output import print_json
from meshplan.planner.report.terminal import as_written
from meshplan.planner.text_files import check_writable

Logs = Annotated[list[Path], typer.Argument(help="Training logs, one run each.")]
Configs = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        help="Plan or config: one for all logs, or one per log; default: beside each log.",
    ),
]
EngineName = Annotated[str | None, typer.Option(help="Engine that prices the runs.")]
MOST_LOGS = 200


def learn(
    logs: Logs,
    config: Configs = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the learnt constants (YAML).")
    ] = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    model: ModelName = None,
    seq_len: SeqLen = None,
    global_batch_size: GlobalBatch = None,
    micro_batch_size: MicroBatch = None,
    vocab_size: VocabSize = None,
    recompute: RecomputeMode = None,
    environment: EnvironmentWords = None,
    launched_by: LaunchedBy = None,
    joined_with: JoinedWith = None,
    framework: FrameworkName = None,
    engine: EngineName = None,
    which: Annotated[
        bool,
        typer.Option(
            "--which", help="LOGS are plans or configs of runs to come: say which two to run first."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Learn constants of this cluster and framework from training logs.

    Example:
      meshplan learn a/train.log b/train.log --cluster dgx-h100 --gpus 64 \\
        -o learned.yaml

    `meshplan plan --learned FILE` uses what was learnt. Exit 0: done, 2: a log or config cannot be
    used.
    """
    from meshplan.planner.learn.learn import learn as learnt_of
    from meshplan.planner.learn.report import print_learned

    source = LogSource(read=tools().read, given=_given(locals()), framework=framework)
    check_writable(out, read=(*logs, *(config or ())))
    if which:
        _which(logs, source, as_json=as_json)
        return
    paths = _paired(logs, config)
    found = distinct([_read(log, each, source) for log, each in paths])
    learned = learnt_of(found, datetime.date.today().isoformat(), _say)
    if as_json:
        print_json(learned.model_dump(mode="json"))
    else:
        print_learned(learned, found, as_written())
    if out:
        write_learned(learned, out)
        print(f"wrote {out}", file=sys.stderr)


def _which(paths: list[Path], source: LogSource, *, as_json: bool) -> None:
    from meshplan.planner.learn.report import print_lesson
    from meshplan.planner.learn.teach import lesson_of

    _check_number(paths)
    cases = {path: case_at(path, source) for path in paths}
    for path, case in cases.items():
        for note in case.notes:
            print(f"note: {path}: {note}", file=sys.stderr)
    lesson = lesson_of(cases)
    if as_json:
        print_json(lesson.document())
    else:
        print_lesson(lesson, as_written())


def diagnose(
    log: Annotated[Path, typer.Argument(help="Training log of one run.")],
    config: Annotated[
        Path | None,
        typer.Option(help="Plan or config of the run; default: the one beside the log."),
    ] = None,
    learned: LearnedFile = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    model: ModelName = None,
    seq_len: SeqLen = None,
    global_batch_size: GlobalBatch = None,
    micro_batch_size: MicroBatch = None,
    vocab_size: VocabSize = None,
    recompute: RecomputeMode = None,
    environment: EnvironmentWords = None,
    launched_by: LaunchedBy = None,
    joined_with: JoinedWith = None,
    framework: FrameworkName = None,
    engine: EngineName = None,
    as_json: AsJson = False,
) -> None:
    """Say why a run takes as long as it does: measured beside expected, and what may be missing.

    Example:
      meshplan diagnose train.log --config train.toml --cluster dgx-h100 \\
        --gpus 64

    What is said of reasons are hypotheses, each with the step that the cost model gives it. Exit 0:
    the step is where 8 of 10 runs lie, or faster; 1: it is slower; 2: no run comes of the input.
    """
    from dataclasses import replace

    from meshplan.planner.learn.diagnose import diagnose as diagnosis_of
    from meshplan.planner.learn.diagnose import document
    from meshplan.planner.learn.report import print_diagnosis

    source = LogSource(read=tools().read, given=_given(locals()), framework=framework)
    found = _read(log, config, source)
    if learned:
        taught = with_learned(found.case.engine, found.case.cluster, learned)
        found = replace(found, case=replace(found.case, engine=taught))
    said = diagnosis_of(found)
    if as_json:
        print_json(document(said))
    else:
        print_diagnosis(said, as_written())
    raise typer.Exit(int(not said.inside and said.measured_s > said.prediction.step_time_s))


def _given(options: dict[str, object]) -> Settings:
    """The options that are facts of the runs; raises `UnusableRun` for one out of bounds."""

    def refuse(text: str) -> NoReturn:
        raise UnusableRun(text)

    return settings_of(options, refuse)


def _paired(logs: list[Path], configs: list[Path] | None) -> list[tuple[Path, Path | None]]:
    """Each log with its config, None where it is looked for beside the log."""
    _check_number(logs)
    if not configs:
        return [(log, None) for log in logs]
    if len(configs) not in (1, len(logs)):
        raise UnusableRun(
            f"{len(configs)} --config for {len(logs)} logs; give one, or one for each in order"
        )
    every = configs * len(logs) if len(configs) == 1 else configs
    return list(zip(logs, every, strict=True))


def _check_number(logs: list[Path]) -> None:
    if len(logs) > MOST_LOGS:
        raise UnusableRun(f"{len(logs)} files; at most {MOST_LOGS} are learnt from at a time")


def _read(log: Path, config: Path | None, source: LogSource) -> LoggedRun:
    _say(f"reading {log}")
    return measured_run(log, config, source)


def _say(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)
