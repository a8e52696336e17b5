"""Slurm's job arrays: one script that runs once for each number of `#SBATCH --array=0-7%2`.

Source: SchedMD/slurm, man page of sbatch (`--array`) and "Job Array Support".
"""

import re
from collections.abc import Iterator, Mapping

MAX_TASKS = 16  # of one array that are followed
_ARRAY = re.compile(r"^#SBATCH[ \t]+(?:--array[= \t]|-a[ \t]?)[ \t]*([\d,:-]+)", re.M)
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?")
_TASK = "SLURM_ARRAY_TASK_ID"


def array_tasks(
    text: str, given: Mapping[str, str]
) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """What Slurm sets for each task of the script's array, as far as tasks are followed, and a note
    of the others. One that sets nothing where the script reads no task's number, states no array,
    or is started as one of its tasks.
    """
    stated = _ARRAY.search(text)
    if stated is None or _TASK in given or _TASK not in text:
        return [{}], ()
    parts = [_RANGE.fullmatch(part) for part in stated[1].split(",")]
    spans = [_span(part) for part in parts if part]
    count = sum(map(len, spans))
    if not count or len(spans) < len(parts):
        return [{}], ()
    ends = {
        "SLURM_ARRAY_TASK_COUNT": str(count),
        "SLURM_ARRAY_TASK_MIN": str(min(span[0] for span in spans if span)),
        "SLURM_ARRAY_TASK_MAX": str(max(span[-1] for span in spans if span)),
    }
    tasks = [{_TASK: str(number), **ends} for number in _first_of(spans)]
    more = f"a job array of {count} tasks: the first {MAX_TASKS} are judged"
    return tasks, (more,) if count > MAX_TASKS else ()


def _span(part: re.Match[str]) -> range:
    """The numbers of `4`, `0-7` or `0-15:4`; none where a range runs backwards or stands still."""
    first, last, by = int(part[1]), int(part[2] or part[1]), int(part[3] or 1)
    return range(first, last + 1, by) if by else range(0)


def _first_of(spans: list[range]) -> Iterator[int]:
    numbers = dict.fromkeys(n for span in spans for n in span[:MAX_TASKS])
    yield from list(numbers)[:MAX_TASKS]
