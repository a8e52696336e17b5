"""The options of `meshplan what-if`: each with its help, under the heading that lists it."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from meshplan.planner.cli.options import panel
from meshplan.planner.whatif.figures import FIGURES

hardware = panel("Hardware: 2x, 0.5x, +50%, -20%, or another part")
job, of_run = panel("The job"), panel("The run")
instead, output = panel("Instead of one change"), panel("The answer")


def factor(figure: str) -> Any:
    """An option that moves a figure."""
    words = FIGURES[figure].words
    return hardware(f"{words[0].upper()}{words[1:]}.", metavar="FACTOR")


PlanFile = Annotated[Path, typer.Argument(help="Plan file that `meshplan plan -o` wrote.")]
Network = Annotated[str | None, factor("network")]
NetworkLatency = Annotated[str | None, factor("network_latency")]
Nvlink = Annotated[str | None, factor("nvlink")]
Hbm = Annotated[str | None, factor("hbm")]
Memory = Annotated[str | None, factor("memory")]
Matmul = Annotated[str | None, factor("matmul")]
Attention = Annotated[str | None, factor("attention")]
HostLink = Annotated[str | None, factor("host_link")]
Gpu = Annotated[str | None, hardware("Another GPU, in the same nodes and links.")]
Cluster = Annotated[str | None, hardware("Another cluster profile.")]
Gpus = Annotated[int | None, job("Number of GPUs.", min=1)]
SeqLen = Annotated[str | None, job("Tokens per sequence.")]
GlobalBatch = Annotated[int | None, job("Sequences per optimizer step.", min=1)]
Precision = Annotated[str | None, job("bf16, fp8, ...")]
Engine = Annotated[str | None, job("Another framework.")]
Tokens = Annotated[
    str | None, of_run("Tokens of the whole run, such as 15T: adds days and GPU-hours.")
]
PricePerGpuHour = Annotated[float | None, of_run("With --tokens: adds the cost.", min=0.0)]
By = Annotated[
    str | None, instead("Without any change: how far each figure is moved; default 20%.")
]
BreakEvenOf = Annotated[
    Literal["network"] | None,
    instead("Find the bandwidth from which this size beats a smaller one.", "--break-even"),
]
Than = Annotated[
    int | None,
    instead("With --break-even: the smaller number of GPUs; default one node less.", min=1),
]
CacheFile = Annotated[Path | None, output("File that keeps the answers.")]
Jobs = Annotated[int | None, output("Processes; default: one per core.", min=1, max=256)]
TimeLimit = Annotated[float | None, output("Seconds per search.", min=0.0)]
Plot = Annotated[Path | None, output("Picture to write: the swing of each figure (.png, .svg).")]
AsJson = Annotated[bool, output("One JSON document on stdout.", "--json")]
