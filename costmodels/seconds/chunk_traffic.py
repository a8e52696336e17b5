"""Traffic of weights and gradients once per step beside the chunks of an interleaved pipeline.

Interleaved 1F1B computes a chunk for a round of min(pp, m) micro-batches before it turns to the
next one. An engine with `Overlap.beside_chunks` sends the next chunk's weights meanwhile, and the
gradients of the chunk whose last backward is behind it. Each of a rank's v chunks has 1/v of its T
seconds of traffic, and 1/v of the R seconds that it computes in a pass of one micro-batch. The
first chunk that is sent has one pass of its own beside it, each other chunk a round of passes:

    shown = E(T, R) / v + (1 - 1/v) E(T, min(pp, m) R)          E: `exposed_s`

Source: NVIDIA/Megatron-LM@d98e8a64 megatron/core/pipeline_parallel/schedules.py
(`microbatch_group_size_per_vp_stage` is pp; `param_sync_func` and `grad_sync_func` are called for
the chunk beside the one that computes). Leaves out: that chunks differ in layers, and that a rank
which waits in the pipeline's fill sends meanwhile.
"""

from typing import NamedTuple

from meshplan.costmodels.elementwise import Number, minimum
from meshplan.costmodels.seconds.interference import exposed_s


class Beside(NamedTuple):
    """What a rank computes beside its traffic.

    alone          the share of the traffic that has one micro-batch's pass beside it
    micro_batches  passes that all else has beside it
    """

    alone: Number = 1.0
    micro_batches: Number = 1.0

    @property
    def passes(self) -> Number:
        """Micro-batches' passes that all traffic has beside it, at most."""
        return self.alone + (1 - self.alone) * self.micro_batches


def beside_chunks(
    habit: bool, schedule: str, pipeline_parallel: Number, virtual_stages: Number, m: Number
) -> Beside:
    """Of pipelines of one schedule with m micro-batches each; `habit`: `Overlap.beside_chunks`."""
    if schedule != "interleaved_1f1b" or not habit:
        return Beside()
    return Beside(1 / virtual_stages, minimum(pipeline_parallel, m))


def exposed_beside_s(
    whole_s: Number, room_s: Number, overlap: Number, interference: Number, beside: Beside
) -> Number:
    """Exposed seconds of `whole_s` of a rank's traffic once per step, `room_s` a micro-batch."""
    first = exposed_s(whole_s, room_s, overlap, interference)
    others = exposed_s(whole_s, beside.micro_batches * room_s, overlap, interference)
    return beside.alone * first + (1 - beside.alone) * others
