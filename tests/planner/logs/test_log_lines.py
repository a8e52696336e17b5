"""What runs around a framework adds to its lines, and what a log of several starts says."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from meshplan.planner.logs.lines import by_rank
from meshplan.planner.logs.read import Batch, read_log, recognised
from meshplan.planner.logs.steady import steady

BATCH = Batch(sequences=8, tokens_per_gpu=4096.0, gpus=8)
STEPS = range(1, 11)


def _megatron(step: int, seconds: float = 2.0) -> str:
    taken = f"elapsed time per iteration (ms): {seconds * 1e3:.1f}"
    return f" iteration {step:8d}/ 100 | {taken} | lm loss: nan | number of nan iterations: 1 |"


def _titan(step: int, seconds: float = 2.0) -> str:
    tps = f"{4096 / seconds:,.0f}"
    return f"[titan] - INFO - step: {step:2}  loss:  7.1  memory: 66.91GiB(37.51%)  tps: {tps}"


def _trainer(step: int) -> str:
    clock_s = 40 * step
    return f" 10%|#  | {step}/990 [{clock_s // 60:02}:{clock_s % 60:02}<1:00:00, 40.00s/it]"


AROUND: dict[str, Callable[[str], str]] = {
    "colours": lambda line: f"\x1b[32m{line}\x1b[0m".replace("time", "\x1b[1mtime").replace(
        "(ms): ", "(ms): \x1b[0m"
    ),
    "an escape that a JSON of logs spells out": lambda line: f"\\u001b[32m{line}\\u001b[0m".replace(
        "(ms): ", "(ms): \\u001b[1m"
    ),
    "cat -v": lambda line: f"^[[38;5;208m{line}^[[39m".replace("loss: ", "^[[32mloss: "),
    "colours whose escape was lost": lambda line: f"[1m{line}[0m".replace("loss: ", "[32mloss: "),
    "a cursor that moves": lambda line: f"\x1b[A\x1b[2K{line}\x1b[K\x1b[?25h",
    "kubectl logs --prefix": lambda line: f"[pod/train-worker-1/pytorch] {line}",
    "Docker Compose": lambda line: f"trainer-1  | {line}",
    "TorchX": lambda line: f"trainer/1 {line}",
    "srun --label": lambda line: f"7: {line}",
    "torchrun --tee": lambda line: f"[rank7]:{line}",
    "pdsh": lambda line: f"worker-1: {line}",
    "kubectl --timestamps": lambda line: f"2026-03-01T12:00:00.123456789Z {line}",
    "CRI": lambda line: f"2026-03-01T12:00:00.123456789Z stdout F {line}",
    "Docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "x"}),
    "Google Cloud": lambda line: json.dumps({"insertId": "x", "textPayload": line}),
}
LINES = {"megatron": _megatron, "torchtitan": _titan, "Trainer": _trainer}


@pytest.mark.parametrize("framework", LINES)
@pytest.mark.parametrize("around", AROUND)
def test_what_runs_around_a_framework_does_not_matter(framework: str, around: str) -> None:
    """Ten steps of each framework are the same steps whoever passes its lines on."""
    lines = [LINES[framework](step) for step in STEPS]
    lines.append("{'loss': 2.1, 'epoch': 0.1}" if framework == "Trainer" else "done")
    bare = recognised("\n".join(lines), "train.log", BATCH)
    assert bare.format == framework
    assert bare.log.steps
    found = recognised("\n".join(map(AROUND[around], lines)), "train.log", BATCH)
    assert repr(found) == repr(bare)


def test_a_ranks_lines_that_come_late_are_no_restart() -> None:
    """Rank 1 is buffered and prints steps 1 to 10 after rank 0's; the slower rank's time counts."""
    lines = [f"[rank{rank}]:{_titan(step, 2.0 + rank)}" for rank in (0, 1) for step in STEPS]
    found = steady(recognised("\n".join(lines), "train.log", BATCH).log, "")
    assert (found.attempts, found.entries, found.step_time_s) == (
        1,
        7,
        pytest.approx(3.0, rel=1e-3),
    )


@pytest.mark.parametrize(
    "label", ["[pod/train-worker-{}/pytorch] ", "trainer-{}  | ", "trainer/{} "]
)
def test_labels_of_containers_are_of_ranks(label: str) -> None:
    """Container 1's lines, buffered, are no restart; the slower one's time counts."""
    lines = [f"{label.format(rank)}{_titan(step, 2.0 + rank)}" for rank in (0, 1) for step in STEPS]
    found = steady(recognised("\n".join(lines), "train.log", BATCH).log, "")
    assert (found.attempts, found.step_time_s) == (1, pytest.approx(3.0, rel=1e-3))


def test_what_a_rank_without_steps_prints_counts_too() -> None:
    """Megatron's first rank prints its memory, its last one the steps."""
    peak = "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 40000.0 | max reserved: 1.0"
    lines = [f"0: {peak}", "0: started", *(f"7: {_megatron(step)}" for step in STEPS)]
    log = recognised("\n".join(lines), "train.log", BATCH).log
    assert (len(log.steps), log.allocated_peak_bytes) == (10, 40000 * 2**20)


def test_deepspeeds_timer_counts_where_a_trainer_prints_too() -> None:
    """Its timer knows each step, the Trainer's bar whole seconds: 8 sequences at 4 a second."""
    timer = "RunningAvgSamplesPerSec=4.0, CurrSamplesPerSec=4.0, MemAllocated=1.0GB, "
    lines = [f"micro_step=1/global_step={step}, {timer}MaxMemAllocated=2.0GB" for step in STEPS]
    text = "\n".join((*map(_trainer, STEPS), "{'loss': 2.1, 'epoch': 0.1}"))
    assert recognised(text, "train.log", BATCH).format == "Trainer"
    found = recognised("\n".join((text, *lines)), "train.log", BATCH)
    assert (found.format, found.log.steps[-1].step_time_s) == ("deepspeed", 2.0)


def test_lines_without_a_label_are_a_log_too() -> None:
    """A node's own label comes before its rank's."""
    bare, ranks = by_rank("a\n0: [rank0]: b\n0: [rank1]: c\n0: [rank0]: d")
    assert (bare, ranks) == ("a\nb\nc\nd", ["a", "b\nd", "c"])


def test_numbers_of_lines_are_no_ranks() -> None:
    """A restart in lines that are numbered, as `grep -n` does, is one."""
    steps = (*STEPS, *range(5, 15))
    lines = [f"{at}: {_megatron(step)}" for at, step in enumerate(steps)]
    many = [f"{at % 1200}: b" for at in range(2400)]
    assert [by_rank("\n".join(each))[1] for each in (lines, many)] == [[], []]
    assert steady(recognised("\n".join(lines), "a.log", BATCH).log, "").attempts == 2


@pytest.mark.parametrize("first", ['{"world_size": 8}', '[2026-01-01] start\n{"world_size": 8}'])
def test_a_line_of_json_makes_no_export(first: str) -> None:
    """Programs print their settings as JSON before they train."""
    text = "\n".join((first, *map(_megatron, STEPS)))
    assert recognised(text, "train.log", BATCH).format == "megatron"


def test_a_start_that_did_not_fit_says_nothing_of_the_next(tmp_path: Path) -> None:
    """Steps after the error are of a run that fits; one more of another rank is none."""
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    path = tmp_path / "train.log"
    for after, failed in ((STEPS, False), ([11], True)):
        path.write_text("\n".join((*map(_megatron, STEPS), error, *map(_megatron, after))))
        log = read_log(path, BATCH).log
        assert log.out_of_memory == failed
        assert any("did not fit" in note for note in log.notes)
        assert any(note.startswith("steps come after") for note in log.notes) != failed


@pytest.mark.parametrize("done", ["before", "after"])
def test_late_lines_of_other_ranks_are_no_run_that_went_on(tmp_path: Path, done: str) -> None:
    """Rank 0's lines come behind the error of rank 1, which had come as far; and a job that was
    done before it failed, in saving say, is none either.
    """
    error = "[rank1]: torch.OutOfMemoryError: CUDA out of memory."
    ranks = [[f"[rank{rank}]:{_titan(step)}" for step in STEPS] for rank in (1, 0)]
    path = tmp_path / "train.log"
    path.write_text("\n".join((*ranks[0], error, *ranks[1])))
    assert read_log(path, BATCH).log.out_of_memory
    ended = "{'train_runtime': 1980.0, 'train_steps_per_second': 0.500}"
    path.write_text("\n".join((ended, error) if done == "before" else (error, ended)))
    assert read_log(path, BATCH).log.out_of_memory == (done == "before")


def test_evaluations_of_an_earlier_start_are_not_in_the_last_ones_time() -> None:
    """Steps 501 to 990 of 2 s and one evaluation of 100 s; the start before had one of 300 s."""
    bar = " 10%|#  | {}/990 [{:02}:{:02}<10:00,  2.00s/it]"
    starts = [
        "\n".join(
            bar.format(first + at, 2 * at // 60, 2 * at % 60) for at in range(0, last - first, 30)
        ) + f"\n{{'eval_loss': 1.1, 'eval_runtime': {taken_s}, 'epoch': 1.0}}"
        for first, last, taken_s in ((1, 500, 300.0), (501, 990, 100.0))
    ]  # fmt: skip
    done = f"{{'train_runtime': 1080.0, 'train_steps_per_second': {990 / 1080:.3f}}}"
    log = recognised("\n".join((*starts, done)), "train.log", BATCH).log
    assert [step.step_time_s for step in log.steps] == [2.0]


@pytest.mark.parametrize("last", [True, False])
def test_an_evaluation_of_as_many_steps_is_no_restart(last: bool) -> None:
    """100 steps of 2 s and evaluations of 100 batches in 50 s, half-way and perhaps at the end."""
    bar = " 10%|#  | {}/100 [{:02}:{:02}<10:00,  2.00s/it]"
    evaluation = [bar.format(at, 0, at // 2) for at in range(0, 101, 20)]
    evaluation.append("{'eval_loss': 1.1, 'eval_runtime': 50.0, 'epoch': 1.0}")
    clocks = [[(at, 2 * at) for at in range(0, 51, 10)], [(at, 50 + 2 * at) for at in (60, 100)]]
    half, rest = ([bar.format(at, s // 60, s % 60) for at, s in each] for each in clocks)
    runtime = 300.0 if last else 250.0
    done = f"{{'train_runtime': {runtime}, 'train_steps_per_second': {100 / runtime:.3f}}}"
    text = "\n".join((*half, *evaluation, *rest, *evaluation * last, done))
    log = recognised(text, "train.log", BATCH).log
    assert [step.step_time_s for step in log.steps] == [2.0]


def test_steps_that_became_longer_are_said_to_be_two_kinds() -> None:
    """A run that is throttled half-way has two step times, and one is no summary of both."""
    times = [2.0] * 10 + [2.8] * 10
    text = "\n".join(_megatron(at, taken_s) for at, taken_s in enumerate(times))
    assert "40% longer" in steady(recognised(text, "a.log", BATCH).log, "").notes[-1]
    text = "\n".join(_megatron(at, taken_s) for at, taken_s in enumerate(times[::-1]))
    assert "29% shorter" in steady(recognised(text, "a.log", BATCH).log, "").notes[-1]
    text = "\n".join(_megatron(at, 2.0 + at / 100) for at in range(20))
    assert "at the end" not in " ".join(steady(recognised(text, "a.log", BATCH).log, "").notes)


ROWS = [{"_step": at, "_runtime": 2.0 * at, "train/loss": None} for at in STEPS]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


@pytest.mark.parametrize(
    "document",
    [
        ROWS,
        COLUMNS,
        {name: {str(at): cell for at, cell in enumerate(cells)} for name, cells in COLUMNS.items()},
        {"columns": [*COLUMNS], "index": [*range(10)], "data": [[*row.values()] for row in ROWS]},
    ],
    ids=["records", "lists", "cells by row", "split"],
)
def test_a_table_of_json_is_read_by_rows_and_by_columns(document: object) -> None:
    """A W&B history that pandas wrote: two seconds between rows."""
    log = recognised(json.dumps(document), "history.json", BATCH).log
    assert [step.step_time_s for step in log.steps] == [2.0] * 9


def test_what_only_begins_as_a_container_or_a_table_is_left() -> None:
    """A line of JSON that is cut off, and lists that are not of one length, say no step."""
    cut = "\n".join(('{"log": "star', *map(_megatron, STEPS)))
    assert len(recognised(cut, "train.log", BATCH).log.steps) == len(STEPS)
    uneven = json.dumps({"_step": [1, 2], "_runtime": [1.0, 2.0, 3.0]})
    assert not recognised(uneven, "a.json", BATCH).log.steps


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_what_parts_the_cells_of_a_csv(sign: str) -> None:
    """Spreadsheets write semicolons where numbers have commas."""
    number = "2,5" if sign == ";" else "2.5"
    text = f'step{sign}step_time_s{sign}"a;,\t;,\t- x"\n'
    text += "".join(f"{at}{sign}{number}{sign}0\n" for at in STEPS)
    log = recognised(text, "own.csv", BATCH).log
    assert [step.step_time_s for step in log.steps] == [2.5] * len(STEPS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h.jsonl", '{"_step": %d, "_runtime": %d, "Train/Samples/train_loss": 2}\n'),
        ("run-.-tag-Train_Samples_train_loss.csv", "%d,%d,2\n"),
    ],
)
def test_deepspeeds_monitor_counts_sequences(name: str, text: str) -> None:
    """8 sequences are a step, of 3 s."""
    rows = [(8 * at, 3 * at) for at in STEPS]
    if name.endswith("csv"):
        lines = ["Wall time,Step,Value\n", *(text % (clock, step) for step, clock in rows)]
    else:
        lines = [text % row for row in rows]
    log = recognised("".join(lines), name, BATCH).log
    assert [(step.step, step.step_time_s) for step in log.steps] == [(at, 3.0) for at in STEPS[1:]]
