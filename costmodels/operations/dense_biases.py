"""Biases of a layer's dense products, where kernels of PyTorch's own add them up (GPT-like models).

Bytes for each number that a product puts out, in 16 bits (`KernelHabits.biases`):

    in_product  nothing: the product adds the bias, and that of the weight's gradient sums the
                gradient's columns (Transformer Engine, cuBLAS' epilogues BIAS and BGRADB)
    summed      the product adds it (F.linear); backward a kernel reads the gradient, 2
    apart       the same, and what adds the bias of query, key and value is a kernel, 4; those of
                the other products are in the activation and the residual sum behind them

Sources: grad_output.sum(dim=0) and `output + bias`, NVIDIA/Megatron-LM@f7727433
megatron/core/tensor_parallel/layers.py:335 and 426, skip_bias_add in its megatron/model/
transformer.py; the derivative of addmm in PyTorch's derivatives.yaml; bgrad of general_gemm,
NVIDIA/TransformerEngine transformer_engine/pytorch/module/linear.py. Counted, not measured. Leaves
out: what the host takes to issue these sums, and biases of latent attention.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Module, Pointwise


def attention_biases(site: Site, attention: Attention, columns: Number) -> Iterator[Pointwise]:
    """Of query, key and value, which have so many `columns`, and of the output."""
    if site.kernels.biases == "in_product":
        return
    entering = site.itemsize * site.shard.tokens * columns * attention.qkv_bias
    added = 2.0 if site.kernels.biases == "apart" else 0.0
    leaving = site.stream_bytes * attention.out_bias
    yield _sums("attention_biases", added * entering, entering + leaving, "attention")


def feed_forward_biases(site: Site, columns: Number) -> Iterator[Pointwise]:
    """Of the products into so many `columns`, and of the one back."""
    if site.kernels.biases == "in_product" or not site.model.bias:
        return
    entering = site.itemsize * site.shard.tokens * columns
    yield _sums("feed_forward_biases", 0.0, entering + site.stream_bytes, "mlp")


def _sums(name: str, forward: Number, backward: Number, module: Module) -> Pointwise:
    return Pointwise(
        name=name, forward_bytes=forward, backward_bytes=backward, kernels=0,
        modules=("pointwise", module),
    )  # fmt: skip
