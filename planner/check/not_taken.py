"""Options of `check` that a file takes nothing of, said beside its verdict."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from meshplan.costmodels.model.transformer import Model
from meshplan.planner.case.missing import FLAGS
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import IllegalConfig, Reading, Start, UnreadableConfig
from meshplan.planner.case.settings import Settings

_FILES = {"launched_by": "--launched-by", "joined_with": "--joined-with"}
"""Options that name other files which a configuration is started with."""


def not_taken(given: Settings, plan: Plan, model: Model) -> Iterator[str]:
    """Options that say otherwise than a plan file, which says everything itself."""
    layout, training = plan.layout, plan.training
    own = {
        "cluster": plan.cluster.name, "gpus": plan.cluster.gpus, "model": plan.model.name,
        "seq_len": training.seq_len, "global_batch_size": training.global_batch_size,
        "micro_batch_size": layout.micro_batch_size, "recompute": layout.recompute,
        "pipeline_parallel": layout.pipeline_parallel, "vocab_size": model.vocab,
    }  # fmt: skip
    for name, value in own.items():
        asked = getattr(given, name)
        if asked is not None and asked != value:
            yield f"{FLAGS.get(name, f'--{name}')} {asked} is for configs: this plan says {value}"
    for name, option in _FILES.items():
        if getattr(given, name):
            yield f"{option} is for configs: this plan says everything itself"


def read_started(
    read: Callable[[Start], Reading | None], start: Start, given: Settings
) -> Reading | None:
    """What `read` makes of a file with `start`, with a note for each file that an option of `given`
    names and that changes nothing of it.
    """
    reading = read(start)
    if reading is None:
        return None
    notes = [
        f"{option} changes nothing of what this file says"
        for name, option in _FILES.items()
        if getattr(given, name) and not _changes(read, start, name, reading)
    ]
    others = tuple(replace(each, notes=(*notes, *each.notes)) for each in reading.others)
    return replace(reading, notes=(*notes, *reading.notes), others=others)


def _changes(
    read: Callable[[Start], Reading | None], start: Start, name: str, reading: Reading
) -> bool:
    """Whether the file reads otherwise without what `start` says under `name`."""
    try:
        return read(replace(start, **{name: getattr(Start(), name)})) != reading
    except (UnreadableConfig, IllegalConfig):
        return True
