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
    seq_len              dataset.seq_length, model.seq_length
    precision            mixed_precision: bf16_mixed, bf16_with_fp8_current_scaling_mixed ...
    userbuffers          comm_overlap.tp_comm_overlap, NeMo's model.ub_tp_comm_overlap
    lora                 peft.dim, peft.target_modules, of a recipe for PEFT
    gradients of 16 bit  mixed_precision, built from its class: grad_reduce_in_fp32: false (the
                         engines whose recipes do so), or fp16_mixed; other recipes' names mean 32

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
from meshplan.executor.frameworks.adapters import bridge_settings, of_bridge
from meshplan.executor.frameworks.documents.nested import as_yaml
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.export_notes import GPUS_PER_NODE, LORA, answer_of
from meshplan.executor.frameworks.keys.lists import NEMO, judged
from meshplan.executor.frameworks.megatron.exchanges import exposed
from meshplan.executor.frameworks.megatron.model_config import model_config_of, model_unread
from meshplan.executor.frameworks.megatron.settings import (
    COUNTS,
    layout_facts,
    layout_settings,
    narrow_gradients,
    optimizer_unread,
    training_facts,
    training_settings,
)
from meshplan.executor.frameworks.nemo.devices import gpus_of_file
from meshplan.executor.frameworks.nemo.overrides import (
    Entries,
    as_word,
    is_words,
    words_of,
)
from meshplan.executor.frameworks.nemo.recipe import (
    data_length,
    leaves_sharding,
    left_to_recipe,
    lengths,
    of_towers,
)
from meshplan.executor.frameworks.nemo.recipe_section import run_of_file
from meshplan.executor.frameworks.nemo.run_settings import (
    keeps_scores,
    of_run,
    sums_narrow,
    tuning_length,
)
from meshplan.executor.frameworks.nemo.scripts import Run, runs_of
from meshplan.executor.frameworks.nemo.sections import (
    check_trains,
    is_known,
    is_nemo,
    megatron_facts,
)
from meshplan.executor.frameworks.shell.launches import started_with
from meshplan.executor.frameworks.shell.script import SCRIPTS
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import (
    CannotSay,
    Exported,
    Fact,
    NothingToRead,
    Reading,
    Start,
    UnreadableConfig,
)

RECIPES = {
    "llama-3-8b": "llama3_8b",
    "llama-3-70b": "llama3_70b",
    "llama-3.1-8b": "llama31_8b",
    "llama-3.1-70b": "llama31_70b",
    "llama-3.1-405b": "llama31_405b",
    "llama-3.2-1b": "llama32_1b",
    "llama-3.2-3b": "llama32_3b",
    "qwen3-8b": "qwen3_8b",
    "qwen3-14b": "qwen3_14b",
    "qwen3-32b": "qwen3_32b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "deepseek-v2-lite": "deepseek_v2_lite",
    "deepseek-v2": "deepseek_v2",
    "deepseek-v3": "deepseek_v3",
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt-oss-120b": "gpt_oss_120b",
}
MIXED: dict[str, Precision] = {
    "bf16_mixed": "bf16",
    "fp16_mixed": "fp16",
    "bf16_with_fp8_current_scaling_mixed": "fp8",
    "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
    "bf16-mixed": "bf16",
    "16-mixed": "fp16",
    "fp16-mixed": "fp16",
    "32": "fp32",
    "bf16": "bf16",
    "16": "fp16",
}
_NARROW_RECIPES = ("fp16_mixed", "fp16-mixed")
"""Recipes of `MIXED` whose gradients have 16 bit."""
_CLASS = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
_BFLOAT16 = {"_target_": "torch.bfloat16", "_call_": False}
_OWN_FIELDS: dict[Precision, dict[str, object]] = {
    "bf16": {},
    "fp8": {
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "fp8_param_gather": True,
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 1,
        "num_layers_at_end_in_bf16": 1,
    },
    "mxfp8": {
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param_gather": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param_gather": True},
}
"""What the recipe of each name sets, as the class takes it; with all of them in bf16."""
_SECTIONS = {
    "micro_batch_size": "train",
    "global_batch_size": "train",
    "seq_length": "dataset",
    "use_distributed_optimizer": "ddp",
    "use_megatron_fsdp": "ddp",
    "data_parallel_sharding_strategy": "ddp",
    "num_distributed_optimizer_instances": "ddp",
    "optimizer": "optimizer",
    "optimizer_cpu_offload": "optimizer",
    "optimizer_offload_fraction": "optimizer",
    "use_precision_aware_optimizer": "optimizer",
}
_ALSO = {
    "seq_length": "model",
    "use_distributed_optimizer": "optimizer",
    "use_megatron_fsdp": "dist",
}
_OWN = ("bf16", "fp16", "fp8", "fp4", "fp8_recipe", "fp4_recipe")
_DEGREES = frozenset(
    (
        *COUNTS.values(),
        *("virtual_pipeline_model_parallel_size", "use_distributed_optimizer"),
        *("recompute_granularity", "use_megatron_fsdp", "num_layers", "hidden_size"),
    )
)
_OFF = {
    "model.sequence_parallel": False, "model.expert_model_parallel_size": 1,
    "model.recompute_granularity": None, "model.virtual_pipeline_model_parallel_size": None,
    "model.pipeline_model_parallel_layout": None,
}  # fmt: skip
"""What a recipe may switch on, said where the layout does not have it."""
_HERE = re.compile(r"(?<!<)<<-?[ \t]*['\"]?[A-Za-z_]")
_JUDGED = ("model", "ddp", "dist", "optimizer", "mixed_precision")


def claims(name: str, text: str) -> bool:
    """Whether a file looks like Megatron-Bridge or NeMo overrides."""
    if name.endswith((".py", ".toml")):  # a recipe is a program
        return False
    if name.endswith(SCRIPTS) and re.search(r"^[^#\n]*scripts/training/run_recipe\.py", text, re.M):
        return True
    return bool(re.search(r"\btensor_model_parallel_size\s*[:=]", text)) or (
        bool(re.search(r"^(train|ddp):\s*$", text, re.M)) and "micro_batch_size:" in text
    )


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as overrides of the recipe that builds its model."""
    answer = answer_of(plan, gpus_per_node)
    layout, unsaid = layout_settings(answer)
    training, more = training_settings(answer.training)
    if answer.layout.zero_stage == 0:
        layout["use_distributed_optimizer"] = False  # which recipes switch on
    flat = _flat({**layout, **training})
    precision = answer.training.precision
    if precision == "fp32":
        more.append(CannotSay("training.precision", "fp32", "a recipe's mixed_precision is 16 bit"))
    elif precision in _OWN_FIELDS and narrow_gradients(plan.engine):
        flat["mixed_precision"] = _narrow(precision)
    else:
        flat["mixed_precision"] = next(name for name, ours in MIXED.items() if ours == precision)
    recipe = RECIPES.get(plan.model.name)
    if recipe is None:
        why = "no recipe of this name; replace RECIPE in the command by one that builds it"
        more.append(CannotSay("model", plan.model.name, why))
    recipe_kind, data = "pretrain", "--mode pretrain --dataset mock"
    if lora := answer.training.lora:
        flat |= bridge_settings(lora)
        unsaid = [each for each in unsaid if each.name != LORA]
        recipe_kind, data = "peft", "--peft_scheme lora --dataset llm-finetune"
    words = [f"{name}={as_word(value)}" for name, value in flat.items()]
    command = (
        f"torchrun --nproc-per-node {answer.gpus_per_node} --nnodes {answer.nodes} "
        f"scripts/training/run_recipe.py --recipe {recipe or 'RECIPE'}_{recipe_kind}_config "
        f"{data} $(cat overrides.txt)"
    )
    return Exported(
        framework="bridge",
        files={"overrides.yaml": as_yaml(flat), "overrides.txt": "\n".join(words) + "\n"},
        launch=command,
        cannot_say=(*unsaid, *more),
    )


def _narrow(precision: Precision) -> dict[str, object]:
    """A `MixedPrecisionConfig` whose gradients have 16 bit, as Bridge builds it from a mapping."""
    dtypes = {name: dict(_BFLOAT16) for name in ("params_dtype", "pipeline_dtype")}
    own = {"_target_": _CLASS, "bf16": True, **dtypes, **_OWN_FIELDS[precision]}
    return {**own, "grad_reduce_in_fp32": False}


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings under their sections; precision goes by `mixed_precision` instead."""
    flat: dict[str, object] = {}
    for name, value in settings.items():
        if name in _OWN:
            continue
        field = "virtual_pipeline_model_parallel_size" if name == "virtual_pipeline" else name
        flat[f"{_SECTIONS.get(name, 'model')}.{field}"] = value
        if name in _ALSO:
            flat[f"{_ALSO[name]}.{field}"] = value
    return flat | {name: value for name, value in _OFF.items() if name not in flat}


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """Overrides in YAML or as KEY=VALUE words; raises `UnreadableConfig` and `IllegalConfig`.

    `start`: the environment and the arguments that a script of them is started with.
    """
    words = path.endswith(SCRIPTS) or is_words(text)
    runs = runs_of(text, path, start) if words else []
    if not runs:
        given = start.environment if start else None
        found = words_of(text) if words else resolved(read_yaml(text), text, given)
        if path.endswith(SCRIPTS):
            _check_followed(found, text)
        runs = [Run(found) if words or is_nemo(found) else run_of_file(found)]
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
    check_trains(found)
    plain, unread = megatron_facts(found) if nemo else (_plain(found), [])
    unread += _left_open(plain)
    unread += [] if nemo else [*_elsewhere(found), *lengths(found), *of_towers(found)]
    waits = run.waits
    values = Entries(
        {name: fact for name, fact in plain.items() if fact.value != -1},
        None if waits is None else lambda value: started_with(value, waits),
    )
    facts, placement, recompute, notes = layout_facts(values, offload_fraction=0.0)
    facts |= training_facts(values)
    unread += [] if nemo else optimizer_unread(values, "optimizer.optimizer")
    if facts.get("precision", Fact("bf16", 1)).value in ("bf16", "fp16"):
        put(facts, precision=values.word(MIXED, "mixed_precision", "precision"))
    lora, more = (None, []) if nemo else of_bridge(found)
    unread += more
    put(facts, gpus=gpus_of_file(values, nemo=nemo) or run.gpus, lora=lora)
    config = model_config_of(values)
    if nemo and "zero_stage" not in facts and "optimizer" in facts:
        put(facts, zero_stage=Fact(0, facts["optimizer"].line))
    run_notes = run.notes
    if not facts.keys() - {"schedule"} and not _elsewhere(found):
        raise NothingToRead("no layout found, such as model.tensor_model_parallel_size")
    if not nemo and leaves_sharding(found):
        facts["zero_stage"] = Fact(1, 1)
        run_notes += ("use_distributed_optimizer is not stated: on, as NVIDIA's recipes have it",)
    wide, recipe = values.flag("grad_reduce_in_fp32"), values.get("mixed_precision")
    sums = wide.value if wide else recipe is None or recipe.value not in _NARROW_RECIPES
    userbuffers = values.flag("tp_comm_overlap", "ub_tp_comm_overlap")
    implied = set() if nemo else _implied(found, facts.get("precision", Fact("bf16", 1)).value)
    settings = [(name, fact) for name, fact in _settings(found, values) if name not in implied]
    not_understood, noted = judged(settings, NEMO, "{}")
    of_trainer, beside = of_run(found) if nemo else ([], [])
    beside += tuning_length(found, facts) if nemo else []
    of_trainer += keeps_scores(found, recompute.mode) if nemo else []
    return Reading(
        framework="bridge",
        engine="megatron" if sums and lora is None else "megatron-bridge",  # which has LoRA
        path=path,
        facts=facts,
        placement=placement,
        recompute=recompute,
        gradient_bytes=2.0 if nemo and sums_narrow(found) else 0.0,
        model_config=config,
        expert_tensor_follows=True,
        userbuffers=None if userbuffers is None else bool(userbuffers.value),
        exposed=exposed(values, usual=True),
        ignored=values.ignored(),
        left_to_recipe={} if nemo and waits is None else left_to_recipe(plain if nemo else found),
        notes=(*run_notes, *notes, *noted, *beside, *values.suspects(COUNTS.values())),
        unread=(*run.unread, *unread, *model_unread(values), *not_understood, *of_trainer),
    )


def _implied(found: Mapping[str, Fact], precision: Precision) -> set[str]:
    """Fields of a `mixed_precision` written out that its named recipe sets to the same value."""
    own = _OWN_FIELDS.get(precision, {})
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
        if section in _JUDGED and last not in values.asked and (last in unasked or holds):
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
