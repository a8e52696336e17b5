"""The commands `check` and `export`: parse, call, print. The main command line mounts them.

The executor's framework readers are imported inside the commands, as imports run one way.
"""

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn, get_args

import typer

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.planner.case.input_limits import MOST, too_large
from meshplan.planner.case.missing import FLAGS
from meshplan.planner.case.plan_file import Plan, UnreadablePlan, read_plan
from meshplan.planner.case.reading import (
    Exported,
    Mode,
    Reading,
    Start,
    UnreadableConfig,
    python_path,
)
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.settings import (
    FILE,
    Settings,
    UnreadableSettings,
    one_line,
    settings_file,
)
from meshplan.planner.check.check import NOT_SAID, Tools, check_paths, exit_code
from meshplan.planner.check.fixes import Quote
from meshplan.planner.check.output import MACHINE, Format, as_table
from meshplan.planner.check.verdicts import Limits
from meshplan.planner.cli.options import (
    AsJson,
    ClusterName,
    EnvironmentWords,
    FrameworkName,
    GlobalBatch,
    Gpus,
    JoinedWith,
    LaunchedBy,
    MicroBatch,
    ModelName,
    PackedMean,
    PipelineRanks,
    RecomputeMode,
    SeqLen,
    VocabSize,
    refuse,
)
from meshplan.planner.cli.progress import FilesLine
from meshplan.planner.text_files import CannotWrite, write_text

FORMATS = get_args(Format)


Paths = Annotated[
    list[Path], typer.Argument(help="Plan files, framework configs, or folders of them.")
]
Tolerance = Annotated[float, typer.Option(min=0, help="Fraction by which a prediction may drift.")]
Slack = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Also search, and report a layout slower than the best by over this fraction.",
    ),
]
FormatName = Annotated[
    str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}; --json is short for json.")
]


def check(
    paths: Paths,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    model: ModelName = None,
    seq_len: SeqLen = None,
    global_batch_size: GlobalBatch = None,
    micro_batch_size: MicroBatch = None,
    pipeline_parallel: PipelineRanks = None,
    packed_mean_length: PackedMean = None,
    vocab_size: VocabSize = None,
    recompute: RecomputeMode = None,
    environment: EnvironmentWords = None,
    launched_by: LaunchedBy = None,
    joined_with: JoinedWith = None,
    framework: FrameworkName = None,
    tolerance: Tolerance = 0.05,
    slack: Slack = None,
    output_format: FormatName = "table",
    as_json: AsJson = False,
) -> None:
    """Say whether plans and framework configs still fit, are legal, and did not drift.

    Example: meshplan check configs/ --cluster dgx-h100 --gpus 64

    Facts that a config leaves out come from the options, from meshplan.toml or from tool.meshplan
    in pyproject.toml. Exit 0: no findings, 1: findings, 2: a file cannot be read or judged, or
    there is none.
    """
    options = locals()
    if as_json and output_format not in ("table", "json"):
        refuse(f"--json with --format {output_format}: give one of them")
    output_format = "json" if as_json else output_format
    if output_format not in FORMATS:
        refuse(f"--format {output_format!r}: it is one of {', '.join(FORMATS)}")
    settings = settings_of(options, refuse)
    line = FilesLine()
    findings = check_paths(
        paths,
        tools(search=slack is not None),
        settings,
        limits=Limits(tolerance=tolerance, slack=slack),
        framework=framework,
        looked=line,
    )
    line.close()
    if output_format == "table":
        terminal = sys.stdout.isatty()
        print(as_table(findings, width=None if terminal else 160, color=terminal))
    else:
        print(MACHINE[output_format](findings))  # type: ignore[index]
    raise typer.Exit(exit_code(findings))


def export(
    plan: Annotated[Path, typer.Argument(help="Plan file that `meshplan plan -o` wrote.")],
    to: Annotated[str, typer.Option(help="Framework (docs/frameworks.md lists them).")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", "--output", help="Folder to write to; default: print the files."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For the launch command; default: those of the plan's node, at most 8; reduced to "
            "a divisor of all GPUs.",
        ),
    ] = None,
) -> None:
    """Write a plan as a framework's own config, with the command that launches it.

    Example: meshplan export plan.yaml --to megatron -o run/

    Standard output has the files (or their paths) and the command; what the format cannot express
    is listed on standard error, and in the files. `meshplan check` takes the folder as it is. On
    several nodes run the command on each, with MASTER the name of the first one (of Megatron's
    script MASTER_ADDR, and NODE_RANK the number of the node).
    """
    from meshplan.executor.frameworks import exporter_named, read_config, takes_files
    from meshplan.executor.launch.preflight import gpus_of_a_host, profile_of

    try:
        asked = read_plan(plan)
        per_node = gpus_per_node or gpus_of_a_host(profile_of(asked, None))
        exported = exporter_named(to)(asked, per_node)
        first, text = next(iter(exported.files.items()))
        read_as = read_config(text, first, exported.framework).engine
    except (UnreadableConfig, UnreadablePlan, UnsupportedModel, InvalidLayout) as error:
        refuse(one_line(error))
    for name, text in exported.files.items():
        if out is None:
            print(f"# {name}\n{text}")
        else:
            print(_written(out, name, text))
    other = read_as != asked.engine
    said = asked.engine if other and takes_files(asked.engine, exported.framework) else ""
    if out is not None:
        _write_settings(out, asked, exported, said)
    print(_from_here(exported.launch, exported.files, out))
    if asked.doubt:
        print(f"note: {asked.doubt}", file=sys.stderr)
    for each in exported.cannot_say:
        print(f"{exported.framework} cannot say {each}", file=sys.stderr)
    if other and not (said and out):
        told = f"the plan is priced as {asked.engine} runs it, this file as {read_as} does"
        print(f"{told}: `meshplan check` it", file=sys.stderr)


def _write_settings(folder: Path, plan: Plan, exported: Exported, engine: str) -> None:
    """What `check` needs beside the files; a settings file that somebody wrote is kept."""
    from meshplan.executor.frameworks.beside_export import MARK, model_file, settings_text

    own = folder / FILE
    if own.is_file() and not own.read_bytes().startswith(MARK.encode()):
        print(f"{own} is there already and kept: `meshplan check` reads it", file=sys.stderr)
        return
    if (hidden := _settings_above(folder)) is not None:
        print(f"{own} hides {hidden}: `meshplan check` reads the nearest one", file=sys.stderr)
    facts = {FILE: settings_text(plan, exported, engine, folder)}
    for name, text in {**model_file(plan, exported), **facts}.items():
        print(_written(folder, name, text))


def _settings_above(folder: Path) -> Path | None:
    """The settings file that counts in `folder` but for an export's own there; one that cannot be
    read is for `check` to refuse.
    """
    try:
        found, here = settings_file(folder), folder.absolute()
        return settings_file(here.parent) if found == here / FILE else found
    except UnreadableSettings:
        return None


def _from_here(launch: str, files: Mapping[str, str], folder: Path | None) -> str:
    """The command with the paths of the files that were written to `folder`, which Python looks for
    those in that are started as modules.
    """
    if folder is None:
        return launch
    named = re.compile("|".join(rf"(?<![\w./-]){re.escape(name)}(?![\w./-])" for name in files))
    command = named.sub(lambda found: shlex.quote(str(folder / found[0])), launch)
    return f"{python_path(launch, files, folder)}{command}"


def _written(folder: Path, name: str, text: str) -> Path:
    """Write one file of an export, making its folder; a failure is one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        refuse(f"cannot write {folder}: it is a file; -o names a folder")
    except OSError as error:
        refuse(f"cannot write {folder}: {error.strerror}")
    try:
        write_text(folder / name, text)
    except CannotWrite as error:
        refuse(one_line(error))
    return folder / name


def settings_of(options: Mapping[str, object], refuse: Callable[[str], NoReturn]) -> Settings:
    """The options that are facts of a run; `refuse` is told of one out of bounds, and raises."""
    stated = {name: options[name] for name in Settings.model_fields
              if options.get(name) is not None}  # fmt: skip
    for name, value in stated.items():
        option = FLAGS.get(name, f"--{name}")
        if value == "":
            refuse(f"{option} is empty; name one, or leave it out")
        if name == "environment":
            stated[name] = _environment(value, refuse)
        if name in MOST and isinstance(value, int) and (refusal := too_large(name, value)):
            refuse(refusal)
        if name == "recompute" and value not in get_args(Mode):
            refuse(f"{option} {value!r}: it is one of {', '.join(get_args(Mode))}")
    return Settings.model_validate(stated)


def _environment(words: object, refuse: Callable[[str], NoReturn]) -> dict[str, str]:
    """`NAME=VALUE` words by name; the number of an argument is a name too."""
    assert isinstance(words, list)
    for word in words:
        if not re.match(r"([A-Za-z_]\w*|[1-9]\d?)=", word):
            refuse(f"--env {word!r}: it is NAME=VALUE, or 1=VALUE for a script's first argument")
    return dict(word.split("=", 1) for word in words)


def tools(*, search: bool = False) -> Tools:
    """The readers of the executor and the price of the planner; the search only when asked for."""
    from meshplan.executor.frameworks import read_config, recognise

    def read(
        text: str, path: str, framework: str | None, start: Start = NOT_SAID, /
    ) -> Reading | None:
        if framework is None and recognise(path, text) is None:
            return None
        return read_config(text, path, framework, start)

    return Tools(read=read, price=quoted, best=best_layout if search else None)


def quoted(case: Case) -> Quote:
    """The memory of a case, and its whole price, computed when it is called."""
    from meshplan.planner.case.predict import prediction_of, stage_memory, step_model_of

    model = step_model_of(case)
    return Quote(stage_memory(model), lambda: prediction_of(model, model.time()))


def best_layout(case: Case, pins: Mapping[str, str]) -> tuple[str, float] | None:
    """The label and step time, under the same price, of the best layout that a plan with these
    pins would offer; None when none fits.
    """
    from meshplan.planner.answer.answer import solve
    from meshplan.planner.case.memory_limit import with_usual_headroom
    from meshplan.planner.search.result import NoLayoutFits
    from meshplan.planner.search.rows.priced_space import Question
    from meshplan.planner.space.pins import parse_pins

    question = Question(
        model=case.model,
        training=case.training,
        gpus=case.layout.world_size,
        cluster=with_usual_headroom(case.cluster, case.engine.name),
        engine=case.engine,
        pins=parse_pins(pins),
    )
    try:
        found = solve(question, top=1)
    except NoLayoutFits:
        return None
    layout = found.solutions[0].layout
    return layout.label, quoted(replace(case, layout=layout)).whole().step_time_s
