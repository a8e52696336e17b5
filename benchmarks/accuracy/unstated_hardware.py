"""Runs whose source does not say which network or which form of a card, though it decides their
time.

    python -m benchmarks.accuracy.unstated_hardware          names them
    python -m benchmarks.accuracy.unstated_hardware --grade  grades them C and says so in `note`

A run is incomplete (grade C) where neither `interconnect` nor a bandwidth that the job measured is
stated and its predicted step is more than `DECIDES` longer with half the bandwidth that its
profile assumes between nodes, or, where `gpu` names cards of two forms, with the one that PCIe
alone joins; however near the prediction is to what was measured.
"""

import csv
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy.rows import ELSEWHERE
from benchmarks.accuracy.run_columns import write_rows
from benchmarks.usage import check_usage
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, run_of
from meshplan.planner.runs.validate import step_model

DECIDES = 0.1
WHY = "grade C: the {} is not stated and decides the time"
ON_PCIE = {
    "a100": "a100-80gb-pcie", "a100-40gb": "a100-40gb-pcie", "a100-80gb": "a100-80gb-pcie",
    "a800-80gb": "a100-80gb-pcie", "h100": "h100-pcie",
}  # fmt: skip
"""Names in `gpu` that say no form, priced as SXM, and the card of that name without NVLink."""


def main() -> None:
    """Name them in each file of published runs, or write their grade."""
    for path in (BUILT_IN, *ELSEWHERE):
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), list(reader.fieldnames or ())
        found = dict(incomplete(rows))
        print(f"{path.name}: {len(found)} of {len(rows)}: {' '.join(sorted(found))}")
        if "--grade" in sys.argv[1:] and found:
            _grade(path, columns, rows, found)


def _grade(
    path: Path, columns: list[str], rows: list[dict[str, str]], found: Mapping[str, str]
) -> None:
    for row in rows:
        if row["id"] in found:
            row |= {"grade": "C", "note": f"{row['note']}; {WHY.format(found[row['id']])}"}
    write_rows(path, columns, rows)


def incomplete(rows: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    """Their ids, each with what its source does not say."""
    for row in rows:
        silent = not (row["interconnect"].strip() or row["world_allreduce_gbs"].strip())
        timed = row["grade"] in ("A", "B") and row["step_time_s"] and row["oom"] != "1"
        if silent and timed and (what := _what_decides(row)):
            yield row["id"], what


def _what_decides(row: Mapping[str, str]) -> str:
    try:
        run = run_of(row)
    except SkippedRow:
        return ""
    if on_pcie := ON_PCIE.get(row["gpu"]):
        other = run_of({**row, "gpu": on_pcie})
        if _seconds(other) / _seconds(run) - 1 > DECIDES:
            return "card's form"
    between_nodes = run.layout.world_size > run.cluster.gpus_per_node
    if between_nodes and _seconds(_halved(run)) / _seconds(run) - 1 > DECIDES:
        return "network"
    return ""


def _halved(run: Run) -> Run:
    network = run.cluster.network
    rates = network.bus_bandwidth
    half = {name: each / 2 for name, each in rates.model_dump().items() if isinstance(each, float)}
    slower = network.model_copy(update={"bus_bandwidth": rates.model_copy(update=half)})
    return replace(run, cluster=run.cluster.model_copy(update={"network": slower}))


def _seconds(run: Run) -> float:
    return (
        step_model(run, load_fit(run.engine.name, run.cluster.gpu.name).tuning).time().step_time_s
    )


if __name__ == "__main__":
    check_usage(str(__doc__), "--grade")
    main()
