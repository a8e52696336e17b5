"""`meshplan models`: the catalogue, and what is known about one model."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from meshplan.costmodels.model.parameters import active_parameters, model_parameters
from meshplan.costmodels.model.towers.parameters import tower_parameters
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.units import format_count
from meshplan.hardware_profiles.load_models import model_names
from meshplan.planner.answer.models import read_model
from meshplan.planner.cli.options import AsJson
from meshplan.planner.report.output import listing, print_json, print_tables

COLUMNS = ("name", "parameters", "active", "layers", "hidden", "heads", "kv heads", "experts")
PLAN_HINT = "meshplan plan {} --gpus 64 --cluster dgx-h100 --global-batch-tokens 4M"


def models(
    name: Annotated[
        str | None, typer.Argument(help="Name, config.json or model file; default: list all.")
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Write a model file traced from transformers' module."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where --trace writes; default NAME.yaml.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the known models, or show one with its parameters.

    --trace takes any decoder that transformers knows: it builds the module without weights, runs
    one layer of each kind, and writes a model file that `plan` reads.

    Example: meshplan models llama-3.1-70b
    """
    if trace:
        from meshplan.executor.trace.command import trace_to_file

        trace_to_file(name, out, as_json=as_json)
        return
    if out:
        raise typer.BadParameter("--out needs --trace, which writes there")
    if name is None:
        rows = [facts(*read_model(each)) for each in model_names()]
        if as_json:
            print_json({"models": rows})
        else:
            print_tables(catalogue_table(rows))
        return
    config, model = read_model(name)
    if as_json:
        print_json(model_document(config, model))
    else:
        print_tables(model_table(facts(config, model), model, name))


def facts(config: dict[str, Any], model: Model) -> dict[str, Any]:
    """What the catalogue says of a model, with the units in the keys.

    name               of the catalogue, or of the file
    model_type         the configuration's
    parameters         a vision or audio tower's with them, prediction modules' without
    active_parameters  of them those that one token uses
    layers             of the language model
    hidden             width of the hidden state
    heads              of attention, in the last layer's kind
    kv_heads           likewise, of keys and values
    experts            of a layer, 0: none
    vocab              tokens
    source             of the configuration
    """
    count, attention = model_parameters(model), model.kinds[-1].attention
    tower = tower_parameters(model.tower) if model.tower else 0
    return {
        "name": model.name,
        "model_type": config["model_type"],
        "parameters": count.without_mtp + tower,
        "active_parameters": active_parameters(model).without_mtp + tower,
        "layers": model.num_layers,
        "hidden": model.hidden,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "experts": model.num_experts,
        "vocab": model.vocab,
        "source": config.get("_source", "given"),
    }


def model_document(config: dict[str, Any], model: Model) -> dict[str, Any]:
    """One model as JSON: what the catalogue says of it, and its configuration.

    config.**  the configuration itself
    """
    return {**facts(config, model), "config": config}


def catalogue_table(rows: list[dict[str, Any]]) -> Table:
    """All models, one a line."""
    table = listing(*COLUMNS, left=("name",))
    for row in rows:
        active = row["active_parameters"]
        table.add_row(
            row["name"],
            format_count(row["parameters"]),
            format_count(active) if active != row["parameters"] else "",
            *(str(row[key]) for key in ("layers", "hidden", "heads", "kv_heads")),
            str(row["experts"] or ""),
        )
    return table


def model_table(row: dict[str, Any], model: Model, asked: str) -> Table:
    """One model: sizes, parameters by what they do, and how to plan it as it was asked for."""
    table = listing()
    for key, value in row.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(key.replace("_", " "), shown)
    count = model_parameters(model)
    for part in ("embedding", "head", "attention", "dense_ffn", "routed_experts", "traced", "mtp"):
        if getattr(count, part):
            table.add_row(f"  in {part.replace('_', ' ')}", f"{getattr(count, part):,}")
    if model.tower:
        table.add_row(f"  in {model.tower.words}", f"{tower_parameters(model.tower):,}")
    table.add_row("plan it", PLAN_HINT.format(shlex.quote(asked)))
    return table
