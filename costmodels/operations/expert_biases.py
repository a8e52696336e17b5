"""Biases of experts' products, where they are kernels of PyTorch's own (gpt-oss).

A grouped product adds no bias (torch._grouped_mm: "Bias not supported yet"), so trainers made of
PyTorch's modules add it to the rows of each expert (`KernelHabits.expert_biases`). Bytes for each
number that the product puts out, in 16 bits:

    repeated  repeat_interleave writes 2 and the sum moves 6; compiled, the sum is in the activation
              behind the product or, behind the second one, a pass of 4. Backward the gradients of
              all rows are added to their expert's by number, 4
    looped    the sum of one expert after the other 4, put together 4; behind the second product the
              bias times the router's weight is in 32 bits: 4, sum 10, put together 8, back 6.
              Backward rows are summed 2 and gradients put together 4, 4 and 6 behind the second
    gathered  index_select writes 2 and the sum moves 6. Backward a product with a matrix that says
              which row is whose reads 2, and adds nothing by number

Source: pytorch/torchtitan@b5bcd76 torchtitan/models/gpt_oss/moe.py GptOssGroupedExperts,
NVIDIA-NeMo/Automodel@77f11239 nemo_automodel/components/moe/experts.py _apply_bias,
whitecircle/halo@048dbeee src/distributed/expert_parallel/autograd.py MoEExpertBiasGather. Counted
in the code, not measured. Leaves out: what biases inside Transformer Engine's products cost, and
that a loop over experts takes the host longer.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.transformer import Experts
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Pointwise


def add_bias(site: Site, experts: Experts, numbers: Number, *, last: bool) -> Iterator[Pointwise]:
    """What a bias of the experts' first or `last` product takes, of so many `numbers`."""
    how = site.kernels.expert_biases
    if not experts.bias or how == "in_product":
        return
    if how == "looped":
        forward, backward = (28.0, 10.0) if last else (8.0, 6.0)
        yield _moved("add_bias", forward * numbers, backward * numbers, 3)
        return
    if how == "gathered":
        yield _moved("add_bias", 8.0 * numbers, 2.0 * numbers, 2)
        return
    compiled = site.kernels.fused_gated
    forward = 4.0 * last if compiled else 8.0
    yield _moved("add_bias", forward * numbers, 0.0, int(last) if compiled else 3)
    yield _moved("bias_gradient", 0.0, 4.0 * numbers, 0)


def _moved(name: str, forward: Number, backward: Number, kernels: int) -> Pointwise:
    return Pointwise(
        name=name, forward_bytes=forward, backward_bytes=backward, kernels=kernels,
        measured_as=(name, name), modules=("moe", "pointwise"),
    )  # fmt: skip
