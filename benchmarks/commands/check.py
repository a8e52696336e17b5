"""How long a cold `meshplan check` takes: one file and a hundred, that fit and that do not.

    python -m benchmarks.commands.check [FILES]

The files differ: plans and every framework's config in turn, over dense and routed models, degrees,
ZeRO stages and recompute. One that does not fit has the micro-batch just above the largest that
does, so that most of its changes fit and are timed: the slowest case. Each has a folder of its own
with a `meshplan.toml` for the facts that its format leaves out. Printed are the CPU seconds of a
process of its own, the least of three, and the seconds that it took.
"""

import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from pathlib import Path

from benchmarks.commands.sweep import seconds_of
from benchmarks.usage import check_usage
from meshplan.costmodels.layout import InvalidLayout, Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import FRAMEWORKS
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel, write_plan
from meshplan.planner.case.resolve import Case, check_case, cluster_named, engine_named, model_named
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import quoted, tools

CLUSTER, ROUNDS, FILES, SEQ_LEN = "dgx-h100", 3, 100, 4096
MODELS = ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-14b", "llama-3.1-70b", "qwen3-30b-a3b",
          "mixtral-8x7b", "deepseek-v2-lite")  # fmt: skip
FORMATS = ("plan", *FRAMEWORKS)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two cases that differ in the micro-batch: the last that fits, the first that does not."""

    fits: Case
    does_not_fit: Case


def pairs(rng: random.Random) -> Iterator[Pair]:
    """Random layouts between two micro-batches, endlessly."""
    while True:
        case = _random_case(rng)
        sizes = [replace(case, layout=replace(case.layout, micro_batch_size=n))
                 for n in MICRO_BATCHES]  # fmt: skip
        yield from (Pair(*pair) for pair in pairwise(sizes) if _fits(pair[0]) > _fits(pair[1]))


def _random_case(rng: random.Random) -> Case:
    """Any degrees that the rules accept."""
    while True:
        model = model_named(rng.choice(MODELS))
        tp, pp, dp = (rng.choice(degrees) for degrees in ((1, 2, 4, 8), (1, 1, 2, 4), (1, 4, 8)))
        stages = even_stages(model.num_layers, pp, rng.choice(("none", "selective", "full")))
        layout = Layout(
            data_parallel=dp, tensor_parallel=tp, pipeline_parallel=pp, sequence_parallel=tp > 1,
            zero_stage=rng.choice((0, 1)) if dp > 1 else 0, stages=stages,
            expert_parallel=min(dp, 8) if model.is_moe else 1,
        )  # fmt: skip
        training = Training(seq_len=SEQ_LEN, global_batch_size=64 * dp * pp)
        engine = engine_named("megatron")
        case = Case(model=model, layout=layout, training=training,
                    cluster=cluster_named(CLUSTER), engine=engine)  # fmt: skip
        try:
            check_case(case)
        except InvalidLayout:
            continue
        return case


def _fits(case: Case) -> bool:
    return max(rank.needed for rank in quoted(case).memory) <= case.cluster.capacity_bytes


def written(case: Case, format_name: str, folder: Path) -> Path:
    """`case` as one file of `folder`, with a settings file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    layout, training = case.layout, case.training
    plan = Plan(
        model=PlanModel.of(case.model.name, load_model_config(case.model.name)),
        cluster=PlanCluster(name=CLUSTER, gpus=layout.world_size, sha256="0" * 16),
        training=Training(seq_len=SEQ_LEN, global_batch_size=training.global_batch_size),
        engine=case.engine.name,
        layout=layout,
    )
    settings = {"cluster": CLUSTER, "gpus": layout.world_size, "model": case.model.name,
                "seq_len": SEQ_LEN, "global_batch_size": training.global_batch_size,
                "micro_batch_size": layout.micro_batch_size}  # fmt: skip
    lines = (f"{name} = {value!r}\n" for name, value in settings.items())
    (folder / "meshplan.toml").write_text("".join(lines), encoding="utf-8")
    if format_name == "plan":
        write_plan(plan, folder / "plan.yaml")
        return folder / "plan.yaml"
    name, text = next(iter(FRAMEWORKS[format_name].export(plan, 8).files.items()))
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def fill(folder: Path, verdict: str, count: int) -> None:
    """`count` files in `folder` of which `check` says `verdict`, the formats in turn."""
    drawn, reading, found = pairs(random.Random(2025)), tools(), 0
    for pair, format_name in zip(drawn, cycle(FORMATS), strict=False):
        case = pair.fits if verdict == "fits" else pair.does_not_fit
        path = written(case, format_name, folder / str(found))
        (finding,) = check_paths([path], reading)
        if finding.verdict != verdict:
            path.unlink()
            continue
        found += 1
        if found == count:
            return


def cold_s(folder: Path) -> tuple[float, float]:
    """CPU seconds (the least of a few) and seconds of a `check` in a process of its own."""
    spent = (seconds_of(("check", str(folder)), codes=(0, 1)) for _ in range(ROUNDS))
    return min((cpu_s, wall_s) for wall_s, cpu_s in spent)


def main(count: int) -> None:
    """Print a line for one file and for `count` of each kind, and of both together."""
    print(f"{'files':>5}  {'verdict':14} {'CPU s':>6} {'s':>6}")
    with tempfile.TemporaryDirectory() as name:
        for verdict in ("fits", "does not fit"):
            for files in (1, count):
                folder = Path(name) / f"{files}" / verdict
                fill(folder, verdict, files)
                _print(files, verdict, folder)
        _print(2 * count, "half of each", Path(name) / f"{count}")


def _print(files: int, verdict: str, folder: Path) -> None:
    cpu_s, took_s = cold_s(folder)
    print(f"{files:5}  {verdict:14} {cpu_s:6.2f} {took_s:6.2f}", flush=True)


if __name__ == "__main__":
    check_usage(str(__doc__))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else FILES)
