"""The operations of a layer: what they save and compute, against published formulas and by hand.

Korthikanti et al. 2022 is "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198: its block has 16-bit activations, dropout, GELU of width 4 h and no FlashAttention.
"""

from dataclasses import replace

import pytest
from sites import PAPER_KERNELS, S, V, site

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.operations.embedding_head import (
    chunk_rows,
    embedding_operations,
    head_operations,
    logits_bytes,
)
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Matmul, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import shard_of
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import load_model_config


def gpt(heads: int, hidden: int, layers: int) -> Model:
    width = hidden // heads
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=width, v_head_dim=width, qkv_bias=True, out_bias=True
    )
    return Model(
        name="gpt", hidden=hidden, vocab=V, kinds=(Layer(attention=attention, ffn=4 * hidden),),
        pattern=(0,) * layers, gated=False, norm="layernorm", bias=True, tied=True,
        learned_positions=S,
    )  # fmt: skip


PAPER = {  # table 3: heads a, hidden h, layers L, micro-batch b; tensor parallel is 8
    "22B": (gpt(64, 6144, 48), 4),
    "175B": (gpt(96, 12288, 96), 1),
    "530B": (gpt(128, 20480, 105), 1),
    "1T": (gpt(160, 25600, 128), 1),
}


def saved_bytes(where: Site) -> float:
    return sum(float(op.saved_bytes) for op in layer_operations(where, where.model.kinds[0]))


def letters(name: str) -> tuple[Model, int, int, int]:
    """Model, b, h, a."""
    model, b = PAPER[name]
    return model, b, model.hidden, model.kinds[0].attention.heads


@pytest.mark.parametrize("chunked", [False, True], ids=["slides", "chunks"])
@pytest.mark.parametrize("window", [None, 1, 300, 512, 2048, 4096])
def test_queries_see_the_keys_of_their_window(window: int | None, chunked: bool) -> None:
    """Counted query by query: each sees what is before it, half of itself, and no more than its
    window, or than what of its chunk is before it (of the last one with 300 fewer are there).
    """
    model = gpt(8, 512, 1)
    seen = replace(model.kinds[0].attention, window=window, chunked=chunked and window is not None)
    layer = replace(model.kinds[0], attention=seen)
    model = replace(model, kinds=(layer,))
    operations = layer_operations(site(model, 2, 1, sequence_parallel=False), layer)
    (core,) = (op for op in operations if isinstance(op, AttentionCore))
    near = window or S
    counted = [(query % near if chunked else query) + 0.5 for query in range(S)]
    counted = [min(each, near) for each in counted]
    assert core.keys == pytest.approx(sum(counted) / S, rel=1e-3)
    assert core.forward_flops == pytest.approx(4 * 2 * S * core.keys * 512)


@pytest.mark.parametrize(
    ("ep", "etp", "imbalance"), [(1, 1, 1.0), (1, 1, 1.4), (4, 1, 1.3), (2, 2, 1.5)]
)
def test_the_busiest_expert_rank_computes_its_share(ep: int, etp: int, imbalance: float) -> None:
    """Two tokens' copies of each go over 8 experts: 8192 x 2 / 8 rows for each, and those of the
    busiest rank so much more, in both products, in what is kept of them and in what it is sent and
    sends back; a rank that holds all experts has all rows however they are spread.
    """
    experts = Experts(experts=8, top_k=2, ffn=256)
    layer = Layer(attention=gpt(8, 512, 1).kinds[0].attention, experts=experts)
    model = Model(name="moe", hidden=512, vocab=V, kinds=(layer,), pattern=(0,))
    training = Training(seq_len=S, global_batch_size=16, expert_imbalance=imbalance)
    layout = Layout(
        data_parallel=4, expert_parallel=ep, expert_tensor_parallel=etp, micro_batch_size=4,
        stages=even_stages(1, 1),
    )  # fmt: skip
    where = Site(model, shard_of(layout, training), PAPER_KERNELS)
    found = {op.name: op for op in layer_operations(where, layer)}
    busiest = imbalance if ep > 1 else 1.0
    for name in ("dispatch", "combine"):
        sent = found[name]
        assert isinstance(sent, Communication)
        assert sent.size_bytes == pytest.approx(busiest * 4 * S * 2 * 512 * 2)
    rows = busiest * 4 * S * 2 / 8
    for name, kept in (("experts_up", 2 * 2 * 256), ("experts_down", 0)):
        product = found[name]
        assert isinstance(product, Matmul)
        assert (product.m * product.groups) == pytest.approx(rows * etp * ep * 8 / ep)
        assert product.saved_bytes == pytest.approx(rows * 8 * kept)


@pytest.mark.parametrize("name", PAPER)
def test_one_device_saves_equation_1(name: str):
    """A GPT block saves s b h (34 + 5 a s / h) bytes."""
    model, b, h, a = letters(name)
    saved = saved_bytes(site(model, b, 1, sequence_parallel=False))
    assert saved == pytest.approx(S * b * h * (34 + 5 * a * S / h), rel=1e-12)


@pytest.mark.parametrize("t", [2, 4, 8])
@pytest.mark.parametrize("name", PAPER)
def test_tensor_parallel_saves_equation_2(name: str, t: int):
    """Under tensor parallel it saves s b h (10 + 24 / t + 5 a s / (h t)): norms stay whole."""
    model, b, h, a = letters(name)
    saved = saved_bytes(site(model, b, t, sequence_parallel=False))
    assert saved == pytest.approx(S * b * h * (10 + 24 / t + 5 * a * S / (h * t)), rel=1e-12)


@pytest.mark.parametrize(
    ("t", "sequence_parallel", "expected"),
    [
        pytest.param(1, False, 2 + 2 + 8 + 8 + 1, id="norm's input, Y, YA, Z and the mask of V"),
        pytest.param(
            8, False, 2 + 2 + 8 / 8 + 8 / 8 + 1, id="tensor parallel: norm and dropout whole"
        ),
        pytest.param(8, True, (2 + 2 + 8 + 8 + 1) / 8, id="sequence parallel: all over t"),
    ],
)
@pytest.mark.parametrize("name", PAPER)
def test_feed_forward_of_equation_3(name: str, t: int, sequence_parallel: bool, expected: float):
    """Y = LayerNorm(X), Z = GeLU(YA), W = ZB, V = Dropout(W): 21 s b h bytes where all is whole."""
    model, b, h, _ = letters(name)
    where = site(model, b, t, sequence_parallel=sequence_parallel)
    operations = list(layer_operations(where, model.kinds[0]))
    block = operations[[op.name for op in operations].index("feed_forward_norm") :]
    assert sum(float(op.saved_bytes) for op in block) == pytest.approx(S * b * h * expected)


@pytest.mark.parametrize("t", [2, 4, 8])
@pytest.mark.parametrize("name", PAPER)
def test_sequence_parallel_saves_equation_4(name: str, t: int):
    """With sequence parallel it saves s b h / t (34 + 5 a s / h): everything is split."""
    model, b, h, a = letters(name)
    saved = saved_bytes(site(model, b, t, sequence_parallel=True))
    assert saved == pytest.approx(S * b * h / t * (34 + 5 * a * S / h), rel=1e-12)


@pytest.mark.parametrize("name", PAPER)
def test_selective_recompute_saves_equation_6(name: str):
    """Replaying the core attention leaves 34 s b h / t: its scores and their dropout go."""
    model, b, h, _ = letters(name)
    where = site(model, b, 8, sequence_parallel=True)
    kept = [op for op in layer_operations(where, model.kinds[0])
            if "core_attention" not in op.modules]  # fmt: skip
    saved = sum(float(op.saved_bytes) for op in kept)
    assert saved == pytest.approx(34 * S * b * h / 8, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "memory_fraction", "flops_fraction"),
    [
        pytest.param("175B", 0.70, 2048 / (18 * 12288), id="GPT-3: 80 / (34 + 80), s / (18 h)"),
        pytest.param("530B", 0.65, 2048 / (18 * 20480), id="MT-NLG: 64 / (34 + 64), s / (18 h)"),
    ],
)
def test_what_selective_recompute_trades(name: str, memory_fraction: float, flops_fraction: float):
    """Published (section 5): it frees 70 % and 65 % of the activations of these two models.

    The FLOPs are counted here: 4 s^2 h replayed over 3 x 24 s h^2 (1 + s / 6 h).
    """
    model, b, _, _ = letters(name)
    operations = layer_operations(site(model, b, 1, sequence_parallel=False), model.kinds[0])
    core = next(op for op in operations if isinstance(op, AttentionCore))
    total = sum(float(op.saved_bytes) for op in operations)
    assert float(core.saved_bytes) / total == pytest.approx(memory_fraction, abs=0.005)
    once = sum(float(op.forward_flops) for op in operations if isinstance(op, Matmul))
    replayed = float(core.full_forward_flops)
    fraction = replayed / (3 * (once + replayed))
    assert fraction == pytest.approx(flops_fraction / (1 + 3 * flops_fraction), rel=1e-9)


@pytest.mark.parametrize("name", PAPER)
def test_ends_save_what_the_paper_adds(name: str):
    """Embedding dropout s b h / t; final norm, head and logits 4 s b h / t (1 + v / h)."""
    model, b, h, _ = letters(name)
    where = site(model, b, 8, sequence_parallel=True)
    embedding = sum(float(op.saved_bytes) for op in embedding_operations(where))
    head = sum(float(op.saved_bytes) for op in head_operations(where)) + float(logits_bytes(where))
    assert embedding == S * b * h / 8
    assert head == pytest.approx(4 * S * b * h / 8 * (1 + V / h), rel=1e-12)


@pytest.mark.parametrize(
    ("engine", "cut", "t", "each"),
    [
        pytest.param("torchtitan", 0, 1, 4, id="compiled: logits and their gradient in 16 bits"),
        pytest.param("torchtitan", 0, 8, 4, id="cut: as whole"),
        pytest.param("torchtitan", 16, 8, 4 * 4, id="cut, not compiled: four fp32 copies"),
        pytest.param("torchtitan", 16, 1, 4, id="whole: no matter what a cut one holds"),
        pytest.param("automodel", 0, 8, 8, id="another loss: as whole"),
    ],
)
def test_a_loss_over_a_cut_vocabulary_may_hold_more(engine: str, cut: int, t: int, each: int):
    """Of all tokens at once; s b V / t logits."""
    where = site(gpt(64, 6144, 48), 2, t, sequence_parallel=True)
    habits = {"loss_chunks": 1, "cut_logits_bytes": cut}
    at_once = load_engine(engine).kernels.model_copy(update=habits)
    assert float(logits_bytes(replace(where, kernels=at_once))) == each * S * 2 * V / t


def test_gathered_logits_are_whole_on_each_rank():
    """Of 8 ranks: 16 bytes of s b V logits each, a gather of 2 s b V, a loss over all of them."""
    where = site(gpt(64, 6144, 48), 2, 8, sequence_parallel=True)
    kernels = load_engine("aa-scaling").kernels
    whole = replace(where, kernels=kernels)
    assert float(logits_bytes(whole)) == 16 * S * 2 * V
    _, _, head, gathered, loss = head_operations(whole)
    apart = kernels.model_copy(update={"gathers_logits": False})
    cut = head_operations(replace(where, kernels=apart))
    assert isinstance(gathered, Communication)
    assert (gathered.kind, float(gathered.size_bytes)) == ("all_gather", 2 * S * 2 * V)
    assert float(head.n) == V / 8
    assert float(loss.forward_bytes) == 8 * float(cut[-1].forward_bytes)


@pytest.mark.parametrize(
    ("sequence_parallel", "gated", "backward"),
    [(False, True, 4.0), (False, False, 2.0), (True, True, 1.0)],
)
def test_gate_and_up_are_reduced_apart(sequence_parallel: bool, gated: bool, backward: float):
    """Aleph Alpha's SwiGLU: two all-reduces (four halves) of its input's gradient, with sequence
    parallel one reduce-scatter of the sum; a feed-forward of one product has one.
    """
    where = site(gpt(64, 6144, 48), 1, 8, sequence_parallel=sequence_parallel)
    kernels = load_engine("aa-scaling").kernels
    model = replace(where.model, gated=gated)
    operations = layer_operations(replace(where, kernels=kernels, model=model), model.kinds[0])
    found = {op.name: op for op in operations if isinstance(op, Communication)}
    assert float(found["feed_forward_input"].backward_count) == backward
    assert float(found["attention_input"].backward_count) == min(backward, 2.0)


def test_a_loss_in_equal_chunks_by_hand():
    """torchtitan's, 4,096 tokens in 8: 512 V logits of 4 bytes at a time, 4 s b h of gradient; 8
    products, and kernels of the loss, of as many FLOPs.
    """
    where = site(gpt(64, 6144, 48), 2, 1, sequence_parallel=False)
    kernels = load_engine("torchtitan").kernels
    chunks, whole = (
        replace(where, kernels=kernels.model_copy(update={"loss_chunks": n})) for n in (8, 1)
    )
    assert float(logits_bytes(chunks)) == 4 * 512 * V + 4 * S * 2 * 6144
    for each, n in ((chunks, 8), (whole, 1)):
        _, _, head, loss = head_operations(each)
        assert isinstance(head, Matmul)
        assert isinstance(loss, Pointwise)
        assert (head.parts, loss.kernels) == (n, 2 * n)
        assert head.forward_flops == 2 * S * 2 * V * 6144


@pytest.mark.parametrize(
    ("chunk_bytes", "rows", "parts"),
    [
        pytest.param(0.0, None, 1, id="at once: 1 product"),
        pytest.param(4.0 * V * 300, 256, 8, id="300 rows fit, 256 in whole tiles: 2048 / 256 = 8"),
        pytest.param(4.0 * V * 900, 896, 3, id="896 rows: 2.3, so 3"),
        pytest.param(4.0 * V * 100, 100, 21, id="100 rows, less than a tile: 20.5, so 21"),
    ],
)
def test_a_gradient_of_a_loss_over_chunks_is_a_sum(
    chunk_bytes: float, rows: float | None, parts: int
) -> None:
    """2,048 tokens, 51,200 columns: as many products as chunks make the table's gradient."""
    model = gpt(64, 6144, 48)
    where = site(model, 1, 1, sequence_parallel=False)
    habits = where.kernels.model_copy(update={"loss_chunk_bytes": chunk_bytes})
    here = replace(where, kernels=habits)
    head = next(op for op in head_operations(here) if op.name == "head")
    assert isinstance(head, Matmul)
    assert head.parts == parts
    if rows is not None:
        assert float(chunk_rows(here)[0]) == rows


def test_flops_of_a_llama_3_8b_layer():
    """q and out 2 x 4096^2, k, v 2 x 4096 x 1024, feed-forward 3 x 4096 x 14336: 218.1M x 2 t."""
    model = model_from_config(load_model_config("llama-3-8b"), "llama-3-8b")
    where = site(model, 1, 1, sequence_parallel=False)
    operations = layer_operations(where, model.kinds[0])
    matrices = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    flops = sum(float(op.forward_flops) for op in operations if isinstance(op, Matmul))
    assert flops == 2 * S * matrices
    core = next(op for op in operations if isinstance(op, AttentionCore))
    assert float(core.full_forward_flops) == 4 * S * S * 4096
    assert float(core.forward_flops) == 2 * S * S * 4096


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b", "llama-3.1-405b", "gpt3-175b"])
def test_six_flops_per_parameter_and_token(name: str):
    """Without attention scores a step takes 6 N FLOPs per token, N without the embedding."""
    model = model_from_config(load_model_config(name), name)
    where = site(model, 1, 1, sequence_parallel=False)
    once = [op for op in layer_operations(where, model.kinds[0]) if isinstance(op, Matmul)]
    head = [op for op in head_operations(where) if isinstance(op, Matmul)]
    forward = model.num_layers * sum(float(op.forward_flops) for op in once)
    forward += sum(float(op.forward_flops) for op in head)
    parameters = model_parameters(model)
    weights = parameters.total - parameters.embedding + model.tied * model.vocab * model.hidden
    assert 3 * forward / S == pytest.approx(6 * weights, rel=0.01)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "mixtral-8x7b", "gpt-oss-20b"])
def test_tensor_parallel_divides_the_work(name: str, tp: int):
    """The ranks of a tensor-parallel group compute the FLOPs of one device between them.

    Left out are the parts that are whole on every rank: latent down-projections.
    """
    model = model_from_config(load_model_config(name), name)
    whole = ("kv_down", "q_down")
    for kind in model.kinds:
        flops = [
            t * sum(
                float(op.forward_flops)
                for op in layer_operations(site(model, 1, t, sequence_parallel=True), kind)
                if isinstance(op, Matmul | AttentionCore) and op.name not in whole
            )
            for t in (1, tp)
        ]  # fmt: skip
        assert flops[1] == pytest.approx(flops[0], rel=1e-9)


def test_sequence_parallel_moves_the_bytes_of_tensor_parallel():
    """An all-reduce is a reduce-scatter and an all-gather; only the second input gather is new.

    Per layer: 4 + 4 without sequence parallel, 4 + 6 with it (section 4.2.2 of the paper).
    """
    model, _ = PAPER["22B"]
    for sequence_parallel, forward, backward in ((False, 4, 4), (True, 4, 6)):
        where = site(model, 1, 8, sequence_parallel=sequence_parallel)
        moved = [op for op in layer_operations(where, model.kinds[0])
                 if isinstance(op, Communication) and op.axis == "tp"]  # fmt: skip
        assert sum(float(op.forward_count) for op in moved) == forward
        assert sum(float(op.backward_count) for op in moved) == backward
        assert {float(op.size_bytes) for op in moved} == {2.0 * S * model.hidden}
