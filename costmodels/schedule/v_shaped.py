"""The two V-shaped orders, in which a rank has a chunk on the way down and one on the way up again.

    zb_v        F0 (2 (S-s) - 1 times)   F1 F0 (s)   F1 I1 W1 (S-s)
                F0 I0 W0 F1 I1 W1 (n - 2 S + s + 1)   I0 W0 F1 I1 W1 (S-s-1)
                I0 I1 (s)   I0 W0 (S-s)   W1 (s)   W0 (s)
    dualpipe_v  F0 (2 (S-s-1))   F0 F1 (s+1)   I1 W1 F1 (S-s-1)
                F0 B1 F1 B0 (m - 2 S + s + 1)   B1 F1 B0 (S-s-1)
                B1 B0 (s+1 actions)   I1 I0 (the s+1 after them)   W I0 (S-s-1)   W (s+1)

    S, s, m  pipeline ranks, this rank, micro-batches; n = max(m, 2 S - 1), of which m are run
    F0, F1   forward of the first and of the second chunk; B, I, W as in `actions`
    W        alone: of the oldest I without one

Sources: 2401.10241, section 6, and DeepSeek-V3 (2412.19437, section 3.2.1; deepseek-ai/DualPipe,
dualpipev.py), as PyTorch runs them (torch/distributed/pipelining/schedules.py,
ScheduleZBVZeroBubble and ScheduleDualPipeV); `tests/executor/engine/test_orders_of_pytorch.py`
compares.

DeepSeek-V3's own DualPipe is no schedule of its own here: over 2 S ranks each rank holds the two
chunks and waits as long as a rank of dualpipe_v does over S ranks in twice as many replicas
(deepseek-ai/DualPipe, README: the same bubble, parameters and activations on half the devices;
hackmd.io/@ufotalent/r1lVXsa9Jg). What differs is on which ranks the copies are.

Leaves out: that the F and the B of a pair of DualPipe may run at once; orders made for the times of
one layout (2401.10241, section 3.1).
"""

import numpy as np

from meshplan.costmodels.layouts import Ints

F, B, I, W = range(4)  # noqa: E741 the letter that papers give the input gradient
F0, F1, B0, B1, I0, I1, W0, W1 = (bytes([turn]) for turn in range(8))
"""Turns: a kind of action and a chunk, two to each kind. An order is a string of them."""


def v_shaped_order(schedule: str, pp: int, m: int, s: int) -> tuple[Ints, Ints, Ints]:
    """What rank `s` does, in order: kinds of actions, their virtual stages and micro-batches."""
    turns = _zb_v(pp, max(m, 2 * pp - 1), s) if schedule == "zb_v" else _dualpipe_v(pp, m, s)
    kind, chunk = np.divmod(np.frombuffer(turns, np.uint8).astype(np.int64), 2)
    micro_batch = np.zeros_like(kind)
    for each in (0, 1):
        of_chunk = chunk == each
        for passes in (of_chunk & (kind == F), of_chunk & ((kind == B) | (kind == I))):
            micro_batch[passes] = np.arange(passes.sum())
        micro_batch[of_chunk & (kind == W)] = micro_batch[of_chunk & (kind == I)]
    run = micro_batch < m
    stage = np.where(chunk == 0, s, 2 * pp - 1 - s)
    return kind[run], stage[run], micro_batch[run]


def _zb_v(pp: int, n: int, s: int) -> bytes:
    warm_up = F0 * (2 * (pp - s) - 1) + (F1 + F0) * s + (F1 + I1 + W1) * (pp - s)
    turn = I0 + W0 + F1 + I1 + W1
    stable = (F0 + turn) * (n - 2 * pp + s + 1) + turn * (pp - s - 1)
    return warm_up + stable + (I0 + I1) * s + (I0 + W0) * (pp - s) + W1 * s + W0 * s


def _dualpipe_v(pp: int, m: int, s: int) -> bytes:
    later = pp - s - 1
    warm_up = F0 * (2 * later) + (F0 + F1) * (s + 1) + (I1 + W1 + F1) * later
    pairs = (F0 + B1 + F1 + B0) * (m - 2 * pp + s + 1) + (B1 + F1 + B0) * later
    whole, split = ((B1 + B0) * (s + 1))[: s + 1], ((I1 + I0) * (s + 1))[s + 1 :]
    waiting = split.translate(bytes.maketrans(I0 + I1, W0 + W1)) + W0 * later
    turns = b"".join(waiting[at : at + 1] + I0 for at in range(later))
    return warm_up + pairs + whole + split + turns + waiting[later:]
