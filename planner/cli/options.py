"""Options that several commands have, each declared once."""

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand


def refuse(message: str) -> NoReturn:
    """One line on standard error, exit 2: the user can mend it."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(2)


class Finite(TyperCommand):
    """A command that refuses numbers that are not finite, which bounds let through, and names of
    options as values: there a value was forgotten.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words; raises `BadQuestion` for an option where another's value should be."""
        options: dict[str, Any] = {name: each for each in self.get_params(ctx)
                                   for name in each.opts if name[0] == "-"}  # fmt: skip
        for word, after in pairwise(args):
            if word == "--":
                break
            if word in options and after in options and not options[word].is_flag:
                _refuse(f"{word} has no value: {after} is an option itself")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it; raises `BadQuestion` for a number that is not finite."""
        for option in self.params:
            value = ctx.params.get(option.name)
            if isinstance(value, float) and not math.isfinite(value):
                _refuse(f"{option.opts[0]} {value} is not a finite number")
        return super().invoke(ctx)


def _refuse(said: str) -> NoReturn:
    from meshplan.planner.answer.sizes import BadQuestion

    raise BadQuestion(said)


def panel(title: str) -> Any:
    """What declares an option, by its help and any other spelling, listed under `title`."""

    def option(help_text: str, *names: str, **more: Any) -> Any:
        return typer.Option(*names, help=help_text, rich_help_panel=title, **more)

    return option


def _tokens(text: str) -> int:
    """The length of a sequence as `plan` reads it: 8192, 32k."""
    from meshplan.planner.answer.sizes import BadQuestion, parse_length

    try:
        return parse_length(text)
    except BadQuestion as error:
        raise typer.BadParameter(str(error)) from None


AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]

FACTS = "Facts that a config leaves out"


def fact(*names: str, **more: Any) -> Any:
    """An option that says what a config does not."""
    return typer.Option(*names, rich_help_panel=FACTS, **more)


ClusterName = Annotated[
    str | None, fact(help="Cluster: a name, a profile file, a GPU, or GPU:PER_NODE:NETWORK.")
]
Gpus = Annotated[int | None, fact(min=1, help="Number of GPUs of the run.")]
ModelName = Annotated[str | None, fact(help="Built-in model, or the path of a config.json.")]
SeqLen = Annotated[
    int | None, fact(parser=_tokens, metavar="N", help="Tokens per sequence: 8192, 32k.")
]
PackedMean = Annotated[
    int | None,
    fact(
        "--packed-mean-length", parser=_tokens, metavar="N",
        help="Mean tokens of documents packed in a sequence, each attending to itself.",
    ),
]  # fmt: skip
PipelineRanks = Annotated[
    int | None,
    fact("--pp", min=1, help="Ranks of the pipeline that code beside a DeepSpeed file makes."),
]
GlobalBatch = Annotated[
    int | None,
    fact("--global-batch", "--global-batch-size", min=1, help="Sequences per optimizer step."),
]
MicroBatch = Annotated[
    int | None,
    fact(
        "--micro-batch", "--micro-batch-size", min=1, help="Sequences per micro-batch and replica."
    ),
]
VocabSize = Annotated[
    int | None,
    fact(min=1, help="Tokens of the vocabulary, where a config leaves them to the tokenizer."),
]
RecomputeMode = Annotated[
    str | None, fact("--recompute", help="Recompute of all layers: none, selective, full.")
]
EnvironmentWords = Annotated[
    list[str] | None,
    fact(
        "--env",
        metavar="NAME=VALUE",
        help="Variable of a launch script; 1=VALUE is its first argument. Repeatable.",
    ),
]
LaunchedBy = Annotated[
    str | None,
    fact(
        metavar="FILE",
        help="Accelerate YAML or DeepSpeed JSON that a trainer's config is launched with; none: "
        "nothing is sharded.",
    ),
]
JoinedWith = Annotated[
    list[str] | None,
    fact(
        metavar="FILE",
        help="Another file that GPT-NeoX merges into the same config. Repeatable.",
    ),
]
FrameworkName = Annotated[
    str | None, typer.Option(help="Read every path as this framework's config.")
]

LearnedFile = Annotated[Path | None, typer.Option(help="File that `meshplan learn` wrote.")]
