"""What PyTorch's checkpoints take the host where nothing compiles the layer that they wrap.

    forward  longer by a seconds for each kernel that the host issues in it
    replay   longer by b seconds for each kernel of the forward, also of those that it leaves out

A checkpoint that is not reentrant packs and unpacks each saved tensor by hooks in Python, in the
forward and again in the replay; one by operator has a dispatch mode in Python see each operator of
both (torch/utils/checkpoint.py, _checkpoint_hook, _recomputation_hook, _CachingTorchDispatchMode).
A compiler traces all of that away.

Leaves out reentrant checkpoints (5 us a kernel), what differs between lists of operators, and what
the longer forward hides of traffic that comes once per step (`Pass.once_room_s`).
"""

from collections.abc import Iterable

from meshplan.costmodels.layout import RecomputeModule

AROUND_S, BY_OPERATOR_S = (6.2e-6, 14.5e-6), (34e-6, 37e-6)
"""Forward and in the replay, for each operator that is no view: processor-seconds with torch 2.13
on an AMD EPYC (Zen 4), 2026-11-29 (`python -m benchmarks.engine.checkpoint_host`: a dense layer of
41). Other x86 hosts are taken to be as fast, as in `dtensor`.
"""
NONE_S = (0.0, 0.0)


def hooks_s(modules: Iterable[RecomputeModule] | None) -> tuple[float, float]:
    """Of a layer that replays `modules` (None: all; "linear_half": by operator)."""
    if modules is None:
        return AROUND_S
    return BY_OPERATOR_S if "linear_half" in modules else NONE_S
