"""What a followed configuration of torchtitan says, by the names that its TOML has.

    Trainer.Config(training=TrainingConfig(seq_len=8192))       training.seq_len
    config.parallelism.tensor_parallel_degree = 4               parallelism.tensor_parallel_degree
    config.activation_checkpoint = FullAC.Config()              activation_checkpoint.mode
    model_spec=model_registry("8B", converters=[...])           model.ours, model.precision

What is no number, word or list of them, and what else may change a section, is named: facts of
`UNCLEAR`. Source: pytorch/torchtitan@b5bcd76 torchtitan/config/configs.py,
torchtitan/models/llama3/__init__.py (`model_registry`), config_registry.py.
"""

import ast
from collections.abc import Iterator
from typing import Any

from meshplan.executor.frameworks.program.values import (
    Record,
    Ref,
    Unknown,
    is_constant,
    is_flat,
)
from meshplan.executor.frameworks.torchtitan.function_models import model_facts
from meshplan.executor.frameworks.torchtitan.names import model_of_function
from meshplan.planner.case.reading import Fact

UNCLEAR = "unclear"  # not a key of torchtitan's: what the syntax does not say, by its lines
ASSUMED = "assumed"  # nor this: notes of what stands for the environment
_SECTIONS = ("parallelism", "training", "compile", "fault_tolerance")
_CHECKPOINT = {"FullAC.Config": "full", "SelectiveAC.Config": "selective"}
OPTION = "selective_ac_option"
_ADAPTERS = ("peft", "lora")
_IN_TURN = ("generator", "rollouter")
"""Sections of training by rewards (pytorch/torchtitan@b5bcd76 torchtitan/experiments/rl)."""
_NEEDED = ("training.seq_len", "training.local_batch_size")


def facts_of(config: Any, function: ast.FunctionDef, module: str) -> dict[str, Fact]:
    """The facts of what `function` returns, of torchtitan's `module` of models; none where that is
    no configuration.
    """
    if isinstance(config, Unknown):
        named = Fact((Fact(config.text, config.line),), config.line)
        return {"parallelism": Fact(None, function.lineno), UNCLEAR: named}
    if not isinstance(config, Record):
        return {}
    found: dict[str, Fact] = {}
    unclear = [*_of_whole(config)]
    for section in _SECTIONS:
        if section in config.fields:
            unclear += _section(section, config, found)
    unclear += _policy(config, found)
    unclear += model_facts(config, module, found)
    unclear += _loss(config, found)
    unclear += _beside(config, found)
    unclear += _of_another_file(config, found)
    _by_name(config, function, found)
    if unclear:
        found[UNCLEAR] = Fact(tuple(unclear), unclear[0].line)
    return found


def _of_whole(config: Record) -> Iterator[Fact]:
    if config.changed is not None:
        yield Fact(config.changed.text, config.changed.line)
    if "**" in config.fields:
        value, line = config.fields["**"]
        yield Fact(f"{said_of(value)} (arguments without names)", line)


def _section(section: str, config: Record, found: dict[str, Fact]) -> Iterator[Fact]:
    """Adds what a section states; yields what is not known of it."""
    held, line = config.fields[section]
    found[section] = Fact(None, line)
    if not isinstance(held, Record) or not (held.is_made or held.default):
        if held is not None:
            yield Fact(f"{section}={said_of(held)} (not a literal)", line)
        return
    if held.changed is not None and held.changed is not config.changed:
        yield Fact(held.changed.text, held.changed.line)
    if held.args or "**" in held.fields:
        yield Fact(f"{held.name} (arguments without names)", line)
    for name, (value, at) in held.fields.items():
        if (isinstance(value, Record) and value.default and not value.fields) or name == "**":
            continue
        found[f"{section}.{name}"] = Fact(value if is_literal(value) else None, at)
        if not is_literal(value):
            yield Fact(f"{section}.{name} = {said_of(value)}", at)


def is_literal(value: Any) -> bool:
    """Whether a value is a number, a word, or lists of them."""
    if isinstance(value, list | tuple):
        return all(is_flat(each) for each in value)
    return is_constant(value)


def said_of(value: Any) -> str:
    """The words of a value that is not known."""
    if isinstance(value, Unknown | Record):
        return value.text[:40]
    return value.dotted[:40] if isinstance(value, Ref) else repr(value)[:40]


def _policy(config: Record, found: dict[str, Fact]) -> Iterator[Fact]:
    """What recomputes: nothing, a policy's class, or the mode that releases before 0.3 named; a
    call of anything else is named as not understood.
    """
    place = "activation_checkpoint"
    held, line = config.fields.get(place, (Unknown("", 1), 1))
    if isinstance(held, Record) and held.changed not in (None, config.changed):
        yield Fact(held.changed.text, held.changed.line)
    if held is None:
        found[f"{place}.mode"] = Fact("none", line)
    if not isinstance(held, Record) or held.default:
        named = isinstance(held, Unknown) and place in config.fields
        changed = isinstance(held, Record) and held.fields
        if named or changed:
            yield Fact(f"{place} = {said_of(held)}", line)
        return
    kind = ".".join(held.kind.split(".")[-2:])
    mode = held.get("mode") if "mode" in held.fields else "selective"
    if kind in _CHECKPOINT:
        found[f"{place}.mode"] = Fact(_CHECKPOINT[kind], line)
    elif held.name == "ActivationCheckpointConfig" and mode in ("none", "full", "selective"):
        found[f"{place}.mode"] = Fact(mode, line)
        if OPTION in held.fields:
            found[f"{place}.{OPTION}"] = Fact(held.get(OPTION), line)
    else:
        yield Fact(f"{place} = {said_of(held)}", line)


WHOLE_LOSS = "loss.whole"
_IN_CHUNKS = ("ChunkedCELoss", "ChunkedLossWrapper")
_AT_ONCE = "CrossEntropyLoss"
_CHUNKS = 8  # as every configuration of torchtitan's has


def _loss(config: Record, found: dict[str, Fact]) -> Iterator[Fact]:
    """Whether the loss has all logits at once, as every model's had until configurations came to
    state one (pytorch/torchtitan@786e26f8, 2026-04-27); one that torchtitan does not have is named
    (its torchtitan/components/loss.py).
    """
    held, line = config.fields.get("loss", (None, 1))
    if config.is_made and "loss" not in config.fields:
        found[WHOLE_LOSS] = Fact(False, config.line)
    if held is None or (isinstance(held, Record) and held.default):
        return
    kind = held.kind.split(".")[-2:] if isinstance(held, Record) else []
    if kind == [_AT_ONCE, "Config"]:
        found[WHOLE_LOSS] = Fact(True, line)
    elif isinstance(held, Record) and kind[-1:] == ["Config"] and kind[0] in _IN_CHUNKS:
        chunks, at = held.fields.get("num_chunks", (_CHUNKS, line))
        if chunks != _CHUNKS:
            yield Fact(f"num_chunks = {said_of(chunks)} (of the loss; {_CHUNKS} are priced)", at)
    else:
        yield Fact(f"loss = {said_of(held)} (another loss than torchtitan's)", line)


def _beside(config: Record, found: dict[str, Fact]) -> Iterator[Fact]:
    """Sections beside a language model's: encoders, adapters, generation."""
    for name, (held, line) in config.fields.items():
        if name == "encoder":
            found["encoder"] = Fact(None, line)
        elif name in _IN_TURN and isinstance(held, Record) and not held.default:
            found.setdefault("parallelism", Fact(None, line))
            yield Fact(f"{name} (it trains and generates in turn: not modelled)", line)
        elif name == "tokenizer" and "MultiModal" in said_of(held):
            yield Fact("MultiModalTokenizer (images, and the tower that reads them)", line)
        elif name in _ADAPTERS and held is not None:
            if isinstance(held, Record) and held.default:
                yield from (Fact(f"{name}.{key} (adapters)", at)
                            for key, (_, at) in held.fields.items())  # fmt: skip
            else:
                yield Fact(f"{name}={said_of(held)} (adapters)", line)


def _of_another_file(config: Record, found: dict[str, Fact]) -> Iterator[Fact]:
    """What a function takes from a configuration that lies elsewhere and does not replace."""
    if config.is_made:
        return
    kept = [each for each in _NEEDED if each not in found]
    kept += [each for each in ("parallelism", "activation_checkpoint.mode") if each not in found]
    if kept and found:
        yield Fact(f"what {config.name}() of another file says of {', '.join(kept)}", config.line)


def _by_name(config: Record, function: ast.FunctionDef, found: dict[str, Fact]) -> None:
    """The model that the name of a registry's own function says, where nothing else does."""
    stated = found.get("model.ours", Fact(None, 1))
    named = model_of_function(config.name) or model_of_function(function.name)
    if stated.value is None and named and "model.spec" not in found:
        found["model.ours"] = Fact(named, function.lineno)
    elif stated.value is False:  # another function's, whatever this one is called
        found["model.ours"] = Fact(None, stated.line)
