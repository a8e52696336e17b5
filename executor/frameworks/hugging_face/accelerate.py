"""Accelerate's ParallelismConfig, as `accelerate launch --config_file` takes it.

    ours                     theirs
    data_parallel            parallelism_config_dp_replicate_size x dp_shard_size
    shard_group              parallelism_config_dp_shard_size x cp_size, when there are replicas
    tensor_parallel          parallelism_config_tp_size
    context_parallel         parallelism_config_cp_size
    context_kind             parallelism_config_cp_comm_strategy
    zero_stage, copies       fsdp_config (`accelerate_fsdp`)
    recompute full           fsdp_config.fsdp_activation_checkpointing: true
    precision                mixed_precision: bf16, fp16, fp8, no
    world                    num_processes

The batch, the sequence and the model belong to the training code. A file that says DEEPSPEED
states the ZeRO stage, accumulation and offload itself, or points to a JSON, the one to check then.

Source: huggingface/accelerate@16cb6eb8 `src/accelerate/parallelism_config.py`,
`commands/config/config_args.py`, `examples/torch_native_parallelism/configs/*.yaml`,
`examples/config_yaml_templates/fsdp.yaml`.
"""

import re
from dataclasses import replace

import yaml

from meshplan.costmodels.layout import InvalidLayout, Layout
from meshplan.costmodels.training import Precision
from meshplan.costmodels.units import counted
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.export_notes import (
    GPUS_PER_NODE,
    ROTATES,
    Answer,
    answer_of,
    exchanges_unsaid,
    modules_unsaid,
    training_unsaid,
    unless,
)
from meshplan.executor.frameworks.hugging_face.accelerate_fsdp import (
    copies_of,
    one_unit,
    other_version,
    prefixed,
    zero_stage,
)
from meshplan.executor.frameworks.hugging_face.deepspeed import (
    bf16_without_zero,
    weights_on_the_host,
)
from meshplan.executor.frameworks.hugging_face.launch_options import processes_of
from meshplan.executor.frameworks.hugging_face.script import (
    RECOMPUTE_IN_CODE,
    loss_unsaid,
    said_by_script,
    script_files,
    script_words,
)
from meshplan.executor.frameworks.keys.lists import judged, unjudged
from meshplan.executor.frameworks.shell.script import SCRIPTS
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import (
    CannotSay,
    Exported,
    Fact,
    NothingToRead,
    Reading,
    Recompute,
    UnreadableConfig,
)

FILE = "accelerate.yaml"
PREFIX = "parallelism_config.parallelism_config_"
_ULYSSES = f"{PREFIX}sp_size"
MIXED: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "no": "fp32"}
_PLAIN = ("NO", False, "MULTI_GPU")  # plain data parallelism on GPUs; YAML reads a bare NO as false
_KEYS = ("accelerate_keys.toml", "deepspeed_keys.toml")


def claims(name: str, text: str) -> bool:
    """Whether a file looks like an Accelerate configuration."""
    return not name.endswith((*SCRIPTS, ".py")) and bool(
        re.search(r"^(distributed_type|parallelism_config|compute_environment):", text, re.M)
    )


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as an Accelerate configuration with FSDP2. Raises `InvalidLayout` for a pipeline."""
    answer = answer_of(plan, gpus_per_node)
    la, training = answer.layout, answer.training
    _check_no_pipeline(la)
    degrees, unsaid = _degrees(answer)
    mixed = next((name for name, ours in MIXED.items() if ours == training.precision), "bf16")
    document = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": mixed,
        "num_machines": answer.nodes,
        "num_processes": answer.sharding_ranks * la.tensor_parallel,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": la.zero_stage != 2,
            "fsdp_activation_checkpointing": la.recompute != "none",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": {f"parallelism_config_{k}_size": v for k, v in degrees.items()}
        | _rotates(la),
    }
    return Exported(
        framework="accelerate",
        files={FILE: yaml.safe_dump(document, sort_keys=False), **script_files(answer)},
        launch=f"accelerate launch --config_file {FILE} "
        + script_words(answer, "--accelerate", recompute=False),
        cannot_say=(*unsaid, *_unsaid(answer), *loss_unsaid(plan.engine, "accelerate")),
    )


def _check_no_pipeline(la: Layout) -> None:
    """It would train every stage's layers on every rank, and leave the other stages' GPUs idle."""
    if la.pipeline_parallel * la.virtual_stages > 1:
        raise InvalidLayout(
            f"Accelerate has no pipeline_parallel, and the plan has {la.pipeline_parallel} ranks "
            f"of {counted(la.virtual_stages, 'stage')} each; plan with --engine accelerate, or "
            "with --pp 1"
        )


def _rotates(la: Layout) -> dict[str, str]:
    """How keys and values reach the other ranks, where the layout says so."""
    if la.context_parallel == 1 or la.context_kind not in ROTATES.values():
        return {}
    name = next(name for name, ours in ROTATES.items() if ours == la.context_kind)
    return {"parallelism_config_cp_comm_strategy": name}


def _degrees(answer: Answer) -> tuple[dict[str, int], list[CannotSay]]:
    la, ranks = answer.layout, answer.sharding_ranks
    degrees = {
        "dp_replicate": 1,
        "dp_shard": la.data_parallel,
        "tp": la.tensor_parallel,
        "cp": la.context_parallel,
    }
    unsaid = []
    if la.zero_stage < 2 or ranks == 1:
        why = "FSDP2 shards all (3) or keeps weights gathered (2), with more than one rank"
        unsaid.append(CannotSay("layout.zero_stage", la.zero_stage, why))
    if la.shard_group == 0:
        return degrees, unsaid
    replicas, rest = divmod(ranks, la.shard_group)
    shard, more = divmod(la.data_parallel, replicas or 1)
    if rest or more or replicas < 2 or shard < 2 or la.zero_stage < 2:
        why = "shards must divide the replicas, and both be more than one"
        return degrees, [*unsaid, CannotSay("layout.shard_group", la.shard_group, why)]
    return degrees | {"dp_replicate": replicas, "dp_shard": shard}, unsaid


def _unsaid(answer: Answer) -> list[CannotSay]:
    la, training = answer.layout, answer.training
    unsaid = unless(
        la,
        "Accelerate has no such parallelism",
        expert_parallel=1,
        expert_tensor_parallel=1,
        sequence_parallel=False,
        schedule="1f1b",
        modules_apart=False,
    )
    if la.recompute not in ("none", "full"):
        why = "activation checkpointing is on for all layers, which is written, or off"
        unsaid.append(CannotSay("layout.stages.recompute", la.recompute, why))
    unsaid += modules_unsaid(la, "it has no selective recompute")
    why = "fsdp_offload_params moves weights and gradients too"
    unsaid += unless(la, why, optimizer_offload=False)
    unsaid += unless(la, "it has no such offload", activation_offload=False)
    unsaid += said_by_script(answer)
    if training.precision not in MIXED.values():
        unsaid.append(
            CannotSay("training.precision", training.precision, f"it has {', '.join(MIXED)}")
        )
    said = replace(la, context_kind="") if _rotates(la) else la
    return unsaid + exchanges_unsaid(said) + training_unsaid(training)


def read(text: str, path: str) -> Reading:
    """An Accelerate configuration; raises `UnreadableConfig` and `IllegalConfig`."""
    values = Values(prefixed(read_yaml(text)))
    kind = values.get("distributed_type")
    if kind is not None and kind.value == "DEEPSPEED":
        return _read_deepspeed(values, kind, path)
    if kind is None and not values.has("parallelism_config"):
        raise UnreadableConfig("no distributed_type or parallelism_config found")
    replicas = values.count(f"{PREFIX}dp_replicate_size") or Fact(1, 1)
    facts = _axes(values) | {"zero_stage": zero_stage(values, kind)}
    put(
        facts,
        gpus=processes_of(values),
        data_parallel=_data_parallel(values, replicas),
        precision=_precision(values),
    )
    put(facts, shard_replicas=copies_of(values, replicas))
    why = "moves all sharded state to the host: not modelled"
    moved = values.switched_on("fsdp_config.fsdp_offload_params", why)
    rotates, context = values.word(ROTATES, f"{PREFIX}cp_comm_strategy"), f"{PREFIX}cp_size"
    put(facts, context_kind=rotates if (values.count(context) or Fact(1, 1)).value > 1 else None)
    full = values.flag("fsdp_config.fsdp_activation_checkpointing")
    full = None if kind is not None and kind.value in _PLAIN else full  # a section left behind
    unread, noted = _judged(values, kind)
    return Reading(
        framework="accelerate",
        engine="accelerate",
        path=path,
        facts=facts,
        recompute=Recompute("full" if full and full.value else "none"),
        recompute_unsaid="" if full else RECOMPUTE_IN_CODE,
        ignored=values.ignored(),
        unread=(*moved, *one_unit(values, kind), *unread),
        notes=(
            *noted,
            *other_version(values, kind),
            *values.suspects(f"{PREFIX}{name}_size" for name in ("tp", "cp", "dp_shard")),
        ),
    )


def _read_deepspeed(values: Values, kind: Fact, path: str) -> Reading:
    """DeepSpeed's settings as Accelerate's own questions state them, without a JSON of its own.

    What Accelerate 1.15 makes of them (DeepSpeedPlugin, utils/dataclasses.py) has no overlap_comm,
    which leaves streams of their own to stage 3 (`deepspeed.py`, `_exposed`).
    """
    prefix = "deepspeed_config."
    where = values.get(f"{prefix}deepspeed_config_file")
    stage = values.word({str(n): n for n in range(4)}, f"{prefix}zero_stage")
    if where is not None or stage is None:
        target = shown(where.value) if where else "the JSON that the training code names"
        raise NothingToRead(f"it launches DeepSpeed: check {target} instead", kind.line)
    device = values.get(f"{prefix}offload_optimizer_device")
    onto = f"{prefix}offload_param_device"
    weights, without = weights_on_the_host(values, onto, stage.value)
    facts = _axes(values) | {"zero_stage": stage}
    put(
        facts,
        gpus=processes_of(values),
        num_micro_batches=values.count(f"{prefix}gradient_accumulation_steps"),
        precision=values.word(MIXED, "mixed_precision"),
        optimizer_offload=device and Fact(device.value != "none", device.line),
    )
    sections = _sections(values, prefix)
    unread, noted = _judged(values, kind)
    return Reading(
        framework="accelerate",
        engine="deepspeed",
        path=path,
        facts=facts,
        recompute_unsaid=RECOMPUTE_IN_CODE,
        ignored=values.ignored(),
        exposed=() if stage.value == 3 else ("data_reduce",),
        unread=(*weights, *unread),
        notes=(*noted, *without, *sections, *bf16_without_zero(facts)),
    )


def _sections(values: Values, prefix: str) -> list[str]:
    """A note of DeepSpeed's own sections below the launcher's, which takes only its own arguments
    there (huggingface/accelerate v1.15 commands/launch.py, _validate_launch_command and
    utils/launch.py): none is a section.
    """
    inside = {name: fact for name, fact in values.found.items()
              if name.startswith(prefix) and "." in name.removeprefix(prefix)}  # fmt: skip
    if not inside:
        return []
    values.asked |= inside.keys()
    names = dict.fromkeys(name.split(".")[1] for name in inside)
    line = min(fact.line for fact in inside.values())
    return [f"line {line}: Accelerate takes nothing of {prefix}{', '.join(names)}: what is in it "
            "stands in no file of DeepSpeed's"]  # fmt: skip


def _judged(values: Values, kind: Fact | None) -> tuple[tuple[Fact, ...], list[str]]:
    """What the file states beside what was read: that matters, and notes of what changes time."""
    other = kind is not None and kind.value not in (*_PLAIN, "FSDP", "DEEPSPEED")
    why = "its layout is not read"
    unread = (
        [Fact(f"distributed_type {shown(kind.value)} ({why})", kind.line)] if other and kind else []
    )
    heads = values.count(_ULYSSES)
    if heads is not None and heads.value > 1:
        why = "DeepSpeed's exchange of heads for tokens, Ulysses, is not modelled"
        unread.append(Fact(f"{_ULYSSES} {heads.value} ({why})", heads.line))
    more, noted = judged(unjudged(values, _KEYS), _KEYS, "{}")
    return (*unread, *more), noted


def _axes(values: Values) -> dict[str, Fact]:
    """The axes that this file can state, and 1 for those that Accelerate does not have."""
    one = Fact(1, 1)
    context = values.count(f"{PREFIX}cp_size") or one
    absent = ("pipeline_parallel", "virtual_stages", "expert_parallel", "expert_tensor_parallel")
    return {name: one for name in absent} | {
        "tensor_parallel": values.count(f"{PREFIX}tp_size") or one,
        "context_parallel": context,
        "sequence_parallel": Fact(False, 1),
    }


def _data_parallel(values: Values, replicas: Fact) -> Fact | None:
    shard = values.count(f"{PREFIX}dp_shard_size")
    return Fact(shard.value * replicas.value, shard.line) if shard else None


def _precision(values: Values) -> Fact | None:
    """`mixed_precision`, or `fp16` of releases before it."""
    old = values.flag("fp16")
    if old is not None and old.value and not values.has("mixed_precision"):
        return Fact("fp16", old.line)
    return values.word(MIXED, "mixed_precision")
