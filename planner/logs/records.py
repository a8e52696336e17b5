"""Logs that are records by step: W&B and TensorBoard exports, trainer_state.json, meshplan's own.

    W&B          a CSV of charts ("Step", "run - metric"), or the history as JSON lines
                 (`_step`, `_runtime` in seconds, metrics), or a table of it as pandas writes JSON
    TensorBoard  a CSV or JSON of one tag (wall time, step, value), whose name the file's says;
                 its event files (`planner.logs.event_file`) hold all tags
    LLaMA-Factory trainer_log.jsonl: `current_steps` and `elapsed_time` ("5:13:22") since the start,
                 evaluations included, in whole seconds: entries are at least `APART_S` apart
    DeepSpeed    its monitor's "Train/Samples/..." count the sequences for steps (W&B, TensorBoard)
    Trainer      `log_history` of trainer_state.json: train_runtime (s) over all steps, evaluation
                 included, whose own runtimes are taken off. One mean, with its first steps
    meshplan     result.json of `execute`: every timed step

A column that a framework is known to log as time or rate is taken before time stamps, which also
hold evaluations and checkpoints. Sources: torchtitan@b5bcd76 `torchtitan/components/metrics.py`,
Megatron-LM@d98e8a64 `megatron/training/training.py` (`training_log`), nanotron@2411b02
`src/nanotron/trainer.py`, NVIDIA-NeMo/Automodel@36044ad `nemo_automodel/recipes/llm/train_ft.py`
(training.jsonl), hiyouga/LlamaFactory@9174a7a8 `src/llamafactory/train/callbacks.py`
(LogCallback), mosaicml/composer `composer/callbacks/speed_monitor.py`, pytorch/torchtune@bd2a0fc
`torchtune/training/metric_logging.py`, transformers 5.23 `trainer_utils.py` (`speed_metrics`).
"""

import csv
import io
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from meshplan.costmodels.units import GIB, counted
from meshplan.planner.logs.trainer_console import APART_S, Clock, entries, of_training
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

Record = Mapping[str, Any]
STEP_COLUMNS = ("train/global_step", "trainer/global_step", "global_step", "_step", "step")
"""The Trainer's and Lightning's own count before W&B's, which goes up by one with each record."""
STAMPS = ("_runtime", "wall time", "wall_time", "_timestamp", "relative time (process)")
SECONDS = {
    "time_metrics/end_to_end(s)": 1.0, "iteration-time": 1.0, "step_time_s": 1.0,
    "elapsed_time_per_iteration_ms": 1e-3, "time_per_iteration_ms": 1e-3,
    "train_step_timing in s": 1.0, "perf/step_time_seconds": 1.0, "train/time(s)": 1.0,
}  # fmt: skip
"""A step's time, and the seconds of its unit."""

RATES = ("throughput(tps)", "tokens_per_sec_per_gpu", "tokens_per_second_per_gpu",
         "throughput/device/tps")  # fmt: skip
"""Tokens per second and GPU."""
SAMPLES = ("throughput/samples_per_sec",)
"""Sequences per second of all GPUs."""
BY_SAMPLES = "train/samples/train_loss"
LOSSES = ("loss_metrics/global_avg_loss", "lm loss", "lm_loss", BY_SAMPLES, "train/loss", "loss",
          "reduced_train_loss", "loss/train/total")  # fmt: skip
RESERVED = {"memory/max_reserved(gib)": GIB, "peak_memory_reserved": GIB,
            "memory/peak_reserved_mem": 1e9, "train/memory(gib)": GIB,
            "gpu_memory/gpu reserved mem (gib)": GIB, "memory/device_reserved (gib)": GIB,
            "train/memory/device_reserved (gib)": GIB}  # fmt: skip
ALLOCATED = {"memory/max_active(gib)": GIB, "mem-max-allocated-bytes": 1.0,
             "peak_memory_alloc": GIB, "memory/peak_allocated_mem": 1e9,
             "memory/max_allocated (gib)": GIB,
             "train/memory/max_allocated (gib)": GIB}  # fmt: skip
MAX_ROWS = 50_000  # the last ones, where the run is in its steady state
KEPT = MAX_ROWS + 1  # one more says that there were more


def of_records(records: Sequence[Record], tokens_per_gpu: float, sequences: float) -> TrainingLog:
    """Steps out of rows of metrics; `tokens_per_gpu`: tokens of a step over GPUs; `sequences`: of a
    step, over all of them.
    """
    if runs := _runs(records):
        named = " and ".join(runs[:2]) + " ..." * (len(runs) > 2)
        said = f"{len(runs)} runs in one export, {named}; export each alone"
        return TrainingLog((), None, None, notes=(said,))
    rows = [{_plain(key): value for key, value in row.items()} for row in records[-MAX_ROWS:]]
    timed = [step for row in rows if (step := _timed(row, tokens_per_gpu, sequences))]
    notes = (f"the last {MAX_ROWS:,} rows were read",) * (len(records) > MAX_ROWS)
    if not timed:
        timed = list(_between(rows, sequences))
        notes += ("step times are those between time stamps",) * bool(timed)
    return TrainingLog(
        slowest(timed), _peak(rows, ALLOCATED), _peak(rows, RESERVED), notes=notes
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    """A column without the run's name before it, in lower case."""
    return name.rpartition(" - ")[2].strip().lower()


def _runs(records: Sequence[Record]) -> list[str]:
    """The runs that have a column each of one metric of time or rate; none where one has."""
    names = {name for row in records for name in row}
    by_metric: dict[str, list[str]] = {}
    for name in sorted(names):
        by_metric.setdefault(_plain(name), []).append(name.rpartition(" - ")[0])
    several = (by_metric.get(metric, []) for metric in (*SECONDS, *RATES, *SAMPLES))
    return next((runs for runs in several if len(runs) > 1), [])


def number(value: object) -> float | None:
    """A finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _positive(value: object) -> float | None:
    found = number(value)
    return found if found is not None and found > 0 else None


def _step_of(row: Record) -> int | None:
    found = next((number(row[name]) for name in STEP_COLUMNS if name in row), None)
    return int(found) if found is not None and 0 <= found < 1e12 else None


def of_known_tags(rows: Iterable[Record]) -> list[Record]:
    """The last rows that hold a known metric: of others, as Megatron-LM's "lm loss vs samples", the
    step may count something else.
    """
    known = {*SECONDS, *RATES, *SAMPLES, *LOSSES, *RESERVED, *ALLOCATED}
    kept = (row for row in rows if any(_plain(name) in known for name in row))
    return list(deque(kept, maxlen=KEPT))


def _timed(row: Record, tokens_per_gpu: float, sequences: float) -> LoggedStep | None:
    step = _step_of(row)
    seconds = (
        each * unit for name, unit in SECONDS.items() if (each := _positive(row.get(name)))
    )  # fmt: skip
    rates = (tokens_per_gpu / each for name in RATES if (each := _positive(row.get(name))))
    samples = (sequences / each for name in SAMPLES if (each := _positive(row.get(name))))
    taken_s = _of_its_tokens(row) or next(chain(seconds, rates, samples), None)
    if step is None or not taken_s:
        return None
    return LoggedStep(step, taken_s, _loss(row))


def _of_its_tokens(row: Record) -> float | None:
    """Seconds by AutoModel's own count of a step's tokens, which its rate is of."""
    tokens, rate = (_positive(row.get(name)) for name in ("num_tokens_per_step", "tps"))
    return tokens / rate if tokens and rate else None


def _loss(row: Record) -> float | None:
    return next((number(row[name]) for name in LOSSES if name in row), None)


def _between(rows: Sequence[Record], sequences: float) -> Iterator[LoggedStep]:
    """Seconds per step between the time stamps of consecutive rows with a later step."""
    last: tuple[int, float] | None = None
    for row in rows:
        step = _step_of(row)
        if step is not None and BY_SAMPLES in row:
            step = round(step / sequences)
        stamp = next((number(row[name]) for name in STAMPS if name in row), None)
        if step is None or stamp is None:
            continue
        if last and step > last[0] and stamp > last[1]:
            yield LoggedStep(step, (stamp - last[1]) / (step - last[0]), _loss(row))
        last = (step, stamp)


def _peak(rows: Sequence[Record], units: Mapping[str, float]) -> float | None:
    found = (
        value * unit
        for row in rows
        for name, unit in units.items()
        if (value := _positive(row.get(name)))
    )
    return max(found, default=None)


def csv_records(text: str, tag: str) -> list[Record]:
    """Rows of a CSV, also with semicolons, whose numbers may have commas, or tabs; `tag` names the
    metric of a TensorBoard export ("Wall time,Step,Value").
    """
    try:
        sign = _parted_by(text.lstrip().partition("\n")[0])
        reader = csv.reader(io.StringIO(text), delimiter=sign)
        header, *rows = [row for row in reader if row] or [[]]
    except csv.Error:
        return []
    if sign == ";":
        rows = [[_COMMA.sub(".", cell) for cell in row] for row in rows[-KEPT:]]
    # a row has its own cells alone: filled up to the header's, it would cost rows times columns
    cells = (zip(header, row, strict=False) for row in rows[-KEPT:])
    return _tagged(({key: value for key, value in row if key} for row in cells), tag)


_COMMA = re.compile(r"(?<=\d),(?=\d+(?:[eE][-+]?\d+)?$)")


def _parted_by(header: str) -> str:
    """The sign that leaves a column of steps; names of runs may hold the others."""
    for sign in ",;\t":
        names = next(csv.reader([header], delimiter=sign), [])
        if any(_plain(name) in STEP_COLUMNS for name in names):
            return sign
    return ","


def _tagged(rows: Iterable[dict[str, Any]], tag: str) -> list[Record]:
    """The rows, their "Value" also under the metric that `tag` names."""
    known = next((name for name in (*SECONDS, *RATES, *SAMPLES, *LOSSES) if _same(name, tag)), None)
    if known is None:
        return list(rows)
    return [{**row, known: row["Value"]} if "Value" in row else row for row in rows]


def _same(name: str, tag: str) -> bool:
    """Whether a file's name ends with a metric's; exports write other signs as underscores."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return re.sub(r"[^a-z0-9]+", "_", tag.lower()).strip("_").endswith(plain)


def json_records(document: object, tag: str) -> list[Record]:
    """Rows of a JSON document: a list of records, or of [wall time, step, value], or a table."""
    if isinstance(document, dict):
        return _of_columns(document)
    rows = document[-KEPT:] if isinstance(document, list) else []
    triples = (
        {"Wall time": row[0], "Step": row[1], "Value": row[2]}
        for row in rows
        if isinstance(row, list) and len(row) == 3
    )
    return [*_tagged(triples, tag), *(row for row in rows if isinstance(row, dict))]


def _of_columns(document: Record) -> list[Record]:
    """Rows of a table by columns, as pandas writes it: of lists, of cells by row, or split."""
    names, data = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(data, list):
        rows = [row for row in data[-KEPT:] if isinstance(row, list)]
        return [dict(zip(map(str, names), row, strict=False)) for row in rows]
    columns = [list(c.values()) if isinstance(c, dict) else c for c in document.values()]
    if not all(isinstance(c, list) and len(c) == len(columns[0]) for c in columns):
        return []
    last = zip(*(column[-KEPT:] for column in columns), strict=True)
    return [dict(zip(document, row, strict=True)) for row in last]


def json_lines(text: str) -> list[Record]:
    """The JSON objects among the lines; other lines are skipped."""
    found = []
    for line in [line for line in text.splitlines() if line.lstrip().startswith("{")][-KEPT:]:
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return [each for each in found if isinstance(each, dict)]


def of_trainer(document: Record) -> TrainingLog:
    """trainer_state.json: one mean over all steps, without the evaluations' time."""
    history = [row for row in document["log_history"] if isinstance(row, dict)]
    total = next((row for row in reversed(history) if _positive(row.get("train_runtime"))), None)
    if total is None:
        return TrainingLog((), None, None, notes=(NO_RUNTIME,))
    evaluations = [s for row in history if (s := _positive(row.get("eval_runtime")))]
    steps = _step_of(total) or _step_of(document) or 0
    taken_s = float(total["train_runtime"]) - sum(evaluations)
    if not steps or taken_s <= 0:
        return TrainingLog((), None, None, notes=(NO_RUNTIME,))
    notes = [
        f"mean of {counted(steps, 'step')} of the whole job, its first steps included",
        ONE_START,
    ]
    notes += [f"{counted(len(evaluations), 'evaluation')} taken off"] * bool(evaluations)
    step = LoggedStep(steps, taken_s / steps, _loss(total))
    rows = [{_plain(key): value for key, value in row.items()} for row in history]
    return TrainingLog(
        (step,), _peak(rows, ALLOCATED), _peak(rows, RESERVED), whole=True, notes=tuple(notes)
    )


OF_PREDICTIONS = "a log of predictions, which train nothing (no entry has an epoch or a loss)"
SUMMARY = "a summary of a job, without its steps: name its trainer_state.json or trainer_log.jsonl"
ONE_START = (
    "read as of one start: train_runtime is of the last one, which a resumed job does not say"
)


def of_llama_factory(rows: Sequence[Record]) -> bool:
    """Whether rows are LLaMA-Factory's trainer_log.jsonl."""
    return any("current_steps" in row and "elapsed_time" in row for row in rows)


def of_clock(rows: Sequence[Record]) -> TrainingLog:
    """Steps between the entries of a clock of whole seconds."""
    known = [(row, each) for row in rows[-MAX_ROWS:] if (each := _clock_of(row))]
    trained = [(row, each) for row, each in known if not _predicts(row)]
    if known and not trained:
        return TrainingLog((), None, None, notes=(OF_PREDICTIONS,))
    known = trained
    clock = list(_of_one_process(known))
    others = len(known) - len(clock)
    note = f"{counted(others, 'entry', 'entries')} of another process in the same log left out"
    notes = (f"{note}: is it one job?",) * bool(others)
    return TrainingLog(slowest(entries(of_training(clock))), None, None, notes=notes)


def _predicts(row: Record) -> bool:
    """Whether an entry is of `on_prediction_step`, which knows the share done, and no epoch."""
    return "percentage" in row and "epoch" not in row and "loss" not in row


def _of_one_process(known: Iterable[tuple[Record, Clock]]) -> Iterator[Clock]:
    """Without losses of a step that is not beyond the newest while the clock goes on, or back by
    less than `APART_S` (processes do not start at once): LLaMA-Factory without torchrun is a job
    for each GPU, all of which write the same log.
    """
    newest, latest_s = -1, -1.0
    for row, clock in known:
        step, _, clock_s = clock
        if clock_s < latest_s - APART_S:
            newest = -1
        if "loss" in row and step <= newest:
            continue
        newest, latest_s = max(newest, step), clock_s
        yield clock


def _clock_of(row: Record) -> Clock | None:
    step = number(row.get("current_steps"))
    found = _ELAPSED.fullmatch(str(row.get("elapsed_time")))
    if step is None or not 0 <= step < 1e12 or not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return int(step), 0, 86400 * days + 3600 * hours + 60 * minutes + seconds


_ELAPSED = re.compile(r"(?:(\d{1,4}) days?, )?(\d{1,2}):(\d{2}):(\d{2})")
NO_RUNTIME = "no train_runtime in log_history: the Trainer writes it when the job is done"


def of_result(document: Record) -> TrainingLog:
    """result.json of `meshplan execute`, whose warm-up is left out already."""
    times = document.get("step_times_s")
    losses = document.get("losses")
    warm = len(losses) - len(times) if isinstance(losses, list) and isinstance(times, list) else 0
    steps = tuple(
        LoggedStep(max(warm, 0) + at, taken_s, None)
        for at, value in enumerate(times if isinstance(times, list) else (), start=1)
        if (taken_s := _positive(value))
    )
    peaks = [_rank_peak(document, f"{kind}_peak_bytes") for kind in ("allocated", "reserved")]
    return TrainingLog(slowest(steps), peaks[0], peaks[1], warmed=True, notes=(TIMED,))


TIMED = "timed steps of `meshplan execute`, after its warm-up"


def _rank_peak(document: Record, name: str) -> float | None:
    """The largest peak of the ranks on GPUs; of a CPU the resident set is logged, no such peak."""
    ranks = document.get("ranks")
    if not isinstance(ranks, list) or document.get("device") != "cuda":
        return None
    found = (_positive(rank.get(name)) for rank in ranks if isinstance(rank, dict))
    return max((each for each in found if each), default=None)
