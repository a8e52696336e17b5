"""Megatron-Bridge overrides (and NeMo's YAML, which names the same things in other sections).

    ours                 theirs
    tensor_parallel      model.tensor_model_parallel_size
    virtual_stages       model.virtual_pipeline_model_parallel_size
    uneven stages        model.pipeline_model_parallel_layout "Et*3|t*4|t*3L"
    zero_stage 1         ddp.use_distributed_optimizer (and the same under optimizer)
    zero_stage 2, 3      ddp.use_megatron_fsdp, dist.use_megatron_fsdp,
                         ddp.data_parallel_sharding_strategy
    context_kind         model.cp_comm_type
    dispatcher           model.moe_token_dispatcher_type, model.moe_flex_dispatcher_backend
    batch                train.micro_batch_size, train.global_batch_size
    seq_len              dataset.seq_length, model.seq_length; of packed samples see `packs`
    precision            mixed_precision: bf16_mixed, bf16_with_fp8_current_scaling_mixed ...
    userbuffers          comm_overlap.tp_comm_overlap, NeMo's model.ub_tp_comm_overlap
    lora                 peft.dim, peft.target_modules, of a recipe for PEFT
    gradients of 16 bit  mixed_precision, built from its class: grad_reduce_in_fp32: false (the
                         engines whose recipes do so), or fp16_mixed; other recipes' names mean 32
    loss                 model.cross_entropy_loss_fusion, model.cross_entropy_fusion_impl

A recipe states the model and every default; the overrides state the layout. Written as YAML (for
`--config-file`) and as `KEY=VALUE` words (for `run_recipe.py`); both are read, also inside a
script, and so is NeMo's YAML (`trainer`, `exp_manager`).

Source: NVIDIA-NeMo/Megatron-Bridge@067f987d `src/megatron/bridge/training/config.py`,
`training/mixed_precision.py`, `scripts/training/run_recipe.py`,
`tutorials/recipes/llama/conf/llama32_1b_pretrain.yaml`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from meshplan.costmodels.training import Precision
from meshplan.executor.frameworks.adapters import of_bridge
from meshplan.executor.frameworks.documents.composed import composed
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.keys.lists import NEMO, judged
from meshplan.executor.frameworks.megatron.core_loss import loss_of
from meshplan.executor.frameworks.megatron.exchanges import exposed
from meshplan.executor.frameworks.megatron.model_config import model_config_of, model_unread
from meshplan.executor.frameworks.megatron.pipeline_layout import groups_unread
from meshplan.executor.frameworks.megatron.settings import (
    COUNTS,
    layout_facts,
    optimizer_unread,
    training_facts,
)
from meshplan.executor.frameworks.nemo.core_fields import in_megatrons_words
from meshplan.executor.frameworks.nemo.devices import gpus_of_file
from meshplan.executor.frameworks.nemo.mixed_precision import MIXED, NARROW_RECIPES, OWN_FIELDS
from meshplan.executor.frameworks.nemo.overrides import (
    Entries,
    is_words,
    words_of,
)
from meshplan.executor.frameworks.nemo.packs import packed_length
from meshplan.executor.frameworks.nemo.recipe import (
    data_length,
    leaves_sharding,
    left_to_recipe,
    lengths,
    of_towers,
    sharding,
)
from meshplan.executor.frameworks.nemo.recipe_functions import claims as is_recipe
from meshplan.executor.frameworks.nemo.recipe_functions import runs_of_functions
from meshplan.executor.frameworks.nemo.recipe_section import run_of_file
from meshplan.executor.frameworks.nemo.recipe_unread import changed_model, of_unknown
from meshplan.executor.frameworks.nemo.run import Run
from meshplan.executor.frameworks.nemo.run_settings import (
    averaged,
    keeps_scores,
    of_run,
    sums_narrow,
    tuning_length,
)
from meshplan.executor.frameworks.nemo.scripts import of_arrays, runs_of
from meshplan.executor.frameworks.nemo.sections import (
    JUDGED,
    check_trains,
    is_known,
    is_nemo,
    megatron_facts,
)
from meshplan.executor.frameworks.shell.launching.launches import started_with
from meshplan.executor.frameworks.shell.script import SCRIPTS
from meshplan.planner.case.reading import (
    Fact,
    Mode,
    NothingToRead,
    Reading,
    Start,
    UnreadableConfig,
)

_DEGREES = frozenset(
    (
        *COUNTS.values(),
        *("virtual_pipeline_model_parallel_size", "use_distributed_optimizer"),
        *("recompute_granularity", "use_megatron_fsdp", "num_layers", "hidden_size"),
    )
)
_HERE = re.compile(r"(?<!<)<<-?[ \t]*['\"]?[A-Za-z_]")


def claims(name: str, text: str) -> bool:
    """Whether a file looks like Megatron-Bridge or NeMo overrides."""
    if name.endswith(".toml"):
        return False
    if name.endswith(".py"):
        return is_recipe(name, text)
    if name.endswith(SCRIPTS) and re.search(r"^[^#\n]*scripts/training/run_recipe\.py", text, re.M):
        return True
    return bool(re.search(r"\b(?:tensor|pipeline)_model_parallel_size\s*[:=]", text)) or (
        bool(re.search(r"^(train|ddp):\s*$", text, re.M)) and "micro_batch_size:" in text
    )


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """Overrides in YAML or as KEY=VALUE words; raises `UnreadableConfig` and `IllegalConfig`.

    `start`: the environment and the arguments that a script of them is started with.
    """
    words = path.endswith(SCRIPTS) or is_words(text)
    runs = runs_of(text, path, start) if words else []
    if path.endswith(".py"):
        runs = runs_of_functions(text, path, start.environment if start else None)
    if not runs:
        given = start.environment if start else None
        whole = words_of(text) if words else composed(text, path)
        found = whole.found if words else resolved(whole.found, whole.text, given)
        left = whole.left
        if path.endswith(SCRIPTS):
            _check_followed(found, text)
            left = tuple(of_arrays(text, path, start))
        run = Run(found) if words or is_nemo(found) else run_of_file(found)
        runs = [replace(run, unread=(*run.unread, *left), notes=whole.notes())]
    first, *others = (_reading(run, path) for run in runs)
    return replace(first, others=tuple(others))


def _check_followed(found: Mapping[str, Fact], text: str) -> None:
    """Raises `UnreadableConfig` where no command that is followed takes a script's overrides, and
    they wait for variables or may stand in a here-document.
    """
    inside = _HERE.search(text) is not None
    for name, fact in found.items():
        if name.rpartition(".")[2] in _DEGREES and (inside or "$" in str(fact.value)):
            why = "here-documents and files that it sources are not read"
            raise UnreadableConfig(
                f"no command of the script that is followed takes {name}={shown(fact.value)}: "
                f"{why}; check the overrides as KEY=VALUE words in a file", fact.line,
            )  # fmt: skip


def _reading(run: Run, path: str) -> Reading:
    found = data_length(run.found)
    nemo = is_nemo(found)
    found = found if nemo else sharding(found)
    check_trains(found)
    plain, unread, in_part = _in_megatrons_words(found, nemo=nemo)
    values = _entries(plain, run)
    facts, placement, recompute, notes = layout_facts(values, offload_fraction=0.0)
    facts |= training_facts(values)
    packed = () if nemo else packed_length(found, values, facts)
    unread += [] if nemo else optimizer_unread(values, "optimizer.optimizer")
    if _precision(facts) in ("bf16", "fp16"):
        put(facts, precision=values.word(MIXED, "mixed_precision", "precision"))
    unread += _precision_off(values) if "precision" not in facts else []
    lora, of_adapters = (None, []) if nemo else of_bridge(found)
    put(facts, gpus=gpus_of_file(values, nemo=nemo) or run.gpus, gpus_open=run.gpus_open)
    put(facts, lora=lora, model=run.model)
    config = model_config_of(values)
    unread += [*changed_model(run, plain, values), *groups_unread(values, facts)]
    engine = "megatron" if _sums_wide(values) and lora is None else "megatron-bridge"
    if not facts.keys() - {"schedule"} and not (_elsewhere(found) or run.whole):
        raise NothingToRead("no layout found, such as model.tensor_model_parallel_size")
    assumed = _assumed_sharding(found, facts, read=nemo or run.whole)
    userbuffers = values.flag("tp_comm_overlap", "ub_tp_comm_overlap")
    implied = set() if nemo else _implied(found, _precision(facts))
    settings = [(name, fact) for name, fact in _settings(found, values) if name not in implied]
    not_understood, noted = judged(settings, NEMO, "{}")
    unread += of_unknown(run, values)
    of_trainer, beside = _of_nemo(found, facts, recompute.mode) if nemo else ([], [])
    return Reading(
        framework="bridge",
        engine=engine,
        path=path,
        facts=facts,
        placement=placement,
        recompute=recompute,
        gradient_bytes=2.0 if nemo and sums_narrow(found) else 0.0,
        loss="" if nemo else loss_of(values, whole=run.whole),
        model_config=None if in_part else config,
        expert_tensor_follows=True,
        userbuffers=None if userbuffers is None else bool(userbuffers.value),
        exposed=exposed(values, usual=True),
        ignored=values.ignored(),
        unknown_model=run.named,
        left_to_recipe=_left_to_recipe(run, plain if nemo else found, nemo=nemo),
        notes=(
            *run.notes, *in_part, *assumed, *packed, *notes, *noted, *beside,
            *values.suspects(COUNTS.values()),
        ),
        unread=(
            *run.unread, *unread, *of_adapters, *model_unread(values), *not_understood, *of_trainer,
        ),
    )  # fmt: skip


def _in_megatrons_words(
    found: Mapping[str, Fact], *, nemo: bool
) -> tuple[dict[str, Fact], list[Fact], tuple[str, ...]]:
    """What is stated by Megatron's names, what of it is not understood, and notes."""
    if nemo:
        plain, unread = megatron_facts(found)
        return plain, [*unread, *_left_open(plain)], ()
    plain, in_part = in_megatrons_words(_plain(found), found)
    beside = (*_elsewhere(found), *lengths(found), *of_towers(found))
    return plain, [*_left_open(plain), *beside], in_part


def _precision(facts: Mapping[str, Fact]) -> Precision:
    """As it is stated, else as recipes have it."""
    stated: Precision = facts.get("precision", Fact("bf16", 1)).value
    return stated


def _precision_off(values: Entries) -> list[Fact]:
    """`bf16: false` where no other format is on: recipes' bf16 is not what runs."""
    off = values.flag("bf16")
    why = "and no other format is on: which one the run has is not said"
    return [Fact(f"bf16 false ({why})", off.line)] if off and not off.value else []


def _left_to_recipe(run: Run, stated: Mapping[str, Fact], *, nemo: bool) -> Mapping[str, str]:
    """Fields that a recipe which was not read may set; NeMo's YAML of a run is all of it."""
    return {} if run.whole or (nemo and run.waits is None) else left_to_recipe(stated)


def _entries(plain: Mapping[str, Fact], run: Run) -> Entries:
    """What is stated, without what is left to the launch; a script's own start decides the rest."""
    waits = run.waits
    return Entries(
        {name: fact for name, fact in plain.items() if fact.value != -1},
        None if waits is None else lambda value: started_with(value, waits),
    )


def _assumed_sharding(
    found: Mapping[str, Fact], facts: dict[str, Fact], *, read: bool
) -> tuple[str, ...]:
    """Adds the ZeRO stage that defaults mean where nothing states one, and says so of recipes that
    are not `read`.
    """
    if read and "zero_stage" not in facts and "optimizer" in facts:
        put(facts, zero_stage=Fact(0, facts["optimizer"].line))
    if read or not leaves_sharding(found):
        return ()
    facts["zero_stage"] = Fact(1, 1)
    return ("use_distributed_optimizer is not stated: on, as NVIDIA's recipes have it",)


def _sums_wide(values: Entries) -> bool:
    """Whether gradients are summed in 32 bits, as the engine `megatron` does; `megatron-bridge`
    sums in 16, and has LoRA.
    """
    wide, recipe = values.flag("grad_reduce_in_fp32"), values.get("mixed_precision")
    return bool(wide.value) if wide else recipe is None or recipe.value not in NARROW_RECIPES


def _of_nemo(
    found: Mapping[str, Fact], facts: dict[str, Fact], mode: Mode
) -> tuple[list[Fact], list[str]]:
    """What NeMo's trainer sets and is not modelled, and notes; adds the length of its samples."""
    unread, notes = of_run(found)
    unread += [*keeps_scores(found, mode), *averaged(found)]
    return unread, [*notes, *tuning_length(found, facts)]


def _implied(found: Mapping[str, Fact], precision: Precision) -> set[str]:
    """Fields of a `mixed_precision` written out that its named recipe sets to the same value."""
    own = OWN_FIELDS.get(precision, {})
    entries = {name: found.get(f"mixed_precision.{name}") for name in own}
    return {name for name, fact in entries.items() if fact and fact.value == own[name]}


def _left_open(plain: Mapping[str, Fact]) -> list[Fact]:
    """Degrees of -1: the launch decides them (of the GPUs, that is a fact that is missing)."""
    why = "left to the launch"
    return [
        Fact(f"{name} -1 ({why})", fact.line)
        for name, fact in plain.items()
        if fact.value == -1 and name in _DEGREES
    ]


def _elsewhere(found: Mapping[str, Fact]) -> list[Fact]:
    """Degrees and sharding in sections that are not known, such as FlagScale's `system`."""
    why = "in a section that is not known"
    return [
        Fact(f"{name} ({why})", fact.line)
        for name, fact in found.items()
        if name.rpartition(".")[2] in _DEGREES and not is_known(name) and fact.value is not None
    ]


def _settings(found: Mapping[str, Fact], values: Values) -> list[tuple[str, Fact]]:
    """The entries right below the sections that set the model and its layout, if nobody read
    them; a section of its own counts as one entry.
    """
    unasked = {name for name, _ in values.unasked()}
    settings = []
    on = {name: fact for name, fact in found.items() if fact.value not in (None, False)}
    sections = {name.rpartition(".")[0]: fact.line for name, fact in reversed(list(on.items()))}
    below = {name: Fact(True, line) for name, line in sections.items() if name not in found}
    for name, fact in (below | dict(found)).items():
        section, _, last = name.rpartition(".")
        holds = any(other.startswith(name + ".") for other in on) if fact.value is None else False
        holds = holds or name in below
        if section in JUDGED and last not in values.asked and (last in unasked or holds):
            settings.append((last, Fact(True, fact.line) if holds else fact))
    return settings


def _plain(found: Mapping[str, Fact]) -> dict[str, Fact]:
    """Facts by their last name; of the same name in several sections, the deepest under `model`."""
    plain: dict[str, Fact] = {}
    for name, fact in found.items():
        root, _, _ = name.partition(".")
        last = name.rpartition(".")[2]
        stated = is_known(name) and fact.value is not None
        if stated and (last not in plain or root == "model"):
            plain[last] = fact
    return plain
