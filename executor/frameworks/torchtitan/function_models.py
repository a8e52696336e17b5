"""Which model a followed configuration of torchtitan has.

`model_registry(flavor, ...)` of a module of torchtitan's is known; what another function gives is
not, whatever the configuration that it is stored into had before. What is stored below it changes
it.

Source: pytorch/torchtitan@b5bcd76 torchtitan/models/llama3/__init__.py (`model_registry`) and
config_registry.py (`model_spec = model_registry("8B")`, stored by `model_spec=model_spec`).
"""

from collections.abc import Iterator
from typing import Any

from meshplan.executor.frameworks.program.values import Record, Unknown
from meshplan.executor.frameworks.torchtitan.names import (
    CONVERTED_WHOLE,
    CONVERTER_CLASSES,
    CONVERTER_SWITCHES,
    HARMLESS_CONVERTERS,
    joined_format,
    model_named,
)
from meshplan.planner.case.reading import Fact

_REGISTRY = "model_registry"
_FIELD = "model_spec"
_OF_REGISTRY = ("flavor", "attn_backend", "moe_comm_backend", "converters", "tp_gemm_backend")
"""Its arguments that change no sizes, or are read where they stand: attention is fused by each."""
_SHOWN = 60
_FORMAT = "model.precision"
_MOST = 2_000  # values in which converters are looked for
_DISPATCH = "moe_comm_backend"


def model_facts(config: Record, module: str, found: dict[str, Fact]) -> Iterator[Fact]:
    """Adds the model and the format of its matrices; yields what may change it."""
    held, line = config.fields.get(_FIELD, (None, 1))
    if isinstance(held, Record) and not held.default:
        yield from _spec(held, line, module, found)
    elif isinstance(held, Unknown):
        found["model.spec"] = Fact(held.text[:_SHOWN], line)
        found["model.ours"] = Fact(False, line)
    for name in (_FIELD, "model"):
        if name in config.fields:
            yield from _stored(config.fields[name][0], name)
    yield from _converters([held, config.get("model_converters")], found)


def _spec(held: Record, line: int, module: str, found: dict[str, Fact]) -> Iterator[Fact]:
    known = held.name == _REGISTRY
    found["model.spec"] = Fact(held.text[:_SHOWN], line)
    found["model.ours"] = Fact(None if known else False, line)
    if not known:
        return
    flavor = held.args[0] if held.args else held.get("flavor")
    theirs = held.kind.split(".")
    own = theirs[2] if held.kind.startswith("torchtitan.models.") else module
    found["model.ours"] = Fact(model_named(own, flavor) if isinstance(flavor, str) else None, line)
    found["model.registered"] = Fact((own, flavor), line)
    if _DISPATCH in held.fields:
        found[f"model.{_DISPATCH}"] = Fact(held.get(_DISPATCH), line)
    more = [each for each in held.args[1:]]
    for each in more:
        yield Fact(f"{_REGISTRY}({_shown(each)}) (it may change the model)", line)
    for name, (value, at) in held.fields.items():
        if name not in _OF_REGISTRY and not (isinstance(value, Record) and value.default):
            said = _shown(value) if name == "**" else f"{name}={_shown(value)}"
            yield Fact(f"{_REGISTRY}({said}) (it may change the model)", at)


def _shown(value: Any) -> str:
    return (value.text if isinstance(value, Record | Unknown) else repr(value))[:_SHOWN]


def _stored(held: Any, path: str) -> Iterator[Fact]:
    """What is stored below the model, and what may have changed it."""
    waiting, seen = [(held, path)], 0
    while waiting and seen < _MOST:
        (each, name), seen = waiting.pop(), seen + 1
        if not isinstance(each, Record):
            continue
        if each.changed is not None:
            yield Fact(each.changed.text, each.changed.line)
            return
        for key, (value, line) in each.fields.items():
            if isinstance(value, Record) and value.default:
                waiting.append((value, f"{name}.{key}"))
            elif each.default:
                yield Fact(f"{name}.{key}"[:_SHOWN] + " (it changes the model)", line)


def _converters(places: list[Any], found: dict[str, Fact]) -> Iterator[Fact]:
    """Adds the format that converters give the matrices; those that are not known are facts too."""
    seen = 0
    while places and seen < _MOST:
        held, seen = places.pop(), seen + 1
        if isinstance(held, list | tuple):
            places += held
        if not isinstance(held, Record):
            continue
        places += [value for value, _ in held.fields.values()]
        kind = held.kind.split(".")[-2] if held.name == "Config" and "." in held.kind else ""
        if kind in CONVERTER_CLASSES:
            known = [found[_FORMAT].value] if _FORMAT in found else []
            found[_FORMAT] = Fact(joined_format([*known, CONVERTER_CLASSES[kind]]), held.line)
            yield from _converted_in_part(held, kind)
        elif kind.endswith("Converter") and kind not in HARMLESS_CONVERTERS:
            found["model.converters"] = Fact([kind], held.line)


def _converted_in_part(held: Record, kind: str) -> Iterator[Fact]:
    """Arguments of a converter that leave layers in 16 bit, or compute otherwise than it says."""
    for name, (value, line) in held.fields.items():
        default = isinstance(value, Record) and value.default
        if name in CONVERTER_SWITCHES or value in (False, None) or value == [] or default:
            continue
        words = set(map(str, value)) if isinstance(value, list) else {""}
        if not words <= CONVERTED_WHOLE.get(name, frozenset()):
            said = f"{name}={_shown(value)}"
            yield Fact(f"{kind}.Config({said}) (of some layers, or another)", line)
