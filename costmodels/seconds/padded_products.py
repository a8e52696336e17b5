"""Products that a compiler pads: what torch.compile does where rows are not aligned.

    as it is   t = a product whose rows are not aligned       `kernels`, `UNALIGNED_RATE`
    padded     t = the aligned product, and one copy of its second operand, read and written

Inductor benchmarks both where a product of 16 bits is bound by computing and a side of it is no
multiple of 8, and takes the padded one if the other needs more than 1.1 times as long
(pytorch/pytorch@017943b7 torch/_inductor/fx_passes/pad_mm.py, can_pad, is_padded_faster; on since
May 2023: pull request 101915). Of a head that second operand is the weight, forward and for the
gradient of its input, and the gradient of the logits for that of the weight: it is transposed
there, so that a copy is made. The gradient of the logits that is the first operand is written
padded by the kernel that makes it.

GPT-2 of 124M on an A100, 16 sequences of 1,024: 96 ms with 50,257 words and 93 with 50,304
(Karpathy, "Let's reproduce GPT-2 (124M)", 2024, the lecture's list of contents); the three copies
are 2.1 ms, and three unaligned products would be 33 ms more.

On Hopper neither of two such runs shows it, unknown why: of GPT-2 of 124M on two H200, compiled by
transformers' Trainer, steps of 50,257 words take 285 ms and eager ones of 50,304 195 ("Experiments"
of a GPT-2 124M project, cerulean-labs/gpt2-training, October 2026), and on eight H100 a modded
nanoGPT's runs are predicted 17 to 29 % too long with either vocabulary, 15 too short if padded
(suite `moddedgpt`). So it is not reckoned with there.

Leaves out: further copies where the loss is not compiled with the head.
"""

from dataclasses import replace

from meshplan.costmodels.elementwise import Number, anywhere, where
from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.seconds.kernels import Device, matmul_s, pointwise_s
from meshplan.hardware_profiles.tunings import gpu_family

UNPADDED = "hopper"
WORTH = 1.1
COPIED_BYTES = 4.0
"""Of a number of 16 bits that is read and written."""


def product_s(
    device: Device, op: Matmul, rows: Number, columns: Number, inner: Number, layout: str = "TN"
) -> Number:
    """Seconds of `kernels.matmul_s`, of the padded product where a compiler makes it so."""
    as_it_is = matmul_s(device, op, rows, columns, inner, layout)
    pads = device.pads_products and gpu_family(device.gpu.name) != UNPADDED
    if not pads or not anywhere(op.unaligned):
        return as_it_is
    aligned = matmul_s(device, replace(op, unaligned=False), rows, columns, inner, layout)
    padded = aligned + pointwise_s(device, COPIED_BYTES * inner * columns * op.groups, 1)
    return where(as_it_is > WORTH * padded, padded, as_it_is)
