"""Everything worth measuring in some minutes on one GPU, in one table; goes on where it stopped.

    python -m benchmarks.engine.on_gpu --minutes 9 [-o FOLDER] [--device cuda|cpu]

First the GPU's profile (two fifths of the first call), then the plans of
`benchmarks.engine.on_gpu_plans`, the most telling first, each by `execute --one-rank` in a process
of its own. A plan is begun only if it should end in time. Call it again until nothing is left.

    FOLDER/profile.toml  as `meshplan profile` writes it
    FOLDER/items.json    what is finished, written whole after each: a killed call loses one plan
    FOLDER/runs.csv      a row for each rank that ran, in the columns that `meshplan validate` reads

A plan for one GPU is a real run: its row has `step_time_s`, and `validate` compares it. Of a rank
of a larger plan the messages took what the profile says, so its step is in `put_together_s`, which
`validate` does not read; its memory is measured either way. A model that those columns cannot say
(layers of several kinds, learned positions) has a row without a shape, which `validate` skips with
that reason; items.json has every plan whole. A plan that cannot run here has its reason there and
no row. --device cpu runs the same on tiny plans: it tests the mechanism, and
its figures say nothing about a GPU.
"""

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.on_gpu_plans import Item, items
from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.units import GIB
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.preflight import CannotRun
from meshplan.executor.launch.probe import Found, find_hardware
from meshplan.executor.launch.results import RankResult, RunResult
from meshplan.executor.launch.run_row import row_of
from meshplan.executor.onerank.command import Wanted, run_one_rank
from meshplan.executor.onerank.priced import priced
from meshplan.executor.onerank.result import OneRankRun, RankMeasured
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.whole_file import write_whole
from meshplan.planner.case.plan_file import Plan

PROFILE_SHARE = 0.4
START_S = {"cuda": 60.0, "cpu": 10.0}  # a process, torch, and on CUDA what torch.compile makes
PUBLISHED = {"h100-sxm": "dgx-h100", "h200": "dgx-h200", "a100-80gb-sxm": "dgx-a100"}
WARMUP, STEPS = {"cuda": 2, "cpu": 0}, {"cuda": 5, "cpu": 1}
Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: where it keeps things, on what it runs, and when it must have ended."""

    folder: Path
    device: str
    found: Found
    profile: str
    ends: float

    @property
    def left_s(self) -> float:
        """Seconds that this call still has."""
        return self.ends - time.monotonic()

    @property
    def _finished(self) -> Path:
        return self.folder / "items.json"

    def finished(self) -> dict[str, Any]:
        """What earlier calls and this one have done, by name."""
        if not self._finished.exists():
            return {}
        known: dict[str, Any] = json.loads(self._finished.read_text(encoding="utf-8"))
        return known

    def finish(self, name: str, said: dict[str, Any]) -> None:
        """Keep what was found, and write the table anew."""
        done = {**self.finished(), name: said}
        write_whole(self._finished, json.dumps(done, indent=1) + "\n")
        rows = [row for each in done.values() for row in each["rows"]]
        write_whole(self.folder / "runs.csv", table(rows))


def table(rows: Sequence[Row]) -> str:
    """The rows as CSV, every column that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cluster_of(item: Item, call: Call) -> str:
    """What prices the item: the profile, or of a larger plan its GPU's published cluster."""
    if not item.published:
        return call.profile
    return PUBLISHED.get(load_cluster(call.profile).gpu.name, "dgx-h100")


def run_item(item: Item, call: Call) -> dict[str, Any] | None:
    """Run the ranks of one plan; None where it would not end in time."""
    name = cluster_of(item, call)
    cluster = load_cluster(name)
    plan = item.plan(cluster, tiny=call.device == "cpu")
    rows: list[Row] = []
    runs, reason = [], ""
    try:
        step_s = priced(plan, name).time().step_time_s
        warmup, steps = WARMUP[call.device], STEPS[call.device]
        needed_s = len(item.ranks) * (START_S[call.device] + (2 + warmup + steps) * step_s)
        if needed_s > call.left_s:
            return None
        for rank in item.ranks:
            wanted = Wanted(rank=rank, device=call.device, cluster=name, warmup=warmup, steps=steps)
            run, _ = run_one_rank(plan, wanted, call.found)
            runs.append(run.model_dump(mode="json"))
            rows.append(row_of_rank(item, plan, run, cluster))
    except (CannotRun, InvalidLayout, RankFailed) as error:
        reason = str(error)
    said = plan.model_dump(mode="json")
    return {"reason": reason, "plan": said, "runs": runs, "rows": rows}


def row_of_rank(item: Item, plan: Plan, run: OneRankRun, cluster: Cluster) -> Row:
    """A row for the rank that ran. `validate` skips it where its columns cannot say the model."""
    (rank,) = run.ranks
    row = row_of(plan, result_of(run, rank), cluster.gpu.name) or unsaid(plan, run, cluster)
    held = {name: f"{size / GIB:.4f}" for name, size in rank.held_bytes.items()}
    seconds = {
        f"{name.strip().replace(' ', '_').replace('-', '_')}_{what}_s": f"{value:.6g}"
        for part in run.parts[rank.rank] if part.unit == "s"
        for name, what, value in (
            (part.name, "measured", part.measured), (part.name, "predicted", part.predicted)
        ) if value is not None
    }  # fmt: skip
    alone = plan.layout.world_size > 1
    return {
        **row, "suite": "one rank" if alone else "one GPU",
        "id": f"{row['id']}-rank{rank.rank}", "year": run.date[:4],
        "note": f"rank {rank.rank} alone, its messages answered in predicted time" if alone else "",
        "allocated_gib": _gib(rank, "allocated") if rank.rank == 0 else "",
        "separates": item.separates, "rank": str(rank.rank),
        "micro_batches_run": str(rank.micro_batches),
        "put_together_s": f"{run.step.measured or 0.0:.6g}" if alone else "",
        "priced_by": cluster.name,
        "versions": "; ".join(f"{name} {version}" for name, version in run.versions.items()),
        "conditions": f"load {os.getloadavg()[0]:.1f}, steps "
        + " ".join(f"{s:.5g}" for s in rank.step_times_s),
        **{f"held_{name}_gib": size for name, size in held.items()},
        "rank_allocated_gib": _gib(rank, "allocated"), "rank_reserved_gib": _gib(rank, "reserved"),
        **seconds,
    }  # fmt: skip


def unsaid(plan: Plan, run: OneRankRun, cluster: Cluster) -> Row:
    """What is left of a row whose model the columns cannot say: no shape, so nobody prices it."""
    return {
        "id": f"{plan.model.name}-{run.layout.replace(' ', '-')}-{run.date}", "grade": "A",
        "framework": "native", "model": plan.model.name, "gpu": cluster.gpu.name,
        "precision": plan.training.precision, "seq_len": str(plan.training.seq_len),
        "global_batch": str(plan.training.global_batch_size),
        "gpus": str(plan.layout.world_size),
    }  # fmt: skip


def _gib(rank: RankMeasured, name: str) -> str:
    size = rank.device_bytes.get(name)
    return "" if size is None else f"{size / GIB:.3f}"


def result_of(run: OneRankRun, rank: RankMeasured) -> RunResult:
    """The run as `execute` writes it: a step only where the rank is the whole plan."""
    whole = not run.estimated_pipeline_ranks and not rank.exposed_s.keys() - {"world"}
    seconds = rank.seconds
    return RunResult(
        status="complete", plan=run.plan, layout=run.layout, engine="native", device=run.device,
        versions=run.versions, date=run.date, step_time_s=run.step.measured if whole else None,
        ranks=(
            RankResult(
                rank=rank.rank, pipeline_rank=rank.pipeline_rank, step_time_s=rank.step_s,
                forward_s=seconds["forward"], backward_s=seconds["backward"],
                optimizer_s=seconds["optimizer"], waiting_s=seconds.get("wait", 0.0),
                exposed_comm_s=seconds.get("reduce", 0.0),
                processor_s=min(rank.processor_s),
                allocated_peak_bytes=rank.device_bytes.get("allocated", 0),
                reserved_peak_bytes=rank.device_bytes.get("reserved", 0),
            ),
        ),
    )  # fmt: skip


def profile_first(folder: Path, device: str, minutes: float) -> str:
    """The profile in `folder`, measured now if it is not there."""
    path = folder / "profile.toml"
    if not path.exists():
        command = [
            sys.executable, "-c", "from meshplan.planner.cli.main import main; main()",
            "profile", "-o", str(path),
            "--device", device, "--minutes", str(max(1.0, PROFILE_SHARE * minutes)),
        ]  # fmt: skip
        subprocess.run(command, check=True)
    return str(path)


def run_all(call: Call, wanted: Sequence[Item]) -> list[str]:
    """Run what is not finished, as far as the time goes; the names that are left."""
    left = []
    for item in wanted:
        if item.name in call.finished():
            continue
        said = run_item(item, call)
        if said is None:
            left.append(item.name)
            continue
        call.finish(item.name, said)
        print(f"{item.name}: {said['reason'] or 'done'}", flush=True)
    return left


def main() -> None:
    """One call; exit 0 also where plans are left for the next."""
    parser = argparse.ArgumentParser(prog="benchmarks.engine.on_gpu")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("-o", "--out", type=Path, default=Path("on_gpu.run"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cluster", help="a profile that is there already")
    parser.add_argument("--only", nargs="*", help="names of plans")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    found = find_hardware()
    if options.device == "cuda" and found.device != "cuda":
        sys.exit("no GPU here that torch can use; --device cpu runs the same on tiny plans")
    options.out.mkdir(parents=True, exist_ok=True)
    profile = options.cluster or profile_first(options.out, options.device, options.minutes)
    call = Call(folder=options.out, device=options.device, found=found, profile=profile, ends=ends)
    wanted = [item for item in items() if not options.only or item.name in options.only]
    left = run_all(call, wanted)
    print(f"left for the next call: {', '.join(left)}" if left else "nothing is left")
    print(f"meshplan validate {options.out / 'runs.csv'}")


if __name__ == "__main__":
    main()
