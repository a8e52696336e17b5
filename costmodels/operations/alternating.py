"""Several streams of hidden states of which a layer computes one (Gemma 3n's AltUp), and the
residual of low rank beside its attention (LAuReL).

    predicted    router: a norm, products to n and n n columns; all streams mixed: 2 h n n FLOPs
    low rank     h to r and back, a norm, beside the attention and of the same input
    corrected    the router again, to n weights; to each stream its share of what was mispredicted
    scaled       the computed stream, for the layer's second embedding, which the others are given
    thinned      mean and deviation of a token's gate, below which its numbers are 0
    ends         n - 1 products h to h, before and after the layers, each of the first one's size

    n streams, h hidden, r the rank

Kept for the backward: all streams once for each layer, the predicted one that the layer reads, both
routers' normed inputs, the low rank's two outputs, the scaled stream. Every tensor-parallel rank
has all of it for its tokens; all streams cross a pipeline. Counted as fused kernels, as other
streams.

Source: transformers 5.24 `modeling_gemma3n.py`. Leaves out: that the n and n n weights of each
token are kept, that ranks which cut a thinned gate exchange two numbers of each token.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.compression import AlternatingUpdates
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul, Operation, Pointwise


def predicted(site: Site, updates: AlternatingUpdates) -> Iterator[Operation]:
    """All streams mixed by weights of the computed one's; the layer reads that one."""
    one, n = site.stream_bytes, updates.count
    yield from _router(site, updates, "predict", n * n)
    yield Pointwise(
        name="predict_streams", forward_bytes=2 * n * one, backward_bytes=3 * n * one,
        forward_flops=2.0 * site.shard.tokens_outside * site.model.hidden * n * n, saved_bytes=one,
        modules=("input",),
    )  # fmt: skip


def low_rank_residual(site: Site, updates: AlternatingUpdates) -> Iterator[Operation]:
    """Beside the attention, of its normed input."""
    t, h, one = site.shard.tokens_outside, site.model.hidden, site.stream_bytes
    size = site.itemsize * t * updates.rank
    yield Matmul(name="low_rank_down", m=t, n=updates.rank, k=h, saved_bytes=size)
    yield Matmul(name="low_rank_up", m=t, n=h, k=updates.rank, saved_bytes=one)
    yield Pointwise(name="low_rank_norm", forward_bytes=3 * one, backward_bytes=4 * one)


def corrected(site: Site, updates: AlternatingUpdates) -> Iterator[Operation]:
    """All streams, kept as the next layer's input, and the scaled one, which the second embedding's
    gate reads and its norm counts.
    """
    one, n = site.stream_bytes, updates.count
    yield from _router(site, updates, "correct", n)
    yield Pointwise(
        name="correct_streams", forward_bytes=(2 * n + 2) * one, backward_bytes=(2 * n + 4) * one,
        saved_bytes=n * one, modules=("input",),
    )  # fmt: skip


def given_to_others(site: Site, updates: AlternatingUpdates) -> Pointwise:
    """The second embedding's output added to all streams but the computed one."""
    moved = (2 * updates.count - 1) * site.stream_bytes
    return Pointwise(
        name="layer_input_streams", forward_bytes=moved, backward_bytes=moved, modules=("input",)
    )


def thinned(site: Site, columns: Number) -> Pointwise:
    """One more read of the gate, and of its gradient beside it."""
    size = site.itemsize * site.shard.tokens * columns
    return Pointwise(
        name="thinned_gate",
        forward_bytes=size,
        backward_bytes=2 * size,
        modules=("mlp", "pointwise"),
    )


def stream_end(site: Site, updates: AlternatingUpdates, name: str) -> Iterator[Operation]:
    """The other streams of the first, or what of each is added to it; each in the first's size."""
    t, h, others = site.shard.tokens_outside, site.model.hidden, updates.count - 1
    size = others * site.stream_bytes
    yield Matmul(name=name, m=t, n=h, k=h, groups=others, recipe=False, saved_bytes=size)
    yield Pointwise(
        name=f"{name}_size", forward_bytes=2 * size, backward_bytes=3 * size, modules=("input",)
    )


def _router(
    site: Site, updates: AlternatingUpdates, name: str, weights: int
) -> Iterator[Operation]:
    """A norm of one stream, a number of it for each, and of these the weights of the streams."""
    one, t, n = site.stream_bytes, site.shard.tokens_outside, updates.count
    yield Pointwise(
        name=f"{name}_norm", forward_bytes=2 * one, backward_bytes=3 * one, saved_bytes=one,
        modules=("norm", "pointwise"),
    )  # fmt: skip
    yield Matmul(name=f"{name}_router", m=t, n=n, k=site.model.hidden, recipe=False)
    yield Matmul(name=f"{name}_weights", m=t, n=weights, k=n, recipe=False)
