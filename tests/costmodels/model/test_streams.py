"""Several streams of hidden states, compressed keys and outputs in groups, worked out by hand."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.model.compression import Compression, Indexer, Streams
from meshplan.costmodels.model.hf_config import UnsupportedModel, model_from_config
from meshplan.costmodels.model.parameters import layer_parameters, model_parameters
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.embedding_head import head_operations, module_operations
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Matmul, Pointwise
from meshplan.costmodels.operations.layers import input_bytes, layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import load_model_config

T, H = 1024, 64
ONE_HEAD = Attention(
    heads=8, kv_heads=1, head_dim=16, v_head_dim=16, window=128, own_values=False, q_lora_rank=32,
    qk_norm="keys", out_groups=4, out_rank=12,
)  # fmt: skip


def model_of(attention: Attention, streams: Streams | None = None) -> Model:
    kind = Layer(attention=attention, ffn=96)
    return Model(name="x", hidden=H, vocab=512, kinds=(kind,), pattern=(0, 0), streams=streams)


def site_of(model: Model, seq_len: int = T, *, cp: float = 1.0, tp: float = 1.0) -> Site:
    tokens = seq_len / cp
    shard = Shard(
        seq_len=seq_len, document_len=seq_len, tokens=tokens, tokens_outside=tokens, tp=tp, cp=cp,
        ep=1.0, etp=1.0, sequence_parallel=0.0,
    )  # fmt: skip
    return Site(model, shard, load_engine("generic").kernels)


def core_of(attention: Attention, seq_len: int = T) -> AttentionCore:
    model = model_of(attention)
    operations = layer_operations(site_of(model, seq_len), model.kinds[0])
    return next(
        op for op in operations if op.name == "core_attention" and isinstance(op, AttentionCore)
    )


@pytest.mark.parametrize(
    ("streams", "each", "head"),
    [
        pytest.param(Streams(count=4, mixed=True), 24 * 256 + 24 + 3, 4 * 256 + 4 + 1,
                     id="4 mixed: p = 2 4 + 16 = 24; 24 x (4 x 64) + 24 + 3 scales"),
        pytest.param(Streams(count=4, mixed=False), 8 * 256 + 8 + 2, 4 * 256 + 4 + 1,
                     id="4 added to: p = 8; 8 x 256 + 8 + 2 scales"),
        pytest.param(Streams(count=2, mixed=True), 8 * 128 + 8 + 3, 2 * 128 + 2 + 1,
                     id="2 mixed: p = 4 + 4; 8 x 128 + 8 + 3"),
    ],
)  # fmt: skip
def test_weights_of_hyper_connections(streams: Streams, each: int, head: int) -> None:
    """Each half of two layers mixes the streams, and the head adds them up."""
    plain, wide = model_of(ONE_HEAD), model_of(ONE_HEAD, streams)
    of_layer = [layer_parameters(model, model.kinds[0]).total for model in (plain, wide)]
    assert of_layer[1] - of_layer[0] == 2 * each
    assert model_parameters(wide).total - model_parameters(plain).total == 4 * each + head


def test_weights_of_compressed_attention() -> None:
    """q 64 x 32 + 32 x 128, keys 64 x 16, out 4 groups: 128 x 12 and 48 x 64; norms 32 + 16; of
    windows of 4 that overlap: keys and gates 2 x 64 x 32, 4 x 32 places, a norm of 16; the
    indexer's of 2 heads of 8: q 32 x 16, heads 64 x 2, 2 x 64 x 16 + 4 x 16 + 8."""
    plain = 64 * 32 + 32 * 128 + 64 * 16 + 128 * 12 + 48 * 64 + 32 + 16
    index = 32 * 16 + 64 * 2 + 2 * 64 * 16 + 4 * 16 + 8
    compressor = 2 * 64 * 32 + 4 * 32 + 16
    chosen = replace(
        ONE_HEAD, compression=Compression(ratio=4, overlaps=True),
        indexer=Indexer(heads=2, head_dim=8, top_k=64),
    )  # fmt: skip
    for attention, expected in ((ONE_HEAD, plain), (chosen, plain + compressor + index)):
        count = layer_parameters(model_of(attention), model_of(attention).kinds[0])
        assert count.attention + count.norms - 2 * H == expected


@pytest.mark.parametrize(
    ("ratio", "top_k", "seq_len", "keys", "all_keys"),
    [
        pytest.param(0, 0, 1024, 128 - 8, 128, id="window alone: 128 - 128^2 / 2048"),
        pytest.param(128, 0, 1024, 120 + 8 - 4, 136, id="8 keys of 128: 8 - 8^2 x 128 / 2048 = 4"),
        pytest.param(4, 64, 1024, 120 + 64 - 8, 192, id="64 of 256: 64 - 64^2 x 4 / 2048 = 56"),
        pytest.param(4, 512, 1024, 120 + 256 - 128, 384, id="512 of 256: all, half of them"),
        pytest.param(128, 0, 1000, 128 - 8.192 + 7 - 3.136, 135, id="1000 tokens: 7 whole windows"),
        pytest.param(128, 0, 64, 32, 64, id="64 tokens: no window of 128 is whole"),
    ],
)
def test_keys_that_a_query_meets(
    ratio: int, top_k: int, seq_len: int, keys: float, all_keys: float
) -> None:
    """Those of its window, and of the compressed ones before it all or the best."""
    attention = replace(
        ONE_HEAD, compression=Compression(ratio=ratio) if ratio else None,
        indexer=Indexer(heads=2, head_dim=8, top_k=top_k) if top_k else None,
    )  # fmt: skip
    core = core_of(attention, seq_len)
    assert (core.keys, core.all_keys) == pytest.approx((keys, all_keys))


def test_streams_are_kept_and_sent() -> None:
    """Of each half 4 streams, their sum and its output are kept; 4 streams cross a pipeline."""
    plain, wide = model_of(ONE_HEAD), model_of(ONE_HEAD, Streams(count=4, mixed=True))
    saved = [
        sum(float(op.saved_bytes) for op in layer_operations(site_of(model), model.kinds[0]))
        for model in (plain, wide)
    ]
    one = 2 * T * H
    assert saved[1] - saved[0] == 2 * (4 - 1 + 1 + 1) * one
    assert input_bytes(site_of(wide)) == 4 * one == 4 * input_bytes(site_of(plain))


@pytest.mark.parametrize(("mixed", "flops"), [(True, 2 * 2 * T * 4 * 4 * H), (False, 0)])
def test_flops_of_mixing(mixed: bool, flops: int) -> None:
    """2 n n h for each token and half where streams are mixed."""
    model = model_of(ONE_HEAD, Streams(count=4, mixed=mixed))
    operations = layer_operations(site_of(model), model.kinds[0])
    assert sum(op.forward_flops for op in operations if isinstance(op, Pointwise)) == flops


def test_the_head_reads_one_sum() -> None:
    """A product of 4 columns by 4 x 64 numbers before the norm."""
    model = model_of(ONE_HEAD, Streams(count=4, mixed=True))
    first = head_operations(site_of(model))[0]
    assert isinstance(first, Matmul)
    assert (first.n, first.k) == (4, 256)


def test_context_parallel_ranks_send_compressed_keys() -> None:
    """1024 / 4 keys of 16 numbers in 16 bits from all of 2 ranks, forward once and backward twice;
    nothing else of the attention."""
    model = model_of(replace(ONE_HEAD, compression=Compression(ratio=4)))
    sent = [
        op for op in layer_operations(site_of(model, cp=2.0), model.kinds[0])
        if isinstance(op, Communication) and op.axis.startswith("cp")
    ]  # fmt: skip
    assert [(op.size_bytes, op.forward_count, op.backward_count) for op in sent] == [
        (1024 / 4 * 16 * 2, 1, 2)
    ]


def test_groups_are_cut_with_their_heads() -> None:
    """8 heads in 4 groups: 8 ranks would cut a group."""
    model = model_of(ONE_HEAD)
    layout = Layout(
        data_parallel=1, tensor_parallel=8, pipeline_parallel=1, stages=(Stage(2, 0, 0),)
    )
    training = Training(global_batch_size=1, seq_len=T)
    with pytest.raises(InvalidLayout, match="4 output groups do not divide by tensor_parallel 8"):
        check_layout(layout, model, training)


def test_a_module_has_no_compressed_keys_and_projects_each_stream() -> None:
    """DeepSeek-V4-Flash: the module's layer is the last one's window alone; 1 + 4 products."""
    model = model_from_config(load_model_config("deepseek-v4-flash"), "x")
    assert model.kinds[model.pattern[-1]].attention.compression is not None
    assert model.module_layer.attention.compression is None
    projection = module_operations(site_of(model))[0]
    assert isinstance(projection, Matmul)
    assert (projection.m, projection.k) == (5 * T, 4096)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compress_ratios": [8] * 43 + [0]}, "compress_ratios has 8"),
        ({"compress_ratios": [4] * 46}, "0 for modules"),
        ({"num_key_value_heads": 2}, "num_key_value_heads other than 1"),
        ({"o_groups": 7}, "query heads over o_groups"),
        ({"engram_layer_ids": [1]}, "'engram_layer_ids' is not read"),
    ],
)
def test_what_is_not_priced_is_refused(changes: dict[str, object], said: str) -> None:
    """Of DeepSeek-V4, in the words of the configuration."""
    with pytest.raises(UnsupportedModel, match=said):
        model_from_config(load_model_config("deepseek-v4-flash") | changes, "x")
