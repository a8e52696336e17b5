"""The keys of verl's configuration that go into a plan of its update, by the plan's names.

Values are those of a script's options (`actor_rollout_ref.actor.X=4`), the last of a key, as they
are written there. A mini-batch counts prompts, each of `rollout.n` answers; tokens of a packed
micro-batch are of one GPU and are split no further (`x ulysses_sequence_parallel_size` a replica).
Source: volcengine/verl `verl/workers/fsdp_workers.py` (ppo_mini_batch_size *= rollout.n),
`verl/workers/actor/dp_actor.py` (max_token_len).
"""

import re

_MEGATRON, _ACTOR = "actor.megatron.", "actor."
FIELDS = (
    ("tensor_parallel", (_MEGATRON + "tensor_model_parallel_size",)),
    ("pipeline_parallel", (_MEGATRON + "pipeline_model_parallel_size",)),
    ("context_parallel", (_ACTOR + "ulysses_sequence_parallel_size",
                          _MEGATRON + "context_parallel_size")),
    ("expert_parallel", (_MEGATRON + "expert_model_parallel_size",)),
    ("global_batch_size", (_ACTOR + "ppo_mini_batch_size", "rollout.n")),
    ("micro_batch_size", (_ACTOR + "ppo_micro_batch_size_per_gpu",)),
    ("tokens of a packed micro-batch and GPU", (_ACTOR + "ppo_max_token_len_per_gpu",)),
)  # fmt: skip
_JOINED = {"global_batch_size": " x "}
_STATED = re.compile(r"\bactor_rollout_ref\.([\w.]{1,80})=([^\s\\]{1,80})")
_COMMENT = re.compile(r"^[ \t]*#[^\n]*", re.M)


def plan_fields(text: str) -> str:
    """Which of verl's keys say what of a plan, with the values that a script gives them."""
    found = _STATED.findall(_COMMENT.sub("", text))
    stated = {name: value.strip("\"'") for name, value in found}
    said = []
    for ours, theirs in FIELDS:
        names = [f"{name}={stated[name]}" for name in theirs if name in stated]
        if names or not stated:
            said.append(f"{ours}: {_JOINED.get(ours, ' or ').join(names or theirs)}")
    return "; ".join(said)
