"""Operations that follow an engine's kernels: what it casts, fuses, permutes and keeps, by hand."""

from dataclasses import replace

import pytest
from sites import S, V, site

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.embedding_head import (
    head_operations,
)
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Matmul, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import shard_of
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import load_model_config


@pytest.mark.parametrize(
    ("engine", "casts"),
    [
        pytest.param("megatron", 3, id="twelve casts of two layers where four would do"),
        pytest.param("hai-llm", 1, id="DeepSeek casts before it dispatches"),
    ],
)
def test_experts_are_cast_as_their_engine_does(engine: str, casts: int) -> None:
    """The experts' layers as often as the engine says, other linear layers once."""
    model = model_from_config(load_model_config("mixtral-8x7b"), "mixtral-8x7b")
    where = replace(site(model, 1, 1, sequence_parallel=False), kernels=load_engine(engine).kernels)
    matmuls = [op for op in layer_operations(where, model.kinds[0]) if isinstance(op, Matmul)]
    found = {op.name: op.casts for op in matmuls}
    experts = {name for name in found if name.startswith("experts")}
    assert len(experts) == 2
    assert {found[name] for name in experts} == {casts}
    assert {found[name] for name in found.keys() - experts} == {1}


@pytest.mark.parametrize(
    ("model", "kernels", "moved"),
    [
        pytest.param("gpt3-1.3b", 1, 4, id="learned positions: a copy, 2 read, 2 written"),
        pytest.param("mixtral-8x7b", 8, 20, id="rotated, nothing fused: five passes of 4"),
    ],
)
def test_positions_that_are_not_rotated(model: str, kernels: int, moved: int) -> None:
    """An engine without a fused rotation runs its kernels where a model rotates, and moves queries
    and keys out of the fused projection where it does not.
    """
    read = model_from_config(load_model_config(model), model)
    where = replace(
        site(read, 1, 1, sequence_parallel=False), kernels=load_engine("megatron-deepspeed").kernels
    )
    (found,) = (op for op in layer_operations(where, read.kinds[0]) if op.name == "rotary")
    assert isinstance(found, Pointwise)
    attention = read.kinds[0].attention
    assert attention
    width = (attention.heads + attention.kv_heads) * attention.head_dim
    assert (found.kernels, found.forward_bytes) == (kernels, moved * S * width)


@pytest.mark.parametrize(
    ("engine", "itemsize", "forward", "backward"),
    [
        pytest.param("megatron-bridge", 2.0, 4, 4, id="one kernel: 2 read, 2 written, each way"),
        pytest.param("nanotron", 2.0, 38, 14, id="6 + 4 + 8 + 8 + 4 + 8, then 8 + 6"),
        pytest.param("native", 4.0, 32, 8, id="fp32 casts nothing: 4 + 8 + 8 + 4 + 8, then 8"),
    ],
)
def test_loss_bytes_by_hand(engine: str, itemsize: float, forward: int, backward: int) -> None:
    """Bytes for each of 2,048 x 32,000 logits."""
    model = model_from_config(load_model_config("mixtral-8x7b"), "mixtral-8x7b")
    plain = site(model, 1, 1, sequence_parallel=False)
    where = replace(plain, kernels=load_engine(engine).kernels, itemsize=itemsize)
    (loss,) = (op for op in head_operations(where) if op.name == "cross_entropy")
    assert isinstance(loss, Pointwise)
    logits = S * 32000
    assert (loss.forward_bytes, loss.backward_bytes) == (forward * logits, backward * logits)


def test_what_is_measured_under_its_own_name() -> None:
    """Routed experts weigh their rows inside the activation under the native engine, shared ones
    do not; latents are normed as everything else is.
    """
    config = load_model_config("deepseek-v3")
    model = model_from_config(config, "deepseek-v3")
    plain = site(model, 1, 1, sequence_parallel=False)
    where = replace(plain, kernels=load_engine("native").kernels)
    (kind,) = (kind for kind in model.kinds if kind.experts)
    found = [
        (op.name, op.measured_as[0])
        for op in layer_operations(where, kind)
        if isinstance(op, Pointwise) and op.name in ("activation", "latent_norm")
    ]
    assert found == [
        ("latent_norm", "rms_norm"), ("activation", "weighed_swiglu"), ("activation", "swiglu")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "width"),
    [
        pytest.param("deepseek-v3", 1536 + 512, id="q 1,536 and kv 512"),
        pytest.param(
            "deepseek-v2-lite", 2048 + 512, id="no q latent: the hidden 2,048, and kv 512"
        ),
    ],
)
def test_latents_are_gathered_again_in_backward_and_the_rotary_key_is_not(name: str, width: int):
    """The native engine's ranks compress their own tokens: 2 bytes of each of S tokens gathered."""
    model = model_from_config(load_model_config(name), name)
    plain = site(model, 1, 4, sequence_parallel=True)
    where = replace(plain, kernels=load_engine("native").kernels)
    gathers = {
        op.name: (op.axis, op.kind, op.size_bytes, op.forward_count, op.backward_count)
        for op in layer_operations(where, model.kinds[0])
        if isinstance(op, Communication) and op.name in ("latents", "rotary_key")
    }
    assert gathers == {
        "latents": ("tp", "all_gather", 2 * S * width, 1, 2),
        "rotary_key": ("tp", "all_gather", 2 * S * 64, 1, 1),
    }


@pytest.mark.parametrize(
    ("fused", "engine", "moved", "kernels"),
    [
        pytest.param(True, "generic", (4, 6), 2, id="one kernel each: read and written"),
        pytest.param(False, "generic", (16, 24), 12, id="six each, four times the bytes"),
        pytest.param(False, "llm-foundry", (36, 92), 12, id="as an engine counts them"),
    ],
)
def test_norms_of_queries_and_keys(
    fused: bool, engine: str, moved: tuple[int, int], kernels: int
) -> None:
    """Both of 6 + 2 heads of 64, 16 bits wide, as the layer's own norms are run."""
    attention = Attention(heads=6, kv_heads=2, head_dim=64, v_head_dim=64, qk_norm="head")
    model = Model(
        name="normed", hidden=384, vocab=V, pattern=(0,),
        kinds=(Layer(attention=attention, ffn=1024),),
    )  # fmt: skip
    where = site(model, 1, 1, sequence_parallel=False)
    habits = load_engine(engine).kernels.model_copy(update={"fused_norm": fused})
    where = replace(where, kernels=habits)
    norm, own = (
        op for op in layer_operations(where, model.kinds[0])
        if op.name in ("qk_norm", "attention_norm") and isinstance(op, Pointwise)
    )  # fmt: skip
    if norm.name != "qk_norm":
        norm, own = own, norm
    numbers = S * 8 * 64
    assert (norm.forward_bytes / numbers, norm.backward_bytes / numbers) == moved
    assert (own.forward_bytes / (S * 384), own.backward_bytes / (S * 384)) == moved
    assert norm.kernels == kernels


def test_normed_values_are_kept_before_and_after_their_norm() -> None:
    """Gemma 4: of 2 key/value heads of 64, in 16 bits, 2 x 2 x 64 bytes more for each token."""
    attention = Attention(heads=6, kv_heads=2, head_dim=64, v_head_dim=64, qk_norm="head")
    kept = []
    for each in (attention, replace(attention, v_norm=True)):
        model = Model(
            name="normed", hidden=384, vocab=V, pattern=(0,),
            kinds=(Layer(attention=each, ffn=1024),),
        )  # fmt: skip
        where = site(model, 1, 1, sequence_parallel=False)
        operations = layer_operations(where, model.kinds[0])
        kept.append(sum(op.saved_bytes for op in operations if isinstance(op, Pointwise)))
    assert kept[1] - kept[0] == 2 * S * 2 * 64


@pytest.mark.parametrize(
    ("dispatch", "expert_parallel", "moved"),
    [
        pytest.param("all_to_all", 4, True, id="sorted by rank before they are sent"),
        pytest.param("deduplicated", 4, False, id="read where they are"),
        pytest.param("deduplicated", 1, True, id="nothing is sent: sorted by expert"),
    ],
)
def test_single_copies_are_not_permuted(dispatch: str, expert_parallel: int, moved: bool) -> None:
    """On the other side all are sorted by expert. Copies that come back to be added up with the
    router's weights are kept for these; where one of a token comes back, experts weighed theirs.
    """
    model = model_from_config(load_model_config("mixtral-8x7b"), "mixtral")
    layout = Layout(
        data_parallel=4, expert_parallel=expert_parallel, stages=even_stages(model.num_layers, 1)
    )
    kernels = load_engine("megatron").kernels.model_copy(update={"dispatch": dispatch})
    training = Training(seq_len=S, global_batch_size=4)
    where = Site(model, shard_of(layout, training), kernels)
    found = {op.name: op for op in layer_operations(where, model.kinds[0])}
    for name in ("permute", "unpermute", "sort_by_expert", "unsort"):
        permute = found[name]
        assert isinstance(permute, Pointwise)
        elsewhere = name in ("sort_by_expert", "unsort")
        expected = 2 * 2 * S * 2 * 4096 if moved or elsewhere else 0.0
        assert permute.forward_bytes == permute.backward_bytes == expected
    back = float(found["combine"].saved_bytes) + float(found["unpermute"].saved_bytes)
    assert back == moved * 2 * S * 2 * 4096


def test_rows_weighed_by_kernels_of_their_own() -> None:
    """Top-2 of 2,048 tokens x 4,096 numbers: 3 kernels and 20 bytes of each forward, 36 backward; a
    copy in fp32 is kept in place of the one in 16 bits.
    """
    model = model_from_config(load_model_config("mixtral-8x7b"), "mixtral")
    shard = shard_of(Layout(stages=even_stages(32, 1)), Training(seq_len=S, global_batch_size=1))
    plain = load_engine("torchtitan").kernels
    kept = []
    for kernels in (plain, plain.model_copy(update={"weighs_apart": True})):
        operations = layer_operations(Site(model, shard, kernels), model.kinds[0])
        kept.append(sum(float(op.saved_bytes) for op in operations))
    weigh = next(op for op in operations if op.name == "weigh")
    assert isinstance(weigh, Pointwise)
    numbers = 2 * S * 4096
    assert (weigh.forward_bytes, weigh.backward_bytes) == (20 * numbers, 36 * numbers)
    assert weigh.kernels == 3
    assert kept[1] - kept[0] == (4 - 2) * numbers


@pytest.mark.parametrize(("expert_parallel", "times"), [(1, 0), (4, 1)])
def test_rows_that_are_not_sent_may_be_sorted_once(expert_parallel: int, times: int) -> None:
    """The second sorting, on the other side, is by expert; what it keeps is kept all the same."""
    model = model_from_config(load_model_config("mixtral-8x7b"), "mixtral")
    layout = Layout(
        data_parallel=4, expert_parallel=expert_parallel, stages=even_stages(model.num_layers, 1)
    )
    shard = shard_of(layout, Training(seq_len=S, global_batch_size=4))
    plain, kept = load_engine("torchtitan").kernels, []
    for kernels in (plain, plain.model_copy(update={"sorts_once": True})):
        operations = layer_operations(Site(model, shard, kernels), model.kinds[0])
        kept.append(sum(float(op.saved_bytes) for op in operations))
    found = {op.name: op for op in operations if isinstance(op, Pointwise)}
    rows = 2 * 2 * S * 2 * 4096
    assert found["permute"].forward_bytes == found["unpermute"].forward_bytes == rows
    for name in ("sort_by_expert", "unsort"):
        assert found[name].forward_bytes == found[name].backward_bytes == times * rows
    assert kept[0] == kept[1]


def test_experts_of_megatron_bridge_weigh_their_own_rows() -> None:
    """Top-2 of 2,048 tokens x 4,096 x 2 bytes of experts' output, 33.6 MB, are kept where the
    router's weights multiply them afterwards, and not where they multiply inside the experts.
    """
    model = model_from_config(load_model_config("mixtral-8x7b"), "mixtral")
    layout = Layout(data_parallel=4, expert_parallel=4, stages=even_stages(model.num_layers, 1))
    shard = shard_of(layout, Training(seq_len=S, global_batch_size=4))
    kept = {}
    for name in ("megatron", "megatron-bridge", "megatron-bridge-2025"):
        kernels = load_engine(name).kernels.model_copy(update={"dispatch": "all_to_all"})
        where = Site(model, shard, kernels)
        found = {op.name: op for op in layer_operations(where, model.kinds[0])}
        kept[name] = float(found["combine"].saved_bytes)
    assert kept == {"megatron": 33554432.0, "megatron-bridge": 0.0, "megatron-bridge-2025": 0.0}


@pytest.mark.parametrize(
    ("biases", "compiled", "first", "last", "gradients"),
    [
        pytest.param("in_product", True, (0, 0), (0, 0), 0, id="in the product: nothing"),
        pytest.param("repeated", False, (8, 0), (8, 0), 4, id="repeated 2, added 6"),
        pytest.param("repeated", True, (0, 0), (4, 0), 4, id="compiled: in the activation; a pass"),
        pytest.param(
            "gathered", True, (8, 2), (8, 2), 0, id="gathered 2, added 6; a product reads"
        ),
        pytest.param("looped", True, (8, 6), (28, 10), 0, id="4 + 4; in 32 bits 4 + 10 + 8 + 6"),
    ],
)
def test_biases_of_experts(
    biases: str, compiled: bool, first: tuple[int, int], last: tuple[int, int], gradients: int
) -> None:
    """gpt-oss-20b, 2,048 tokens x 4 copies: 5,760 numbers of each row first, 2,880 behind."""
    kernels = load_engine("torchtitan").kernels.model_copy(
        update={"expert_biases": biases, "fused_gated": compiled}
    )
    model = model_from_config(load_model_config("gpt-oss-20b"), "gpt-oss-20b")
    shard = shard_of(Layout(stages=even_stages(24, 1)), Training(seq_len=S, global_batch_size=1))
    rows, found = S * 4, list(layer_operations(Site(model, shard, kernels), model.kinds[0]))
    added = [(op.forward_bytes, op.backward_bytes) for op in found if op.name == "add_bias"]
    widths = (5760, 2880)
    expected = [
        tuple(rows * n * each for each in way) for n, way in zip(widths, (first, last), strict=True)
    ]
    assert added == (expected if biases != "in_product" else [])
    moved = sum(op.backward_bytes for op in found if op.name == "bias_gradient")
    assert moved == gradients * rows * sum(widths)


def test_a_clamped_activation_is_many_kernels_without_a_compiler() -> None:
    """gpt-oss-20b: 17 numbers of 2 bytes for each of 2,048 x 4 x 2,880 forward, 47 backward, 5
    kept; compiled gate and up are read once, as of any SwiGLU.
    """
    model = model_from_config(load_model_config("gpt-oss-20b"), "gpt-oss-20b")
    plain = load_engine("torchtitan").kernels
    shard = shard_of(Layout(stages=even_stages(24, 1)), Training(seq_len=S, global_batch_size=1))
    moved = []
    for fused in (True, False):
        kernels = plain.model_copy(update={"fused_gated": fused})
        operations = layer_operations(Site(model, shard, kernels), model.kinds[0])
        op = next(op for op in operations if op.name == "activation")
        assert isinstance(op, Pointwise)
        moved.append((op.forward_bytes, op.backward_bytes, op.saved_bytes))
    numbers = 2 * S * 4 * 2880
    assert moved == [tuple(each * numbers for each in way) for way in ((3, 5, 1), (17, 47, 5))]
