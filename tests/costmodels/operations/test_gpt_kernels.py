"""Kernels that GPT-like models run and Llama-like ones do not: biases, GELU, dropout, odd ends."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from sites import S, V, site
from torch import Tensor

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.bare_shape import model_from_shape
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.attention.core import core, softmax_apart
from meshplan.costmodels.operations.embedding_head import head_operations
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul, Pointwise
from meshplan.costmodels.operations.layers import input_bytes, layer_operations
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device, matmul_s
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.fused_kernels import NO_JIT

H = 1024
ATTENTION = Attention(
    heads=16, kv_heads=16, head_dim=64, v_head_dim=64, qkv_bias=True, out_bias=True
)
GPT_LAYER = Layer(attention=ATTENTION, ffn=4 * H)
FEED_FORWARD = replace(GPT_LAYER, attention=replace(ATTENTION, heads=0, kv_heads=0))
GPT = Model(
    name="gpt", hidden=H, vocab=V, pattern=(0,), kinds=(GPT_LAYER,), gated=False,
    norm="layernorm", bias=True, learned_positions=S,
)  # fmt: skip


def where(model: Model = GPT, tp: int = 1, **habits: Any) -> Site:
    """One sequence on a rank whose engine has these habits."""
    plain = site(model, 1, tp, sequence_parallel=tp > 1)
    return replace(plain, kernels=plain.kernels.model_copy(update=habits))


def moved(at: Site, names: str) -> tuple[Number, Number]:
    """Bytes for each token and hidden number, forward and backward, of operations so named."""
    found = [
        op for op in layer_operations(at, at.model.kinds[0])
        if isinstance(op, Pointwise) and op.name.endswith(names)
    ]  # fmt: skip
    numbers = S * H
    return (sum(op.forward_bytes for op in found) / numbers,
            sum(op.backward_bytes for op in found) / numbers)  # fmt: skip


@pytest.mark.parametrize(
    ("norms", "kind", "expected"),
    [
        pytest.param(2, GPT_LAYER, 2, id="each half has its own"),
        pytest.param(1, GPT_LAYER, 1, id="both halves read one"),
        pytest.param(1, FEED_FORWARD, 1, id="a feed-forward alone has its own"),
        pytest.param(4, GPT_LAYER, 4, id="outputs are normalised too"),
    ],
)
def test_norms_of_a_layer(norms: int, kind: Layer, expected: int) -> None:
    """Each moves the stream in and out forward, and both gradients and the stream backward."""
    model = replace(
        GPT,
        norms_per_layer=norms,
        parallel_blocks=norms == 1,
        kinds=(kind, GPT_LAYER),
        pattern=(0, 1),
    )
    one = moved(where(replace(GPT, norms_per_layer=2)), "_norm")
    found = moved(where(model), "_norm")
    assert found == pytest.approx([expected * each / 2 for each in one])


@pytest.mark.parametrize(
    ("biases", "tp", "forward", "backward"),
    [
        ("in_product", 1, 0, 0),
        pytest.param("summed", 1, 0, 2 * (3 + 1 + 4 + 1), id="2(3h+h+4h+h)"),
        pytest.param("apart", 1, 4 * 3, 2 * (3 + 1 + 4 + 1), id="4(3h) and 2(9h)"),
        pytest.param("apart", 2, 4 * 1.5, 2 * (1.5 + 0.5 + 2 + 0.5), id="half of it on two ranks"),
    ],
)
def test_biases_of_a_gpt(biases: str, tp: int, forward: float, backward: float) -> None:
    """A sum reads each gradient of a product's output once; sequence parallel ranks share all."""
    assert moved(where(biases=biases, tp=tp), "_biases") == (forward, backward)


def test_a_model_without_biases_sums_none() -> None:
    """Whatever its engine does."""
    plain = replace(ATTENTION, qkv_bias=False, out_bias=False)
    model = replace(GPT, bias=False, kinds=(replace(GPT_LAYER, attention=plain),))
    assert moved(where(model, biases="apart"), "_biases") == (0, 0)


def gelu(bias: Tensor, y: Tensor) -> Tensor:
    """Megatron-LM's bias_gelu."""
    x = bias + y
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def gelu_back(g: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """Its bias_gelu_back."""
    x = bias + y
    t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
    ff = 0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)
    return ff * g


class Moved(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes that operators read and write, a tensor that is read twice once."""

    total = 0

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it and count it."""
        out = func(*args, **(kwargs or {}))
        read = {id(each): each for each in args if isinstance(each, Tensor)}
        self.total += sum(each.nbytes for each in (*read.values(), out))
        return out


def test_gelu_without_a_fuser_moves_what_its_operators_do() -> None:
    """In 16 bits, as PyTorch runs them one by one."""
    bias, y, g = (torch.randn(n, 64, dtype=torch.bfloat16) for n in (1, 512, 512))
    with Moved() as forward:
        gelu(bias, y)
    with Moved() as backward:
        gelu_back(g, bias, y)
    priced = moved(where(**NO_JIT), "activation")
    for found, expected in zip(priced, (forward, backward), strict=True):
        assert found / 4 == pytest.approx(expected.total / y.numel(), rel=0.01)


def test_dropout_apart_moves_the_sums_around_it_too() -> None:
    """Bias 2, dropout 2 and a mask, sum 3 tensors forward; dropout and the gradients' sum 5."""
    masks = 2 * 1  # a byte for each number, twice a layer
    assert moved(where(), "_residual") == (2 * 3 * 2 + masks, 2 * 3 * 2 + masks)
    assert moved(where(drops_apart=True), "_residual") == (2 * 7 * 2 + masks, 2 * 5 * 2 + masks)
    without = where(drops_apart=True, dropout=False)
    assert moved(without, "_residual") == (2 * 3 * 2, 2 * 3 * 2)


def test_copies_around_a_fused_attention() -> None:
    """Queries, keys, values and the output are each read and written: 4 h numbers."""
    fused = where(copies_heads=True, flash_attention=True)
    assert moved(fused, "head_copies") == (16, 16)
    assert moved(where(copies_heads=True), "head_copies") == (0, 0)  # no fused kernel


@pytest.mark.parametrize(
    ("gpu", "vocab", "tp", "pads", "times"),
    [
        ("a100-80gb-sxm", 50257, 1, False, 3),
        ("h100-sxm", 50257, 1, False, 5),
        pytest.param("h100-sxm", 50264, 1, False, 1, id="8 x 6283"),
        pytest.param("h100-sxm", 50264, 2, False, 5, id="25132 on each of two"),
        ("h100-sxm", 50257, 1, True, 1),
        ("mi300x", 50257, 1, False, 1),
    ],
)
def test_a_head_of_an_odd_vocabulary(
    gpu: str, vocab: int, tp: int, *, pads: bool, times: float
) -> None:
    """Its three products take three times as long, five on Hopper, where rows of logits are not
    aligned.
    """
    at = where(replace(GPT, vocab=vocab), tp, pads_vocabulary=pads)
    (head,) = (op for op in head_operations(at) if isinstance(op, Matmul))
    device = Device(load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"])
    aligned = replace(head, unaligned=False)
    launch_s = device.kernels.launch_s
    seconds, even = (matmul_s(device, op, op.m, op.n, op.k) - launch_s for op in (head, aligned))
    assert seconds / even == pytest.approx(times)


def test_a_residual_stream_in_fp32() -> None:
    """Sum: 2 + 1 + 2 tensors of 16 bits forward, 2 + 2 + 2 + 1 backward; norm: 2 + 1 and 1 + 2 + 2.
    What a half keeps of the stream, and the input of a replayed layer, are twice as large.
    """
    plain, wide = where(dropout=False), where(dropout=False, wide_stream=True, keeps_wide=True)
    assert moved(wide, "_residual") == (2 * 5 * 2, 2 * 7 * 2)
    assert moved(wide, "_norm") == (2 * 3 * 2, 2 * 5 * 2)
    assert moved(plain, "_norm") == (2 * 2 * 2, 2 * 3 * 2)
    assert input_bytes(wide) == 2 * input_bytes(plain)
    kept = [
        sum(op.saved_bytes for op in layer_operations(at, GPT_LAYER) if "residual" in op.name)
        for at in (plain, wide)
    ]
    assert kept[1] == 2 * kept[0] == 2 * 2 * 2 * S * H
    cast = where(dropout=False, wide_stream=True)  # Transformer Engine's
    assert moved(cast, "_residual") == (2 * 5 * 2, 2 * 7 * 2)
    assert input_bytes(cast) == input_bytes(plain)


def test_norms_of_a_compiled_model_run_with_the_sums_before_them() -> None:
    """The sum is not read again forward; backward the norm's gradient is not written and read."""
    plain, wide = (
        where(dropout=False, joins_norms=True, wide_stream=wide) for wide in (False, True)
    )
    assert moved(plain, "_residual") == (2 * 2 * 2, 2 * 1 * 2)
    assert moved(wide, "_residual") == (2 * 3 * 2, 2 * 3 * 2)


def test_positions_that_attention_takes_views_of_copy_gradients_alone() -> None:
    """Learned positions: nothing is moved between the joined product and attention."""
    forward, backward = moved(where(copies_unrotated=False), "rotary")
    assert (forward, backward) == (0, moved(where(), "rotary")[1])


def test_an_ungated_shape_may_rotate() -> None:
    """A GPT's note on its attention leaves the table of learned positions out."""
    shape = {
        "layers": 2, "hidden": 64, "ffn": 256, "heads": 1, "vocab": 128, "gated": 0, "seq_len": 32
    }  # fmt: skip
    learned = model_from_shape(shape, "gpt")
    rotary = model_from_shape(shape | {"attention": "mha (rotary positions)"}, "gpt")
    assert (learned.learned_positions, rotary.learned_positions) == (32, 0)
    assert rotary == replace(learned, learned_positions=0)


@pytest.mark.parametrize(
    ("sequences", "tp", "blocks", "apart"),
    [
        pytest.param(1, 4, 4, 0, id="4 heads of 16"),
        pytest.param(1, 8, 4, 1, id="2 heads"),
        pytest.param(2, 8, 4, 0, id="2 heads of each of 2 sequences"),
        pytest.param(3, 8, 4, 1, id="6"),
        pytest.param(1, 8, 1, 0, id="a kernel that takes any"),
    ],
)
def test_where_the_fused_softmax_takes_no_such_batch(
    sequences: int, tp: int, blocks: int, apart: int
) -> None:
    """Its blocks are four warps of one sequence and head each; a probability is then kept in fp32
    for the softmax beside the 16 bits for the product: 4 bytes more, less 2 of the fused one's.
    """
    plain = site(GPT, sequences, tp, sequence_parallel=False)
    habits = {"flash_attention": False, "dropout": True, "softmax_blocks": blocks}
    at = replace(plain, kernels=plain.kernels.model_copy(update=habits))
    assert softmax_apart(at, ATTENTION) == apart
    scores = sequences * S * S * 16 / tp
    assert core(at, ATTENTION).saved_bytes == (5 + 2 * apart) * scores
    flash = replace(at, kernels=at.kernels.model_copy(update={"flash_attention": True}))
    assert softmax_apart(flash, ATTENTION) == 0
