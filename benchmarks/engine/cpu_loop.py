"""Does the loop close on a CPU? Profile, plan and run eight layouts on two cores of this machine.

    python -m benchmarks.engine.cpu_loop [-o FOLDER] [--rounds 3] [--minutes 4]

A round is a fresh `meshplan profile --quick`, then one `meshplan plan` and `meshplan execute` for
each of `LAYOUTS`, as a user would type them. What does not fit into --minutes is left to the next
call, which goes on where this one stopped: a round's profile and its runs may so lie apart. The
table and FOLDER/cpu_loop.json have every run with its date, and how much of the cores others used
meanwhile: a prediction for quiet cores is not judged by a run beside them, so its rows say so.

    error     predicted / measured - 1 of the step's median
    others    of this machine's processor time between start and end of the run, what neither the
              run nor idling took (/proc/stat)
    met       of a round: median error within 10 %, the largest within 20 %
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from meshplan.hardware_profiles.files.whole_file import write_whole

LAYOUTS: dict[str, tuple[str, ...]] = {
    "dp2 zero1": ("tiny-llama", "--dp", "2", "--zero", "1"),
    "dp2 zero3": ("tiny-llama", "--dp", "2", "--zero", "3"),
    "tp2": ("tiny-llama", "--tp", "2"),
    "cp2": ("tiny-llama", "--cp", "2", "--tp", "1"),
    "pp2": ("tiny-llama", "--pp", "2", "--schedule", "1f1b"),
    "pp2 chunked": ("tiny-llama", "--pp", "2", "--vpp", "2", "--schedule", "interleaved_1f1b"),
    "ep2": ("tiny-moe", "--dp", "2", "--ep", "2", "--zero", "1"),
    "mla dp2": ("tiny-mla", "--dp", "2", "--zero", "1"),
}
TRAINING = ("--gpus", "2", "--seq-len", "256", "--global-batch", "16", "--engine", "native")
STEPS = ("--steps", "5", "--warmup", "3")
PROFILE_S, RUN_S = 125.0, 30.0  # what is begun only if so much time is left
MEDIAN_LIMIT, WORST_LIMIT = 0.10, 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One layout of one round, measured beside predicted (seconds); `others` as a fraction."""

    round: int
    layout: str
    date: str
    predicted_s: float
    measured_s: float
    spread: float
    others: float
    parts: dict[str, tuple[float | None, float | None]]

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1


class Others:
    """What others used of the cores; `share` once its `watching` has ended."""

    share = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Between its start and its end, whatever of our own ended in between left out."""
        before, ours = _busy_s(), _children_s()
        start = time.monotonic()
        yield
        wall_s = (time.monotonic() - start) * (os.cpu_count() or 1)
        self.share = max(0.0, _busy_s() - before - (_children_s() - ours)) / wall_s


def _busy_s() -> float:
    """Processor seconds of everybody, those that a hypervisor gave to others among them."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, soft_irq, steal = map(int, fields)
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _children_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def meshplan(*words: str) -> None:
    """One command of ours; exit code 3 (outside of the plan's own band) is an answer too."""
    program = "import sys; from meshplan.planner.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"meshplan {' '.join(words)}: exit code {done.returncode}\n{done.stderr.strip()}")


def profile(folder: Path) -> None:
    """A fresh profile, and what it took."""
    others, start = Others(), time.monotonic()
    with others.watching():
        meshplan("profile", "--quick", "--restart", "-o", str(folder / "profile.toml"))
    taken = {"seconds": time.monotonic() - start, "others": others.share, "date": _now()}
    write_whole(folder / "profile.json", json.dumps(taken) + "\n")


def run(folder: Path, number: int, layout: str) -> Run:
    """Plan a layout by the round's profile, run it, and read what `execute` wrote."""
    place = folder / layout.replace(" ", "-")
    plan, cluster = str(place.with_suffix(".yaml")), str(folder / "profile.toml")
    words = (*LAYOUTS[layout], *TRAINING, "--cluster", cluster)
    meshplan("plan", *words, "-o", plan)
    others = Others()
    with others.watching():
        meshplan("execute", plan, "--cluster", cluster, *STEPS, "--out", str(place))
    found = json.loads((place / "result.json").read_text(encoding="utf-8"))
    parts = {part["name"]: (part["predicted"], part["measured"]) for part in found["parts"]}
    predicted_s, measured_s = parts["step time"]
    done = Run(
        round=number, layout=layout, date=_now(), predicted_s=predicted_s, measured_s=measured_s,
        spread=found["step_time_spread"], others=others.share, parts=parts,
    )  # fmt: skip
    write_whole(place.with_suffix(".json"), json.dumps(asdict(done)) + "\n")
    return done


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def go_on(folder: Path, rounds: int, until: float) -> Iterator[Run]:
    """Every run that is finished, and those of this call as far as the time allows."""
    for number in range(1, rounds + 1):
        place = folder / f"round-{number}"
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "profile.json").exists():
            if time.monotonic() + PROFILE_S > until:
                return
            profile(place)
        for layout in LAYOUTS:
            kept = (place / layout.replace(" ", "-")).with_suffix(".json")
            if kept.exists():
                yield Run(**json.loads(kept.read_text(encoding="utf-8")))
                continue
            if time.monotonic() + RUN_S > until:
                return
            yield run(place, number, layout)


def summary(runs: Sequence[Run], number: int) -> dict[str, Any]:
    """One round: its errors, whether it meets the limits, None while runs are missing."""
    errors = [abs(run.error) for run in runs if run.round == number]
    whole = len(errors) == len(LAYOUTS)
    met = median(errors) <= MEDIAN_LIMIT and max(errors) <= WORST_LIMIT if whole else None
    return {
        "round": number, "runs": len(errors), "median_error": median(errors),
        "worst_error": max(errors), "met": met,
    }  # fmt: skip


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Lines of markdown: a run each, and a sentence for each round."""
    yield "| round | layout | predicted | measured | spread | error | others |"
    yield "|---|---|---|---|---|---|---|"
    for r in runs:
        yield (
            f"| {r.round} | {r.layout} | {r.predicted_s:.3f} s | {r.measured_s:.3f} s "
            f"| {r.spread:.0%} | {r.error:+.1%} | {r.others:.0%} |"
        )
    for number in sorted({r.round for r in runs}):
        found = summary(runs, number)
        said = {True: "met", False: "not met", None: "not finished"}[found["met"]]
        yield (
            f"\nround {number}: median error {found['median_error']:.1%}, largest "
            f"{found['worst_error']:.1%} of {found['runs']} runs; {said}"
        )


def main() -> None:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.engine.cpu_loop", description=__doc__.split("\n")[0]
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("cpu_loop.run"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=4.0, help="of this call")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    runs = list(go_on(options.out, options.rounds, until))
    rounds = [summary(runs, number) for number in sorted({run.round for run in runs})]
    document = {
        "date": _now(), "cores": os.cpu_count(), "rounds": rounds,
        "runs": [{**asdict(run), "error": run.error} for run in runs],
    }  # fmt: skip
    write_whole(options.out / "cpu_loop.json", json.dumps(document, indent=1) + "\n")
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
