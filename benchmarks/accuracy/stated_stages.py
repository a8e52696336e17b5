"""The layers of each stage that nanotron's benchmark runs state by what they keep in memory.

    python -m benchmarks.accuracy.stated_stages    fills the column `stages` of the published runs

nanotron ends a stage once its share of the cost is passed (`costmodels.stage_split`). Where
some layers are exactly a share, as 5 of the 1B's 20 are under four stages, the Ultra-Scale
Playbook's jobs since `FIRST_JOB` ended it there: 10 and 6 layers instead of 11 and 5, 5 5 5 1
instead of 6 5 5 0. Their notes state what was allocated after a step. Of the runs without tensor
parallelism, which keep nothing else, for a first stage of P parameters, sharded over dp:

    gibibytes              10 + 12 / dp bytes a parameter   10 or 5 layers   11 or 6 layers   stated
    2 stages, dp 8         11.5                             10.0             10.8             10.35
    4 stages, dp 16        10.75                            6.0              6.7              6.18
    4 stages, dp 16        the same, job 13848907           6.0              6.7              6.86

No public branch has the change (huggingface/nanotron, all branches: the older comparison), so
plans for nanotron keep the rule as published. Of jobs that say they have the fix and do not behave
so (grade C) the stated memory decides.
"""

import csv
import re
from collections.abc import Mapping

from benchmarks.accuracy.run_columns import write_rows
from benchmarks.usage import check_usage
from meshplan.costmodels.stage_split import split_by_cost
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.tunings import load_fit
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, Run, run_of
from meshplan.planner.runs.validate import step_model

FIRST_JOB = 14097145
COLUMN = "stages"


def main() -> None:
    """Fill the column, every other cell as it is."""
    with BUILT_IN.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), list(reader.fieldnames or ())
    if COLUMN not in columns:
        columns.insert(columns.index("note"), COLUMN)
    filled = [row | {COLUMN: stages_of(row) or row.get(COLUMN, "")} for row in rows]
    write_rows(BUILT_IN, columns, filled)
    print(f"{sum(bool(row[COLUMN]) for row in filled)} rows state their stages")


def stages_of(row: Mapping[str, str]) -> str:
    """The cell's text: empty where both cuts are the same, or the row states nothing."""
    job = re.search(r"job (\d+);", row["note"])
    if not job or int(job[1]) < FIRST_JOB or not row["framework"].startswith("nanotron"):
        return ""
    try:
        run = run_of({**row, COLUMN: ""})
    except SkippedRow:
        return ""
    older = tuple(stage.layers for stage in run.layout.stages)
    newer = split_by_cost(run.model, len(older), ends_at_share=True)
    said = re.search(r" alloc=([\d.]+)GiB", row["note"])
    if newer == older or (run.grade == "C" and said and float(said[1]) >= _kept_gib(run)):
        return ""
    return " ".join(f"{layers}/0/0" for layers in newer)


def _kept_gib(run: Run) -> float:
    """What the first stage keeps after a step: its states, under ZeRO-1 the weights gathered beside
    them, and two gathered inputs.
    """
    model = step_model(run, load_fit(run.engine.name, run.cluster.gpu.name).tuning)
    first = model.memory()[0]
    gathered = 2 * float(model.site.gathered_bytes) * (run.layout.tensor_parallel > 1)
    whole = float(first.weights) * (run.layout.zero_stage == 1)
    return (float(first.states) + whole + gathered) / GIB


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
