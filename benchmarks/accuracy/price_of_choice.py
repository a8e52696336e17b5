"""What is lost by the layout that `plan` would choose, over questions with measured layouts.

    python -m benchmarks.accuracy.price_of_choice            runs that constants were fitted to
    python -m benchmarks.accuracy.price_of_choice --unseen   files that nothing was fitted to

A question is a group of `SMALLEST_GROUP` measured layouts or more that differ in nothing else. Of
those that are predicted to fit, the best of each kind (tp, cp, pp, ep) that tie with the fastest
are chosen among as `planner.answer.ties` does, by pairs of all other sources. The price is the
measured step of the chosen one over the least measured one, minus 1. Printed is each question that
loses more than `SHOWN`: the best and the chosen layout, measured and predicted.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

from benchmarks.accuracy.rows import ELSEWHERE
from benchmarks.usage import check_usage
from meshplan.costmodels.layout import Layout, differing_axes
from meshplan.hardware_profiles.errors.layout_ratios import (
    faster_probability,
    is_tie,
    leaning,
    leant,
    pairs,
)
from meshplan.planner.answer.ties import least_regretted, worst_losses
from meshplan.planner.runs.accuracy import SMALLEST_GROUP
from meshplan.planner.runs.runs import BUILT_IN, measured_step_s, read_runs
from meshplan.planner.runs.validate import Predicted, predict_rows

SHOWN = 0.005


def questions(rows: Sequence[Predicted]) -> Iterator[list[Predicted]]:
    """The measured layouts of each question, one run each."""
    groups: dict[tuple[Any, ...], dict[str, Predicted]] = defaultdict(dict)
    for row in rows:
        if row.run.measured.step_time_s and not row.run.measured.oom:
            groups[row.run.group].setdefault(row.run.layout.label, row)
    for group in groups.values():
        if len(group) >= SMALLEST_GROUP:
            yield list(group.values())


def chosen(group: Sequence[Predicted]) -> Predicted:
    """The layout that `plan` would take of them."""
    fitting = [row for row in group if row.fits] or list(group)
    by_kind: dict[tuple[int, ...], Predicted] = {}
    for row in sorted(fitting, key=_predicted_s):
        by_kind.setdefault(_kind(row.run.layout), row)
    fastest, *others = by_kind.values()
    among = [fastest, *(row for row in others if _tied(fastest, row))]
    if len(among) == 1:
        return fastest
    layouts = [row.run.layout for row in among]
    by = leaning([pair for pair in pairs() if pair.suite != fastest.run.suite])
    return among[
        least_regretted(worst_losses(fastest.run, layouts, [leant(x, by) for x in layouts]))
    ]


def price(group: Sequence[Predicted], row: Predicted) -> float:
    """By how much it took longer than the best measured one."""
    return measured_step_s(row.run) / min(measured_step_s(each.run) for each in group) - 1


def mean_price(rows: Sequence[Predicted]) -> float:
    """Over all questions."""
    return mean(price(group, chosen(group)) for group in questions(rows))


def _predicted_s(row: Predicted) -> float:
    return row.time.step_time_s


def _kind(layout: Layout) -> tuple[int, ...]:
    return (
        layout.tensor_parallel, layout.context_parallel, layout.pipeline_parallel,
        layout.expert_parallel,
    )  # fmt: skip


def _tied(fastest: Predicted, other: Predicted) -> bool:
    axes = len(differing_axes(fastest.run.layout, other.run.layout))
    return is_tie(faster_probability(_predicted_s(other) / _predicted_s(fastest), axes))


def _line(word: str, row: Predicted) -> str:
    measured, predicted = measured_step_s(row.run), _predicted_s(row)
    off = predicted / measured - 1
    return (
        f"    {word:7} {row.run.layout.label}: {measured:.3f} s measured, {predicted:.3f} s "
        f"predicted ({off:+.1%})"
    )


def main() -> None:
    """Print the mean price, and the questions that lose."""
    every = list(questions(_rows(unseen="--unseen" in sys.argv[1:])))
    lost = sorted(((price(group, row := chosen(group)), row, group) for group in every),
                  key=lambda each: -each[0])  # fmt: skip
    sources = len({group[0].run.suite for group in every})
    first = mean(price(group, min(group, key=_rank)) for group in every)
    price_of_all = mean(each[0] for each in lost)
    print(f"{len(every)} questions of {sources} sources: mean {price_of_all:.2%}, of the layout "
          f"predicted fastest {first:.2%}")  # fmt: skip
    for share, row, group in lost:
        if share > SHOWN:
            print("\n".join(_lines(share, row, group)))


def _rows(*, unseen: bool) -> list[Predicted]:
    """Every priced run of the files; of those that nothing was fitted to grades A and B."""
    cells = [row for path in (ELSEWHERE if unseen else [BUILT_IN]) for row in read_runs(path)]
    rows = [row for row in predict_rows(cells) if isinstance(row, Predicted)]
    return [row for row in rows if row.run.grade in ("A", "B")] if unseen else rows


def _lines(share: float, row: Predicted, group: Sequence[Predicted]) -> list[str]:
    run, best = row.run, min(group, key=lambda each: measured_step_s(each.run))
    gpus = f"{run.layout.world_size} {run.cluster.gpu.name}"
    named = f"{share:.1%}: {run.suite}, {run.model.name}, {gpus}, {len(group)} layouts"
    return [named, _line("best", best), _line("chosen", row)]


def _rank(row: Predicted) -> tuple[bool, float]:
    return not row.fits, _predicted_s(row)


if __name__ == "__main__":
    check_usage(str(__doc__), "--unseen")
    main()
