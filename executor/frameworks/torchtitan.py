"""torchtitan: TOML for 0.2, a Python function returning `Trainer.Config` for 0.3, in and out.

    ours                       theirs ([parallelism] unless said)
    data_parallel              data_parallel_replicate_degree x data_parallel_shard_degree
    zero_stage 3 / 2           fsdp_reshard_after_forward = "always" / "never"
    zero_stage 0               data_parallel_shard_degree = 1 (replicas only); ZeRO-1 has no word
    shard_group                data_parallel_shard_degree x context_parallel_degree
    schedule                   pipeline_parallel_schedule ("Interleaved1F1B", "ZBVZeroBubble" ...)
    stages                     module_fqns_per_model_part, or its default: the ends count as a layer
    micro_batch_size           [training] local_batch_size; with a pipeline it is split further by
                               pipeline_parallel_microbatch_size
    recompute                  [activation_checkpoint] mode; 0.3: FullAC / SelectiveAC / None

Sources are in `torchtitan_names`; batch and gradient accumulation, v0.2.2 `torchtitan/train.py`;
resharding, v0.2.2 `models/llama3/infra/parallelize.py`.
"""

import re
from typing import Any

from executor.frameworks.documents import read_toml
from executor.frameworks.saying import (
    GPUS_PER_NODE,
    Answer,
    answer_of,
    imbalance_unsaid,
    modules_unsaid,
    recompute_unsaid,
    unless,
)
from executor.frameworks.torchtitan_names import (
    CONVERTERS,
    COUNTS,
    MODELS,
    SCHEDULES,
    SINGLE_STAGE,
    V_SHAPED,
    Version,
    model_named,
    module_names,
)
from executor.frameworks.torchtitan_python import read_python, write_python
from executor.frameworks.torchtitan_toml import write_toml
from executor.frameworks.values import Values, put
from planner.plan import Plan
from planner.reading import (
    CannotSay,
    Exported,
    Fact,
    IllegalConfig,
    Placement,
    Reading,
    Recompute,
    UnreadableConfig,
)

LATEST: Version = "0.3"


def claims(name: str, text: str) -> bool:
    """Whether a file looks like a torchtitan configuration."""
    if name.endswith(".py"):
        return "torchtitan" in text and "Trainer.Config" in text
    return name.endswith(".toml") and bool(re.search(r"^\[(parallelism|job)\]", text, re.M))


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE, version: Version = LATEST) -> Exported:
    """`plan` for torchtitan `version`."""
    answer = answer_of(plan, gpus_per_node)
    sections, unsaid = sections_of(answer, version)
    flavor = MODELS.get(plan.model.name)
    if flavor is None or (version == "0.3" and flavor.module == "llama4"):
        why = f"torchtitan {version} ships no such model; register it and name it in the file"
        unsaid.append(CannotSay("model", plan.model.name, why))
    ranks = f"torchrun --nproc-per-node {answer.gpus_per_node} --nnodes {answer.nodes}"
    if version == "0.2":
        files = {"torchtitan.toml": write_toml(plan.model.name, answer, sections)}
        launch = f"{ranks} -m torchtitan.train --job.config_file torchtitan.toml"
    else:
        files = {"meshplan_config.py": write_python(plan.model.name, answer, sections)}
        launch = f"{ranks} -m torchtitan.train --module meshplan_config --config meshplan"
    return Exported(framework="torchtitan", files=files, launch=launch, cannot_say=tuple(unsaid))


def sections_of(
    answer: Answer, version: Version
) -> tuple[dict[str, dict[str, Any]], list[CannotSay]]:
    """`training` and `parallelism` as both versions name them, and what they leave out."""
    la, training = answer.layout, answer.training
    parallelism, unsaid = _sharding(answer)
    parallelism |= {
        "tensor_parallel_degree": la.tensor_parallel,
        "pipeline_parallel_degree": la.pipeline_parallel,
        "context_parallel_degree": la.context_parallel,
        "expert_parallel_degree": la.expert_parallel,
    }
    batch: dict[str, Any] = {
        "local_batch_size": la.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_len": training.seq_len,
        "steps": 20,
    }
    if la.pipeline_parallel > 1:
        batch["local_batch_size"] = training.global_batch_size // la.data_parallel
        counts = tuple(stage.layers for stage in la.stages)
        parallelism |= {
            "pipeline_parallel_schedule": _schedule_name(answer),
            "pipeline_parallel_microbatch_size": la.micro_batch_size,
            "module_fqns_per_model_part": module_names(version, counts),
        }
    if training.precision == "fp32":
        batch["mixed_precision_param"] = "float32"
    if version == "0.2" and answer.model.is_moe:
        parallelism["expert_tensor_parallel_degree"] = la.expert_tensor_parallel
    if version == "0.3" and la.tensor_parallel > 1:
        parallelism["enable_sequence_parallel"] = la.sequence_parallel
    unsaid += _unsaid(answer, version)
    return {"training": batch, "parallelism": parallelism}, unsaid


def _schedule_name(answer: Answer) -> str:
    return next(name for name, ours in SCHEDULES.items() if ours == answer.layout.schedule)


def _sharding(answer: Answer) -> tuple[dict[str, Any], list[CannotSay]]:
    """Replicas and shards; `shard_group` counts context-parallel ranks, as FSDP shards over both."""
    la, ranks = answer.layout, answer.sharding_ranks
    replicas, rest = divmod(ranks, la.shard_group or ranks)
    shard, more = divmod(la.data_parallel, replicas or 1)
    whole = {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": la.data_parallel,
    }
    zero = CannotSay(
        "layout.zero_stage", la.zero_stage, "FSDP2 shards all (3) or keeps weights (2)"
    )
    if la.zero_stage == 0:
        unsaid = unless(la, "nothing is sharded at zero_stage 0", shard_group=0)
        replicate = {
            "data_parallel_replicate_degree": la.data_parallel,
            "data_parallel_shard_degree": 1,
        }
        if la.context_parallel > 1:
            why = "FSDP2 shards over the context group"
            unsaid = [zero, CannotSay("layout.shard_group", la.shard_group, why)]
        return replicate, unsaid
    unsaid = [zero] if la.zero_stage == 1 or ranks == 1 else []
    policy = {"fsdp_reshard_after_forward": "always" if la.zero_stage == 3 else "never"}
    if (
        rest
        or more
        or (la.shard_group and replicas == 1)
        or (shard == 1 < replicas * shard and la.context_parallel == 1)
    ):
        why = "shards must divide the replicas, and be more than one"
        return whole | policy, [*unsaid, CannotSay("layout.shard_group", la.shard_group, why)]
    split = {"data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": shard}
    return split | policy, unsaid


def _unsaid(answer: Answer, version: Version) -> list[CannotSay]:
    la, training = answer.layout, answer.training
    why = "training.enable_cpu_offload moves weights and gradients too"
    unsaid = unless(la, why, optimizer_offload=False)
    unsaid += unless(la, "it has no switch for it", activation_offload=False)
    if la.pipeline_parallel == 1:
        unsaid += unless(la, "there is no pipeline", schedule="1f1b")
    if la.tensor_parallel == 1:
        unsaid += unless(la, "there is no tensor parallelism", sequence_parallel=False)
    elif version == "0.2":
        unsaid += unless(la, "0.2 always splits along the sequence too", sequence_parallel=True)
    if version == "0.3" and answer.model.is_moe:
        unsaid += unless(la, "0.3 does not split an expert", expert_tensor_parallel=1)
    elif la.expert_tensor_parallel not in (1, la.tensor_parallel):
        unsaid += unless(la, "1 or tensor_parallel", expert_tensor_parallel=1)
    unsaid += recompute_unsaid(la)
    unsaid += modules_unsaid(la, "selective means its own list of operations")
    said = ("fp32", "bf16", "fp8", "mxfp8") + (("nvfp4",) if version == "0.3" else ())
    if training.precision not in said:
        unsaid.append(CannotSay("training.precision", training.precision, f"it has {said}"))
    if training.optimizer != "adamw":
        unsaid.append(CannotSay("training.optimizer", training.optimizer, "AdamW is what it has"))
    return unsaid + imbalance_unsaid(training)


def read(text: str, path: str) -> Reading:
    """A TOML or Python configuration; raises `UnreadableConfig` and `IllegalConfig`."""
    python = path.endswith(".py")
    values = Values(read_python(text) if python else read_toml(text))
    if not (values.has("parallelism") or values.has("training")):
        raise UnreadableConfig("no [parallelism] or [training] section found")
    facts: dict[str, Fact] = {}
    put(facts, **{ours: values.count(name) for ours, name in COUNTS.items()})
    put(facts, seq_len=facts.get("seq_len") or values.count("training.max_context_length"))
    put(facts, expert_tensor_parallel=values.count("parallelism.expert_tensor_parallel_degree"))
    facts.setdefault("expert_tensor_parallel", Fact(1, 1))
    _read_sharding(values, facts)
    notes = _read_batch(values, facts)
    placement = _read_stages(values, facts)
    sequence = values.flag("parallelism.enable_sequence_parallel") or Fact(True, 1)
    split = facts.get("tensor_parallel", Fact(1, 1)).value > 1
    put(facts, sequence_parallel=Fact(sequence.value and split, sequence.line))
    put(facts, precision=_precision(values), optimizer=_optimizer(values), model=_model(values))
    if values.on("training.enable_cpu_offload"):
        notes.append("training.enable_cpu_offload moves all sharded state to the host: not priced")
    return Reading(
        framework="torchtitan",
        engine="torchtitan",
        path=path,
        facts=facts,
        placement=placement,
        recompute=_recompute(values, python=python),
        ignored=values.ignored(),
        notes=(*notes, *values.suspects(COUNTS.values())),
    )


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


def _read_batch(values: Values, facts: dict[str, Fact]) -> list[str]:
    """Micro-batch and global batch; returns a note when a step runs the pipeline several times."""
    pipelined = facts.get("pipeline_parallel", Fact(1, 1)).value > 1
    total = values.count("training.global_batch_size", least=-1)
    total = total if total and total.value > 0 else None
    local = values.count("training.local_batch_size")
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
        put(facts, num_micro_batches=None if total else Fact(1, local.line))
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
    if replicas and total.value > local.value * replicas.value:
        return [
            "a step runs the pipeline several times; priced as if it ran once, with less bubble"
        ]
    return []


def _read_stages(values: Values, facts: dict[str, Fact]) -> Placement:
    pp = facts.get("pipeline_parallel", Fact(1, 1))
    name = values.get("parallelism.pipeline_parallel_schedule") or Fact("1F1B", pp.line)
    schedule = values.word(SCHEDULES, "parallelism.pipeline_parallel_schedule")
    if pp.value == 1:
        put(facts, schedule=Fact("1f1b", pp.line), virtual_stages=Fact(1, pp.line))
        return Placement(rule="weighted")
    put(facts, schedule=schedule or Fact("1f1b", pp.line))
    parts = values.get("parallelism.module_fqns_per_model_part")
    if parts is not None:
        return _given(parts, pp.value, facts)
    first = values.count("parallelism.pipeline_parallel_first_stage_less_layers", least=0)
    last = values.count("parallelism.pipeline_parallel_last_stage_less_layers", least=0)
    per_stage = values.count("parallelism.pipeline_parallel_layers_per_stage")
    if per_stage is None or name.value in V_SHAPED:
        chunks = 1 if name.value in SINGLE_STAGE else 2
        put(facts, virtual_stages=Fact(chunks, name.line))
    return Placement(
        rule="weighted",
        embedding=first.value if first else 1,
        head=last.value if last else 1,
        layers_per_stage=per_stage.value if per_stage else None,
        line=(per_stage or name).line,
    )


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
    modes = {"none": "none", "full": "full", "selective": "selective"}
    mode = values.word(modes, "activation_checkpoint.mode")
    option = values.get("activation_checkpoint.selective_ac_option")
    chosen = mode.value if mode else "selective"
    if chosen == "selective" and not python:
        every = str(option.value if option else "2")
        if every.isdigit() and int(every) > 0:
            return Recompute("full", every=int(every))
    return Recompute(chosen)


def _precision(values: Values) -> Fact | None:
    converters = values.get("model.converters")
    listed = converters.value if converters and isinstance(converters.value, list) else []
    for name in listed:
        if name in CONVERTERS:
            return Fact(CONVERTERS[name], converters.line if converters else 1)
    stated = values.get("model.precision")
    kinds = {"bfloat16": "bf16", "float32": "fp32"}
    return stated or values.word(kinds, "training.mixed_precision_param") or Fact("bf16", 1)


def _optimizer(values: Values) -> Fact | None:
    return values.word({"AdamW": "adamw", "Adam": "adamw"}, "optimizer.name")


def _model(values: Values) -> Fact | None:
    module, flavor = values.get("model.name"), values.get("model.flavor")
    if module is None or flavor is None:
        return values.get("model.ours")
    ours = model_named(module.value, flavor.value)
    return Fact(ours, flavor.line) if ours else None
