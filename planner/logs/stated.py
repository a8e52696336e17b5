"""What a log says of the run itself, to hold beside its config.

    Megatron-LM  using world size: 16, data-parallel size: 2, context-parallel size: 1,
                 ... tensor-model-parallel size: 4, pipeline-model-parallel size: 2
    torchtitan   Trainer is initialized with local batch size 1, global batch size 8, gradient
                 accumulation steps 1, sequence length 8192, ...
                 or, since 2026, ... 4096 tokens per DP rank, 262144 tokens per train step
                 Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1,
                 tp=2, ep=1; before September 2025 Building 2-D device mesh with
                 ['dp_shard', 'tp'], [4, 2], which leaves out what is 1
    DeepSpeed    train_batch_size ............. 32

A log and a config of another run give a step time of neither.
"""

import math
import re
from collections.abc import Iterator, Mapping

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
    "tokens": re.compile(
        r"Trainer is initialized with [^\n]{0,200}?\b(\d{1,12}) tokens per train step"
    ),
}  # fmt: skip
_MESH = re.compile(
    r"\bBuilding device mesh with parallelism: ((?:[a-z_]{1,20}=\d{1,9}(?:, )?){1,20})"
)
_MESH_BEFORE = re.compile(
    r"\bBuilding \d-D device mesh with [\[(]([a-z_', ]{0,200})[\])], \[([\d, ]{0,100})\]"
)
_DEGREES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel"}
_RANKS = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Axes that divide the GPUs; those of experts divide them once more."""
_RANKS_BEFORE = {*_RANKS, "dp", "dp_shard_mod_ep", "dp_shard_in_ep"}


def stated(text: str) -> Stated:
    """Each fact that the text states, and all the values that it has there."""
    found = {
        name: {int(m[1]) for m in pattern.finditer(text)} for name, pattern in _PATTERNS.items()
    }
    for mesh in _meshes(text):
        for name, value in mesh.items():
            found.setdefault(name, set()).add(value)
    return {name: frozenset(values) for name, values in found.items() if values}


def _meshes(text: str) -> Iterator[Mapping[str, int]]:
    """The degrees of each of torchtitan's device meshes, and its GPUs."""
    for mesh in _MESH.finditer(text):
        axes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", mesh[1])}
        ranks = math.prod(axes.get(name, 1) for name in _RANKS)
        experts = {"expert_parallel": axes["ep"]} if "ep" in axes else {}
        yield {"gpus": ranks, **_degrees(axes), **experts}
    for mesh in _MESH_BEFORE.finditer(text):
        names, sizes = re.findall(r"\w+", mesh[1]), re.findall(r"\d+", mesh[2])
        if len(names) == len(sizes) and _RANKS_BEFORE.issuperset(names):
            axes = dict(zip(names, map(int, sizes), strict=True))
            yield {"gpus": math.prod(axes.values()), **_degrees(axes)}


def _degrees(axes: Mapping[str, int]) -> dict[str, int]:
    return {ours: axes.get(name, 1) for name, ours in _DEGREES.items()}
