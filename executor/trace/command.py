"""`meshplan models MODEL --trace`: trace, write, and show it beside the family's reading."""

import importlib.util
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Layer, Model
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Matmul
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.costmodels.units import MIB
from meshplan.executor.trace.missing import INSTALL, CannotTrace
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import UnknownModel, load_model_config
from meshplan.hardware_profiles.traced_model import TracedModel
from meshplan.planner.answer.models import model_name
from meshplan.planner.case.model_file import is_model_file, write_model_file
from meshplan.planner.report.output import listing, print_json, print_tables

TOKENS = 4096
"""Of the sequence that FLOPs and saved bytes are shown for."""
EAGER, FUSED = "transformers", "generic"


def trace_to_file(name: str | None, out: Path | None, *, as_json: bool) -> None:
    """Trace a model of the catalogue or a config.json, and write the file.

    Raises `CannotTrace`, `UnknownModel` and `CannotWrite`.
    """
    if name is None:
        raise UnknownModel("--trace needs a model: a name of the catalogue, or a config.json")
    if is_model_file(name):
        raise UnknownModel(f"{name} is a model file already; trace a config.json")
    for library in ("torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise CannotTrace(f"a trace needs {library}: {INSTALL}")
    from meshplan.executor.trace.trace import trace

    config, label = load_model_config(name), model_name(name)
    found = trace(config, label)
    path = out or Path(f"{label}.yaml")
    write_model_file(found, path)
    facts = {"file": str(path), **_facts(found, _by_family(config, label))}
    if as_json:
        print_json(facts)
        return
    print_tables(_table(facts["compared"]))
    for heading in ("source", "by_family", "assumed", "not_attributed"):
        _print_words(heading, facts[heading])
    print_tables(Text(f"plan it: meshplan plan {path} --gpus 64 --cluster dgx-h100"))


def _print_words(heading: str, words: str | tuple[str, ...]) -> None:
    lines = (words,) if isinstance(words, str) else words
    title = heading.replace("_", " ")
    print_tables(Text(f"{title}: {lines[0]}" if len(lines) == 1 else f"{title}:" if lines
                      else f"{title}: nothing"))  # fmt: skip
    for line in lines if len(lines) > 1 else ():
        print_tables(Text(f"  {line}"))


def _by_family(config: dict[str, Any], label: str) -> Model | str:
    try:
        return model_from_config(config, label)
    except UnsupportedModel as error:
        return str(error)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = listing("", "traced", "by its family", "difference", left=("",))
    for row in rows:
        traced, family = row["traced"], row["by_family"]
        told = "" if family is None else f"{traced / family - 1:+.2%}" if family else "n/a"
        told = "0" if traced == family else told
        table.add_row(row["what"], _shown(row, traced), _shown(row, family), told)
    return table


def _shown(row: dict[str, Any], value: float | None) -> str:
    if value is None:
        return "n/a"
    if "bytes" in row["what"]:
        return f"{value / MIB:,.1f} MiB"
    return f"{value:,.0f}" if row["what"] == "parameters" else f"{value / 1e9:,.1f} G"


def _facts(found: TracedModel, family: Model | str) -> dict[str, Any]:
    """What is shown: costs of each kind of layer, beside those of the family's reading of it."""
    traced = model_from_config(found.model_dump(mode="json"), found.name)
    known = family if isinstance(family, Model) else None
    total = model_parameters(known).without_mtp if known else None
    rows = [_row("parameters", model_parameters(traced).total, total)]
    for at, layer in enumerate(found.kinds):
        theirs = costs_of(known, known.kinds[_kind_of(known, found, at)]) if known else {}
        rows += [_row(f"{layer.name}: {what}", value, theirs.get(what))
                 for what, value in costs_of(traced, traced.kinds[at]).items()]  # fmt: skip
    return {
        "compared": rows, "source": found.source,
        "by_family": family if isinstance(family, str) else "read as a family too",
        "assumed": found.assumed, "not_attributed": found.not_attributed,
    }  # fmt: skip


def _kind_of(family: Model, found: TracedModel, at: int) -> int:
    """The family's kind of the first layer of the trace's."""
    return family.pattern[min(found.pattern.index(at), family.num_layers - 1)]


def _row(what: str, traced: float, family: float | None) -> dict[str, Any]:
    return {"what": what, "traced": traced, "by_family": family}


def costs_of(model: Model, layer: Layer) -> dict[str, float]:
    """Forward FLOPs of products with weights, of attention, and saved bytes of one sequence.

    FLOPs count keys behind the causal mask, as torch's counter does. Saved bytes are of the module
    as it runs and of an engine that fuses norms, gates and rotary positions.
    """
    found = {}
    for engine in (FUSED, EAGER):
        kernels = load_engine(engine).kernels
        shard = Shard(
            seq_len=TOKENS, document_len=TOKENS, tokens=float(TOKENS), tokens_outside=float(TOKENS),
            tp=1.0, cp=1.0, ep=1.0, etp=1.0, sequence_parallel=0.0,
        )  # fmt: skip
        operations = layer_operations(Site(model, shard, kernels), layer)
        products = [op for op in operations if isinstance(op, Matmul)]
        cores = [op for op in operations if isinstance(op, AttentionCore)]
        found[f"saved bytes, {engine}"] = float(sum(op.saved_bytes for op in operations))
        found["product FLOPs"] = float(sum(op.forward_flops for op in products))
        found["attention FLOPs"] = float(sum(op.full_forward_flops for op in cores))
    return dict(sorted(found.items()))
