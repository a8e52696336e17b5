"""The samples that Megatron-Bridge fine-tunes on: how long a sequence of them is.

    dataset.offline_packing_specs     packs made beforehand, each of `packed_sequence_size` tokens,
    (packed_sequence_specs before)    whatever `seq_length` says, and a micro-batch of its own
    dataset.enable_in_batch_packing   the samples of a micro-batch, one behind the other
    (pack_sequences_in_batch before)

Only data sets to fine-tune on have these fields. Source: NVIDIA-NeMo/Megatron-Bridge@067f987d
src/megatron/bridge/training/config.py `ConfigContainer.validate`, data/builders.
"""

from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.packed import AS_ONE
from meshplan.planner.case.reading import Fact, IllegalConfig

PACK = "packed_sequence_size"
SPECS = ("dataset.offline_packing_specs", "dataset.packed_sequence_specs")
_IN_BATCH = ("dataset.enable_in_batch_packing", "dataset.pack_sequences_in_batch")
OF_PACKS = (*SPECS, *_IN_BATCH, *(f"{name}.{PACK}" for name in SPECS))
"""The entries that are read here."""


def packed_length(
    found: Mapping[str, Fact], values: Values, facts: dict[str, Fact]
) -> tuple[str, ...]:
    """Makes a pack's tokens the length of a sequence, if samples are packed beforehand; notes on
    what is priced of them. Raises `IllegalConfig` for several packs in a micro-batch.
    """
    size = values.count(PACK, least=-1)
    if size is not None and size.value > 0:
        _check_alone(facts)
        facts["seq_len"] = size
        return (AS_ONE,)
    if any((fact := found.get(name)) and fact.value is True for name in _IN_BATCH):
        return ("samples packed in their micro-batch are priced as whole sequences",)
    if any(name in found for name in SPECS):
        return ("samples that are not packed are priced as whole sequences",)
    return ()


def _check_alone(facts: Mapping[str, Fact]) -> None:
    micro = facts.get("micro_batch_size")
    if micro is not None and micro.value > 1:
        raise IllegalConfig(
            f"micro_batch_size {micro.value} with packed sequences: a pack is a micro-batch of its "
            f"own; set 1, and packs of {micro.value} times the tokens", micro.line,
        )  # fmt: skip
