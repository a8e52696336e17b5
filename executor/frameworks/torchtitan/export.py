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
    context_kind               0.2: context_parallel_rotate_method = "allgather" / "alltoall"
    dispatcher                 0.2: expert_parallel_comm_backend = "standard" / "deepep"
    recompute                  [activation_checkpoint] mode; 0.3: FullAC / SelectiveAC / None
    the engine                 [compile] enable: on, but for torchtitan-eager

Sources are in `names`; batch and gradient accumulation, v0.2.2 `torchtitan/train.py`;
resharding, v0.2.2 `models/llama3/infra/parallelize.py`.
"""

import re
from dataclasses import replace
from typing import Any

from meshplan.executor.frameworks.export_notes import (
    GPUS_PER_NODE,
    Answer,
    answer_of,
    modules_unsaid,
    place_of_modules_unsaid,
    recompute_unsaid,
    torchrun_words,
    training_unsaid,
    unless,
)
from meshplan.executor.frameworks.torchtitan.names import (
    MODELS,
    SCHEDULE_NAMES,
    UNCOMPILED,
    Version,
    exchange_unsaid,
    exchange_words,
    module_names,
)
from meshplan.executor.frameworks.torchtitan.python import write_python
from meshplan.executor.frameworks.torchtitan.toml import write_toml
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import (
    CannotSay,
    Exported,
)
from meshplan.planner.case.resolve import engine_named
from meshplan.planner.space.engine_rules import check_split_backward, check_tied, replays

LATEST: Version = "0.3"


def claims(name: str, text: str) -> bool:
    """Whether a file looks like a torchtitan configuration."""
    if name.endswith(".py"):
        return "torchtitan" in text and bool(re.search(r"->\s*[\w.]*Trainer\.Config\b", text))
    return name.endswith(".toml") and bool(re.search(r"^\[(parallelism|job)\]", text, re.M))


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE, version: Version = LATEST) -> Exported:
    """`plan` for torchtitan `version`; raises `InvalidLayout` for what it would train wrongly."""
    answer = answer_of(plan, gpus_per_node)
    engine = engine_named("torchtitan")
    check_split_backward(answer.layout, engine)
    check_tied(answer.layout, answer.model, engine)
    sections, unsaid = sections_of(answer, version)
    sections["compile"] = {"enable": plan.engine not in UNCOMPILED.values()}
    flavor = MODELS.get(plan.model.name)
    if flavor is None or (version == "0.3" and flavor.module == "llama4"):
        why = f"torchtitan {version} ships no such model; register it and name it in the file"
        unsaid.append(CannotSay("model", plan.model.name, why))
    ranks = torchrun_words(answer)
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
    if training.optimizer_states == "bf16":
        batch["dtype"] = "bfloat16"
    if version == "0.2" and answer.model.is_moe:
        parallelism["expert_tensor_parallel_degree"] = la.expert_tensor_parallel
    if version == "0.3" and la.tensor_parallel > 1:
        parallelism["enable_sequence_parallel"] = la.sequence_parallel
    parallelism |= exchange_words(la, version)
    unsaid += _unsaid(answer, version)
    return {"training": batch, "parallelism": parallelism}, unsaid


def _schedule_name(answer: Answer) -> str:
    return next(
        (name for name, ours in SCHEDULE_NAMES.items() if ours == answer.layout.schedule), "1F1B"
    )


def _sharding(answer: Answer) -> tuple[dict[str, Any], list[CannotSay]]:
    """Replicas and shards; `shard_group` counts context-parallel ranks, as FSDP shards over
    both.
    """
    la, ranks = answer.layout, answer.sharding_ranks
    replicas, rest = divmod(ranks, la.shard_group or ranks)
    shard, more = divmod(la.data_parallel, replicas or 1)
    why = "FSDP2 shards all (3) or keeps weights (2)"
    zero = CannotSay("layout.zero_stage", la.zero_stage, why)
    if la.zero_stage == 0:
        unsaid = unless(la, "nothing is sharded at zero_stage 0", shard_group=0)
        if la.context_parallel > 1:
            why = "FSDP2 shards over the context group"
            unsaid = [zero, CannotSay("layout.shard_group", la.shard_group, why)]
        return _degrees(la.data_parallel, 1), unsaid
    unsaid = [zero] if la.zero_stage == 1 or ranks == 1 else []
    policy = {"fsdp_reshard_after_forward": "always" if la.zero_stage == 3 else "never"}
    if (
        rest
        or more
        or (la.shard_group and replicas == 1)
        or (shard == 1 < replicas * shard and la.context_parallel == 1)
    ):
        why = "shards must divide the replicas, and be more than one"
        whole = _degrees(1, la.data_parallel) | policy
        return whole, [*unsaid, CannotSay("layout.shard_group", la.shard_group, why)]
    return _degrees(replicas, shard) | policy, unsaid


def _degrees(replicas: int, shards: int) -> dict[str, Any]:
    return {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": shards,
    }


def _unsaid_of_experts(answer: Answer, version: Version) -> list[CannotSay]:
    la = answer.layout
    if la.expert_parallel == 1:
        why = "without expert parallelism its tensor parallelism splits the experts"
        return unless(la, why, expert_tensor_parallel=la.tensor_parallel)
    if version == "0.3":
        return unless(la, "0.3 does not split an expert then", expert_tensor_parallel=1)
    if la.expert_tensor_parallel == la.tensor_parallel:
        return []
    return unless(la, "1 or tensor_parallel", expert_tensor_parallel=1)


def _unsaid(answer: Answer, version: Version) -> list[CannotSay]:
    la, training = answer.layout, answer.training
    why = "training.enable_cpu_offload moves weights and gradients too"
    unsaid = unless(la, why, optimizer_offload=False)
    unsaid += unless(la, "it has no switch for it", activation_offload=False)
    if la.pipeline_parallel == 1:
        unsaid += unless(la, "there is no pipeline", schedule="1f1b")
    elif la.schedule not in SCHEDULE_NAMES.values():
        why = "its InterleavedZeroBubble needs two stages per rank"
        unsaid.append(CannotSay("layout.schedule", la.schedule, why))
    if la.tensor_parallel == 1:
        unsaid += unless(la, "there is no tensor parallelism", sequence_parallel=False)
    elif version == "0.2":
        unsaid += unless(la, "0.2 always splits along the sequence too", sequence_parallel=True)
    unsaid += _unsaid_of_experts(answer, version) if answer.model.is_moe else []
    unsaid += exchange_unsaid(la, version) + place_of_modules_unsaid(la)
    unsaid += recompute_unsaid(la)
    rules = engine_named("torchtitan").legality
    if not replays(la.selective_modules, rules):
        unsaid += modules_unsaid(la, "selective means its own list of operations")
    said = [word for word in rules.precisions if word != "nvfp4" or version == "0.3"]
    if training.precision not in said:
        why = f"it has {', '.join(said)}"
        unsaid.append(CannotSay("training.precision", training.precision, why))
    if training.optimizer != "adamw":
        unsaid.append(CannotSay("training.optimizer", training.optimizer, "AdamW is what it has"))
    return unsaid + training_unsaid(replace(training, optimizer_states=None))
