"""verl's SFT trainer on its FSDP engine, as scripts start it: read, not written.

    torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer engine=fsdp model.path=... ...

    theirs (default)                              ours
    model.path                                    model
    data.train_batch_size (256)                   documents
    data.max_token_len_per_gpu (8192)             tokens_at_once: x Ulysses degree, of a replica
    data.micro_batch_size_per_gpu (4)             documents_at_once, if data.use_dynamic_bsz is off
    data.max_length (1024)                        longest_document
    engine.ulysses_sequence_parallel_size (1)     context_parallel
    engine.fsdp_size (-1: all)                    shard_group
    engine.reshard_after_forward (True)           zero_stage 3, else 2
    engine.strategy (fsdp)                        the engine: fsdp, fsdp2
    engine.model_dtype (fp32)                     optimizer_states
    model.enable_gradient_checkpointing (True)    recompute full

How long documents are is said by the data alone: `--packed-mean-length`. Gradients of a step's
micro-batches add up whole since July 2026 (2423f801); releases before reduced each micro-batch's.
Its other engines, and programs around it that start it, are refused by name (`sft_fields`).

Source: verl-project/verl@1dda039b verl/trainer/sft_trainer.py, verl/trainer/config
(sft_trainer_engine.yaml, engine/fsdp.yaml, model/hf_model.yaml), verl/workers/engine/utils.py
(prepare_micro_batches), verl/workers/engine/fsdp/transformer_impl.py.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from meshplan.executor.frameworks.documents.values import Values, optimizer, put, shown
from meshplan.executor.frameworks.hugging_face.trainer_models import packed_weights
from meshplan.executor.frameworks.hugging_face.trainers import model_of_repository
from meshplan.executor.frameworks.keys.lists import judged, unjudged
from meshplan.executor.frameworks.shell.launching.arguments import Arguments, launcher_arguments
from meshplan.executor.frameworks.shell.launching.gpus import launched
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    is_launched,
    launches,
    left_open,
    needed,
)
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.executor.frameworks.verl.sft_fields import MODULE, fields_of
from meshplan.planner.case.reading import (
    Fact,
    NothingToRead,
    Reading,
    Recompute,
    Start,
    UnreadableConfig,
)

_COMMAND = re.compile(r"^[^#\n]*-m[ \t]+verl\.trainer\.sft_trainer\b", re.M)
_OPTION = re.compile(r"\+{0,2}([A-Za-z_][\w.@/]*)=(.*)", re.S)
_LISTS = ("verl_sft_keys.toml",)
_ENGINES = {"fsdp": "verl-fsdp", "fsdp2": "verl-fsdp2"}
_OPTIMIZERS = {"AdamW": "adamw"}
_STATES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32", "null": "fp32"}
"""By the format of the weights, which AdamW's states have too (verl/utils/torch_dtypes.py)."""
_BATCH, _MOST = "data.train_batch_size", "data.max_token_len_per_gpu"
_EACH, _ULYSSES = "data.micro_batch_size_per_gpu", "engine.ulysses_sequence_parallel_size"
_LONGEST = "data.max_length"
_DEFAULTS = {_BATCH: 256, _MOST: 8192, _EACH: 4, _ULYSSES: 1, _LONGEST: 1024}
_SAID_BY = {"model.path": "model"}


class _Options(Arguments):
    """Hydra's `key=value` words; one that the script leaves open is named."""

    before = ""


def claims(name: str, text: str) -> bool:
    """Whether a script starts the trainer."""
    return name.endswith(SCRIPTS) and _COMMAND.search(text) is not None


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """The script's launches, each a case; raises `UnreadableConfig` and `IllegalConfig`."""
    script = read_script(text, start.environment if start else None, path)
    if not is_launched(script, MODULE.__eq__):
        raise NothingToRead(f"no command of this script runs {MODULE}")
    commands, more = first_of(launches(script, MODULE.__eq__))
    first, *others = (_case(words, script, path, text, start) for words in commands)
    return replace(first, others=tuple(others), notes=(*more, *first.notes))


def _case(words: list[Fact], script: Script, path: str, text: str, start: Start | None) -> Reading:
    at = next(at for at, word in enumerate(words) if word.value == MODULE)
    stated, unread = _stated(words[at + 1 :])
    values = _Options(needed(stated, start, _SAID_BY), script.waits)
    if other := _another(values.get("engine"), words[at - 1]):
        fields = fields_of([str(word.value) for word in words])
        raise UnreadableConfig(
            f"verl's SFT trainer {other}: not read (of its engines FSDP's is, without a program "
            f"around it; check a plan of the same layout; {fields})",
            words[at].line,
        )
    reading = _reading(values, path)
    began = Values(launcher_arguments(words[:at], script.inherited_by(words)))
    facts = {**launched(began, text), **reading.facts}
    notes = (*script.notes, *left_open([words[at:]]), *reading.notes)
    return replace(reading, facts=_sharded(facts), notes=notes, unread=(*unread, *reading.unread))


def _another(engine: Fact | None, before: Fact) -> str:
    """How the trainer runs, where it is not started itself on FSDP."""
    if before.value not in ("-m", "--module"):
        return f"started by {shown(before.value)}"
    return f"on {shown(engine.value)}" if engine and engine.value != "fsdp" else ""


def _stated(words: list[Fact]) -> tuple[dict[str, Fact], list[Fact]]:
    """The options by key, of which the last counts, and words that are none."""
    found, others = {}, []
    for word in words:
        text = str(word.value)
        if option := _OPTION.fullmatch(text):
            found[option[1]] = Fact(option[2].strip("\"'"), word.line)
        elif text and not text.startswith("$"):
            others.append(Fact(f"{shown(text)} (no option of the form key=value)", word.line))
    return found, others


def _reading(values: Values, path: str) -> Reading:
    facts = _sizes(values)
    unknown = model_of_repository(values, "model.path", facts)
    unread = optimizer(values, facts, "optim.optimizer", _OPTIMIZERS)
    unread += values.besides(("hf_model",), "model", "another kind of model's options")
    unread += packed_weights(values, "model.path", None)
    if not _on(values, "model.use_remove_padding"):
        why = "documents padded to the longest of their micro-batch are not modelled"
        unread.append(Fact(f"model.use_remove_padding false ({why})", 1))
    strategy = values.word(_ENGINES, "engine.strategy")
    full = _on(values, "model.enable_gradient_checkpointing")
    not_understood, noted = judged(unjudged(values, _LISTS), _LISTS, "{}")
    return Reading(
        framework="verl-sft", engine=strategy.value if strategy else "verl-fsdp", path=path,
        facts=facts, unknown_model=unknown, recompute=Recompute("full" if full else "none"),
        defers_sums=True, ignored=values.ignored(), unread=(*unread, *not_understood),
        notes=(*_by_default(values), *_too_long(facts), *noted, _SUMS),
    )  # fmt: skip


_SUMS = ("gradients of a step's micro-batches add up whole, as since July 2026; releases before "
         "reduced each micro-batch's")  # fmt: skip


def _sizes(values: Values) -> dict[str, Fact]:
    """What a step and a micro-batch hold, and how it is sharded and cut."""
    degree = _count(values, _ULYSSES)
    packs = _on(values, "data.use_dynamic_bsz")
    most, each = values.count(_MOST), values.count(_EACH)
    facts = {
        "precision": Fact("bf16", 1),
        "documents": _count(values, _BATCH),
        "longest_document": _count(values, _LONGEST),
    }
    if packs:
        most = most or Fact(_DEFAULTS[_MOST], 1)
        facts["tokens_at_once"] = Fact(most.value * degree.value, most.line)
    else:
        facts["documents_at_once"] = each or Fact(_DEFAULTS[_EACH], 1)
    facts["zero_stage"] = Fact(3 if _on(values, "engine.reshard_after_forward") else 2, 1)
    if degree.value > 1:
        facts |= {"context_parallel": degree, "context_kind": Fact("all_to_all", degree.line)}
    states = values.word(_STATES, "engine.model_dtype")
    put(facts, shard_group=_group(values), optimizer_states=states)
    return facts


def _group(values: Values) -> Fact | None:
    """GPUs that share one copy of the states; None: all (a negative number)."""
    name = "engine.fsdp_size"
    stated = values.found.get(name)
    values.asked.add(name)
    return None if stated and str(stated.value).startswith("-") else values.count(name)


def _count(values: Values, name: str) -> Fact:
    return values.count(name) or Fact(_DEFAULTS[name], 1)


def _on(values: Values, name: str) -> bool:
    """A switch that is on by default."""
    fact = values.flag(name)
    return fact is None or bool(fact.value)


def _by_default(values: Values) -> list[str]:
    """A note of the sizes that the script leaves to verl."""
    counts = _MOST if _on(values, "data.use_dynamic_bsz") else _EACH
    names = (_BATCH, counts, _LONGEST)
    left = [f"{name}={_DEFAULTS[name]}" for name in names if name not in values.found]
    return [f"not stated, so verl's default: {', '.join(left)}"] if left else []


def _too_long(facts: Mapping[str, Fact]) -> list[str]:
    """A note where a document may be longer than a micro-batch, at which verl stops
    (verl/utils/seqlen_balancing.py, rearrange_micro_batches).
    """
    longest, most = facts["longest_document"], facts.get("tokens_at_once")
    if most is None or longest.value <= most.value:
        return []
    return [f"line {longest.line}: a document of more than the {most.value:,} tokens of a "
            f"micro-batch stops the run; {_LONGEST} lets {longest.value:,} in"]  # fmt: skip


def _sharded(facts: dict[str, Fact]) -> dict[str, Fact]:
    """The facts without a group that is no smaller than the world: one group of all."""
    group, gpus = facts.get("shard_group"), facts.get("gpus")
    if group and gpus and group.value >= gpus.value:
        del facts["shard_group"]
    return facts
