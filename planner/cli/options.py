"""Options that several commands have, each declared once."""

import math
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand


def refuse(message: str) -> NoReturn:
    """One line on standard error, exit 2: the user can mend it."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(2)


class Finite(TyperCommand):
    """A command whose numbers are finite: infinity passes bounds from below, NaN all of them."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; raises `BadQuestion` for a number that is not finite."""
        for option in self.params:
            value = ctx.params.get(option.name)
            if isinstance(value, float) and not math.isfinite(value):
                from meshplan.planner.answer.sizes import BadQuestion

                raise BadQuestion(f"{option.opts[0]} {value} is not a finite number")
        return super().invoke(ctx)


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

ClusterName = Annotated[
    str | None, typer.Option(help="Cluster profile: a built-in name or a file.")
]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs of the run.")]
ModelName = Annotated[str | None, typer.Option(help="A built-in model, or a config.json by path.")]
SeqLen = Annotated[
    int | None, typer.Option(parser=_tokens, metavar="N", help="Tokens of a sequence: 8192, 32k.")
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        "--global-batch", "--global-batch-size", min=1, help="Sequences per optimizer step."
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        "--micro-batch", "--micro-batch-size", min=1, help="Sequences per forward and rank."
    ),
]
VocabSize = Annotated[
    int | None, typer.Option(min=1, help="Where a config leaves it to the tokenizer.")
]
RecomputeMode = Annotated[
    str | None, typer.Option("--recompute", help="Of all layers: none, selective, full.")
]
EnvironmentWords = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A variable that a script is started with; 1=VALUE its first argument. Repeatable.",
    ),
]
LaunchedBy = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Accelerate's YAML or DeepSpeed's JSON that a trainer's file is launched with, or "
        "none: nothing shards.",
    ),
]
JoinedWith = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Another file of the same configuration, which GPT-NeoX merges. Repeatable.",
    ),
]
FrameworkName = Annotated[
    str | None, typer.Option(help="Read every path as this framework's config.")
]

LearnedFile = Annotated[
    Path | None, typer.Option(help="What `meshplan learn` wrote of your own runs.")
]
