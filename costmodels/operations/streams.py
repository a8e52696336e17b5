"""Several streams of hidden states (hyper-connections): what stands around each half of a layer.

    into a half    the weights, p columns of n h numbers; the sum of the streams by n of them
    out of it      its output to each stream by n others; mixed, the streams with each other too:
                   2 n n h FLOPs for each token
    the head       reads one more such sum, or the plain mean
    gated instead  (Qwen4) a norm of each stream; gates of all n h numbers through r; the mean of
                   the streams by them; out of a half n numbers of the normed streams

    n streams, h hidden, p as in `Streams.columns`

The streams are kept once for each half, as a residual stream is, and beside them the sum (which the
norm reads) and the half's output (which the weights' gradient reads). Every tensor-parallel rank
has all streams of its tokens; all of them cross a pipeline.

Of gated streams the norm's output, the narrow numbers and the gates are kept too: each of the
products and the mean needs them for its gradient.

Source: DeepSeek-V4 in transformers 5.24 `modeling_deepseek_v4.py`; mHC, arXiv 2512.24880, section
4.3, whose fused kernels these passes are; what is kept, NVIDIA/Megatron-LM@d98e8a64
`megatron/core/transformer/hyper_connection.py`, whose norm and weights read the streams as they are
(transformers keeps a normed copy in 32 bits). Leaves out: the few numbers of each token that the
weights are worked out by, doubly stochastic ones by 20 rounds in one such kernel; that its products
are of 32 bits. Of gated streams (`modeling_qwen4_exp.py`): which kernels a training framework has
for them; counted is one for the norm and one for the mean.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.compression import Streams
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul, Operation, Pointwise
from meshplan.costmodels.operations.norms import inner_norm


def from_streams(
    site: Site, streams: Streams, name: str, *, last: bool = False
) -> Iterator[Operation]:
    """The weights and the sum that the norm reads; `last`: of the head, which adds to none."""
    if streams.rank:
        yield from _gated(site, streams, name, last=last)
        return
    columns = streams.count if last else streams.columns
    t, wide = site.shard.tokens_outside, site.model.stream_width
    if not (last and streams.ends_in_mean):
        yield Matmul(name=f"{name}_weights", m=t, n=columns, k=wide, recipe=False)
    one, all_streams = _bytes(site)
    yield Pointwise(
        name=f"{name}_sum", forward_bytes=all_streams + one, backward_bytes=2 * all_streams + one,
        saved_bytes=one,
    )  # fmt: skip


def _gated(site: Site, streams: Streams, name: str, *, last: bool) -> Iterator[Operation]:
    t, wide, rank = site.shard.tokens_outside, site.model.stream_width, streams.rank
    one, all_streams = _bytes(site)
    yield inner_norm(site, f"{name}_norm", all_streams, 1)
    yield Matmul(name=f"{name}_gate_down", m=t, n=rank, k=wide, recipe=False,
                 saved_bytes=site.itemsize * t * rank)  # fmt: skip
    yield Matmul(name=f"{name}_gate_up", m=t, n=wide, k=rank, recipe=False, saved_bytes=all_streams)
    yield Pointwise(
        name=f"{name}_mean", forward_bytes=2 * all_streams + one,
        backward_bytes=4 * all_streams + one, saved_bytes=one,
    )  # fmt: skip
    if not last:
        yield Matmul(name=f"{name}_weights", m=t, n=streams.count, k=wide, recipe=False)


def to_streams(site: Site, streams: Streams, name: str) -> Pointwise:
    """A half's output added to all streams, which are kept as the next half's input."""
    one, all_streams = _bytes(site)
    t, n = site.shard.tokens_outside, streams.count
    return Pointwise(
        name=name,
        forward_bytes=2 * all_streams + one,
        backward_bytes=3 * all_streams + 2 * one,
        forward_flops=2.0 * t * n * site.model.stream_width if streams.mixed else 0.0,
        saved_bytes=all_streams + one,
        modules=("input",),
    )


def made_streams(site: Site) -> Pointwise:
    """The embedding's output, once for each stream."""
    one, all_streams = _bytes(site)
    return Pointwise(
        name="embedding_streams", forward_bytes=one + all_streams,
        backward_bytes=one + all_streams, modules=("input",),
    )  # fmt: skip


def _bytes(site: Site) -> tuple[Number, Number]:
    """Of one stream of this rank's tokens, and of all."""
    each = site.itemsize * site.shard.tokens_outside
    return each * site.model.hidden, each * site.model.stream_width
