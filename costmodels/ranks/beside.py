"""Exposed weight traffic and host copies of one micro-batch's forward and backward.

What weights send beside a backward has its links first: the traffic that comes once per step has
the last backward's time less all of it, as two levels of HSDP go one after the other. Copies to the
host have a link of their own for as long as the pass lasts, its exposed communication and that of
its weights included; while they are waited for, the network is free. So a longer pass makes no step
shorter: with L the seconds of a pass beside its weights, and O those of its copies, it takes
max(L, O). Where copies run on the stream that computes (`Overlap.activations`), they make L longer.

Leaves out: where a schedule splits the backward, that weight gradients run later; traffic hides
under both parts, and what it shows is charged to the input's gradient.
"""

from dataclasses import replace
from typing import NamedTuple

from meshplan.costmodels.elementwise import Number, anywhere, where
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.seconds.cost import Pass
from meshplan.costmodels.seconds.interference import exposed_s
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.weights.offload import exposed_copies_s, offloads

ZERO_2 = 2


class Lasting(NamedTuple):
    """Seconds of a pass of one part, without its weights' traffic; of these `room_s`, under which
    that traffic may hide.
    """

    total_s: Number
    room_s: Number


class Sent(NamedTuple):
    """Seconds of weight traffic per micro-batch of one part of the model (a layer, or an end of the
    pipeline), before any of it is hidden.

    forward_s    weights gathered before the forward
    backward_s   weights gathered and gradients scattered beside the backward
    forward_shown_s, backward_shown_s
                 the part of it that nothing can hide: gathered weights copied out of the
                 collective's buffer, collectives listed by rank
    gradients_s  one copy of the gradients to the host
    interference by which fraction computing is slower beside this traffic
    """

    forward_s: Number
    backward_s: Number
    forward_shown_s: Number
    backward_shown_s: Number
    gradients_s: Number
    interference: Number


def beside(
    setting: Setting,
    layout: Layout | Layouts,
    sent: Sent,
    forward: Lasting,
    backward: Lasting,
    *,
    saved_s: Number = 0.0,
    copies: Number = 0.0,
) -> tuple[Pass, Pass]:
    """Forward and backward of one part: the seconds by which weight traffic and copies to the host
    make each longer, its own seconds left out.

    saved_s   copying the part's activations one way, where the host keeps them
    copies    mean number of gradient copies to or from the host per micro-batch
    """
    more_f, more_b = (
        Pass(pointwise_s=shown_s) for shown_s in (sent.forward_shown_s, sent.backward_shown_s)
    )
    if anywhere(layout.zero_stage >= ZERO_2):
        overlap, interference = setting.engine.overlap, sent.interference
        hides = where(layout.zero_stage > ZERO_2, overlap.weight_gather, overlap.data_reduce)
        exposed_f = exposed_s(sent.forward_s, forward.room_s, hides, interference)
        exposed_b = exposed_s(sent.backward_s, backward.room_s, hides, interference)
        hidden_s = sent.backward_s - exposed_b
        more_f = replace(more_f, data_s=exposed_f)
        more_b = replace(more_b, data_s=exposed_b, more_room_s=-hidden_s)
    if offloads(layout):
        beside_s = setting.engine.overlap.activations * saved_s
        shown = _seen(saved_s - beside_s)
        more_f, more_b = more_f + shown, more_b + shown
        more_f = more_f + _waiting(beside_s, forward.total_s + more_f.total_s)
        copied_s = beside_s + copies * sent.gradients_s
        more_b = more_b + _waiting(copied_s, backward.total_s + more_b.total_s)
    return more_f, more_b


def _waiting(copied_s: Number, lasting_s: Number) -> Pass:
    """For copies beside a pass that lasts so long, in which nothing is on the network."""
    return _seen(exposed_copies_s(copied_s, lasting_s))


def _seen(copied_s: Number) -> Pass:
    """Of copies that the pass waits for."""
    return Pass(offload_s=copied_s, more_room_s=copied_s)
