"""The question that a config asks: how it differs from ours, in words, and what to search so that
the layout beside the config does the same work.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Images, Lora
from meshplan.costmodels.units import counted
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.trained import BASE_WORDS, lora_words
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.axis_rules import USUAL_MICRO_BATCHES
from meshplan.planner.space.pins import Pins, parse_pin


def same_question(question: Question, yours: Case) -> Question:
    """The question of the config: `question` itself where the config asks no other."""
    if not why_not_the_plan(question, yours):
        return question
    pins, size = question.pins, yours.layout.micro_batch_size
    if _outside(question, yours):
        sizes = ",".join(map(str, USUAL_MICRO_BATCHES))
        pins = Pins(
            {**pins.axes, "micro_batch_size": parse_pin("micro_batch_size", f"{sizes},{size}")}
        )
    return replace(
        question,
        model=question.model if _same_model(question.model, yours.model) else yours.model,
        training=yours.training,
        gpus=yours.layout.world_size,
        engine=question.engine if question.engine.name == yours.engine.name else yours.engine,
        pins=pins,
    )


def why_not_the_plan(question: Question, yours: Case) -> str:
    """Why the answer to `question` is not what to set beside the config; empty where it is."""
    said = list(differences(question, yours))
    if _outside(question, yours):
        size = yours.layout.micro_batch_size
        said.append(f"your config has micro-batches of {size}, which are searched only if pinned")
    return "; ".join(said)


def _outside(question: Question, yours: Case) -> bool:
    """Whether the search would not look at the config's micro-batch, though no pin forbids it."""
    size = yours.layout.micro_batch_size
    return size not in USUAL_MICRO_BATCHES and "micro_batch_size" not in question.pins.axes


def differences(question: Question, yours: Case) -> Iterator[str]:
    """How the config's question differs from `question`, in words."""
    if question.gpus != yours.layout.world_size:
        own = counted(yours.layout.world_size, "GPU")
        yield f"your config runs on {own}, not {question.gpus:,}"
    for field in fields(question.training):
        old, new = getattr(yours.training, field.name), getattr(question.training, field.name)
        if old != new:
            plain = isinstance(old, (int, float, str)) and new is not None
            ours = str(new) if plain else stated(field.name, new)
            yield f"your config has {stated(field.name, old)}, not {ours}"
    if yours.engine.name != question.engine.name:
        yield f"your config runs on {yours.engine.name}, not {question.engine.name}"
    if not _same_model(question.model, yours.model):
        yield f"your config trains another model ({yours.model.name}), not {question.model.name}"


STATED = {
    "seq_len": ("sequences of {}", ""),
    "global_batch_size": ("a batch of {}", ""),
    "precision": ("precision {}", ""),
    "optimizer": ("the optimizer {}", ""),
    "expert_imbalance": ("busiest experts at {} times the mean", ""),
    "packed_mean_length": ("documents of {} tokens in a sequence", "whole sequences"),
    "optimizer_states": ("optimizer states in {}", "those the engine usually keeps"),
    "lora": ("{}", "all weights trained"),
    "images": ("{}", "text only"),
}
"""What is said of a field of `Training`, and of one that is None."""


def stated(name: str, value: object) -> str:
    """A field of `Training` in words."""
    words, absent = STATED[name]
    if isinstance(value, Lora):
        return f"{lora_words(value)} ({BASE_WORDS[value.base_precision]})"
    if isinstance(value, Images):
        what = "images" if value.sense == "vision" else "sound"
        return f"{value.tokens:,} tokens of {what}" + ", the tower frozen" * value.frozen
    return absent if value is None else words.format(value)


def _same_model(one: Model, other: Model) -> bool:
    return (one.hidden, one.pattern) == (other.hidden, other.pattern)
