"""Short causal convolutions over keys, values and the outputs of a layer's halves, and biases of
attention by distance (Inkling).

    convolution  over each channel alone, its input added to its output: one kernel that reads and
                 writes; its input is kept for the gradient of its weights
    bias         h -> a r numbers of each token, of each head 2 r e FLOPs for the biases of the e
                 nearest distances, which the core reads, and backward reads again and sends their
                 gradient

    h hidden, a heads, r relative_rank, e relative_extent

Source: transformers 5.24 `modeling_inkling.py`, `InklingShortConvolution` and
`InklingRelativeLogits`. Counted is a core that takes each query's biases as they are; that module
spreads them over all pairs of tokens. Leaves out: the tokens before a rank's first one that
context- and sequence-parallel ranks would need of each other (kernel - 1 of them).
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.transformer import Attention, Layer
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul, Operation, Pointwise


def convolution(site: Site, name: str, channels: Number, tokens: Number) -> Pointwise:
    """Over these channels of these tokens."""
    size = site.itemsize * tokens * channels
    return Pointwise(name=name, forward_bytes=2 * size, backward_bytes=4 * size, saved_bytes=size)


def output_convolution(site: Site, kind: Layer, name: str) -> Iterator[Operation]:
    """Over what a half of the layer adds to the stream."""
    if kind.output_convolution:
        yield convolution(site, name, site.model.hidden, site.shard.tokens_outside)


def relative_bias(site: Site, attention: Attention) -> Iterator[Operation]:
    """Of each query the biases of its nearest keys."""
    t, a = site.shard.tokens, attention.heads / site.shard.tp
    rank, extent = attention.relative_rank, attention.relative_extent
    narrow, size = site.itemsize * t * a * rank, site.itemsize * t * a * extent
    yield Matmul(name="relative_states", m=t, n=a * rank, k=site.model.hidden, saved_bytes=narrow)
    yield Matmul(name="relative_bias", m=t * a, n=extent, k=rank, saved_bytes=size)
    yield Pointwise(
        name="biased_scores", forward_bytes=size, backward_bytes=2 * size, kernels=0,
        modules=("core_attention",),
    )  # fmt: skip
