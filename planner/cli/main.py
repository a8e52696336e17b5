"""The command `meshplan`: which commands there are, and what an error becomes.

    exit code 0    done
              1    done, and something was found (`check`, `profiles diff`, `diagnose`); a failure;
                   searches of `sweep` and `what-if` that Ctrl-C ended
              2    usage, or an input that cannot be read or used: one line on stderr; `check` of
                   folders without any plan or config
              3    nothing fits, or the search of `plan` was ended before it found a layout; the
                   run of `execute` was outside its band
              130  Ctrl-C elsewhere; SIGTERM of `execute` and `profile`, which end their processes
              141  the reader of standard output left before its end (`| head`)
              143  SIGTERM elsewhere, as a shell counts it

A command's module is imported when the command is called, so that `meshplan --help` answers at
once and a command pays only for what it needs.
"""

from meshplan.planner.cli.start_up import ends_on_ctrl_c, import_numpy, importing

with importing():
    import difflib
    import errno
    import gc
    import importlib
    import io
    import os
    import signal
    import sys
    from itertools import pairwise
    from typing import Annotated, Any, NoReturn

    import typer
    from typer.core import TyperGroup

    from meshplan.hardware_profiles.dataclass import dataclass
    from meshplan.planner.cli.options import Finite
    from meshplan.planner.cli.usage import note_repeated, refuse_empty, with_value


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command lives, and what it does."""

    place: str
    summary: str


GROUPS = {
    "Plan": {
        "plan": ("planner.cli.plan:plan", "Find the fastest layout that fits."),
        "sweep": ("planner.cli.sweep:sweep", "Plan every combination of sizes and clusters."),
        "what-if": ("planner.cli.what_if:what_if", "Plan again with figures changed."),
        "explain": ("planner.cli.explain:explain", "Show why a plan is what it is."),
        "ui": ("planner.cli.ui:ui", "Open the planner as a local page."),
    },
    "Use": {
        "export": ("planner.cli.check:export", "Write a plan in a framework's format."),
        "execute": ("executor.cli.execute:execute", "Run a plan for a few steps."),
        "check": ("planner.cli.check:check", "Say whether configs still fit."),
    },
    "Measure": {
        "profile": ("executor.cli.profile:profile", "Measure this cluster."),
        "validate": (
            "planner.cli.validate:validate", "Score the cost model against measured runs."
        ),
        "learn": ("planner.cli.learn:learn", "Learn constants from training logs."),
        "diagnose": ("planner.cli.learn:diagnose", "Say why a run is slower than expected."),
    },
    "Look up": {
        "models": ("planner.cli.models:models", "List or show known models."),
        "profiles": (
            "planner.cli.profiles:profiles_app", "List or show known GPUs and clusters."
        ),
    },
}  # fmt: skip
"""The commands under the headings that they are listed by."""

COMMANDS = {
    name: Command(f"meshplan.{place}", summary)
    for listed in GROUPS.values()
    for name, (place, summary) in listed.items()
}

EXIT_CODES = {
    "meshplan.costmodels.model.config_fields.UnsupportedModel": 2,
    "meshplan.costmodels.layout.InvalidLayout": 2,
    "meshplan.executor.launch.other_engines.NotInstalled": 2,
    "meshplan.executor.launch.preflight.CannotRun": 2,
    "meshplan.executor.launch.probe.NoTorch": 2,
    "meshplan.executor.trace.missing.CannotTrace": 2,
    "meshplan.hardware_profiles.engines.UnknownEngine": 2,
    "meshplan.hardware_profiles.files.profile_file.UnknownProfile": 2,
    "meshplan.hardware_profiles.load_models.UnknownModel": 2,
    "meshplan.planner.space.pins.PinError": 2,
    "meshplan.planner.case.plan_file.UnreadablePlan": 2,
    "meshplan.planner.answer.sizes.BadQuestion": 2,
    "meshplan.planner.case.reading.UnreadableConfig": 2,
    "meshplan.planner.case.missing.MissingFacts": 2,
    "meshplan.planner.case.settings.UnreadableSettings": 2,
    "meshplan.planner.case.learned_file.UnreadableLearned": 2,
    "meshplan.planner.learn.cases.UnusableRun": 2,
    "meshplan.planner.text_files.CannotWrite": 2,
    "meshplan.planner.sweep.cache.UnreadableCache": 2,
    "meshplan.planner.report.picture.NoPlot": 2,
    "meshplan.planner.sweep.solve.WorkerDied": 1,
    "meshplan.planner.cli.ui.NoPage": 2,
    "meshplan.planner.cli.validate.UnreadableRuns": 2,
    "meshplan.planner.report.dry_run.DryRunFailed": 1,
    "meshplan.planner.search.result.NoLayoutFits": 3,
}
"""The named errors that a user can mend; any other is ours and keeps its traceback."""


ARITHMETIC = frozenset({"sweep", "what-if", "explain", "ui", "check", "validate"})
"""Commands that price many layouts, but `plan`, which imports what it needs when it is called."""


WROTE_JSON = frozenset({"sweep", "what-if", "validate"})
"""Commands whose `--json` took a file in earlier releases, as scripts may still have it."""


ANSWERED_BY_CODE = frozenset({"check", "diagnose", "profiles"})
"""Commands that are also called for their exit code alone."""


USAGE = 2
UsageError: Any = typer.BadParameter.__mro__[1]
"""What Typer raises for words that it cannot read; its module depends on Typer's release."""

TYPED = "meshplan.typed"
"""Where the words of the command line are kept for its errors."""

CTRL_C = 128 + signal.SIGINT
"""What a shell calls the end of a program by Ctrl-C."""

READER_LEFT = 128 + signal.SIGPIPE
"""What a shell calls the end of a program whose reader left: no finding of `check`, which is 1."""

UNWRITABLE = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Why standard output takes no more, which is none of our faults; the last where it is closed."""


class Commands(TyperGroup):
    """The group of all commands, each imported when it is called."""

    def make_context(self, *words: Any, **more: Any) -> Any:
        """The context of `meshplan` itself; an option that it does not have is one line."""
        try:
            return super().make_context(*words, **more)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # `meshplan` alone, which is help
                raise
            _end(with_value(error, []), USAGE)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, imported now; None if there is none."""
        if cmd_name in ARITHMETIC:
            import_numpy()
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; raises `BadQuestion` for an empty value, of which none means
        anything, for an unknown command, and for `--json FILE`.
        """
        refuse_empty(args)
        _refuse_unknown(args[0])
        ctx.meta[TYPED] = args
        _refuse_json_file(args)
        found = super().resolve_command(ctx, args)
        note_repeated(found[1], args)
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands under their headings, without importing them."""
        for heading, listed in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, summary) for name, (_, summary) in listed.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a named error becomes one line on stderr and its exit code."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _end(with_value(error, ctx.meta[TYPED]), USAGE)
        except Exception as error:
            code = exit_code(error)
            if code is None:
                raise
            _end(error, code)


def _end(said: Exception | str, code: int) -> NoReturn:
    """One line on standard error, and the exit code."""
    from meshplan.planner.case.settings import error_line

    said = said if isinstance(said, Exception) else ValueError(said)
    print(f"error: {error_line(said)}", file=sys.stderr)
    raise typer.Exit(code)


def _refuse_unknown(name: str) -> None:
    """Raise `BadQuestion` for a word that is no command, with those that it is close to."""
    if name in COMMANDS or name.startswith("-"):
        return
    from meshplan.planner.answer.sizes import BadQuestion

    close = difflib.get_close_matches(name, COMMANDS)
    hint = f"close names: {', '.join(close)}" if close else "`meshplan -h` lists them"
    raise BadQuestion(f"no command {name!r}; {hint}")


def _refuse_json_file(args: list[str]) -> None:
    """Raise `BadQuestion` for `--json FILE`, which old scripts say to the commands that took it."""
    for option, value in pairwise(args):
        written = value == "-" or value.endswith(".json")
        if option == "--json" and written and args[0] in WROTE_JSON:
            from meshplan.planner.answer.sizes import BadQuestion

            raise BadQuestion(
                f"--json {value}: --json takes no file, it prints on stdout; write "
                f"`meshplan {args[0]} ... --json > FILE` (a model's .json goes before --json)"
            )


def load_command(name: str) -> Any:
    """The click command called `name`, its module imported."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    with importing():
        found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name, cls=Finite)(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    return command


def exit_code(error: BaseException) -> int | None:
    """The exit code of a named error; None for any other."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
    return next((EXIT_CODES[name] for name in names if name in EXIT_CODES), None)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("meshplan"))
        raise typer.Exit


@app.callback()
def meshplan(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Find the fastest parallel layout that fits for training a large language model, and prove it.

    \b
    Example:
      meshplan plan llama-3.1-70b --gpus 256 --cluster dgx-h100 --seq-len 8192 \\
        --global-batch-tokens 4M -o plan.yaml
    """


def _open_closed() -> None:
    """Where whoever started this closed them (`>&-`), standard error takes what is written, and
    standard output refuses it as a full disk does, because nobody got the answer; but of a command
    whose exit code answers it takes it too.
    """
    answered = sys.argv[1:2] and sys.argv[1] in ANSWERED_BY_CODE
    output = os.O_WRONLY if answered else os.O_RDONLY
    for name, mode in (("stdout", output), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, mode), "w"))


class Dropping(io.FileIO):
    """Standard error, which drops what it cannot write: of progress, notes and errors none is the
    answer, nor changes its exit code.
    """

    def write(self, data: Any, /) -> int:
        """All of `data`, as far as it is taken."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            return memoryview(data).nbytes


def _drop_unwritable() -> None:
    """Standard error does not end a command because its disk is full or its reader left."""
    sys.stderr = io.TextIOWrapper(
        Dropping(sys.stderr.fileno(), "w", closefd=False),
        encoding=sys.stderr.encoding, errors=sys.stderr.errors, write_through=True,
    )  # fmt: skip


def main() -> None:
    """The console entry."""
    _open_closed()
    _drop_unwritable()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # which Typer and rich end with 1
            ended.code = READER_LEFT
        raise
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            sys.exit(READER_LEFT)
        print(f"error: cannot write standard output: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if "KeyboardInterrupt" not in str(error):
            raise
        sys.exit(CTRL_C)  # pydantic makes an error of Ctrl-C that comes while it builds a class
    finally:
        ends_on_ctrl_c()
        gc.freeze()  # what ends with the process is not looked through for garbage


if __name__ == "__main__":
    main()
