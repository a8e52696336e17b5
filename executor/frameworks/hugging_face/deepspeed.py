"""DeepSpeed JSON, and the Accelerate YAML that launches it.

    ours                     theirs
    global_batch_size        train_batch_size = micro x accumulation x data_parallel
    micro_batch_size         train_micro_batch_size_per_gpu
    num_micro_batches        gradient_accumulation_steps
    zero_stage               zero_optimization.stage
    shard_group              zero_optimization.mics_shard_size (stage 3 only)
    optimizer_offload        zero_optimization.offload_optimizer.device: cpu
    tensor_parallel          tensor_parallel.autotp_size
    precision                bf16.enabled, fp16.enabled
    hidden gradients         zero_optimization.overlap_comm, stage 3's gathers too

Pipeline, context, sequence and expert parallelism and activation checkpointing are set in code,
not in this file: the `activation_checkpointing` section only tunes checkpoints that the model
makes. `auto` (Hugging Face fills it in) counts as absent.

Source: deepspeedai/DeepSpeed@edaa7221 `deepspeed/runtime/config.py`, `runtime/zero/config.py`,
`runtime/tensor_parallel/config.py`, `docs/_pages/config-json.md`; huggingface/accelerate@16cb6eb8
`src/accelerate/commands/config/config_args.py` (ClusterConfig).
"""

import json
import re
from dataclasses import replace
from typing import Any

import yaml

from meshplan.costmodels.layout import InvalidLayout, Layout
from meshplan.costmodels.training import Optimizer, Training
from meshplan.executor.frameworks.documents.parse import read_json
from meshplan.executor.frameworks.documents.values import Values, optimizer, put
from meshplan.executor.frameworks.export_notes import (
    GPUS_PER_NODE,
    Answer,
    answer_of,
    exchanges_unsaid,
    modules_unsaid,
    torchrun_words,
    training_unsaid,
    unless,
)
from meshplan.executor.frameworks.hugging_face.script import (
    RECOMPUTE_IN_CODE,
    loss_unsaid,
    script_files,
    script_words,
)
from meshplan.executor.frameworks.keys.lists import judged, unjudged
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import (
    CannotSay,
    Exported,
    Fact,
    IllegalConfig,
    Reading,
    UnreadableConfig,
)

FILE = "ds_config.json"
LAUNCHER_FILE = "accelerate.yaml"
_MARKS = re.compile(r'"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu)"')
_COMMENTS = ("_", "//")
"""How keys at the top begin that only explain: DeepSpeed asks for those that it knows by name
(`deepspeed/runtime/config.py`).
"""
_OPTIMIZERS: dict[str, Optimizer] = {
    "AdamW": "adamw",
    "Adam": "adamw",
    "adamw": "adamw",
    "adam": "adamw",
    "SGD": "sgd",
    "sgd": "sgd",
    "Muon": "muon",
    "muon": "muon",
    "FusedAdam": "adamw",
    "fusedadam": "adamw",
    "MuAdam": "adamw",
    "MuAdamW": "adamw",
    "MuSGD": "sgd",
    "Lamb": "adamw",  # two states of 32 bit, as Adam has
    "FusedLamb": "adamw",
}
_KEYS = ("deepspeed_keys.toml",)
_IN_CODE = (
    *("pipeline_parallel", "virtual_stages", "context_parallel"),
    *("expert_parallel", "expert_tensor_parallel"),
)
_LEFT = frozenset(("pipeline_parallel",))
"""Set in code that has no file but this one; a Trainer has no pipeline of DeepSpeed's."""
_WRITTEN = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}


def claims(name: str, text: str) -> bool:
    """Whether a file looks like a DeepSpeed configuration."""
    return name.endswith(".json") and bool(_MARKS.search(text))


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as DeepSpeed's JSON, a script that trains by it, and Accelerate's YAML around it for
    scripts that train by Accelerate.

    Raises `InvalidLayout` where the file would train on another batch than the plan.
    """
    answer = answer_of(plan, gpus_per_node)
    _check_batch(answer)
    world = answer.layout.world_size
    launcher = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "deepspeed_config_file": FILE,
            "zero3_init_flag": answer.layout.zero_stage == 3,
        },
        "num_machines": answer.nodes,
        "num_processes": world,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
    }
    return Exported(
        framework="deepspeed",
        files={
            FILE: json.dumps(_config(answer), indent=2) + "\n",
            LAUNCHER_FILE: yaml.safe_dump(launcher, sort_keys=False),
            **script_files(answer),
        },
        launch=f"{torchrun_words(answer)} "
        + script_words(answer, f"--deepspeed {FILE}", recompute=True),
        cannot_say=(*_unsaid(answer), *loss_unsaid(plan.engine, "deepspeed")),
    )


BEFORE_0_19_4 = "before 0.19.4 DeepSpeed stops where autotp stands beside stage 3"
"""deepspeed 0.19.3 asserts it (runtime/engine.py _configure_tensor_parallel_states), 0.19.4 not."""


def _check_batch(answer: Answer) -> None:
    """Ranks that the file has no word for become replicas, each with micro-batches of its own; with
    a pipeline DeepSpeed stops unless the code sets it, but not beside autotp (no train_batch_size).
    """
    la, batch = answer.layout, answer.training.global_batch_size
    lost = {"context_parallel": la.context_parallel}
    if la.tensor_parallel > 1:
        lost["pipeline_parallel"] = la.pipeline_parallel
    pins = {"context_parallel": "--cp 1", "pipeline_parallel": "--pp 1 or --tp 1"}
    for name, ranks in lost.items():
        if ranks > 1:
            raise InvalidLayout(
                f"DeepSpeed's file has no {name}: its {ranks} ranks would be replicas, and the "
                f"global batch {batch * ranks} instead of {batch}; plan with {pins[name]}"
            )


def _config(answer: Answer) -> dict[str, Any]:
    la, training = answer.layout, answer.training
    zero: dict[str, Any] = {"stage": la.zero_stage, "overlap_comm": True}
    if la.zero_stage == 3 and la.shard_group:
        zero["mics_shard_size"] = la.shard_group
    if la.zero_stage and la.optimizer_offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if la.optimizer_offload < 1 and la.zero_stage == 3:
            zero["offload_optimizer"]["ratio"] = la.optimizer_offload
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": la.micro_batch_size,
        "gradient_accumulation_steps": la.num_micro_batches(training),
        "zero_optimization": zero,
        "bf16": {"enabled": training.precision == "bf16"},
        "fp16": {"enabled": training.precision == "fp16"},
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
        "wall_clock_breakdown": False,
    }
    if training.optimizer in _WRITTEN:
        config["optimizer"] = {"type": _WRITTEN[training.optimizer], "params": {"lr": 3e-4}}
    if la.tensor_parallel > 1:
        config["tensor_parallel"] = {"autotp_size": la.tensor_parallel}
        return config  # its check would count every rank as a replica: train_batch_size stays out
    return {"train_batch_size": training.global_batch_size, **config}


_BY_CODE = "set in the training code, not in this file"


def _unsaid(answer: Answer) -> list[CannotSay]:
    la, training = answer.layout, answer.training
    unsaid = [*_unsaid_stages(la), *_unsaid_zero(la, training)]
    if training.precision not in ("fp32", "bf16", "fp16"):
        unsaid.append(CannotSay("training.precision", training.precision, "it has bf16 and fp16"))
    if training.optimizer not in _WRITTEN:
        unsaid.append(CannotSay("training.optimizer", training.optimizer, f"it has {_WRITTEN}"))
    unsaid += [
        CannotSay("training.seq_len", training.seq_len, "belongs to the data", True),
        CannotSay("model", answer.model.name, "belongs to the training code", True),
    ]
    return unsaid + exchanges_unsaid(la) + training_unsaid(training)


def _unsaid_stages(la: Layout) -> list[CannotSay]:
    """Degrees, stages and recomputation, which the training code sets."""
    usual: dict[str, Any] = {
        "pipeline_parallel": 1, "virtual_stages": 1, "expert_parallel": 1,
        "expert_tensor_parallel": 1, "sequence_parallel": False, "schedule": "1f1b",
        "activation_offload": False, "modules_apart": False,
    }  # fmt: skip
    unsaid = unless(la, _BY_CODE, left=True, **usual)
    if la.pipeline_parallel * la.virtual_stages > 1:
        counts = tuple(stage.layers for stage in la.stages)
        unsaid.append(CannotSay("layout.stages", counts, _BY_CODE, True))
    if la.recompute != "none":
        unsaid.append(CannotSay("layout.stages.recompute", la.recompute, _BY_CODE, True))
    return unsaid + modules_unsaid(la, _BY_CODE, left=True)


def _unsaid_zero(la: Layout, training: Training) -> list[CannotSay]:
    """What some stages of ZeRO do not have, and what releases do otherwise."""
    unsaid = list[CannotSay]()
    if la.zero_stage != 3 or la.tensor_parallel > 1:
        unsaid += unless(la, "mics_shard_size needs stage 3 and no tensor_parallel", shard_group=0)
    if la.zero_stage == 0:
        unsaid += unless(la, "offload_optimizer needs a stage above 0", optimizer_offload=False)
    elif la.zero_stage < 3 and la.optimizer_offload:
        unsaid += unless(la, "offload_optimizer.ratio needs stage 3", optimizer_offload=True)
    if la.zero_stage == 0 and training.precision == "bf16":
        why = "before 0.18 DeepSpeed shards masters and moments with bf16 at stage 0 too"
        unsaid.append(CannotSay("layout.zero_stage", 0, why))
    if la.zero_stage == 3 and la.tensor_parallel > 1:
        unsaid.append(CannotSay("layout.zero_stage", 3, BEFORE_0_19_4))
    return unsaid


def read(text: str, path: str) -> Reading:
    """A DeepSpeed configuration; raises `UnreadableConfig` and `IllegalConfig`."""
    values = Values(read_json(text, once=True))
    if not _MARKS.search(text):
        raise UnreadableConfig("no zero_optimization, train_batch_size or the like found")
    reading = reading_of(values, path)
    facts = {name: fact for name, fact in reading.facts.items() if name not in _LEFT}
    return replace(reading, facts=facts, left_to_code=_LEFT)


def reading_of(values: Values, path: str) -> Reading:
    """The same of facts that were read already, such as a section of a trainer's file."""
    facts = _degrees(values)
    put(
        facts,
        global_batch_size=values.count("train_batch_size"),
        micro_batch_size=values.count("train_micro_batch_size_per_gpu"),
        num_micro_batches=values.count("gradient_accumulation_steps"),
        precision=_precision(values),
    )
    unread = optimizer(values, facts, "optimizer.type", _OPTIMIZERS)  # or any of `torch.optim`
    if len({"global_batch_size", "micro_batch_size", "num_micro_batches"} & facts.keys()) == 3:
        put(facts, data_parallel=_replicas(facts))
    elif len({"global_batch_size", "micro_batch_size"} & facts.keys()) == 1:
        facts.setdefault("num_micro_batches", Fact(1, 1))  # _set_batch_related_parameters
    group = values.count("zero_optimization.mics_shard_size", least=-1)
    if group and group.value > 0:
        put(facts, shard_group=group)
    notes = _read_offload(values, facts)
    notes += bf16_without_zero(facts)
    if facts["zero_stage"].value == 3 and facts["tensor_parallel"].value > 1:
        notes.append(f"line {facts['tensor_parallel'].line}: {BEFORE_0_19_4}")
    device = "zero_optimization.offload_param.device"
    weights, without = weights_on_the_host(values, device, facts["zero_stage"].value)
    exposed = _exposed(values, facts["zero_stage"].value == 3)
    unsaid = RECOMPUTE_IN_CODE
    if values.has("activation_checkpointing"):
        unsaid += ", whose checkpoints the section activation_checkpointing tunes"
    left = [each for each in unjudged(values, _KEYS) if not each[0].startswith(_COMMENTS)]
    not_understood, noted = judged(left, _KEYS, "{}")
    return Reading(
        framework="deepspeed",
        engine="deepspeed",
        path=path,
        facts=facts,
        recompute_unsaid=unsaid,
        ignored=values.ignored(),
        exposed=exposed,
        notes=(
            *(*notes, *without, *noted),
            *values.suspects(("train_batch_size", "train_micro_batch_size_per_gpu")),
        ),
        unread=(*unread, *weights, *not_understood),
    )


def _exposed(values: Values, shards_weights: bool) -> tuple[str, ...]:
    """What replicas exchange beside nothing, where streams of their own are off: they are in stages
    1 and 2 unless asked for, and on in stage 3 (`overlap_comm_valid` of runtime/zero/config.py).
    """
    said = values.flag("zero_optimization.overlap_comm")
    if shards_weights if said is None else said.value:
        return ()
    return ("data_reduce", "weight_gather")[: 1 + shards_weights]


def bf16_without_zero(facts: dict[str, Fact]) -> list[str]:
    """A note where releases of DeepSpeed differ in what bf16 at stage 0 keeps.

    Source: deepspeedai/DeepSpeed@720787e7 (0.17.0) and @edaa722 (0.19.6)
    `deepspeed/runtime/engine.py`, get_data_types and _do_optimizer_sanity_check.
    """
    stated = (facts[name].value for name in ("zero_stage", "precision") if name in facts)
    if tuple(stated) != (0, "bf16"):
        return []
    return [
        "bf16 at ZeRO stage 0 is priced as releases from 0.18 on run it, masters and moments whole;"
        " 0.8 to 0.17 (BF16_Optimizer) shard them and sum gradients in 32 bits beside those of 16"
    ]


def _read_offload(values: Values, facts: dict[str, Fact]) -> list[str]:
    """Adds whether the optimizer runs on the host; notes for what is priced differently."""
    where, zero = "zero_optimization.offload_optimizer", "zero_optimization"
    device, old = values.get(f"{where}.device"), values.flag(f"{zero}.cpu_offload")
    if device is not None:
        put(facts, optimizer_offload=Fact(device.value != "none", device.line))
    elif old is not None:
        put(facts, optimizer_offload=old)
    notes, ratio = [], values.num(f"{where}.ratio")
    if device is not None and device.value == "nvme":
        notes.append(f"line {device.line}: the optimizer on nvme is priced as in host memory")
    stage = values.get(f"{zero}.stage")
    if ratio is not None and device is not None and device.value != "none":
        if stage is not None and str(stage.value) == "3":
            put(facts, optimizer_offload=ratio)
        elif ratio.value < 1:
            notes.append(f"line {ratio.line}: ratio counts in stage 3 only: priced without it")
    return notes


def weights_on_the_host(values: Values, name: str, stage: int) -> tuple[list[Fact], list[str]]:
    """What is not understood of the device that `name` states for the weights, if it is not the
    GPU; below stage 3 a note alone.

    Source: deepspeedai/DeepSpeed `deepspeed/runtime/engine.py`, _configure_zero_optimizer, hands
    it to stage 3's optimizer and to no other.
    """
    found = values.besides(("none",), name, "weights on the host are not modelled")
    if stage == 3:
        return found, []
    return [], [f"line {at.line}: {name} counts in stage 3 only: priced without it" for at in found]


def _degrees(values: Values) -> dict[str, Fact]:
    """The axes that this file can state, and 1 for those that are set in code."""
    stages = {"0": 0, "1": 1, "2": 2, "3": 3}
    tensor = values.count("tensor_parallel.autotp_size", least=0) or Fact(1, 1)
    return {name: Fact(1, 1) for name in _IN_CODE} | {
        "zero_stage": values.word(stages, "zero_optimization.stage") or Fact(0, 1),
        "tensor_parallel": Fact(tensor.value or 1, tensor.line),
    }


def _replicas(facts: dict[str, Fact]) -> Fact | None:
    """train_batch_size / (micro x accumulation); None if it has a remainder."""
    per_replica = facts["micro_batch_size"].value * facts["num_micro_batches"].value
    replicas, rest = divmod(facts["global_batch_size"].value, per_replica)
    return None if rest else Fact(replicas, facts["global_batch_size"].line)


def _precision(values: Values) -> Fact | None:
    """The format that is enabled; raises `IllegalConfig` for two, which DeepSpeed does not start
    (runtime/config.py: bfloat16 and fp16 modes cannot be simultaneously enabled).
    """
    on: dict[str, Fact] = {}
    for name, ours in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        enabled = values.flag(name + ".enabled")
        if enabled and enabled.value:
            on.setdefault(ours, Fact(ours, enabled.line))
    if len(on) > 1:
        raise IllegalConfig("bf16 and fp16 are both enabled: DeepSpeed takes one", on["fp16"].line)
    if on:
        return next(iter(on.values()))
    names = [name + ".enabled" for name in ("bf16", "bfloat16", "fp16") if values.has(name)]
    auto = any(values.get(name) is None for name in names)
    return None if auto else Fact("fp32", 1)
