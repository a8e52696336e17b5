"""What one rank computes of a layer: its share of the tokens and the degrees that split the
matrices.
"""

import numpy as np

from meshplan.costmodels.elementwise import Condition, Number, where
from meshplan.costmodels.layout import CONTEXT_KINDS, DISPATCHERS, Layout
from meshplan.costmodels.layouts import Ints, Layouts
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's share; every degree may be an array over many layouts.

    tokens          of one micro-batch in this rank's matmuls
    tokens_outside  of one micro-batch in its norms, residuals and routers: with sequence
                    parallelism 1 / tp of those
    document_len    tokens that attend to each other: a sequence, or a document packed in it
    context_kind, dispatcher
                    as in `Layouts`: 0, or 1 + an index
    imbalance       rows of the busiest expert rank over the mean: 1 where a rank holds all experts
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
    context_kind: Number = 0
    dispatcher: Number = 0
    imbalance: Number = 1.0

    @property
    def documents(self) -> Number:
        """That a packed micro-batch holds, 1 where sequences are not packed; each rank of context
        parallelism has a part of every one.
        """
        if self.document_len >= self.seq_len:
            return 1.0
        return self.tokens * self.cp / self.document_len


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
        context_kind=stated(layout.context_kind, CONTEXT_KINDS),
        dispatcher=stated(layout.dispatcher, DISPATCHERS),
        imbalance=where(layout.expert_parallel * 1.0 > 1, training.expert_imbalance, 1.0),
    )


def stated(kind: str | Ints, kinds: tuple[str, ...]) -> Number:
    """A kind as `Layouts` has it: 1 + its index in `kinds`, 0 where the layout leaves it open."""
    if not isinstance(kind, str):
        return kind.astype(np.float64)
    return 1 + kinds.index(kind) if kind else 0


def is_kind(code: Number, index: int, *, usual: bool) -> Condition:
    """Whether `code` states the kind at `index`, or leaves it open where it is the `usual` one."""
    return (code == 1 + index) | ((code == 0) & usual)
