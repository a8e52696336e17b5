"""Attention residuals (Kimi K3): a half of a layer reads a mean of the stream and of the sums of
earlier blocks of layers, by weights of its own for each token.

    weights  of each of n + 1 states the product of its norm with one learnt vector, softmaxed
    mean     2 (n + 1) h FLOPs for each token, as many as the products

    n  sums that the half reads    h  hidden

One kernel reads n + 1 states and writes their mean; backward reads them and the mean's gradient,
and adds to the gradient of each. The mean is kept: the half's norm reads it. The sums are kept
once, as the stream where a block ends.

Source: Kimi K3 technical report, arXiv 2607.24653, section 2.2, equations 8 to 10; transformers
`modular_kimi_k3.py`, `KimiK3AttentionResidual`, which runs several kernels in 32 bits. Leaves out:
that later layers read more sums than earlier ones (each reads the mean of its kind), and sums that
a stage of a pipeline has been sent and holds for each micro-batch in flight.
"""

from collections.abc import Iterator

from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Pointwise


def earlier_sums(site: Site, sums: float, name: str) -> Iterator[Pointwise]:
    """What a half, or the head, reads of `sums` earlier blocks beside the stream."""
    if not sums:
        return
    tokens, hidden, states = site.shard.tokens_outside, site.model.hidden, sums + 1
    one = site.itemsize * tokens * hidden
    yield Pointwise(
        name=name, forward_bytes=(states + 1) * one, backward_bytes=(3 * states + 1) * one,
        forward_flops=4.0 * states * tokens * hidden, saved_bytes=one,
    )  # fmt: skip
