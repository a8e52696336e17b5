"""Everything worth measuring in some minutes on GPUs, in one table; goes on where it stopped.

    python -m benchmarks.engine.on_gpu --minutes 9 [-o FOLDER] [--device cuda|cpu] [--devices N]

First the host's profile (two fifths of the first call), then the plans of
`benchmarks.engine.on_gpu_plans`, the most telling first, each by `execute --one-rank` in a process
of its own. On a host of several GPUs there are plans over all of them, too, which run a second time
with a process on each GPU and NCCL between them (CPU processes: gloo): what one GPU fakes beside
what it stands for. A plan is begun only if it should end in time. Call it again until nothing is
left.

    FOLDER/profile.toml  as `meshplan profile` writes it
    FOLDER/items.json    what is finished, written whole after each: a killed call loses one plan
    FOLDER/runs.csv      a row for each rank that ran, in the columns that `meshplan validate` reads

A plan for one GPU is a real run: its row has `step_time_s`, and `validate` compares it; so has the
row of a plan that all its GPUs ran. Of a rank alone of a larger plan the messages took what the
profile says, so its step is in `put_together_s`, which `validate` does not read, there and beside
the real one; its memory is measured either way. Alone tokens are routed evenly, together as the
router says. A model that those columns cannot say
(layers of several kinds, learned positions) has a row without a shape, which `validate` skips with
that reason; items.json has every plan whole. A plan that cannot run here has its reason there and
no row. --device cpu runs the same on tiny plans: it tests the mechanism, and
its figures say nothing about a GPU.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.on_gpu_plans import Item, items
from benchmarks.engine.on_gpu_rows import Row, row_of_all, row_of_rank, table
from meshplan.costmodels.layout import InvalidLayout
from meshplan.executor.launch.failures import RankFailed
from meshplan.executor.launch.preflight import CannotRun, check_host, place
from meshplan.executor.launch.probe import Found, find_hardware
from meshplan.executor.launch.results import RunResult
from meshplan.executor.launch.run import RunSettings, run_plan
from meshplan.executor.onerank.command import Wanted, run_one_rank, versions_of
from meshplan.executor.onerank.priced import priced
from meshplan.executor.onerank.result import OneRankRun, step_of
from meshplan.hardware_profiles.files.whole_file import write_whole
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan

PROFILE_SHARE = 0.4
START_S = {"cuda": 60.0, "cpu": 10.0}  # a process, torch, and on CUDA what torch.compile makes
PUBLISHED = {"h100-sxm": "dgx-h100", "h200": "dgx-h200", "a100-80gb-sxm": "dgx-a100"}
WARMUP, STEPS = {"cuda": 2, "cpu": 0}, {"cuda": 5, "cpu": 1}


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
    runs: list[OneRankRun | RunResult] = []
    reason = ""
    try:
        model = priced(plan, name)
        step_s = model.time().step_time_s
        warmup, steps = WARMUP[call.device], STEPS[call.device]
        starts = len(item.ranks) + item.together
        if starts * (START_S[call.device] + (2 + warmup + steps) * step_s) > call.left_s:
            return None
        for rank in item.ranks:
            wanted = Wanted(rank=rank, device=call.device, cluster=name, warmup=warmup, steps=steps)
            run, _ = run_one_rank(plan, wanted, call.found)
            runs.append(run)
            rows.append(row_of_rank(item, plan, run, cluster))
        if item.together:
            ranks = [rank for run in runs if isinstance(run, OneRankRun) for rank in run.ranks]
            result = run_all_ranks(item.name, plan, call, cluster)
            runs.append(result)
            rows.append(row_of_all(item, plan, result, step_of(model, ranks).measured, cluster))
    except (CannotRun, InvalidLayout, RankFailed) as error:
        reason = str(error)
    ran = [run.model_dump(mode="json") for run in runs]
    return {"reason": reason, "plan": plan.model_dump(mode="json"), "runs": ran, "rows": rows}


def run_all_ranks(name: str, plan: Plan, call: Call, cluster: Cluster) -> RunResult:
    """All ranks of a plan at once, over NCCL or, between CPU processes, gloo; one that hangs ends
    with the call. Raises `CannotRun` and `RankFailed`.
    """
    found = call.found if call.device == "cuda" else call.found.as_cpu()
    placement = place(plan, 1, found)
    check_host(plan, placement, found, cluster)
    settings = RunSettings(
        placement=placement, device=call.device, versions=versions_of(found, call.device),
        warmup=WARMUP[call.device], steps=STEPS[call.device], timeout_s=max(60.0, call.left_s),
    )  # fmt: skip
    return run_plan(plan, settings, call.folder / "together" / name.replace(" ", "-"))


def profile_first(folder: Path, device: str, minutes: float, devices: int) -> str:
    """The profile in `folder`, measured now if it is not there, by a process on each device."""
    path = folder / "profile.toml"
    several = ["--processes", str(devices)] if devices > 1 else []
    if not path.exists():
        command = [
            sys.executable, "-c", "from meshplan.planner.cli.main import main; main()",
            "profile", "-o", str(path),
            "--device", device, "--minutes", str(max(1.0, PROFILE_SHARE * minutes)),
            *several,
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
    parser.add_argument(
        "--devices", type=int, help="that a plan may span [default: all GPUs; cpu: 1 process]"
    )
    parser.add_argument("--cluster", help="a profile that is there already")
    parser.add_argument("--only", nargs="*", help="names of plans")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    found = find_hardware()
    if options.device == "cuda" and found.device != "cuda":
        sys.exit("no GPU here that torch can use; --device cpu runs the same on tiny plans")
    devices = options.devices or (found.devices if options.device == "cuda" else 1)
    if options.device == "cuda" and devices > found.devices:
        sys.exit(f"--devices {devices}: this host has {found.devices} GPUs")
    options.out.mkdir(parents=True, exist_ok=True)
    profile = options.cluster or profile_first(
        options.out, options.device, options.minutes, devices
    )
    call = Call(folder=options.out, device=options.device, found=found, profile=profile, ends=ends)
    wanted = [item for item in items(devices) if not options.only or item.name in options.only]
    left = run_all(call, wanted)
    print(f"left for the next call: {', '.join(left)}" if left else "nothing is left")
    print(f"meshplan validate {options.out / 'runs.csv'}")


if __name__ == "__main__":
    main()
