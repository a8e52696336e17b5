"""The operations at the two ends of the stack: embedding, and head with its loss.

    t  tokens of a micro-batch on this rank     V  padded vocabulary     h  hidden

The head is a t x h by h x V/tp product in 16 bit whatever the precision; its loss reads and writes
the logits many times unless one kernel does it. Multi-token-prediction modules (DeepSeek-V3,
2412.19437 section 2.2) each add a projection 2h -> h, a layer, and the head again; where hidden
states have several streams the projection is of each of them and of the embedding (DeepSeek-V4).

Where the vocabulary is no multiple of 8 on a rank, the logits' rows are not aligned and all three
products run a slower kernel (`costmodels.seconds.kernels`); XLA and Megatron-LM pad it.

Leaves out: the gradient of a tied embedding's second use (one more add of V h / tp numbers per
step), and frameworks that make an embedding's gradient whole, zeros included (12 bytes for each of
its V h / tp numbers and micro-batch: at most 2 % of a step, and fits are no better with it).
"""

from dataclasses import replace

from meshplan.costmodels.elementwise import Number, ceil, floor, maximum, minimum, where
from meshplan.costmodels.model.parameters import padded_vocab
from meshplan.costmodels.operations.alternating import stream_end
from meshplan.costmodels.operations.feed_forward import Site, gather_tokens, scatter_tokens
from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.norms import norm
from meshplan.costmodels.operations.streams import from_streams, made_streams

CHUNK_TILE = 128
ALIGNED = 8  # numbers of 16 bits in 16 bytes
GATHERED_BYTES = 4.0  # fp32: the gathered input's gradient, to which equal chunks add theirs


def embedding_operations(site: Site) -> tuple[Operation, ...]:
    """The lookup, and under tensor parallel the sum over the ranks that hold other rows."""
    shard = site.shard
    width = site.itemsize * shard.tokens * site.model.hidden
    kept = site.stream_bytes
    lookup = Pointwise(
        name="embedding", forward_bytes=2 * width, backward_bytes=3 * width, kernels=2,
        modules=("input",),
    )  # fmt: skip
    mask = Pointwise(
        name="embedding_dropout", forward_bytes=2 * kept, backward_bytes=2 * kept,
        saved_bytes=kept / site.itemsize, modules=("input",),
    )  # fmt: skip
    exchange = scatter_tokens(site, "embedding_output")
    inputs = _layer_inputs(site) if site.model.layer_inputs else ()
    inputs = (*inputs, made_streams(site)) if site.model.streams else inputs
    if site.model.alternating:
        inputs = (*inputs, *stream_end(site, site.model.alternating, "embedding_streams"))
    return (lookup, exchange, *inputs, *((mask,) if site.kernels.dropout else ()))


def _layer_inputs(site: Site) -> tuple[Operation, ...]:
    """The second embedding of all layers, and the first projected beside it (Gemma 4).

    Leaves out: sending both through a pipeline.
    """
    t, wide = site.shard.tokens, site.model.num_layers * site.model.layer_inputs / site.shard.tp
    size = site.itemsize * t * wide
    return (
        Matmul(name="layer_inputs", m=t, n=wide, k=site.model.hidden, saved_bytes=2 * size),
        Pointwise(name="layer_input_lookup", forward_bytes=4 * size, backward_bytes=5 * size,
                  kernels=3, modules=("input",)),
    )  # fmt: skip


def head_operations(site: Site) -> tuple[Operation, ...]:
    """Final norm, projection on the vocabulary, cross-entropy; and the same for each MTP module."""
    return (*_head_once(site), *(site.model.mtp_layers * _head_once(_of_modules(site))))


def _of_modules(site: Site) -> Site:
    return replace(site, model=site.model.of_modules)


def module_operations(site: Site) -> tuple[Operation, ...]:
    """What each MTP module computes before its head: the projection and a layer."""
    if not site.model.mtp_layers:
        return ()
    site = _of_modules(site)
    h, t, streams = site.model.hidden, site.shard.tokens, site.model.streams
    rows, k = (t * (1 + streams.count), h) if streams else (t, 2 * h)
    projection = Matmul(
        name="mtp_projection", m=rows, n=h / site.shard.tp, k=k, in_16_bit=site.experts_alone
    )
    return site.model.mtp_layers * (
        projection,
        *layer_operations(site, site.model.module_layer),
    )


def _head_once(site: Site) -> tuple[Operation, ...]:
    shard, h = site.shard, site.model.hidden
    columns = padded_vocab(site.model.vocab, shard.tp) / shard.tp
    logits = shard.tokens * logit_columns(site)
    final = (_final_norm(site),) if site.model.final_norm else ()
    streams = site.model.streams
    if streams:
        final = (*from_streams(site, streams, "head_streams", last=True), *final)
    if site.model.alternating:
        final = (*stream_end(site, site.model.alternating, "head_streams"), *final)
    fused = site.kernels.fused_cross_entropy
    forward, backward = loss_bytes(site.itemsize, fused=fused)
    loss = Pointwise(
        name="cross_entropy", forward_bytes=forward * logits, backward_bytes=backward * logits,
        kernels=(2 if fused else 8) * site.kernels.loss_chunks,
        measured_as=("cross_entropy", "cross_entropy"),
    )  # fmt: skip
    parts: Number = site.kernels.loss_chunks
    if site.kernels.loss_chunk_bytes:
        parts = ceil(shard.tokens / chunk_rows(site)[0])
    unaligned = False if site.kernels.pads_vocabulary else columns % ALIGNED > 0
    head = Matmul(name="head", m=shard.tokens, n=columns, k=h, recipe=False, parts=parts,
                  unaligned=unaligned)  # fmt: skip
    entering = gather_tokens(site, "head_input")
    if site.kernels.chunked_loss:  # both gradients are taken while the input is there
        entering = replace(entering, regathers=0.0, backward_count=entering.backward_count - where(
            shard.sequence_parallel > 0, 1.0, 0.0))  # fmt: skip
    whole = (_gathered_logits(site),) if site.kernels.gathers_logits else ()
    return (*final, entering, head, *whole, loss)


def logit_columns(site: Site) -> Number:
    """Of the vocabulary, how many a rank's loss is of."""
    cut = 1 if site.kernels.gathers_logits else site.shard.tp
    return padded_vocab(site.model.vocab, site.shard.tp) / cut


def _gathered_logits(site: Site) -> Communication:
    """The ranks' logits brought together; backward each takes its own part of the gradient."""
    return Communication(
        name="logits", axis="tp", kind="all_gather",
        size_bytes=site.itemsize * site.shard.tokens * logit_columns(site),
        forward_count=1.0, backward_count=0.0, hidden_by="nothing",
    )  # fmt: skip


def loss_bytes(itemsize: float, *, fused: bool) -> tuple[float, float]:
    """Bytes moved for each logit, forward and backward.

    A fused kernel reads and writes each once. Kernels of their own, in fp32 (nanotron's and
    Megatron's sharded cross-entropy): largest 4, difference 8, exponential 8, sum 4, quotient 8;
    backward a product with the gradient 8; and 6 each way to cast from 16 bit and back.
    """
    if fused:
        return 2 * itemsize, 2 * itemsize
    cast = 6.0 if itemsize == 2.0 else 0.0
    return cast + 32.0, 8.0 + cast


def _final_norm(site: Site) -> Pointwise:
    """The norm before the head, with its input among the saved bytes.

    A layer is charged with the tensor that it puts out. Between the embedding, n layers and the
    head there are n + 1 tensors; the one that no layer is charged with is this norm's input.
    """
    plain = norm(site, "final_norm")
    kept = site.itemsize * site.shard.tokens_outside * site.model.stream_width
    return replace(plain, saved_bytes=plain.saved_bytes + kept)


def logits_bytes(site: Site) -> Number:
    """What the last stage holds at the peak of the loss beside the layers' activations.

    in equal chunks (`loss_chunks`)      the logits of one, and the gathered gradient of their input
    in chunks of bytes                   the logits of one, beside the 16-bit gradient of the one
                                         before
    at once                              all logits; or the logits' gradient beside that of the
                                         head's input, if that is more and the engine's buffers are
                                         counted (`kept_buffers`)
    """
    columns = logit_columns(site)
    each, chunks = site.bytes_per_logit, site.kernels.loss_chunks
    if chunks > 1:
        gathered = GATHERED_BYTES * site.shard.tokens * site.model.hidden
        return each * site.shard.tokens / chunks * columns + gathered
    if not site.kernels.loss_chunk_bytes:
        logits = site.shard.tokens * columns
        after = site.itemsize * logits + site.gathered_bytes if site.kernels.keeps_buffers else 0.0
        return maximum(each * logits, after)
    first, second = chunk_rows(site)
    both = where(second > 0, each * second + site.itemsize * first, 0.0)
    return maximum(each * first, both) * columns


def chunk_rows(site: Site) -> tuple[Number, Number]:
    """Rows of the first and of the second chunk (0 if there is none) that the loss runs over."""
    rows = site.shard.tokens
    columns = padded_vocab(site.model.vocab, site.shard.tp) / site.shard.tp
    first = minimum(rows, rows_that_fit(columns, site.kernels.loss_chunk_bytes))
    return first, minimum(first, rows - first)


def rows_that_fit(columns: Number, chunk_bytes: float) -> Number:
    """Rows of so many fp32 logits in `chunk_bytes`, at least one, and in whole tiles of a matmul
    where a tile fits.
    """
    fitting = floor(chunk_bytes / (4.0 * columns))
    whole = floor(fitting / CHUNK_TILE) * CHUNK_TILE
    return maximum(1.0, where(fitting < CHUNK_TILE, fitting, whole))
