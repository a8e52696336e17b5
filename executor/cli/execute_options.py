"""The options of `meshplan execute`: each with its help, under the heading that lists it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from meshplan.executor.cli.job import EngineName, JobPart
from meshplan.executor.launch.start import Launcher as LauncherName
from meshplan.planner.cli.options import panel

DeviceName = Literal["cpu", "cuda"]

run, where = panel("The run"), panel("Where it runs")
rank_only = panel("One rank instead of the run")
JOB = (
    "With slurm: submit and follow the job, only submit it, follow it and collect its measurement, "
    "or cancel it."
)

Plan = Annotated[Path, typer.Argument(help="Plan file that `meshplan plan` wrote.")]
Out = Annotated[Path | None, run("Folder of the run; default PLAN.run.", "-o", "--out")]
Steps = Annotated[int, run("Timed steps.", min=1)]
Timeout = Annotated[
    float, run("Seconds without progress of any rank until the run counts as hung.", min=1)
]
Warmup = Annotated[int, run("Steps before the timed ones.", min=0)]
Band = Annotated[
    float | None,
    run("Accepted error of the step time, a fraction; default: the plan's.", min=0),
]
Top = Annotated[int, run("Run the best K layouts of the plan, keep the fastest.", min=1)]
Engine = Annotated[EngineName | None, run("Framework that trains; default: the plan's.")]
Data = Annotated[Path | None, run("Flat file of tokens; default: synthetic tokens.")]
Cluster = Annotated[str | None, run("Profile that priced the plan, if it is a file.")]
Nodes = Annotated[
    int | None, where("Hosts; default 1, with slurm as many as the ranks fill.", min=1)
]
Rendezvous = Annotated[str | None, where("HOST:PORT; run the same command on every host.")]
Launcher = Annotated[LauncherName, where("What starts the ranks.")]
Slurm = Annotated[str, where("Further sbatch options: '--partition=gpu --gpus-per-node=8'.")]
Given = Annotated[
    list[str] | None,
    where("KEY=VALUE for --launcher skypilot or kubeflow, such as image=IMAGE.", "--set"),
]
Job = Annotated[JobPart, where(JOB)]
PrintOnly = Annotated[bool, where("Show what would be started, and stop.", "--print")]
Trace = Annotated[
    Path | None, run("Write the predicted and the measured step as one Chrome trace here.")
]
DryRun = Annotated[bool, rank_only("Build a rank at full size without devices.", "--dry-run")]
Rank = Annotated[int | None, rank_only("Rank of --dry-run or --one-rank; default 0.", min=0)]
AllStages = Annotated[
    bool,
    rank_only(
        "With --dry-run or --one-rank: a rank of every stage.",
        "--all-stages",
        "--every-stage",
    ),
]
OneRank = Annotated[
    bool, rank_only("Run a rank for real; the messages of others are made up.", "--one-rank")
]
Device = Annotated[DeviceName | None, rank_only("With --one-rank; default: a GPU if there is one.")]
AllMicroBatches = Annotated[
    bool,
    rank_only("With --one-rank: all, not a few whose pattern repeats.", "--all-micro-batches"),
]
