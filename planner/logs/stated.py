"""What a log says of the run itself, to hold beside its config.

    Megatron-LM  using world size: 16, data-parallel size: 2, context-parallel size: 1,
                 ... tensor-model-parallel size: 4, pipeline-model-parallel size: 2
    torchtitan   Trainer is initialized with local batch size 1, global batch size 8, gradient
                 accumulation steps 1, sequence length 8192, ...
    DeepSpeed    train_batch_size ............. 32

A log and a config of another run give a step time of neither.
"""

import re

from meshplan.planner.logs.training_log import Stated

_SIZE = r"-?(?:model-)?parallel[ -]size: (\d{1,9})"
_PATTERNS = {
    "gpus": re.compile(r"\busing world size: (\d{1,9}), data-parallel"),
    "tensor_parallel": re.compile(rf"\busing world size: [^\n]{{0,300}}\btensor{_SIZE}"),
    "pipeline_parallel": re.compile(rf"\busing world size: [^\n]{{0,300}}\bpipeline{_SIZE}"),
    "context_parallel": re.compile(rf"\busing world size: [^\n]{{0,300}}\bcontext{_SIZE}"),
    "sequences": re.compile(
        r"(?:Trainer is initialized with local batch size \d{1,9}, global batch size |"
        r"^.{0,200}?\btrain_batch_size \.{2,40} )(\d{1,9})", re.M,
    ),
    "sequence_length": re.compile(
        r"Trainer is initialized with [^\n]{0,200}\bsequence length (\d{1,9})"
    ),
}  # fmt: skip


def stated(text: str) -> Stated:
    """Each fact that the text states, and all the values that it has there."""
    found = {
        name: frozenset(int(m[1]) for m in pattern.finditer(text))
        for name, pattern in _PATTERNS.items()
    }
    return {name: values for name, values in found.items() if values}
