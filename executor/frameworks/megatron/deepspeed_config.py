"""Megatron-DeepSpeed's ZeRO stage, and the DeepSpeed configuration that its script writes."""

from collections.abc import Mapping
from contextlib import suppress

from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.hugging_face import deepspeed
from meshplan.executor.frameworks.megatron.settings import ZERO_STAGES
from meshplan.planner.case.reading import Fact, Reading, UnreadableConfig

_TWICE = (
    "zero_stage", "optimizer_offload", "micro_batch_size", "global_batch_size",
    "num_micro_batches", "precision",
)  # fmt: skip
"""What the flags and the configuration may each say."""


def deepspeed_facts(
    values: Values, facts: dict[str, Fact], files: Mapping[str, str]
) -> tuple[list[Fact], tuple[str, ...]]:
    """Adds Megatron-DeepSpeed's ZeRO stage to `facts`, and what else a configuration says that the
    script writes itself (`files`); what of it is not known, and notes.

    Source: microsoft/Megatron-DeepSpeed@f4157bea `megatron/arguments.py` (zero_stage),
    `megatron/training.py`: the JSON of --deepspeed_config decides, and must agree.
    """
    stage = values.word(ZERO_STAGES, "zero_stage")
    config, switched = values.found.get("deepspeed_config"), values.flag("deepspeed")
    values.asked.add("deepspeed_config")
    if not switched or not switched.value:
        return [], ()
    put(facts, zero_stage=stage)
    inner = None if config is None else _written(str(config.value), files)
    unread, notes = [], tuple[str, ...]()
    if config is not None and inner is not None:
        unread += _of_json(inner, facts, config)
        priced_otherwise = deepspeed.bf16_without_zero(dict(inner.facts))
        notes = tuple(note for note in inner.notes if note not in priced_otherwise)
    elif config is not None and stage is None:
        why = "the ZeRO stage is in that file; check it instead, or state --zero-stage"
        unread.append(Fact(f"--deepspeed-config {shown(config.value)} ({why})", config.line))
    elif config is not None:
        notes = (
            f"line {config.line}: of --deepspeed-config {shown(config.value)} nothing is read",
        )
    experts = values.get("num_experts")
    if experts is not None and str(experts.value) not in ("1", "0"):
        why = "DeepSpeed's experts, in every --expert-interval-th layer, are not modelled"
        unread.append(Fact(f"--num-experts ({why})", experts.line))
    return unread, notes


def _written(name: str, files: Mapping[str, str]) -> Reading | None:
    """The DeepSpeed configuration that the script writes; None where it writes none, or leaves
    some of it to its start.
    """
    with suppress(UnreadableConfig):
        return deepspeed.read(files[name], name) if name in files else None
    return None


def _of_json(inner: Reading, facts: dict[str, Fact], at: Fact) -> list[Fact]:
    """Adds the stage and the offload of a configuration that the script writes at `at`; returns
    what of it is not understood, or says otherwise than the flags.
    """
    unread = [Fact(f"{shown(at.value)}: {each.value}", at.line) for each in inner.unread]
    for name in _TWICE:
        if (said := inner.facts.get(name)) is None:
            continue
        if facts.setdefault(name, Fact(said.value, at.line)).value != said.value:
            unread.append(Fact(f"{shown(at.value)}: {name} {said.value}, the flags say "
                               f"{facts[name].value}", at.line))  # fmt: skip
    return unread
