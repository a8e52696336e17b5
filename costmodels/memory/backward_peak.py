"""Peak memory inside a layer's backward pass, tensor by tensor, for engines whose code was read.

A pass is a list of steps; each makes tensors, then gives some back:

    made      alive from this step on
    product   the weight's gradient (16 bit) and the gathered input of its product: this step only
    gone      given back after the step
    late      given back too, but where weight products are put off (zero bubble) only by W: the
              inputs and output gradients of matrix products
    kept      of `late` the inputs, which the forward pass saved

Bytes count from the moment when all that a layer saves is alive and the gradient of its output
arrives. The steps are those of `executor/engine` (functions.py, attention.py, feed_forward.py),
which the tests hold them to.

    t, r   tokens in the matmuls and outside them     h   hidden
    f      feed-forward columns on this rank          R   rows of this rank's experts

Leaves out: statistics of norms, biases' gradients, the routing's own small tensors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshplan.costmodels.elementwise import Number, maximum, minimum, where
from meshplan.costmodels.model.parameters import padded_vocab
from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.costmodels.model.transformer import Attention, Experts, Layer
from meshplan.costmodels.operations.attention.context_exchange import kv_heads
from meshplan.costmodels.operations.embedding_head import chunk_rows
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.operations.recurrent import scan
from meshplan.costmodels.operations.traced import traced_operations
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.traced_model import TracedLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Bytes that one step of a pass makes and gives back; see the module."""

    made: Number = 0.0
    product: Number = 0.0
    gone: Number = 0.0
    late: Number = 0.0
    kept: Number = 0.0


def peak_bytes(
    steps: Sequence[Step], *, put_off: bool = False, activations_alone: bool = False
) -> Number:
    """The most alive at once, beyond what was there before; `put_off`: weight gradients are
    deferred (zero bubble); `activations_alone`: without what one product allocates for its weight.
    """
    without_products = put_off or activations_alone
    alive: Number = 0.0
    most: Number = 0.0
    for step in steps:
        alive = alive + step.made
        most = maximum(most, alive if without_products else alive + step.product)
        alive = alive - step.gone - (0.0 if put_off else step.late)
    return most


def gradients_alive(site: Site, kind: Layer) -> Number:
    """The most that a layer's pass makes of activations' gradients beyond what was saved. Those of
    weights are counted with the states or with gathered layers; one product's, before it is added
    there, is left out.
    """
    return peak_bytes(backward_steps(site, kind), activations_alone=True)


def left_bytes(steps: Sequence[Step]) -> Number:
    """Bytes that remain after a pass whose weight gradients come later, beyond those before it."""
    return sum(step.made - step.gone for step in steps)


def waiting_gradient_bytes(steps: Sequence[Step]) -> Number:
    """Of `left_bytes` the output gradients, which the pass made and the forward did not save."""
    return sum(step.late - step.kept for step in steps)


def largest_product_bytes(steps: Sequence[Step]) -> Number:
    """Bytes of the largest weight gradient that one matrix product allocates."""
    most: Number = 0.0
    for step in steps:
        most = maximum(most, step.product)
    return most


def most_passing_bytes(site: Site, kind: Layer) -> Number:
    """The most that any backward pass of such a layer makes, a replayed output and two messages
    of the pipeline or the embedding's gradient included.
    """
    embedding = 3 * site.itemsize * site.shard.tokens * site.model.hidden
    return peak_bytes(backward_steps(site, kind)) + 3 * site.stream_bytes + embedding


def most_put_off_bytes(site: Site, kind: Layer) -> Number:
    """Bytes that the pass takes in addition where weight gradients come later (zero bubble)."""
    steps = backward_steps(site, kind)
    return maximum(peak_bytes(steps, put_off=True) - peak_bytes(steps), 0.0)


def loss_bytes(site: Site, gradient_bytes: Number = 0.0) -> Number:
    """What the head holds at the peak of the loss: the normed rows, gathered, their gradient, and
    the largest of the first chunk's logits, the table's gradient (16 bit) beside the logits' own,
    and the next chunk's logits beside that.

    gradient_bytes  the table's fp32 gradient where it is made when the first product needs it
    """
    h, columns = site.model.hidden, padded_vocab(site.model.vocab, site.shard.tp) / site.shard.tp
    first, second = chunk_rows(site)
    each, own = site.bytes_per_logit * columns, site.itemsize * first * columns
    following = where(second > 0, each * second, 0.0)
    later = own + maximum(site.itemsize * columns * h, following) + gradient_bytes
    rows = site.itemsize * site.shard.tokens * h
    return site.stream_bytes + _gathered(site, h) + rows + maximum(each * first, later)


def backward_steps(site: Site, kind: Layer) -> tuple[Step, ...]:
    """The backward pass of one layer: its feed-forward, then what mixes its tokens."""
    steps = [Step(made=site.stream_bytes)]  # the gradient of the output
    if kind.traced:
        return (*steps, *_traced(site, kind.traced))
    if kind.has_feed_forward:
        whole = not kind.experts or bool(kind.experts.shared_ffn)
        steps += (
            _experts(site, kind.experts) if kind.experts else _dense(site, kind.ffn / site.shard.tp)
        )
        steps += _norm(site, multiplied=whole)
    if kind.attention.heads:
        steps += _attention(site, kind.attention)
    if kind.recurrent:
        steps += _recurrent(site, kind.recurrent)
    if kind.has_mixer:
        steps += _norm(site, multiplied=True)
    return tuple(steps)


def _traced(site: Site, layer: TracedLayer) -> Iterator[Step]:
    """Products in reverse: the gradient of each one's input is made, that of its output given back.

    Leaves out what attention and chains between products make beside these.
    """
    for op in reversed([op for op in traced_operations(site, layer) if isinstance(op, Matmul)]):
        rows = site.itemsize * op.m * op.groups
        yield Step(made=rows * op.k, product=site.itemsize * op.k * op.n * op.groups,
                   late=rows * op.n)  # fmt: skip


def _recurrent(site: Site, mixer: Recurrent) -> Iterator[Step]:
    """The output projection, gated norm, scan and convolutions, then the input's projections."""
    tokens = site.itemsize * site.shard.tokens / site.shard.tp
    inner, wide = tokens * mixer.inner, tokens * mixer.projections
    convolved, steps = tokens * mixer.convolved, wide - inner - tokens * mixer.convolved
    yield _row(site, mixer.inner / site.shard.tp, inner)
    yield Step(made=2 * inner, gone=3 * inner)  # the scan's output and the gate go, and dy
    states = scan(site, mixer).saved_bytes if mixer.key_dim else 0.0
    yield Step(made=convolved + steps, gone=inner + states + convolved)
    values = minimum(inner, convolved)
    for part in (values, (convolved - values) / 2, (convolved - values) / 2):
        yield Step(made=part, gone=2 * part)
    columns = mixer.inner / site.shard.tp
    yield _column(site, columns, site.model.hidden, grads=wide, saved=site.stream_bytes)


def _gathered(site: Site, width: Number) -> Number:
    """Bytes of a tensor gathered over the tensor-parallel ranks; 0 with one rank."""
    return where(site.shard.tp > 1, site.itemsize * site.shard.tokens * width, 0.0)


def _norm(site: Site, *, multiplied: bool) -> Iterator[Step]:
    """A norm's input gradient, then the sum with the residual's.

    multiplied  a weight product reads the residual's gradient itself where nothing is gathered
    """
    stream = site.stream_bytes
    yield Step(made=stream, gone=2 * stream)  # the incoming gradient and the saved input
    read = where(site.shard.tp > 1, 0.0, stream) if multiplied else 0.0
    yield Step(made=stream, gone=2 * stream - read, late=read)


def _row(site: Site, width: Number, saved: Number) -> Step:
    """A row-split projection from `width` columns: gathers dy, makes dx, frees `saved`."""
    h, whole = site.model.hidden, _gathered(site, site.model.hidden)
    return Step(
        made=whole + site.itemsize * site.shard.tokens * width,
        product=site.itemsize * h * width,
        late=whole + saved,
        kept=saved,
    )


def _column(site: Site, widest: Number, width: Number, *, grads: Number, saved: Number) -> Step:
    """Column-split projections of one input `width` wide: dx whole, then scattered.

    widest  columns of the widest of them
    grads   bytes of their output gradients, and `saved` of the input: both kept for W
    """
    whole = _gathered(site, width)
    part = where(site.shard.tp > 1, site.itemsize * site.shard.tokens_outside * width, 0.0)
    return Step(
        made=site.itemsize * site.shard.tokens * width + part,
        product=whole + site.itemsize * width * widest,
        gone=where(site.shard.tp > 1, site.itemsize * site.shard.tokens * width, 0.0),
        late=grads + saved,
        kept=saved,
    )


def _dense(site: Site, f: Number) -> Iterator[Step]:
    """Down projection, activation, up (and gate)."""
    h, up = site.model.hidden, 2 if site.model.gated else 1
    wide = site.itemsize * site.shard.tokens * f
    yield _row(site, f, wide)
    yield Step(made=up * wide, gone=(1 + up) * wide)
    yield _column(site, f, h, grads=up * wide, saved=site.stream_bytes)


def _experts(site: Site, experts: Experts) -> Iterator[Step]:
    """Shared experts, then rows back through combine, the experts and dispatch."""
    shard, f = site.shard, experts.ffn / site.shard.etp
    h = experts.latent or site.model.hidden
    copies = site.itemsize * shard.tokens / shard.tp * experts.top_k * h
    rows = copies * shard.etp * shard.imbalance
    wide, matrix = rows * f / h, site.itemsize * h * f * experts.experts / shard.ep
    exchanged = where(shard.ep > 1, rows, 0.0)
    sorts = where((shard.ep > 1) & (shard.ep < experts.experts), rows, 0.0)
    shared: Number = 0.0
    if experts.shared_ffn:
        yield from _dense_beside(site, experts.shared_ffn / shard.tp)
        shared = site.stream_bytes
    yield Step(made=copies)
    yield Step(made=exchanged, gone=where(shard.ep > 1, copies, 0.0))
    yield Step(made=sorts, gone=sorts)
    yield Step(
        made=wide, product=matrix, late=rows + wide, kept=wide
    )  # down: its dy, its saved input
    yield Step(made=2 * wide, gone=3 * wide)
    yield Step(made=rows, product=matrix, late=wide)  # up
    yield Step(
        made=rows, product=matrix, late=wide + rows, kept=rows
    )  # gate, and the saved rows of both
    yield Step(made=rows, gone=2 * rows)
    yield Step(made=sorts, gone=sorts)
    yield Step(made=where(shard.ep > 1, copies, 0.0), gone=exchanged)
    yield Step(made=site.stream_bytes, gone=copies + shared)
    yield Step(gone=site.stream_bytes)  # the saved input of the router and the experts


def _dense_beside(site: Site, f: Number) -> Iterator[Step]:
    """A shared expert: its input stays saved for the routed ones."""
    *first, last = _dense(site, f)
    yield from first
    own = site.stream_bytes
    yield replace(last, late=last.late - own, kept=last.kept - own)


def _attention(site: Site, attention: Attention) -> Iterator[Step]:
    shard, at, h = site.shard, attention, site.model.hidden
    t, a = shard.tokens, attention.heads / shard.tp
    q = site.itemsize * t * a * at.head_dim
    k = site.itemsize * t * kv_heads(shard, at) * at.head_dim
    v = site.itemsize * t * kv_heads(shard, at) * at.v_head_dim
    out = site.itemsize * t * a * at.v_head_dim
    gate = {"none": 0.0, "head": out / at.v_head_dim if at.v_head_dim else 0.0, "full": out}[
        at.gate
    ]
    yield _row(site, a * at.v_head_dim, out if at.gate != "none" else 0.0)
    if at.gate != "none":
        yield Step(made=out + gate, gone=out + gate)  # dy and the saved gate go
    yield from _core(site, q, k + v, out, lse=4.0 * t * a)
    if at.is_mla:
        yield from _latents(site, at)
        return
    yield Step(made=q, gone=q)
    if at.qk_norm != "none":
        yield Step(made=q, gone=2 * q + k + v * at.v_norm)
    yield _column(site, a * at.head_dim, h, grads=q + k + v + gate, saved=site.stream_bytes)


def _core(site: Site, q: Number, kv: Number, out: Number, *, lse: Number) -> Iterator[Step]:
    """The attention kernel, from dout to dq, dk and dv.

    Under context parallelism keys and values are gathered, and so are their gradients, which the
    kernels of the pieces add to: the first rank's largest piece meets (2 cp - 1) of 2 cp chunks
    while the gradients of the piece before are still there.
    """
    cp = site.shard.cp
    whole = where(cp > 1, kv * cp, 0.0)
    yield Step(made=q + where(cp > 1, 0.0, kv) + 3 * whole + where(cp > 1, q, 0.0))
    yield Step(
        made=where(cp > 1, kv, 0.0),
        gone=out + q + kv + 3 * whole + where(cp > 1, q, 0.0) + lse,
        late=out,
        kept=out,
    )


def _latents(site: Site, at: Attention) -> Iterator[Step]:
    """From dq, dk and dv down to the hidden states."""
    shard, h = site.shard, site.model.hidden
    t, r, a = shard.tokens, shard.tokens_outside, at.heads / shard.tp
    nope, rank = at.head_dim - at.rope_head_dim, at.kv_lora_rank
    q, up = site.itemsize * t * a * at.head_dim, a * (nope + at.v_head_dim)
    dkv = q + site.itemsize * t * a * at.v_head_dim
    yield Step(made=site.itemsize * t * up, gone=dkv)
    yield Step(made=q, gone=q)
    yield _column(site, up, rank, grads=site.itemsize * t * up, saved=site.itemsize * r * rank)
    narrow = site.itemsize * r * (rank + at.rope_head_dim)
    yield Step(made=narrow, gone=site.itemsize * r * rank)
    q_rank = at.q_lora_rank
    if not q_rank:
        wide = a * at.head_dim
        yield _column(site, wide, h, grads=q, saved=0.0)
        stream = site.stream_bytes
        yield Step(made=stream, gone=stream, late=2 * narrow + stream, kept=narrow + stream)
        return
    wide = a * at.head_dim
    yield _column(site, wide, q_rank, grads=q, saved=site.itemsize * r * q_rank)
    yield Step(made=site.itemsize * r * q_rank, gone=2 * site.itemsize * r * q_rank)
    latents = narrow + site.itemsize * r * q_rank
    product, stream = maximum(q_rank, rank + at.rope_head_dim), site.stream_bytes
    yield Step(
        made=stream, product=site.itemsize * h * product,
        gone=narrow, late=latents + stream, kept=stream,
    )  # fmt: skip
