"""Writes torchtitan 0.2's TOML (`--job.config_file`), with the sections that a run needs."""

import json
from collections.abc import Mapping
from typing import Any

from meshplan.executor.frameworks.export_notes import Answer, nearest_recompute
from meshplan.executor.frameworks.torchtitan.names import (
    CONVERTERS,
    EXPERTS_CONVERTED,
    MODELS,
    Flavor,
)


def write_toml(model: str, answer: Answer, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The file's text: `sections` and the model, optimizer and activation checkpointing."""
    flavor = MODELS.get(model, Flavor("llama3", "debugmodel"))
    named: dict[str, Any] = {"name": flavor.module, "flavor": flavor.flavor}
    converter = next(
        (name for name, kind in CONVERTERS.items() if kind == answer.training.precision), None
    )
    if converter:
        named["converters"] = [converter]
    grouped, _, modules = EXPERTS_CONVERTED.rpartition(".")
    experts = {grouped: {modules: ["experts"]}} if converter == grouped else {}
    mode = nearest_recompute(answer.layout.stages).mode
    checkpoint = {"mode": mode} | ({"selective_ac_option": "op"} if mode == "selective" else {})
    document = {
        "job": {"description": f"{model}: {answer.layout.label}"},
        "model": named,
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "training": {**sections["training"], "dataset": "c4_test"},
        "parallelism": sections["parallelism"],
        "activation_checkpoint": checkpoint,
        "compile": sections["compile"],
        **experts,
    }
    return "\n".join(_section(name, entries) for name, entries in document.items())


def _section(name: str, entries: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in entries.items()]
    return f"[{name}]\n" + "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """TOML and JSON write these values alike: strings, numbers, booleans and lists of them."""
    return json.dumps(value)
