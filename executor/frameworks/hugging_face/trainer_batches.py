"""What `accelerator_config` does to a trainer's batch: the loader splits it, or accumulates.

Source: transformers 5.23 `trainer_pt_utils.py` (AcceleratorConfig), `trainer.py`
(create_accelerator_and_postprocess); huggingface/accelerate@16cb6eb8 `data_loader.py`.
"""

from collections.abc import Iterator

from meshplan.executor.frameworks.documents.parse import read_json
from meshplan.executor.frameworks.documents.values import Values, below, shown
from meshplan.executor.frameworks.hugging_face.nearby import Nearby
from meshplan.planner.case.reading import Fact, UnreadableConfig

_SECTION = "accelerator_config"
_SPLIT = "each rank then has a share of the micro-batch: not modelled; state the share"
_ACCUMULATES = "state it as gradient_accumulation_steps"


def batches_by_loader(values: Values, near: Nearby) -> list[Fact]:
    """What of a section, JSON, or a JSON file of that name makes the batch another than stated."""
    inside, stated = below(values, _SECTION), values.found.get(_SECTION)
    if stated is not None and isinstance(stated.value, str) and stated.value:
        values.asked.add(_SECTION)
        text = stated.value if stated.value.startswith("{") else near.text(stated.value)
        if text is None:
            why = "whether the batch is split is in that file, which is not here"
            return [Fact(f"{_SECTION} {shown(stated.value)} ({why})", stated.line)]
        try:
            found = read_json(text)
        except UnreadableConfig as error:
            raise UnreadableConfig(f"{_SECTION} {shown(stated.value)}: {error}") from None
        inside = Values({name: Fact(fact.value, stated.line) for name, fact in found.items()})
    return list(_other_batches(inside))


def _other_batches(inside: Values) -> Iterator[Fact]:
    if inside.on("split_batches"):
        line = inside.found["split_batches"].line
        yield Fact(f"{_SECTION}.split_batches ({_SPLIT})", line)
    name = "gradient_accumulation_kwargs.num_steps"
    steps = inside.count(name)
    if steps is not None and steps.value > 1:
        yield Fact(f"{_SECTION}.{name} {steps.value} ({_ACCUMULATES})", steps.line)
