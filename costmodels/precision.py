"""What a training precision means: the matmuls' number format, and the casts that it costs.

Under fp8 and below only the linear layers of the blocks change format; attention, norms, the
router, the embedding and the head stay 16 bit, as Transformer Engine and torchao run them by
default, and so do whole layers that a recipe keeps (`Layer.in_16_bit`). Each other linear layer
casts its input and the gradient of its output, and keeps the cast input for the backward. A recipe
may be of routed experts alone, as torchtitan converts their grouped products apart from linear
layers (pytorch/torchtitan@01f0ffad torchtitan/components/quantization/mxfp8/converter.py,
MXFP8GroupedExpertsConverter).
"""

from meshplan.costmodels.training import Precision
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.schema import Dtype, Gpu


@dataclass(frozen=True, slots=True)
class Recipe:
    """Number formats of one training precision.

    base_dtype       attention, head and everything that is not a linear layer of a block
    linear_dtypes    formats of the linear layers, the first that the GPU has a peak for wins
    cast_bytes       moved to cast one element of a matmul input: read 2, write the copies
    saved_fraction   bytes kept of a 16-bit matmul input
    listed           whether lists of what checkpoints keep by operator name the linear layers'
                     product: mm and _scaled_mm (fp8) are on PyTorch's, _scaled_mm_v2, which
                     torchao's NVFP4 runs, is not (torch 2.13 _functorch/partitioners.py
                     compute_intensive_ops, nn/functional.py scaled_mm; pytorch/ao@36027d82
                     prototype/moe_training/nvfp4_training/nvfp4_linear.py)
    experts_alone    whether products of routed experts alone have these formats
    """

    base_dtype: Dtype
    linear_dtypes: tuple[Dtype, ...]
    cast_bytes: float = 0.0
    saved_fraction: float = 1.0
    listed: bool = True
    experts_alone: bool = False

    def other_dtype(self, gpu: Gpu) -> Dtype:
        """`base_dtype`, or what `gpu` has instead (fp16 on V100, which has no bf16)."""
        wanted: tuple[Dtype, ...] = (self.base_dtype, "fp16", "fp32")
        return next(dtype for dtype in wanted if dtype in gpu.peak_flops_per_s)

    @property
    def in_8_bits(self) -> bool:
        """Whether the linear layers, or experts alone, run in 8 bits."""
        return self.linear_dtypes[0] in ("fp8", "mxfp8")

    @property
    def itemsize(self) -> float:
        """Bytes of a number that is not in a linear layer's own format."""
        return 4.0 if self.base_dtype == "fp32" else 2.0

    def matmul_dtype(self, gpu: Gpu) -> Dtype:
        """The format in which the linear layers run on `gpu`."""
        for dtype in self.linear_dtypes:
            if dtype in gpu.peak_flops_per_s:
                return dtype
        return self.other_dtype(gpu)


RECIPES: dict[Precision, Recipe] = {
    "fp32": Recipe("fp32", ("tf32", "fp32")),
    "bf16": Recipe("bf16", ("bf16",)),
    "fp16": Recipe("fp16", ("fp16", "bf16")),
    "fp8": Recipe("bf16", ("fp8",), cast_bytes=4.0, saved_fraction=0.5),
    "mxfp8": Recipe("bf16", ("mxfp8",), cast_bytes=4.0, saved_fraction=0.5),
    "nvfp4": Recipe("bf16", ("nvfp4",), cast_bytes=4.0, saved_fraction=0.5, listed=False),
    "mxfp8_experts": Recipe(
        "bf16", ("mxfp8",), cast_bytes=4.0, saved_fraction=0.5, experts_alone=True
    ),
}
