"""What one rank computes of a layer: its share of the tokens and the degrees that split the
matrices.
"""

from dataclasses import dataclass

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's share; every degree may be an array over many layouts.

    tokens          of one micro-batch that enter this rank's matmuls
    tokens_outside  of them that norms, residuals and routers see: split by sequence parallel
    document_len    tokens that attend to each other: a sequence, or of documents packed in it
    imbalance       rows of the busiest expert rank over the mean
    """

    seq_len: int
    document_len: int
    tokens: Number
    tokens_outside: Number
    tp: Number
    cp: Number
    ep: Number
    etp: Number
    sequence_parallel: Number
    imbalance: float = 1.0


def shard_of(layout: Layout | Layouts, training: Training) -> Shard:
    """The share of one rank under one layout, or under each layout of a grid."""
    tp, cp = layout.tensor_parallel * 1.0, layout.context_parallel * 1.0
    tokens = layout.micro_batch_size * training.seq_len / cp
    sharded = layout.sequence_parallel * 1.0
    return Shard(
        seq_len=training.seq_len,
        document_len=training.document_len,
        tokens=tokens,
        tokens_outside=tokens / where(sharded > 0, tp, 1.0),
        tp=tp,
        cp=cp,
        ep=layout.expert_parallel * 1.0,
        etp=layout.expert_tensor_parallel * 1.0,
        sequence_parallel=sharded,
        imbalance=training.expert_imbalance,
    )
