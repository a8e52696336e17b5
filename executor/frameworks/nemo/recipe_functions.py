"""Megatron-Bridge's recipes in Python: functions that return a `ConfigContainer`.

A function is followed, never run (`program.follow`), over the files of its repository: each is a
case. What it returns has the names of the overrides that `bridge` reads, and more:

    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider(...)
                                                 the model of that repository
    cfg.mixed_precision = bf16_with_mxfp8_mixed()   mixed_precision, and what is stored below it
    cfg.peft = default_peft_config("lora", dim=8)   peft.dim ..., with Megatron-Bridge's defaults

Its mixed precision says how wide gradients are summed, whatever `ddp` says
(NVIDIA-NeMo/Megatron-Bridge@067f987d src/megatron/bridge/training/mixed_precision.py, `setup`).
Source: src/megatron/bridge/recipes, src/megatron/bridge/perf_recipes of the same commit.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from meshplan.executor.frameworks.adapters import BRIDGE_RANK
from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.nemo.mixed_precision import MIXED, NARROW_RECIPES
from meshplan.executor.frameworks.nemo.packs import OF_PACKS
from meshplan.executor.frameworks.nemo.run import Run
from meshplan.executor.frameworks.program.budget import Budget, Unfollowed
from meshplan.executor.frameworks.program.calls import Rules
from meshplan.executor.frameworks.program.flat import Facts, flat
from meshplan.executor.frameworks.program.follow import Program
from meshplan.executor.frameworks.program.modules import Repository
from meshplan.executor.frameworks.program.values import OTHERS, Record, Unknown
from meshplan.hardware_profiles.load_models import in_catalogue
from meshplan.planner.case.reading import Fact, UnreadableConfig

MAX_CONFIGURATIONS = 64  # of one file; Megatron-Bridge's longest has 32
_RETURNS = re.compile(r"^def [a-z]\w*\([^#]{0,2000}?->\s*[\w.\"']*ConfigContainer\b", re.M)
_RULED = ("megatron", "nemo")
_OPAQUE = (
    *("ConfigContainer", "AutoBridge.from_hf_pretrained", "AutoBridge.from_hf_config"),
    *("get_mixed_precision_config", "default_peft_config", "LoRA", "DoRA"),
    *(name for name in MIXED if name.isidentifier()),
)
_SECTIONS = ("model", "train", "ddp", "dist", "optimizer", "mixed_precision", "comm_overlap",
             "peft")  # fmt: skip
"""Sections that say the layout, memory or shape; of the data set its length and packs."""
_COUNTED = ("*", OTHERS, "dataset.seq_length", "dataset.*", f"dataset.{OTHERS}", *OF_PACKS)
_OF_FSDP = ("data_parallel_sharding_strategy", "suggested_communication_unit_size",
            "fsdp_manual_registration", "fsdp_double_buffer", "keep_fp8_transpose_cache",
            "megatron_fsdp_main_params_dtype", "megatron_fsdp_main_grads_dtype",
            "megatron_fsdp_grad_comm_dtype", "num_distributed_optimizer_instances")  # fmt: skip
"""Fields of `ddp` that are idle without Megatron-FSDP."""
_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_GPUS = re.compile(r"_(?:pretrain|sft|peft)_([1-9][0-9]{0,5})gpu_")
_WIDE = "grad_reduce_in_fp32"


def claims(name: str, text: str) -> bool:
    """Whether a file has functions that return Megatron-Bridge's configuration."""
    return name.endswith(".py") and "ConfigContainer" in text and bool(_RETURNS.search(text))


def runs_of_functions(
    text: str, path: str, environment: Mapping[str, str] | None = None
) -> list[Run]:
    """Each recipe of a file; raises `UnreadableConfig`."""
    repository, budget = Repository(text, path), Budget()
    names = [*islice(_recipes(repository.tree), MAX_CONFIGURATIONS)]
    if not names:
        raise UnreadableConfig("no function that returns a ConfigContainer without arguments")
    runs = []
    for name, line in names:
        program = Program(repository, budget, _rules(environment))
        run = _said_by_name(_run(program, name), name, line)
        runs.append(replace(run, notes=(*run.notes, *program.assumed.values())))
    return runs


def run_of_function(text: str, path: str, name: str, environment: Mapping[str, str]) -> Run:
    """The recipe `name` of a file, with what was assumed; raises `UnreadableConfig`."""
    program = Program(Repository(text, path), Budget(), _rules(environment))
    return replace(_run(program, name), notes=tuple(program.assumed.values()))


def _rules(environment: Mapping[str, str] | None) -> Rules:
    return Rules(opaque=_OPAQUE, ruled=_RULED, effects=_EFFECTS, environment=environment)


def _said_by_name(run: Run, name: str, line: int) -> Run:
    """With the GPUs that a recipe's name says: those of a benchmark must be as many
    (scripts/training/recipe_metadata.py).
    """
    said = f"line {line}: the recipe {shown(name)}"
    gpus = _GPUS.search(name)
    if gpus is None:
        return replace(run, notes=(said,))
    return replace(run, notes=(f"{said}, whose name says {gpus[1]} GPUs",),
                   gpus=Fact(int(gpus[1]), line))  # fmt: skip


def _recipes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The functions that are a recipe by themselves, each with its line."""
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and each.returns:
            asked = len(each.args.posonlyargs) + len(each.args.args) - len(each.args.defaults)
            known = asked <= 0 and None not in each.args.kw_defaults
            if known and ast.unparse(each.returns).strip("'\"").endswith("ConfigContainer"):
                yield each.name, each.lineno


def _run(program: Program, name: str) -> Run:
    """What a recipe says; what is not followed of it is named, and no more is known then."""
    try:
        config = program.of(name)
    except Unfollowed as why:
        return Run({}, unread=(Fact(why.text, why.line),), whole=True)
    if not isinstance(config, Record):
        said = Fact(f"what {name} returns is not known", program.line)
        return Run({}, unread=(said,), whole=True)
    return _of_record(config)


def _of_record(config: Record) -> Run:
    stated, unknown = flat(config)
    found = _that_count(stated)
    unknown = _that_count(unknown)
    unread = [*dict.fromkeys(fact for name, fact in unknown.items() if name.endswith("*"))]
    unread += _adapters(config, found)
    unread += _sections(config)
    _precision(config, found, unknown)
    model, named = _model(config)
    whole = {name: fact for name, fact in unknown.items() if not name.endswith("*")}
    if not config.is_made:
        unread.append(Fact(f"what {config.name}() of another file says", config.line))
    return Run(found, unread=tuple(unread), unknown=whole, whole=True, model=model, named=named)


def _that_count(stated: Facts) -> Facts:
    """The entries of the sections that are read; dtypes in the words of files."""
    fsdp = any(stated.get(f"{section}.use_megatron_fsdp", Fact(False, 1)).value is True
               for section in ("ddp", "dist"))  # fmt: skip
    found = {}
    for name, fact in stated.items():
        section, _, last = name.partition(".")
        counts = section in _SECTIONS or name in _COUNTED
        if counts and not (section == "ddp" and last in _OF_FSDP and not fsdp):
            value = (
                _DTYPES.get(fact.value, fact.value) if isinstance(fact.value, str) else fact.value
            )
            found[name] = Fact(value, fact.line)
    return found


def _flex(args: list[Any], named: dict[str, Any], line: int) -> None:
    """`apply_flex_dispatcher_backend(model, backend)` on a GPU that has the exchange; of a model
    without experts nothing exchanges tokens.
    """
    model, backend = (*args, named.get("moe_flex_dispatcher_backend"))[:2]
    if isinstance(model, Record) and backend is not None:
        told = isinstance(backend, str)
        why = Unknown("apply_flex_dispatcher_backend's", line)
        model.fields["moe_token_dispatcher_type"] = ("flex" if told else why, line)
        model.fields["moe_flex_dispatcher_backend"] = (backend, line)
        model.fields["moe_shared_expert_overlap"] = (False, line)


_EFFECTS = {"apply_flex_dispatcher_backend": _flex}


def _model(config: Record) -> tuple[Fact | None, str]:
    """The catalogue's name of the model that a repository of Hugging Face says, and its own."""
    held, line = config.fields.get("model", (None, 1))
    while isinstance(held, Record):
        if held.name in ("from_hf_pretrained", "from_hf_config") and held.args:
            repository = held.args[0]
            if not isinstance(repository, str):
                return None, f"model {held.text}"
            ours = in_catalogue(repository)
            return (Fact(ours, line), "") if ours else (None, f"model {shown(repository)}")
        if held.origin is None:
            return None, f"model {held.text}"
        held = held.origin
    return None, ""


def _sections(config: Record) -> Iterator[Fact]:
    """Sections that a call makes of which nothing is known."""
    for name in (*_SECTIONS, "dataset"):
        held, line = config.fields.get(name, (None, 1))
        made = isinstance(held, Record) and not (held.is_made or held.default)
        if (made and name != "model") or isinstance(held, Unknown):
            yield Fact(f"{name} = {held.text[:60]} (not known)", line)


def _precision(config: Record, found: Facts, unknown: Facts) -> None:
    """Adds the recipe of mixed precision by its name, and how wide gradients are summed."""
    held, line = config.fields.get("mixed_precision", (None, 1))
    if isinstance(held, Record):
        name = (
            held.args[0] if held.name == "get_mixed_precision_config" and held.args else held.name
        )
        if name in MIXED:
            found["mixed_precision"] = Fact(name, line)
    named = found.get("mixed_precision", Fact(None, 1)).value
    if named in MIXED or isinstance(held, Record):
        own = found.pop(f"mixed_precision.{_WIDE}", Fact(named not in NARROW_RECIPES, line))
        found[f"ddp.{_WIDE}"] = own
        unknown.pop(f"ddp.{_WIDE}", None)


def _adapters(config: Record, found: Facts) -> Iterator[Fact]:
    """Rewrites adapters to the fields of a `peft` section; yields those of no known kind."""
    held, line = config.fields.get("peft", (None, 1))
    if held is None:
        return
    kind = held.name if isinstance(held, Record) else ""
    scheme = held.args[0] if isinstance(held, Record) and held.args else None
    if kind == "LoRA" or (kind == "default_peft_config" and str(scheme).lower() == "lora"):
        if not any(name.startswith("peft.") for name in found):
            found["peft.dim"] = Fact(BRIDGE_RANK, line)
    elif kind == "default_peft_config" and (scheme is None or str(scheme).lower() == "none"):
        return
    else:
        said = held.text if isinstance(held, Record) else str(held)
        yield Fact(f"peft = {said[:60]} (adapters other than LoRA are not modelled)", line)
