"""The residual stream, which the output of each half of a layer is added to.

Tensors of 16 bits that the sum moves beside the mask of a dropout, forward and backward:

    one kernel     stream, output and sum 3; the gradients of both uses and their sum 3
    dropped apart  bias 2, dropout 2, sum 3; dropout 2, sum 3 (`KernelHabits.drops_apart`)
    wide           a stream in fp32 2, the output 1, the sum 2; gradients 2 + 2, their sum 2, and
                   the half's copy of it in 16 bits 1 (`KernelHabits.wide_stream`)
    joined         and the next norm in the same kernel, which need not read the sum again: 1 less
                   forward; backward the norm's gradient is neither written nor read, 2 less (twice
                   as much of a stream in fp32; `KernelHabits.joins_norms`)

Sources: bias_dropout_add, NVIDIA/Megatron-LM@f7727433 megatron/model/transformer.py;
--fp32-residual-connection, megatron/training/arguments.py; under torch.autocast an embedding, whose
weights are fp32, puts out fp32, to which sums widen the products' 16 bits (PyTorch's documentation
of torch.amp, op-specific behaviour); torch.compile of a whole model puts pointwise operations into
the kernel of the reduction behind them (TorchInductor's scheduler: "PyTorch 2", ASPLOS 2024).
Counted, not measured. Leaves out: a wide stream beside dropout apart, and its messages between the
stages of a pipeline.
"""

from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Pointwise

ONE_KERNEL, DROPPED_APART, WIDE = (3, 3), (7, 5), (5, 7)


def stream_itemsize(site: Site) -> float:
    """Bytes of one number that is kept of the stream. Transformer Engine's norms keep the cast of
    their input, PyTorch's what they were given (cast_if_needed, NVIDIA/TransformerEngine
    transformer_engine/pytorch/module/layernorm_linear.py).
    """
    return max(site.itemsize, 4.0) if site.kernels.keeps_wide else site.itemsize


def residual_sum(site: Site, name: str, *, kept: bool = True) -> Pointwise:
    """The residual add after each half of a layer. The next norm's backward reads its output, so it
    is kept; not where only another add reads it (parallel blocks).
    """
    width = site.stream_bytes
    mask = width / site.itemsize if site.kernels.dropout else 0.0
    forward, backward = _tensors(site)
    return Pointwise(
        name=name,
        forward_bytes=forward * width + mask,
        backward_bytes=backward * width + mask,
        measured_as=("add", "add"),
        saved_bytes=width * kept * (stream_itemsize(site) / site.itemsize) + mask,
        modules=("input",),
    )


def _tensors(site: Site) -> tuple[int, int]:
    kernels = site.kernels
    wide = kernels.wide_stream and site.itemsize == 2.0
    apart = kernels.dropout and kernels.drops_apart
    forward, backward = WIDE if wide else DROPPED_APART if apart else ONE_KERNEL
    fewer = (2 if wide else 1) if kernels.joins_norms else 0
    return forward - fewer, backward - 2 * fewer
