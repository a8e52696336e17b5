"""Hugging Face's `DistributedConfig`, as `from_pretrained(distributed_config=...)` takes it.

    ours                     theirs
    tensor_parallel          tp_size
    data_parallel            fsdp_size x dp_replicate_size
    shard_group              fsdp_size, where there are replicas
    zero_stage 3             its default: layers free their gathered weights after the forward
    precision bf16           fsdp_mixed_precision: true

It has a pp_size, not beside FSDP, and an ep_size whose experts are not tensor-parallel: plans with
pipeline, context or expert parallelism are refused, and so is what it would run differently.

Source: transformers 5.23 `distributed/configuration_utils.py`, `distributed/fsdp.py`.
"""

import json
import re

from meshplan.costmodels.layout import InvalidLayout
from meshplan.executor.frameworks.documents.parse import read_json
from meshplan.executor.frameworks.documents.values import Values, put
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
    ARGUMENT,
    RECOMPUTE_IN_CODE,
    said_by_script,
    script_files,
    script_words,
)
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import CannotSay, Exported, Fact, Reading, UnreadableConfig
from meshplan.planner.case.resolve import engine_named
from meshplan.planner.case.unsaid import COMMENT_KEY
from meshplan.planner.space.engine_rules import check_trained

FILE = "distributed_config.json"
_ONE = ("pipeline_parallel", "virtual_stages", "context_parallel", "expert_parallel",
        "expert_tensor_parallel")  # fmt: skip


FIELDS = frozenset(
    (
        *("tp_size", "tp_plan", "enable_sequence_parallel", "enable_expert_parallel", "fsdp_size"),
        *("dp_replicate_size", "fsdp_plan", "fsdp_cpu_offload", "fsdp_mixed_precision", "pp_size"),
        *("ep_size", "ep_plan", "ep_implementation"),
    )
)
_SIZES = re.compile(r'"(fsdp_size|tp_size)"\s{0,9}:')
_KEYS = re.compile(r'^[ \t]*(?:\{[ \t]*)?"(\w+)"[ \t]*:', re.M)
"""Keys at the beginnings of lines."""


def claims(name: str, text: str) -> bool:
    """Whether a file looks like a DistributedConfig, and not like a file of something else that has
    one of its names in it: trainers' arguments, other programs' trees of settings.
    """
    if not name.endswith(".json") or not _SIZES.search(text):
        return False
    return {match[1] for match in _KEYS.finditer(text)} <= FIELDS | {COMMENT_KEY}


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as a DistributedConfig; raises `InvalidLayout` where it would run another layout."""
    answer = answer_of(plan, gpus_per_node)
    la, training = answer.layout, answer.training
    _check(answer)
    replicas = la.data_parallel // la.shard_group if la.shard_group else 1
    document = {
        "tp_size": la.tensor_parallel,
        "fsdp_size": la.data_parallel // replicas,
        "dp_replicate_size": replicas,
        "fsdp_mixed_precision": training.precision == "bf16",
    }
    words = script_words(answer, f"--distributed {FILE}", recompute=True)
    return Exported(
        framework="transformers",
        files={FILE: json.dumps(document, indent=2) + "\n", **script_files(answer)},
        launch=f"{torchrun_words(answer)} {words}",
        cannot_say=tuple(_unsaid(answer)),
    )


def _check(answer: Answer) -> None:
    la, training = answer.layout, answer.training
    for name in _ONE:
        if getattr(la, name) > 1:
            raise InvalidLayout(
                f"DistributedConfig: {name} {getattr(la, name)} is not written; its ranks would be "
                "replicas; plan with --engine transformers"
            )
    if la.tensor_parallel > 1 and la.sequence_parallel:
        raise InvalidLayout("DistributedConfig: sequence_parallel is not wired up in transformers")
    if la.data_parallel > 1 and la.zero_stage != 3:
        raise InvalidLayout(
            f"DistributedConfig: zero_stage {la.zero_stage}; its FSDP2 frees the gathered weights "
            "after the forward, which is zero_stage 3"
        )
    if la.shard_group and la.data_parallel % la.shard_group:
        raise InvalidLayout(f"DistributedConfig: shard_group {la.shard_group} cuts a replica")
    check_trained(training.precision, engine_named("transformers"))
    if training.precision == "bf16" and la.data_parallel == 1:
        raise InvalidLayout(
            "DistributedConfig: bf16 over fp32 weights is FSDP's (fsdp_mixed_precision), and "
            "data_parallel is 1; plan with --precision fp32 or two replicas"
        )


def _unsaid(answer: Answer) -> list[CannotSay]:
    la, training = answer.layout, answer.training
    unsaid = unless(la, "it keeps them on the device", optimizer_offload=0, activation_offload=0)
    if la.zero_stage != 3:
        unsaid.append(CannotSay("layout.zero_stage", la.zero_stage, "there is one replica"))
    if la.recompute != "none":
        unsaid.append(CannotSay("layout.stages.recompute", la.recompute, ARGUMENT, True))
    unsaid += modules_unsaid(la, "all of a layer, or nothing")
    unsaid += said_by_script(answer)
    return unsaid + exchanges_unsaid(la) + training_unsaid(training)


def read(text: str, path: str) -> Reading:
    """A DistributedConfig; raises `UnreadableConfig` and `IllegalConfig`."""
    if not claims(path, text):
        raise UnreadableConfig("no tp_size or fsdp_size found")
    values, one = Values(read_json(text)), Fact(1, 1)
    shards = values.count("fsdp_size") or one
    replicas = values.count("dp_replicate_size") or one
    facts = {name: one for name in _ONE} | {
        "pipeline_parallel": values.count("pp_size") or one,
        "expert_parallel": values.count("ep_size") or one,
        "tensor_parallel": values.count("tp_size") or one,
        "data_parallel": Fact(shards.value * replicas.value, shards.line),
        "sequence_parallel": Fact(False, 1),
        "zero_stage": Fact(3, 1),
    }
    mixed = values.flag("fsdp_mixed_precision") or Fact(False, 1)
    put(facts, precision=Fact("bf16" if mixed.value else "fp32", mixed.line))
    if replicas.value > 1:
        put(facts, shard_group=shards)
    why = "moves all sharded state to the host: not modelled"
    return Reading(
        framework="transformers",
        engine="transformers",
        path=path,
        facts=facts,
        recompute_unsaid=RECOMPUTE_IN_CODE,
        unread=tuple(values.switched_on("fsdp_cpu_offload", why)),
        ignored=values.ignored(),
    )
