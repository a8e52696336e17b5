"""The keys of NeMo RL's configuration that go into a plan of its update, by the plan's names.

Values are those of the file with all that its `defaults` name. Of the two backends that a policy
has the one that is enabled counts. Source: NVIDIA-NeMo/RL@7ea279ab
nemo_rl/models/policy/__init__.py, examples/configs/sft.yaml.
"""

from collections.abc import Iterator, Mapping

from meshplan.executor.frameworks.documents.composed import composed
from meshplan.executor.frameworks.documents.references import resolved
from meshplan.executor.frameworks.documents.values import shown
from meshplan.planner.case.reading import Fact, UnreadableConfig

_MEGATRON = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
}
_DTENSOR = {
    "tensor_parallel": "tensor_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_parallel_size",
    "recompute": "activation_checkpointing",
}
_OF_BOTH = {
    "model": "policy.model_name",
    "global_batch_size": "policy.train_global_batch_size",
    "micro_batch_size": "policy.train_micro_batch_size",
    "seq_len": "policy.max_total_sequence_length",
    "nodes": "cluster.num_nodes",
    "gpus of a node": "cluster.gpus_per_node",
}


def plan_fields(text: str, path: str) -> str:
    """Which of NeMo RL's keys say what of a plan, with their values; nothing where the file, or one
    that it names, cannot be read.
    """
    try:
        whole = composed(text, path)
        found = resolved(whole.found, whole.text)
    except UnreadableConfig:
        return ""
    return "; ".join(_said(found))


def _said(found: Mapping[str, Fact]) -> Iterator[str]:
    for ours, name in _keys(found).items():
        fact = found.get(name)
        if fact is not None and fact.value not in (None, False):
            yield f"{ours}: {name}={shown(fact.value)}"


def _keys(found: Mapping[str, Fact]) -> dict[str, str]:
    for section, names in (("policy.megatron_cfg", _MEGATRON), ("policy.dtensor_cfg", _DTENSOR)):
        enabled = found.get(f"{section}.enabled")
        if enabled is not None and enabled.value is True:
            return _OF_BOTH | {ours: f"{section}.{name}" for ours, name in names.items()}
    return dict(_OF_BOTH)
