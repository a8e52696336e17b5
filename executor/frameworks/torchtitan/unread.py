"""What of torchtitan's settings nothing reads, and what no price holds: named, never guessed."""

from collections.abc import Iterator

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.keys.lists import flags_in, judged
from meshplan.executor.frameworks.torchtitan.function_facts import ASSUMED, UNCLEAR
from meshplan.executor.frameworks.torchtitan.names import CONVERTERS
from meshplan.planner.case.reading import Fact

_ON_HOST = "weights on the host are not modelled"
SPLITS = ("parallelism", "peft", "lora")
"""Sections of which every key must be read, or be one of `SPLITS_NOTHING`."""
DECIDE = ("training", "optimizer", "compile", "activation_checkpoint")
"""Sections of which every key that no list has is named."""
KNOWN = frozenset(
    (
        *("activation_checkpoint", "checkpoint", "comm", "compile", "debug", "encoder", "eval"),
        *("experimental", "fault_tolerance", "faults", "float8", "job", "lora", "lr_scheduler"),
        *("memory_estimation", "metrics", "model", "mx", "optimizer", "parallelism", "peft"),
        *("profiling", "quantize", "training", "validation"),
    )
)
"""Sections of torchtitan up to 0.2 (`config/job_config.py`; before 0.1 `config_manager.py`), and
those judged here; keys of any other are named."""
_KEYS = ("torchtitan_keys.toml",)
SPLITS_NOTHING = frozenset(
    f"parallelism.{name}"
    for name in (
        *("enable_compiled_autograd", "disable_loss_parallel", "enable_async_tensor_parallel"),
        *("context_parallel_load_balancer", "spmd_backend"),
    )
)
"""Keys of torchtitan 0.2 and 0.3 (`config/job_config.py`) that leave every degree as it is."""
_STAGES = "pipeline_parallel_degree"
_SPLIT_POINTS = "pipeline_parallel_split_points"
OF_STAGES = frozenset(
    f"parallelism.{name}"
    for name in (
        *("module_fqns_per_model_part", "pipeline_parallel_layers_per_stage"),
        *("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_schedule_csv"),
        *("pipeline_parallel_last_stage_less_layers", "pipeline_parallel_microbatch_size"),
        *("pipeline_parallel_schedule", "num_pp_microbatches", _SPLIT_POINTS),
    )
)
"""Keys that are read where there is a pipeline."""


def unread_of(values: Values) -> tuple[Fact, ...]:
    """All that may change memory or time and is not read."""
    return (
        *_unknown_converters(values),
        *_unknown_keys(values),
        *_split_points(values),
        *_below_model(values),
        *_encoders(values),
        *_semi_synchronous(values),
        *values.switched_on("training.enable_cpu_offload", _ON_HOST),
        *_unclear(values),
    )


def _unknown_converters(values: Values) -> tuple[Fact, ...]:
    """What changes the model's layers in a way that no price knows."""
    converters = values.get("model.converters")
    if converters is None or not isinstance(converters.value, list):
        return ()
    unknown = (str(name)[:40] for name in converters.value if str(name) not in CONVERTERS)
    return tuple(Fact(f"model.converters {name!r}", converters.line) for name in unknown)


def _unknown_keys(values: Values) -> tuple[Fact, ...]:
    """Keys that say how the model is split or adapted and that nothing has read."""
    keys = (name for name in values.ignored() if name.partition(".")[0] in SPLITS)
    found = ((name, values.get(name)) for name in keys if name not in SPLITS_NOTHING | OF_STAGES)
    return tuple(Fact(name, fact.line) for name, fact in found if fact and fact.value)


def _split_points(values: Values) -> Iterator[Fact]:
    """The names that stages begin with, where there is a pipeline (torchtitan up to 0.1)."""
    stages, stated = (values.get(f"parallelism.{name}") for name in (_STAGES, _SPLIT_POINTS))
    if stages is not None and stages.value != 1 and stated is not None and stated.value:
        why = "where stages begin is not read; module_fqns_per_model_part says it"
        yield Fact(f"{_SPLIT_POINTS} ({why})", stated.line)


def judged_settings(values: Values) -> tuple[list[Fact], list[str]]:
    """Of the sections that decide memory and time, what nobody reads and no price holds. A key that
    is in no list is named: forks add theirs.
    """
    listed = flags_in(*_KEYS).classes
    tolerant = values.on("fault_tolerance.enable")
    sections = (*DECIDE, "fault_tolerance") if tolerant else DECIDE
    found = [
        (name, fact)
        for name, fact in values.unasked()
        if (name.partition(".")[0] in sections or name.partition(".")[0] not in KNOWN)
        and not name.endswith("_degree")  # read by `_renamed`
    ]
    unread, notes = judged([each for each in found if each[0] in listed], _KEYS, "{}")
    names = [name for name, fact in found if name not in listed and fact.value]
    said = f"not known, and priced as if not there: {', '.join(names)}"
    return [*unread, *_beside_flavor(values)], [*notes, said] if names else notes


def _below_model(values: Values) -> tuple[Fact, ...]:
    """Sections below [model]: torchtitan's own has none, so they are of another configuration."""
    names = (name for name in values.found if name.startswith("model.") and name.count(".") > 1)
    stated = [(name, values.found[name]) for name in names]
    why = "a section below [model], which may change its sizes"
    return tuple(Fact(f"{name[:60]} ({why})", fact.line) for name, fact in stated)


_MODEL = frozenset(
    (
        *("name", "flavor", "hf_assets_path", "tokenizer_path", "tokenizer_name", "norm_type"),
        *("converters", "print_after_conversion", "use_flex_attn", "attn_mask_type"),
    )
)
"""Keys of [model] in torchtitan up to 0.2 (`config/job_config.py`, `config_manager.py`)."""


def _beside_flavor(values: Values) -> tuple[Fact, ...]:
    """Other keys of [model], of a fork or of a program that builds another model (flame's
    `config`): the flavor does not decide alone.
    """
    why = "not known, and below [model], which says the model's sizes"
    return tuple(
        Fact(f"{name[:60]} ({why})", fact.line)
        for name, fact in values.found.items()
        if name.startswith("model.") and name.count(".") == 1 and name[6:] not in _MODEL
        and fact.value is not None
    )  # fmt: skip


OWN_SETTINGS = (
    *("experimental.custom_args_module", "experimental.custom_import"),
    "job.custom_config_module",
)
"""Modules that extend torchtitan's settings (0.1 and 0.2, `config/job_config.py`)."""


def own_settings(values: Values) -> list[str]:
    """A note for a module that adds settings which no list here has, and those of a function."""
    assumed = values.get(ASSUMED)
    found = ((name, values.get(name)) for name in OWN_SETTINGS)
    return [
        f"line {fact.line}: what {name} {shown(fact.value)} adds or changes is not read"
        for name, fact in found
        if fact and fact.value
    ] + list(assumed.value if assumed else ())


def _encoders(values: Values) -> tuple[Fact, ...]:
    """A section of encoders: the model is not a language model alone."""
    line = next((fact.line for name, fact in values.found.items() if name == "encoder"), None)
    return () if line is None else (Fact("encoder (models beside the one that is read)", line),)


def _semi_synchronous(values: Values) -> list[Fact]:
    """Fault tolerance whose steps do not exchange gradients and keep a second copy of the weights
    (DiLoCo, local SGD).
    """
    if not values.on("fault_tolerance.enable"):
        return []
    why = "steps that do not exchange gradients"
    return values.besides(("None",), "fault_tolerance.semi_sync_method", why)


def _unclear(values: Values) -> tuple[Fact, ...]:
    """What a Python function does that is not read."""
    named = values.get(UNCLEAR)
    return named.value if named else ()
