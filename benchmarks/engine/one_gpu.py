"""The native engine's runs on one H100 and one H200, beside what was predicted.

    python -m benchmarks.engine.one_gpu    write the table of docs/accuracy_tables.md anew

`measured/runs.jsonl` has a line for each run: what `meshplan execute --steps 6 --warmup 3` measured
of a plan. `measured/h100-sxm.toml` is a profile of five minutes of the same kind of GPU,
`measured/h200.toml` a quick one. A run is predicted twice, nothing fitted to it: by the published
figures of its GPU (dgx-h100, dgx-h200; their attention is from this H100's profile), and by the
measured profile.

loss_chunk_bytes  of the engine at that time; it ran the loss over smaller chunks at first
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from benchmarks.pages import TABLES, put
from benchmarks.usage import check_usage
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import format_bytes, format_seconds
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.case.plan_file import Prediction
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.resolve import Case

MEASURED = Path(__file__).parents[1] / "measured"
PUBLISHED = {"h100-sxm": "dgx-h100", "h200": "dgx-h200"}


def runs() -> list[dict[str, Any]]:
    """The measured runs, oldest first."""
    lines = (MEASURED / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def prediction(run: dict[str, Any], cluster: Cluster) -> Prediction:
    """What the run should take on `cluster`."""
    engine = load_engine("native")
    habits = engine.kernels.model_copy(update={"loss_chunk_bytes": run["loss_chunk_bytes"]})
    case = Case(
        model=model_from_config(run["config"], run["model"]),
        cluster=cluster,
        training=TypeAdapter(Training).validate_python(run["training"]),
        layout=TypeAdapter(Layout).validate_python(run["layout"]),
        engine=engine.model_copy(update={"kernels": habits}),
    )
    return predicted(case)


Found = list[tuple[dict[str, Any], Prediction, Prediction]]


def table(found: Found) -> str:
    """A line for each run."""
    lines = [
        "| GPU | model | tokens x micro-batch, recompute | step | by published figures | by the "
        "measured profile | optimizer | allocated | error | reserved | error |",
        f"|{'---|' * 11}",
        *("| " + " | ".join(_cells(*item)) + " |" for item in found),
    ]
    return "\n".join(lines)


def medians(found: Found) -> str:
    """The errors of all runs together."""
    times = [run["step_time_s"] for run, _, _ in found]
    memory = [m.memory[0].allocated / run["allocated_bytes"] - 1 for run, _, m in found]
    return "\n".join(
        f"{name}: median {median(map(abs, errors)):.1%}, largest {max(errors, key=abs):+.1%}, "
        f"bias {median(errors):+.1%}, {len(errors)} runs."
        for name, errors in (
            ("Step time by a profile measured there", _errors(times, [m for _, _, m in found])),
            ("Step time by published figures", _errors(times, [p for _, p, _ in found])),
            ("Allocated memory", memory),
        )
    )


def _errors(times: list[float], predictions: list[Prediction]) -> list[float]:
    return [found.step_time_s / s - 1 for s, found in zip(times, predictions, strict=True)]


def both(run: dict[str, Any]) -> Iterator[Prediction]:
    """Predicted by published figures and by the measured profile."""
    yield prediction(run, _cluster(PUBLISHED[run["gpu"]]))
    yield prediction(run, _cluster(MEASURED / f"{run['gpu']}.toml"))


@cache
def _cluster(source: str | Path) -> Cluster:
    return load_cluster(source)


def _cells(run: dict[str, Any], published: Prediction, measured: Prediction) -> Iterator[str]:
    layout, training, memory = run["layout"], run["training"], measured.memory[0]
    stage = layout["stages"][0]
    recompute = next((r for r in ("full", "selective") if stage.get(f"{r}_layers")), "none")
    yield run["gpu"]
    yield run["model"]
    yield f"{training['seq_len']} x {layout.get('micro_batch_size', 1)}, {recompute}"
    yield format_seconds(run["step_time_s"])
    for found in (published, measured):
        yield f"{found.step_time_s / run['step_time_s'] - 1:+.1%}"
    own_s = measured.optimizer_s - load_fit("native", run["gpu"]).tuning.step_s
    yield f"{own_s / run['optimizer_s'] - 1:+.1%}"
    for name, value in (
        ("allocated_bytes", memory.allocated),
        ("reserved_bytes", memory.allocated + memory.slack),
    ):
        yield format_bytes(run[name])
        yield f"{value / run[name] - 1:+.1%}"


def main() -> None:
    """Write table and medians between their marks."""
    found: Found = []
    for run in runs():
        published, measured = both(run)
        found.append((run, published, measured))
    text, short = table(found), medians(found)
    print(text, short, sep="\n\n")
    put(TABLES, "one gpu", f"{text}\n\n{short}")


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
