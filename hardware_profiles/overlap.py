"""How much of each communication an engine hides."""

from pydantic import Field

from meshplan.hardware_profiles.frozen import Frozen


class Overlap(Frozen):
    """Fraction of each communication that the engine can hide behind compute (1 = all that time
    allows). host: copies of gradients and weights, behind the optimizer's update on the host;
    activations: copies of what layers save, beside the pass that makes or reads it.

    expert_interleaved   of dispatch and combine behind another micro-batch's pass: between nodes
                         under an interleaved pipeline, and wherever a run says so
    reduces_by_hooks     gradients are sent beside the backward by hooks of ZeRO alone: those of
                         ZeRO-0 and of a pipeline are sent when the last backward is done
    beside_chunks        of an interleaved pipeline the traffic of a chunk's weights runs beside a
                         round of the chunk before, that of its gradients beside one of the next
                         (`costmodels.seconds.chunk_traffic`)
    context_gather       of an all-gather of keys and values, behind the first chunk's attention
    waits_at_boundaries  each transfer of a pipeline that leaves a node is a rendezvous of
                         `Tuning.boundary_s` (`costmodels.ranks.rendezvous`)
    """

    data_reduce: float = Field(ge=0, le=1)
    weight_gather: float = Field(ge=0, le=1)
    tensor: float = Field(ge=0, le=1)
    pipeline: float = Field(ge=0, le=1)
    context: float = Field(ge=0, le=1)
    context_gather: float = Field(default=0.0, ge=0, le=1)
    expert: float = Field(ge=0, le=1)
    reduces_by_hooks: bool = False
    beside_chunks: bool = False
    host: float = Field(default=0.0, ge=0, le=1)
    activations: float = Field(default=1.0, ge=0, le=1)
    expert_interleaved: float = Field(default=0.0, ge=0, le=1)
    waits_at_boundaries: bool = False
