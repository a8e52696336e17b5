"""What one layer keeps for its backward pass, tensor by tensor: read from the program itself."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from meshplan.costmodels.layout import Stage
from meshplan.executor.dryrun.dry_run import watched_engine
from meshplan.executor.engine.layers.block import Block
from meshplan.executor.engine.step.engine import Job


@dataclass(frozen=True, slots=True)
class Saved:
    """One storage that autograd keeps; a view counts as the whole of what it views."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


def saved_per_layer(
    job: Job, kind: int, recompute: Literal["none", "selective", "full"] = "none"
) -> tuple[Saved, ...]:
    """What a layer of `job.model.kinds[kind]` saves for one micro-batch, its input included.

    Bytes are on one rank of the layout, rounded to the allocator's 512; the sum over a stage's
    layers and the micro-batches in flight is the stage's activation memory. Raises `InvalidLayout`.
    """
    stage = Stage(1, int(recompute == "selective"), int(recompute == "full"))
    kinds = len(job.model.kinds)
    layout = replace(
        job.layout,
        pipeline_parallel=1,
        virtual_stages=1,
        schedule="1f1b",
        stages=(Stage(kinds, stage.selective_layers, stage.full_layers),),
    )
    model = replace(job.model, pattern=tuple(range(kinds)), mtp_layers=0)
    with watched_engine(replace(job, layout=layout, model=model), 0) as (engine, tracker):
        layer = Block(engine.local, "layer", model.kinds[kind], stage, 0)
        x = torch.empty(engine.pipeline.shape, dtype=engine.local.dtype).requires_grad_()
        tracker.saved = []
        y = layer(x)
        kept = tuple(Saved(shape, dtype, size) for shape, dtype, size in tracker.saved)
        assert y.shape == x.shape
    return kept
