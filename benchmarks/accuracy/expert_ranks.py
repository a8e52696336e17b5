"""Whether predictions favour fewer expert-parallel ranks than runs do.

    python -m benchmarks.accuracy.expert_ranks

Of the runs with experts (grades A and B) of one source, model, GPU, precision and batch that differ
in ep: the slope of ln(measured / predicted step) over log2(ep), with each group's own mean taken
away. Below 0 what halves ep takes longer than predicted, beside what does not. Constants have seen
these runs, so a slope that is left is one that no constant can take up.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy.rows import runs_of
from benchmarks.usage import check_usage
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.resolve import Case
from meshplan.planner.runs.runs import BUILT_IN, Run

Group = tuple[str, str, str, str, str]


class Slope(NamedTuple):
    """The sums of one group, with both means taken away: of x y and of x x."""

    xy: float
    xx: float


def runs_by_group() -> dict[Group, list[Run]]:
    """Timed runs with experts by source, model, GPU, precision and batch."""
    found = defaultdict[Group, list[Run]](list)
    for run in runs_of(BUILT_IN):
        if run.grade in ("A", "B") and run.measured.step_time_s and run.model.is_moe:
            name = run.model.name.split("(")[0].strip()
            training = run.training
            batch = str(training.global_batch_size)
            found[run.suite, name, run.cluster.gpu.name, training.precision, batch].append(run)
    return found


def residual(run: Run) -> float:
    """ln(measured / predicted step)."""
    r = run
    case = Case(
        model=r.model, layout=r.layout, training=r.training, cluster=r.cluster, engine=r.engine
    )
    assert r.measured.step_time_s
    return float(np.log(r.measured.step_time_s / step_model_of(case).time().step_time_s))


def slope_of(runs: Sequence[Run]) -> Slope:
    """Of one group."""
    x = np.log2([run.layout.expert_parallel for run in runs])
    y = np.array([residual(run) for run in runs])
    x = x - x.mean()
    return Slope(float(x @ (y - y.mean())), float(x @ x))


def pooled(slopes: Sequence[Slope]) -> float:
    """Of several groups together, each about its own mean."""
    return sum(each.xy for each in slopes) / sum(each.xx for each in slopes)


def lines(groups: dict[Group, list[Run]]) -> Iterator[str]:
    """Each group that differs in ep, and all without it."""
    told = {
        group: runs for group, runs in groups.items()
        if len({run.layout.expert_parallel for run in runs}) > 1
    }  # fmt: skip
    slopes = {group: slope_of(runs) for group, runs in told.items()}
    for group, runs in told.items():
        own, others = slopes[group], [each for key, each in slopes.items() if key != group]
        degrees = sorted({run.layout.expert_parallel for run in runs})
        yield (
            f"{' '.join(group):36} {len(runs):3} runs, ep {degrees}: {own.xy / own.xx:+.3f} a "
            f"doubling; all others {pooled(others):+.3f}"
        )
    yield f"all {sum(map(len, told.values()))} runs: {pooled(list(slopes.values())):+.3f}"


def main() -> None:
    """The command."""
    print("\n".join(lines(runs_by_group())))


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
