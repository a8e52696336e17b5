"""Reads torchtitan's configurations: the facts of TOML (0.2) or of a Python function (0.3).

Absent settings are the version's defaults: FSDP over what is left of the world, `local_batch_size`
8, 1F1B, stages in which the ends count as a layer, selective checkpointing (in 0.2 of every second
layer, in 0.3 by operation). Sources as in `export`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from meshplan.executor.frameworks.documents.parse import read_toml
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.export_notes import ROTATES
from meshplan.executor.frameworks.torchtitan.compiled import (
    engine_of,
    graphed,
    loss_alone,
    whole_loss,
)
from meshplan.executor.frameworks.torchtitan.function_facts import OPTION
from meshplan.executor.frameworks.torchtitan.functions import read_python
from meshplan.executor.frameworks.torchtitan.names import (
    BACKENDS,
    CONVERTERS,
    COUNTS,
    EXPERTS_CONVERTED,
    NEAREST,
    SCHEDULE_NAMES,
    SINGLE_STAGE,
    V_SHAPED,
    joined_format,
    model_named,
)
from meshplan.executor.frameworks.torchtitan.own_flavors import Own, own_model
from meshplan.executor.frameworks.torchtitan.switches import tensor_switches
from meshplan.executor.frameworks.torchtitan.unread import (
    judged_settings,
    own_settings,
    unread_of,
)
from meshplan.hardware_profiles.engine_schema import Dispatcher
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.reading import (
    Fact,
    IllegalConfig,
    Mode,
    Placement,
    Reading,
    Recompute,
    Start,
    UnreadableConfig,
)

_MARKS = ("parallelism", "training")


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """A TOML configuration, or Python's, each function a case of its own.

    Raises `UnreadableConfig` and `IllegalConfig`.
    """
    if not path.endswith(".py"):
        return _reading(read_toml(text), path, python=False)
    found = _with_option(read_python(text, path, start.environment if start else None), text)
    cases = [
        (f"the configuration {shown(name)}", facts)
        for name, facts in found.items()
        if len(found) == 1 or any(key.startswith(_MARKS) for key in facts)
    ]
    if not cases:
        raise UnreadableConfig("no function with a ParallelismConfig or TrainingConfig found")
    read = [(name, _dated(_reading(facts, path, python=True), text)) for name, facts in cases]
    if len(read) == 1:
        return read[0][1]
    first, *others = (replace(each, notes=(name, *each.notes)) for name, each in read)
    return replace(first, others=tuple(others))


def read_sections(found: Mapping[str, Fact], path: str, *, python: bool) -> Reading:
    """The reading of a file's facts, which options of a command may have replaced."""
    return _reading(found, path, python=python)


_BY_OPERATOR = (
    "selective recompute is taken to be by operator, as releases since 2026-03-23 have it; in the "
    "month before it was of every second layer"
)


def _with_option(found: Mapping[str, Mapping[str, Fact]], text: str) -> dict[str, dict[str, Fact]]:
    """The functions of a Python file; of the release that has the option, 2 where one does not
    state it: from 2026-02-23 to 2026-03-23 (pytorch/torchtitan@9810191bb, until @114151ad4,
    torchtitan/config/configs.py).
    """
    usual = {f"activation_checkpoint.{OPTION}": Fact("2", 1)} if OPTION in text else {}
    return {name: {**usual, **facts} for name, facts in found.items()}


def _dated(reading: Reading, text: str) -> Reading:
    """With a note where the file does not say of which release its selective recompute is."""
    undated = "ActivationCheckpointConfig" in text and OPTION not in text
    said = (_BY_OPERATOR,) if undated and reading.recompute.mode == "selective" else ()
    return replace(reading, notes=(*reading.notes, *said))


def _expert_tensor(values: Values, facts: Mapping[str, Fact]) -> Fact:
    """Ranks that share an expert: without expert parallelism those of tensor parallelism, whatever
    is stated; else 1 unless stated.

    Source: pytorch/torchtitan v0.2.2 torchtitan/models/llama4/infra/parallelize.py
    (apply_moe_ep_tp: `ep_mesh is None`), main torchtitan/models/common/moe_sharding.py
    (expert_param_placement_dense).
    """
    stated = values.count("parallelism.expert_tensor_parallel_degree")
    alone = facts.get("expert_parallel", Fact(1, 1)).value == 1
    if alone and "tensor_parallel" in facts:
        return facts["tensor_parallel"]
    return stated or Fact(1, 1)


def _reading(found: Mapping[str, Fact], path: str, *, python: bool) -> Reading:
    values = Values(_renamed(found))
    if not (values.has("parallelism") or values.has("training")):
        raise UnreadableConfig("no [parallelism] or [training] section found")
    facts: dict[str, Fact] = {}
    put(facts, **{ours: values.count(name) for ours, name in COUNTS.items()})
    put(facts, seq_len=facts.get("seq_len") or values.count("training.max_context_length"))
    put(facts, expert_tensor_parallel=_expert_tensor(values, facts))
    _read_sharding(values, facts)
    notes = _read_batch(values, facts)
    placement, like = _read_stages(values, facts)
    notes += like
    sequence = values.flag("parallelism.enable_sequence_parallel") or Fact(True, 1)
    split = facts.get("tensor_parallel", Fact(1, 1)).value > 1
    put(facts, sequence_parallel=Fact(sequence.value and split, sequence.line))
    put(facts, precision=_precision(values), optimizer=_optimizer(values), model=_model(values))
    put(facts, optimizer_states=_states(values))
    exchanges, engine = _read_exchanges(values, facts), engine_of(values, python=python)
    recompute = _recompute(values, python=python)
    not_modelled, noted = ([], graphed(values, facts)) if python else judged_settings(values)
    own = _own(values, path)
    if own.config:
        facts.pop("model", None)
        notes.append(own.said)
    whole, beside = tensor_switches(values, facts)
    notes = [*notes, *noted, *beside, *loss_alone(values), *whole_loss(values)]
    if recompute.mode == "selective":
        policy = load_engine("torchtitan").legality.recompute_modules
        put(facts, selective_modules=Fact(policy, 1))
    return Reading(
        framework="torchtitan",
        engine=engine,
        path=path,
        facts=facts,
        placement=placement,
        recompute=recompute,
        model_config=own.config,
        unknown_model="" if own.config or "model" in facts else _named(values),
        ignored=values.ignored(),
        unread=(*own.named, *exchanges, *whole, *not_modelled, *unread_of(values)),
        notes=(*notes, *own_settings(values), *values.suspects(COUNTS.values())),
    )


_OLD_DEGREE, _PIPELINE = "data_parallel_degree", "pipeline_parallel_degree"


def _renamed(found: Mapping[str, Fact]) -> dict[str, Fact]:
    """Degrees of [training] and [experimental], and what stages are, where torchtitan before 0.1
    and flame have them.

    In 2024 `data_parallel_degree` was FSDP's, unless `data_parallel_type` was ddp
    (pytorch/torchtitan before c9b17cca, torchtitan/config_manager.py); a pipeline then cut its
    batch otherwise.
    """
    old = {
        f"parallelism.{name.partition('.')[2]}": fact
        for name, fact in found.items()
        if (name.startswith(("training.", "experimental.")) and name.endswith("_degree"))
        or name.startswith("experimental.pipeline_parallel_")
    }
    kind, pipeline = (old.get(f"parallelism.{name}") for name in (_OLD_DEGREE, _PIPELINE))
    sharded = found.get("training.data_parallel_type", Fact("fsdp", 1)).value == "fsdp"
    if kind is not None and sharded and (pipeline is None or pipeline.value == 1):
        del old[f"parallelism.{_OLD_DEGREE}"]
        old["parallelism.data_parallel_shard_degree"] = kind
    return {**old, **found}


def _read_sharding(values: Values, facts: dict[str, Fact]) -> None:
    replicate = values.count("parallelism.data_parallel_replicate_degree") or Fact(1, 1)
    shard = values.count("parallelism.data_parallel_shard_degree", least=-1) or Fact(-1, 1)
    policies = {"always": 3, "never": 2, "default": 0}
    policy = values.word(policies, "parallelism.fsdp_reshard_after_forward") or Fact(0, 1)
    if shard.value == 0:
        raise IllegalConfig(
            "data_parallel_shard_degree is 0; -1 means all that is left", shard.line
        )
    if shard.value > 0:
        put(facts, data_parallel=Fact(replicate.value * shard.value, shard.line))
    pipelined = facts.get("pipeline_parallel", Fact(1, 1)).value > 1
    stage = policy.value or (2 if pipelined else 3)
    context = facts.get("context_parallel", Fact(1, 1)).value
    sharded = shard.value != 1 or context > 1
    put(facts, zero_stage=Fact(stage if sharded else 0, policy.line if sharded else shard.line))
    if sharded and replicate.value > 1:
        put(facts, shard_replicas=replicate)


def _read_exchanges(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """The kinds of the exchanges that there are; returns what is not understood."""
    rotate = values.word(ROTATES, "parallelism.context_parallel_rotate_method")
    if facts.get("context_parallel", Fact(1, 1)).value > 1:
        put(facts, context_kind=rotate or Fact("all_gather", 1))  # its default, in every version
    words: dict[str, Dispatcher] = {**BACKENDS, "hybridep": "hybridep"}
    backend = values.word(words, "parallelism.expert_parallel_comm_backend")
    if facts.get("expert_parallel", Fact(1, 1)).value == 1:
        return []
    named = values.get("model.moe_comm_backend")
    if backend is None and named is not None:
        if str(named.value) not in words:
            why = "this exchange of tokens is not modelled"
            return [Fact(f"moe_comm_backend {shown(named.value)} ({why})", named.line)]
        backend = Fact(words[str(named.value)], named.line)
    put(facts, dispatcher=backend or Fact("all_to_all", 1))  # its default, in every version
    return []


def _read_batch(values: Values, facts: dict[str, Fact]) -> list[str]:
    """Micro-batch and global batch; returns a note when a step runs the pipeline several times."""
    pipelined = facts.get("pipeline_parallel", Fact(1, 1)).value > 1
    total = values.count("training.global_batch_size", least=-1)
    total = total if total and total.value > 0 else None
    local = values.count("training.local_batch_size", "training.batch_size")  # flame's, and before
    tokens = values.count("training.num_tokens_per_microbatch_per_dp_rank")
    split = values.count("parallelism.pipeline_parallel_microbatch_size") or Fact(1, 1)
    if tokens and "seq_len" in facts:  # after 0.3.0: batches are counted in tokens
        micro = Fact(max(1, tokens.value // facts["seq_len"].value), tokens.line)
        put(facts, micro_batch_size=micro)
        if pipelined:
            put(facts, num_micro_batches=values.count("parallelism.num_pp_microbatches"))
        return []
    local = local or Fact(8, 1)
    put(facts, micro_batch_size=split if pipelined else local, global_batch_size=total)
    if not pipelined:
        rounds = values.count("training.gradient_accumulation_steps")  # flame's
        put(facts, num_micro_batches=None if total else rounds or Fact(1, local.line))
        return []
    if local.value % split.value:
        raise IllegalConfig(
            f"local_batch_size {local.value} is not a multiple of "
            f"pipeline_parallel_microbatch_size {split.value}",
            local.line,
        )
    if total is None:
        put(facts, num_micro_batches=Fact(local.value // split.value, local.line))
        return []
    replicas = facts.get("data_parallel")
    return _rounds(total, local, replicas.value) if replicas else []


def _rounds(total: Fact, local: Fact, replicas: int) -> list[str]:
    """Notes where the global batch takes several runs of a pipeline, which must be whole ones."""
    once = local.value * replicas
    if total.value % once:
        raise IllegalConfig(
            f"global_batch_size {total.value} is not a multiple of local_batch_size "
            f"{local.value} x {replicas} replicas = {once}",
            total.line,
        )
    if total.value == once:
        return []
    return ["a step runs the pipeline several times; priced as if it ran once, with less bubble"]


def _read_stages(values: Values, facts: dict[str, Fact]) -> tuple[Placement, list[str]]:
    pp = facts.get("pipeline_parallel", Fact(1, 1))
    name, notes = _schedule(values, pp.line)
    if pp.value == 1:
        put(facts, schedule=Fact("1f1b", pp.line), virtual_stages=Fact(1, pp.line))
        return Placement(rule="weighted"), []
    put(facts, schedule=Fact(SCHEDULE_NAMES[name.value], name.line))
    parts = values.get("parallelism.module_fqns_per_model_part")
    if parts is not None:
        return _given(parts, pp.value, facts), notes
    first = values.count("parallelism.pipeline_parallel_first_stage_less_layers", least=0)
    last = values.count("parallelism.pipeline_parallel_last_stage_less_layers", least=0)
    per_stage = values.count("parallelism.pipeline_parallel_layers_per_stage")
    if per_stage is None or name.value in V_SHAPED:
        chunks = 1 if name.value in SINGLE_STAGE else 2
        put(facts, virtual_stages=Fact(chunks, name.line))
    placement = Placement(
        rule="weighted",
        embedding=first.value if first else 1,
        head=last.value if last else 1,
        layers_per_stage=per_stage.value if per_stage else None,
        line=(per_stage or name).line,
    )
    return placement, notes


def _schedule(values: Values, line: int) -> tuple[Fact, list[str]]:
    """The schedule in torchtitan's spelling (it reads any case), or the one it is priced as."""
    stated = values.get("parallelism.pipeline_parallel_schedule")
    if stated is None:
        return Fact("1F1B", line), []
    names = {name.lower(): name for name in (*SCHEDULE_NAMES, *NEAREST)}
    name = names.get(str(stated.value).lower())
    if name is None:
        known = ", ".join(names.values())
        raise UnreadableConfig(
            f"schedule {shown(stated.value)} is not priced; known are {known}", stated.line
        )
    nearest = NEAREST.get(name, name)
    notes = [] if nearest == name else [f"line {stated.line}: {name} is priced as {nearest}"]
    own = values.get("parallelism.pipeline_parallel_schedule_csv")
    if own and own.value:
        notes.append(f"line {own.line}: the order in {shown(own.value)} is not read")
    return Fact(nearest, stated.line), notes


def _given(parts: Fact, pp: int, facts: dict[str, Fact]) -> Placement:
    stages = parts.value
    if not (isinstance(stages, list) and stages and all(isinstance(s, list) for s in stages)):
        raise UnreadableConfig("module_fqns_per_model_part must be lists of names", parts.line)
    if len(stages) % pp:
        raise IllegalConfig(
            f"module_fqns_per_model_part has {len(stages)} parts, not a multiple of pp {pp}",
            parts.line,
        )
    put(facts, virtual_stages=Fact(len(stages) // pp, parts.line))
    counts = tuple(sum(str(name).startswith("layers.") for name in stage) for stage in stages)
    return Placement(rule="given", layers=counts, line=parts.line)


def _recompute(values: Values, *, python: bool) -> Recompute:
    rules = {mode: Recompute(mode) for mode in get_args(Mode)}
    mode = values.word(rules, "activation_checkpoint.mode")
    option = values.get("activation_checkpoint.selective_ac_option")
    rule = mode.value if mode else Recompute("selective")
    assert isinstance(rule, Recompute)
    if rule.mode == "selective" and (option or not python):
        every = str(option.value if option else "2")
        if every.isdecimal() and len(every) < 10 and int(every):
            return Recompute("full", every=int(every))
    return rule


def _precision(values: Values) -> Fact | None:
    converters = values.get("model.converters")
    listed = converters.value if converters and isinstance(converters.value, list) else []
    experts = values.get(EXPERTS_CONVERTED)
    silent = () if experts and experts.value else ("quantize.grouped_mm.mx",)
    known = [name for name in listed if isinstance(name, str) and name in CONVERTERS]
    if formats := [CONVERTERS[name] for name in known if name not in silent]:
        return Fact(joined_format(formats), converters.line if converters else 1)
    if values.on("float8.enable_float8_linear"):  # before 0.1, which has converters
        return Fact("fp8", values.found["float8.enable_float8_linear"].line)
    stated = values.get("model.precision")
    kinds = {"bfloat16": "bf16", "float32": "fp32"}
    return stated or values.word(kinds, "training.mixed_precision_param") or Fact("bf16", 1)


def _states(values: Values) -> Fact | None:
    """Of `training.dtype` bfloat16: no fp32 copy of the weights; float32 is what is usual."""
    stated = values.word({"bfloat16": "bf16", "float32": ""}, "training.dtype")
    return stated if stated and stated.value else None


def _optimizer(values: Values) -> Fact | None:
    return values.word({"AdamW": "adamw", "Adam": "adamw"}, "optimizer.name")


def _named(values: Values) -> str:
    """How the file names its model, "" where it does not."""
    parts = (values.get(f"model.{name}") for name in ("name", "flavor", "spec"))
    named = [shown(fact.value) for fact in parts if fact is not None]
    return f"model {' '.join(named)}" if named else ""


def _model(values: Values) -> Fact | None:
    module, flavor = values.get("model.name"), values.get("model.flavor")
    if module is None or flavor is None:
        return values.get("model.ours")
    ours = model_named(module.value, flavor.value)
    return Fact(ours, flavor.line) if ours else None


def _own(values: Values, path: str) -> Own:
    """What the copy of torchtitan that holds the file says otherwise of its model."""
    module, flavor, ours = values.get("model.name"), values.get("model.flavor"), _model(values)
    if registered := values.get("model.registered"):
        module, flavor = (Fact(each, registered.line) for each in registered.value)
    if not (module and flavor):
        return Own()
    return own_model(path, str(module.value), flavor, str(ours.value or "") if ours else "")
