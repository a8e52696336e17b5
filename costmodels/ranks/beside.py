"""Exposed weight traffic and host copies of one micro-batch's forward and backward.

What weights send beside a backward has its links first: the traffic that comes once per step has
the last backward's time less all of it, as two levels of HSDP go one after the other. So a longer
backward makes no step shorter.
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
    forward_room_s: Number,
    backward_room_s: Number,
    *,
    saved_s: Number = 0.0,
    copies: Number = 0.0,
) -> tuple[Pass, Pass]:
    """Forward and backward of one part: the seconds by which weight traffic and copies to the host
    make each longer, its own computing left out.

    forward_room_s, backward_room_s  computing that traffic and copies may hide under
    saved_s   copying the part's activations one way, where the host keeps them
    copies    mean number of gradient copies to or from the host per micro-batch
    """
    forward = Pass(pointwise_s=sent.forward_shown_s)
    backward = Pass(pointwise_s=sent.backward_shown_s)
    if anywhere(layout.zero_stage >= ZERO_2):
        overlap, interference = setting.engine.overlap, sent.interference
        hides = where(layout.zero_stage > ZERO_2, overlap.weight_gather, overlap.data_reduce)
        exposed_f = exposed_s(sent.forward_s, forward_room_s, hides, interference)
        exposed_b = exposed_s(sent.backward_s, backward_room_s, hides, interference)
        hidden_s = sent.backward_s - exposed_b
        forward = replace(forward, data_s=exposed_f)
        backward = replace(backward, data_s=exposed_b, more_room_s=-hidden_s)
    if offloads(layout):
        away_s = exposed_copies_s(saved_s, forward_room_s + sent.forward_shown_s)
        gradients_s = copies * sent.gradients_s
        back_s = exposed_copies_s(saved_s + gradients_s, backward_room_s + sent.backward_shown_s)
        forward, backward = replace(forward, offload_s=away_s), replace(backward, offload_s=back_s)
    return forward, backward
