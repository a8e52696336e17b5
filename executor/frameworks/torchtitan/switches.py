"""Switches of tensor parallelism that leave every degree as it is and change bytes or seconds.

Source: pytorch/torchtitan torchtitan/config/job_config.py (`[parallelism]`; before 0.1
config_manager.py, `[training]` and `[experimental]`), torchtitan/models/llama3/infra/parallelize.py
(`loss_parallel = not disable_loss_parallel`: the head's output is whole on each rank without it).
"""

from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import Fact

_SECTIONS = ("parallelism", "training", "experimental")
_WHOLE_LOGITS, _ASYNC = "disable_loss_parallel", "enable_async_tensor_parallel"


def tensor_switches(
    values: Values, facts: Mapping[str, Fact]
) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
    """What is not modelled of them, and notes of what is priced as without."""
    whole, overlapped = (_switched_on(values, name) for name in (_WHOLE_LOGITS, _ASYNC))
    if facts.get("tensor_parallel", Fact(1, 1)).value == 1:
        return (), ()
    why = "each rank holds all logits, which is not modelled"
    unread = tuple(Fact(f"{name} ({why})", line) for name, line in whole)
    said = "products in pieces beside their exchanges: priced as without, which is slower"
    return unread, tuple(f"line {line}: {name}, {said}" for name, line in overlapped)


def _switched_on(values: Values, name: str) -> list[tuple[str, int]]:
    """The places where the switch is on, with their lines."""
    stated = [(key, values.flag(key)) for key in (f"{section}.{name}" for section in _SECTIONS)]
    return [(key, fact.line) for key, fact in stated if fact is not None and fact.value]
