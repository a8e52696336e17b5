"""The native engine's runs on one H100 and one H200, beside what was predicted.

    python -m benchmarks.one_gpu            write the table of docs/accuracy.md anew

`measured/runs.jsonl` has a line for each run: what `meshplan execute --steps 6 --warmup 3` measured
of a plan. `measured/h100-sxm.toml` is a profile of five minutes of the same kind of GPU,
`measured/h200.toml` a quick one. A run is predicted twice, nothing fitted to it: by the published
figures of its GPU (dgx-h100, dgx-h200), and by the measured profile.

loss_chunk_bytes  of the engine at that time; it ran the loss over smaller chunks at first
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.accuracy import ROOT, put
from costmodels.hf_config import model_from_config
from costmodels.units import format_bytes, format_seconds
from hardware_profiles.engines import load_engine
from hardware_profiles.load import load_cluster
from hardware_profiles.schema import Cluster
from hardware_profiles.tunings import load_fit
from planner.plan import PlanLayout, PlanTraining, Prediction, layout_of, training_of
from planner.predict import predicted
from planner.resolve import Case

MEASURED = Path(__file__).parent / "measured"
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
        training=training_of(PlanTraining.model_validate(run["training"])),
        layout=layout_of(PlanLayout.model_validate(run["layout"])),
        engine=engine.model_copy(update={"kernels": habits}),
    )
    return predicted(case)


def table() -> str:
    """A line for each run, and the medians."""
    found = [(run, *both(run)) for run in runs()]
    lines = [
        "| GPU | model | tokens x micro-batch, recompute | step | by published figures | by the "
        "measured profile | optimizer | allocated | error | reserved | error |",
        f"|{'---|' * 11}",
        *("| " + " | ".join(_cells(*item)) + " |" for item in found),
        "",
    ]
    names = ("published figures", "the measured profile")
    for index, name in enumerate(names):
        errors = [item[1 + index].step_time_s / item[0]["step_time_s"] - 1 for item in found]
        lines.append(
            f"Step time by {name}: median {median(map(abs, errors)):.1%}, "
            f"largest {max(errors, key=abs):+.1%}, bias {median(errors):+.1%}, {len(errors)} runs."
        )
    return "\n".join(lines)


def both(run: dict[str, Any]) -> Iterator[Prediction]:
    """Predicted by published figures and by the measured profile."""
    yield prediction(run, load_cluster(PUBLISHED[run["gpu"]]))
    yield prediction(run, load_cluster(MEASURED / f"{run['gpu']}.toml"))


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
    """Write the table between its marks."""
    text = table()
    print(text)
    put(ROOT / "docs/accuracy.md", "one gpu", text)


if __name__ == "__main__":
    main()
