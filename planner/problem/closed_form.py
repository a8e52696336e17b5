"""The closed form of a pipeline's step: what the search minimises, in nanoseconds.

    step = weight x slowest + share x sum c_j + constant + D

    1f1b, gpipe        (m - 1) max c_j + sum c_j                                       2006.09503
    zb_h1              the same less (S - 2 + min(m, S)) w: with equal stages and m >= S the bubble
                       is (S - 1)(F + I - W)                                           2401.10241
    interleaved_1f1b   m sum over rows of the row's max c_j + (S - 1) mean c_j         2104.04473
    zb_v               m max over ranks of both chunks' sum + (S - 1)(F + I - W); with 2 m < 3 S
                       one micro-batch's way there and back, and what the others add to it:
                       2 S (F + I) + W + (m - 1) (F + I + W + (F + I) / 2)
    dualpipe_v         m max over ranks of both chunks' sum + (S - 1)(2 I - W)

    S, V, m  pipeline ranks, chunks per rank, micro-batches
    c_j      one micro-batch in chunk j: layers, recomputation, transfer, embedding or head
    F, I, W  forward, input gradient (with its recomputation) and weight gradient of the mean chunk
    w        the least of the three
    row      the chunks with one place on their ranks: a group of S micro-batches passes row after
             row, and in each it waits for the row's slowest chunk
    D        the largest sum of once-per-step costs of a rank, and what no rank escapes

Equal stages are exact but for the V shapes, where the forms are the middle of what simulations of
equal stages show. `tests/planner/problem/test_closed_form.py` holds the distances.

Leaves out: what an overlapped transfer delays; DualPipe's overlap of a forward and a backward.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.hardware_profiles.dataclass import dataclass

Number = TypeVar("Number", int, NDArray[np.int64])


class Passes(NamedTuple, Generic[Number]):
    """One micro-batch's passes through the whole model, transfers too, recomputation apart."""

    forward_ns: Number
    input_grad_ns: Number
    weight_grad_ns: Number


@dataclass(frozen=True, slots=True)
class ClosedForm(Generic[Number]):
    """The coefficients; the share is `over` / `under`."""

    weight: Number
    over: Number
    under: int
    constant_ns: Number

    def share_ns(self, work_ns: Any) -> Any:
        """share x `work_ns`, rounded up."""
        return -(-self.over * work_ns // self.under)


def closed_form(
    schedule: Schedule, pp: int, vpp: int, m: Number, passes: Passes[Number]
) -> ClosedForm[Any]:
    """The form of one layout, or of many that differ in `m` and `passes`."""
    if schedule in V_SHAPED:
        return _v_shaped(schedule, pp, m, passes)
    if vpp > 1:
        return ClosedForm(m, pp - 1, pp * vpp, 0)
    if schedule != "zb_h1":
        return ClosedForm(m - 1, 1, 1, 0)
    least = np.minimum.reduce(passes)
    return ClosedForm(m - 1, 1, 1, -((pp - 2 + np.minimum(m, pp)) * least // pp))


def _v_shaped(schedule: Schedule, pp: int, m: Number, passes: Passes[Number]) -> ClosedForm[Any]:
    f, _, w = passes
    chunks = 2 * pp
    if schedule == "dualpipe_v":  # 2 I - W = 2 c - 2 F - 3 W with c = F + I + W
        return ClosedForm(m, 2 * (pp - 1), chunks, -(pp - 1) * (2 * f + 3 * w) // chunks)
    few = 2 * m < 3 * pp
    over = np.where(few, 2 * chunks - m - 3, 2 * (pp - 1))
    fill = -np.where(few, 2 * chunks + m - 3, 4 * (pp - 1)) * w
    return ClosedForm(m, over, 2 * chunks, fill // (2 * chunks))
