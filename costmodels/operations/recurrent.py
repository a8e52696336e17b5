"""The operations of a recurrent mixer on one rank: state-space models and linear attention.

    t        tokens of a micro-batch on this rank       h    hidden
    p        columns of the projections on this rank    r    inner numbers of a token on this rank
    a        state heads on this rank                   n, v rows and columns of one head's state
    c        tokens of a chunk

The state is carried from chunk to chunk; within one, tokens meet by matrix products [1, section 6]:

    scores       t c n for each group of heads, causal        outputs   t c v for each head
    states       2 t n v into the state, 2 t n v out of it, for each head
    delta rule   t c (n + v) for the chunk's triangular system, 2 t n v for what keys return [2]

A chunk of one token is a sequential scan: no products between tokens, and of its states one in
`KEPT_EVERY` is kept, as in Mamba's kernel [4].

A scan reads its inputs and writes its output once each, and a chunk's state twice. At what share of
the 16-bit peak its products run is the GPU's (`Kernels.scan_forward`), from published benchmarks of
such kernels.

Under tensor parallelism heads are cut; under context parallelism a rank sends its last state on,
and the ranks' states are combined [3].

[1] Mamba-2, arXiv 2405.21060. [2] DeltaNet in chunks, arXiv 2406.06484, section 3.
[3] LASP-2, arXiv 2502.07563: one all-gather of the states forward, one backward.
[4] state-spaces/mamba `csrc/selective_scan/selective_scan_fwd_kernel.cuh` (chunks of 2,048).
Leaves out: the halo of the convolution between context-parallel ranks; fused kernels that keep a
chunk's state on the chip.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise, Scan

STATE_ITEMSIZE = 4.0
KEPT_EVERY = 2048

KERNELS = 5, 21
"""Mamba-2's forward: cumulated decays, states, handing them on, scores, outputs; backward these but
the outputs, and a copy; eight gradients of states, inputs, B, C, scores and decays; two products
and six sums and flips (state-spaces/mamba@01b717a mamba_ssm/ops/triton/ssd_combined.py). Other
recurrences without a delta rule as many [assumed].
"""

DELTA_KERNELS = 8, 12
"""Forward two norms, cumulated decays, scores, the triangular system, its products, states,
outputs; backward the products and states again, five gradients, three sums, two norms
(fla-org/flash-linear-attention@0315a70 fla/ops/gated_delta_rule/chunk.py).
"""

SEQUENTIAL_KERNELS = 1, 1
"""Mamba's [4]."""

COPIES = 7
"""Kernels around the delta rule where heads share keys: queries and keys made contiguous, each
repeated, values and gate, both steps, decays, outputs put back in order (NVIDIA/Megatron-LM
megatron/core/ssm/gated_delta_net.py, compiled pieces as one kernel for each size).
"""


def recurrent_operations(site: Site, mixer: Recurrent) -> Iterator[Operation]:
    """From the gathered input to the numbers that enter the sum over the ranks."""
    t, tp, h = site.shard.tokens, site.shard.tp, site.model.hidden
    p, r = mixer.projections / tp, mixer.inner / tp
    yield Matmul(
        name="recurrent_in", m=t, n=p, k=h, saved_bytes=site.itemsize * t * p,
        cast_shares=site.entering_casts,
    )  # fmt: skip
    for rank, columns in mixer.low_rank:
        yield Matmul(name="low_rank_in", m=t, n=rank, k=h, saved_bytes=site.itemsize * t * rank)
        wide = columns / tp
        yield Matmul(name="low_rank_out", m=t, n=wide, k=rank, saved_bytes=site.itemsize * t * wide)
    if mixer.convolution:
        yield _convolution(site, mixer, mixer.convolved / tp)
    yield from _selection(site, mixer, r)
    if mixer.key_dim:
        if mixer.delta_rule and mixer.convolution:
            yield from _copies(site, mixer)
        yield from _state_exchange(site, mixer)
        yield scan(site, mixer)
        yield _scan_output(site, mixer)
    yield _gated_norm(site, r)
    yield Matmul(name="recurrent_out", m=t, n=h, k=r, cast_shares=site.leaving_casts)


def scan(site: Site, mixer: Recurrent) -> Scan:
    """The chunked recurrence over the tokens of one rank."""
    t, heads = site.shard.tokens, mixer.heads / site.shard.tp
    groups = min(mixer.groups, mixer.heads) / site.shard.tp
    c, n, v = mixer.chunk, mixer.key_dim, mixer.value_dim
    flops = 4.0 * t * n * v * heads
    if c > 1:
        flops = flops + t * c * (n * groups + v * heads)
    if mixer.delta_rule:
        flops = flops + t * c * (n + v) * heads + 2.0 * t * n * v * heads
    state_bytes = STATE_ITEMSIZE * (t / (c if c > 1 else KEPT_EVERY)) * heads * n * v
    tokens_bytes = site.itemsize * t * (2 * n * groups + 2 * v * heads)
    kernels, backward_kernels = _kernels(mixer)
    return Scan(
        name="scan", forward_flops=flops, forward_bytes=tokens_bytes + 2 * state_bytes,
        kernels=kernels, backward_kernels=backward_kernels, saved_bytes=state_bytes,
    )  # fmt: skip


def _kernels(mixer: Recurrent) -> tuple[int, int]:
    if mixer.delta_rule:
        return DELTA_KERNELS
    return KERNELS if mixer.chunk > 1 else SEQUENTIAL_KERNELS


def _copies(site: Site, mixer: Recurrent) -> Iterator[Pointwise]:
    """Around the delta rule where several heads share a key: k numbers of queries and keys are
    copied, normed and repeated to r, v values, gates and outputs copied; backward what was repeated
    is summed, normed, and joined with the others to the projection's p columns.
    """
    k, v = mixer.convolved - mixer.inner, mixer.inner
    r = 2 * mixer.heads * mixer.key_dim
    if r > k:
        size = site.itemsize * site.shard.tokens / site.shard.tp
        yield Pointwise(
            name="recurrent_copies", forward_bytes=size * (5 * k + r + 6 * v), kernels=COPIES,
            backward_bytes=size * (r + 4 * k + 2 * v + 2 * mixer.projections),
        )  # fmt: skip


def _scan_output(site: Site, mixer: Recurrent) -> Pointwise:
    """The scan's output: the gated norm keeps it even where the scan is replayed."""
    size = site.itemsize * site.shard.tokens * mixer.value_dim * mixer.heads / site.shard.tp
    return Pointwise(
        name="scan_output", forward_bytes=0.0, backward_bytes=0.0, kernels=0, saved_bytes=size,
        modules=("linear",),
    )  # fmt: skip


def _convolution(site: Site, mixer: Recurrent, channels: Number) -> Pointwise:
    """What it writes is kept, and what it reads where a gate made that (no state comes after)."""
    size = site.itemsize * site.shard.tokens * channels
    return Pointwise(
        name="convolution", forward_bytes=2 * size, backward_bytes=4 * size,
        saved_bytes=size if mixer.key_dim else 2 * size,
    )  # fmt: skip


def _selection(site: Site, mixer: Recurrent, inner: Number) -> Iterator[Operation]:
    """Mamba's step, B and C of the convolved numbers; a step widened again for each of them."""
    t = site.shard.tokens
    if mixer.selection:
        whole = mixer.selection_blocks == 1
        blocks = 1 if whole else mixer.selection_blocks / site.shard.tp
        yield Matmul(
            name="selection", m=t, n=mixer.selection, k=inner,
            saved_bytes=site.itemsize * t * mixer.selection * blocks,
        )  # fmt: skip
    if mixer.step_rank:
        yield Matmul(
            name="step", m=t, n=inner, k=mixer.step_rank, saved_bytes=site.itemsize * t * inner
        )


def _gated_norm(site: Site, inner: Number) -> Pointwise:
    """The norm over heads and the product with the gate, one kernel."""
    size = site.itemsize * site.shard.tokens * inner
    return Pointwise(
        name="recurrent_norm", forward_bytes=3 * size, backward_bytes=5 * size, saved_bytes=size,
        modules=("norm", "pointwise"),
    )  # fmt: skip


def _state_exchange(site: Site, mixer: Recurrent) -> Iterator[Communication]:
    heads = mixer.heads / site.shard.tp
    states = STATE_ITEMSIZE * heads * mixer.key_dim * mixer.value_dim * site.shard.cp
    once = where(site.shard.cp > 1, 1.0, 0.0)
    yield Communication(
        name="states", axis="cp", kind="all_gather", size_bytes=states, forward_count=once,
        backward_count=once, hidden_by="nothing",
    )  # fmt: skip
