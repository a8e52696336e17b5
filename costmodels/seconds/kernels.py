"""Seconds of one kernel on one accelerator; of the core attention's in `core_attention`.

    matmul     t = launch + max(2 m n k / (peak E q u k / (k + k0)), 2 (m k + k n + m n) / (B e))
    grouped    t = launch + (math^p + memory^p)^(1/p), with math = 2 m n k g / (peak E q) and
               memory = g (i m k + i k n + o m n) / (B e)
    scan       t = launch + w max(FLOPs / (peak16 share), bytes / (B e)), w 1 forward, 2 backward
    pointwise  t = launches + bytes / (B e)

    g        groups (experts), each an m x n x k product. Of one group it is a plain matmul: a loop
             over one expert, or Transformer Engine's GroupedLinear with one product, calls cuBLAS
             as a dense layer does (NVIDIA/TransformerEngine@d0067d0d common/gemm/cublaslt_gemm.cu
             nvte_multi_tensor_gemm); PyTorch's own grouped product has its kernel also then
    p        how far moving hides behind computing in them (`Kernels.grouped_overlap`): 1 not at all
    i, o     bytes of a number that is read, and of one of the result: 2, or of a weight's gradient
             that is added where it is kept what that reads and writes, 8 in fp32
    E        sustained fraction of the dense peak       Kernels.matmul_efficiency
    q        tile and wave quantisation: the best of three tile shapes, each with the fraction of
             the accelerator's compute units that its last wave leaves busy
    k0       inner size at which a matmul reaches half of E: 170, the median of two fits to
             published cuBLAS tables (B200 190, A100 170; median error 6.5 % and 2.6 % of 514 and
             183 shapes)
    u        of a product whose rows are not aligned to 16 bytes, on NVIDIA's GPUs a third, on
             Hopper a fifth: TMA and 16-byte copies need that, so cuBLAS takes a kernel that loads
             single numbers, on an H200 one for Turing (cutlass_75_tensorop_bf16_s1688gemm): for
             65,536 rows, 50,257 words and 768 numbers 119 ms forward and backward, 127e12 FLOP/s,
             and steps are 98 ms shorter with 50,304 words ("Experiments" of a GPT-2 124M project,
             cerulean-labs/gpt2-training, October 2026, jobs 503420 to 503440). Netflix
             found such a head three times as long ("Scaling LLM Post-Training at Netflix", 2026);
             a vocabulary of 50,304 instead of 50,257 makes nanoGPT's steps a quarter shorter
             (Karpathy, 2023), which is a head of 2 to 3 times on an A100. A compiler
             may pad it (`padded_products`)
    share    Kernels.scan_forward, scan_backward
    B, e     memory bandwidth and the fraction of it that pointwise kernels reach; rows taken and
             added by number (`KernelHabits.permutes_by_index`, `sums_by_index`) at most 5.7e9
             bytes/s for each unit

A profile measured on the machine itself replaces all of this, the launch included, by its surfaces
(`hardware_profiles.surface`), times `Kernels.shared_slowdown`.

Leaves out: clock changes within a step, cache reuse between kernels.
"""

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Literal

from meshplan.costmodels.elementwise import Condition, Number, ceil, floor, maximum, plain, where
from meshplan.costmodels.operations.kinds import AttentionCore, Matmul, Scan
from meshplan.costmodels.precision import Recipe
from meshplan.costmodels.seconds.attention_kernels import measured_as, sdpa_kernel
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.schema import AttentionKernel, Dtype, Gpu, Kernels, pointwise_name
from meshplan.hardware_profiles.surface import Surface, attention_surface, matmul_surface
from meshplan.hardware_profiles.tunings import Tuning, gpu_family

TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.96), (128.0, 64.0, 0.87))
HEIGHTS, WIDTHS, _ = map(frozenset, zip(*TILES, strict=True))
HALF_RATE_K = 170.0
UNALIGNED_RATE = {"hopper": 0.2}
UNALIGNED_RATE_ELSEWHERE = 1 / 3
INDEXED_BYTES_PER_S_AND_UNIT = 5.7e9
"""index_select and index_add of rows of 4 KiB in bf16, bytes read and written: 0.727e12 bytes/s on
an H100 and 0.791e12 on an H200 (benchmarks/measured, 2026-11-22), which have 132 units each and
memories of 3.35e12 and 4.8e12 bytes/s: what limits them is no memory.
"""

# A thousand points take half a second, and every layout asks for the same.
matmuls, attentions = (lru_cache(maxsize=16)(make) for make in (matmul_surface, attention_surface))


Sides = tuple[Number, Number, Number]
"""Rows, columns and inner size of one product."""


@dataclass(frozen=True)
class Device:
    """One accelerator as kernels see it: datasheet, measured efficiencies, corrections, number
    formats.
    """

    gpu: Gpu
    kernels: Kernels
    tuning: Tuning
    recipe: Recipe
    attention: Literal["unfused"] | AttentionKernel = "cudnn"
    permutes_by_index: bool = False
    uses_sdpa: bool = False
    sums_in_16_bits: bool = False
    sums_by_index: bool = False
    uses_grouped_mm: bool = False
    weight_gradient_bytes: float = 2.0
    sdpa_by_assembly: bool = False
    pads_products: bool = False
    loops_over_experts: bool = False
    kernel_order: str = ""

    def running(self, op: AttentionCore) -> "Device":
        """Itself, with the kernel that the release of PyTorch picks for `op` in 16 bits."""
        if not self.kernel_order or self.recipe.other_dtype(self.gpu) == "fp32":
            return self
        kernel = sdpa_kernel(self.kernel_order, self.gpu.name, op.head_dim, op.v_head_dim)
        return self._running[kernel] if kernel else self

    @cached_property
    def _running(self) -> dict[AttentionKernel, "Device"]:
        kernels: tuple[AttentionKernel, ...] = ("cudnn", "flash2")
        return {each: replace(self, attention=each, uses_sdpa=False) for each in kernels}

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """What pointwise kernels reach of the memory bandwidth."""
        return self.gpu.memory_bandwidth_bytes_per_s * self.kernels.memory_efficiency

    def moved_bytes_per_s(self, kernel: str) -> float:
        """What `kernel` reaches of it in this number format, if the machine itself was asked."""
        if kernel not in self._moved:
            self._moved[kernel] = self._moved_bytes_per_s(kernel)
        return self._moved[kernel]

    def _moved_bytes_per_s(self, kernel: str) -> float:
        if kernel in ("bias_gradient", "by_index"):
            indexed = INDEXED_BYTES_PER_S_AND_UNIT * self.gpu.compute_units
            return min(self.bandwidth_bytes_per_s, indexed) / self.slowdown("memory")
        table = self.kernels.pointwise_bytes_per_s if self.kernels.is_measured else {}
        usual = self.bandwidth_bytes_per_s
        sums = kernel == "permute_sum"
        kernel = "permute" if sums else kernel
        if kernel == "permute" and (self.permutes_by_index or (sums and self.sums_by_index)):
            usual = min(usual, INDEXED_BYTES_PER_S_AND_UNIT * self.gpu.compute_units)
        in_fp32 = table.get(kernel, usual)
        alone = table.get(pointwise_name(kernel, self.recipe.base_dtype), in_fp32)
        return alone / self.slowdown("memory")

    def slowdown(self, kind: str) -> float:
        """How much longer `kind` of work takes than alone (`Kernels.shared_slowdown`)."""
        return self.kernels.shared_slowdown.get(kind, 1.0)

    @cached_property
    def _moved(self) -> dict[str, float]:
        return {}

    @cached_property
    def _measured(self) -> dict[tuple[str, ...], Surface | None]:
        return {}

    def matmul_surface(self, dtype: Dtype, *, grouped: bool) -> Surface | None:
        """Rates by shape of a profile that was measured on the machine itself, else None.

        Published tables come from other machines, drivers and clocks: they inform the efficiencies
        of `Kernels` and are no surface.
        """
        key = ("matmul", dtype, str(grouped))
        if key not in self._measured:
            points = self.kernels.matmul_points if self.kernels.is_measured else ()
            self._measured[key] = matmuls(points, dtype, grouped=grouped)
        return self._measured[key]

    def attention_surface(
        self, dtype: Dtype, direction: Literal["forward", "backward"]
    ) -> Surface | None:
        """The same for the engine's attention, over (batch x heads, seq_len, head_dim)."""
        key = ("attention", dtype, direction)
        if key not in self._measured:
            points = self.kernels.attention_points if self.kernels.is_measured else ()
            own, family = self.attention, gpu_family(self.gpu.name)
            kernel = None if own == "unfused" else measured_as(own, family)
            self._measured[key] = attentions(points, dtype, direction, kernel=kernel)
        return self._measured[key]

    def rate_flops_per_s(self, dtype: Dtype, *, grouped: bool = False) -> float:
        """Sustained rate of a large matmul in `dtype`."""
        table = self.kernels.matmul_efficiency
        efficiency = table[dtype] if dtype in table else table[self.recipe.other_dtype(self.gpu)]
        if grouped:
            efficiency = self.kernels.grouped_efficiency.get(dtype, efficiency)
            if self.uses_grouped_mm and dtype in ("bf16", "fp16"):
                efficiency *= self.kernels.grouped_mm_fraction or 1.0
        return self.gpu.peak_flops_per_s[dtype] * efficiency


def matmul_s(
    device: Device, op: Matmul, rows: Number, columns: Number, inner: Number, layout: str = "TN"
) -> Number:
    """Seconds of `op.groups` products (rows x inner) @ (inner x columns), transposed as in
    `MatmulPoint.layout`; either way round where `layout` is "NT", whose result is a weight.
    """
    dtype = (
        device.recipe.matmul_dtype(device.gpu)
        if op.recipe and not op.in_16_bit
        else device.recipe.other_dtype(device.gpu)
    )
    sides = rows, columns, inner
    grouped = op.name.startswith("experts")
    surface = device.matmul_surface(dtype, grouped=grouped)
    if surface is not None:
        m, n = (columns, rows) if layout == "NT" else (rows, columns)  # weights are stored (n, k)
        shape = (m, n, inner, op.groups) if grouped else (m, n, inner)
        rates = surface(*shape, layout=layout)
        return _flops(device, op, sides) / plain(rates) * device.slowdown(dtype)
    if not grouped:
        return _plain_s(device, op, dtype, sides)
    together = _grouped_s(device, op, dtype, sides, layout)
    if device.uses_grouped_mm:
        return together
    return where(op.groups == 1, _plain_s(device, op, dtype, sides), together)


def _flops(device: Device, op: Matmul, sides: Sides) -> Number:
    """Of all groups, more where rows that are not aligned slow a product down."""
    rows, columns, inner = sides
    flops = 2.0 * rows * columns * inner * op.groups
    if device.gpu.vendor == "nvidia":
        family = gpu_family(device.gpu.name)
        rate = UNALIGNED_RATE.get(family, UNALIGNED_RATE_ELSEWHERE)
        flops = flops / where(op.unaligned, rate, 1.0)
    return flops


def _math_s(device: Device, op: Matmul, dtype: Dtype, sides: Sides, *, grouped: bool) -> Number:
    """Seconds of multiplying alone at the rate of many FLOPs."""
    rows, columns, inner = sides
    rate = device.rate_flops_per_s(dtype, grouped=grouped)
    filled = _filled_units(rows, columns, op.groups, device.gpu.compute_units)
    math_s = _flops(device, op, sides) / (rate * filled) * device.tuning.matmul_scale
    return math_s / aligned_rate(device.kernels, columns, inner) if op.recipe else math_s


def _plain_s(device: Device, op: Matmul, dtype: Dtype, sides: Sides) -> Number:
    """Seconds of one product, or of several whose bytes hide behind their FLOPs."""
    rows, columns, inner = sides
    math_s = _math_s(device, op, dtype, sides, grouped=False)
    moved = 2.0 * (rows * inner + inner * columns + rows * columns) * op.groups
    memory_s = moved / device.bandwidth_bytes_per_s
    return device.kernels.launch_s + maximum(math_s * (1 + HALF_RATE_K / inner), memory_s)


def _grouped_s(device: Device, op: Matmul, dtype: Dtype, sides: Sides, layout: str) -> Number:
    """Seconds of multiplying and of what moves beside it, which hides as far as the GPU's kernels
    let it: their sum, or nearer to the longer one.
    """
    rows, columns, inner = sides
    in_8_bit = op.recipe and not op.in_16_bit
    read = 2.0 * (device.recipe.saved_fraction if in_8_bit else 1.0)
    written = device.weight_gradient_bytes if layout == "NT" else 2.0
    moved = op.groups * (read * inner * (rows + columns) + written * rows * columns)
    math_s = _math_s(device, op, dtype, sides, grouped=True)
    memory_s, p = moved / device.bandwidth_bytes_per_s, device.kernels.grouped_overlap
    return device.kernels.launch_s + (math_s**p + memory_s**p) ** (1.0 / p)


def scan_s(device: Device, op: Scan, *, backward: bool) -> Number:
    """Seconds of a chunked recurrence: as long as its products or its bytes take."""
    work = 2.0 if backward else 1.0
    peak = device.gpu.peak_flops_per_s[device.recipe.other_dtype(device.gpu)]
    share = device.kernels.scan_backward if backward else device.kernels.scan_forward
    math_s = op.forward_flops / (peak * share)
    memory_s = op.forward_bytes / device.bandwidth_bytes_per_s
    return work * (device.kernels.launch_s + maximum(math_s, memory_s))


def pointwise_s(
    device: Device, moved_bytes: Number, kernels: Number, measured_as: str = ""
) -> Number:
    """Seconds of `kernels` memory-bound kernels that move `moved_bytes` together."""
    rate = device.moved_bytes_per_s(measured_as)
    moving_s = moved_bytes / rate * device.tuning.pointwise_scale
    return kernels * device.kernels.launch_s + moving_s


def aligned_rate(kernels: Kernels, columns: Number, inner: Number) -> Number:
    """Fraction of the rate that is left when a side of the matrices is not a multiple of the
    alignment.
    """
    if kernels.misaligned_rate == 1.0:
        return 1.0
    off = _is_off(columns, kernels.alignment) | _is_off(inner, kernels.alignment)
    return where(off, kernels.misaligned_rate, 1.0)


def _is_off(side: Number, alignment: int) -> Condition:
    """Whether a side is no multiple of it; numpy's remainder takes fifteen times as long."""
    return floor(side / alignment) * alignment != side


def _filled_units(rows: Number, columns: Number, groups: Number, units: int) -> Number:
    """Fraction of the compute units kept busy over all waves, with the best of `TILES`."""
    down = {height: ceil(rows / height) for height in HEIGHTS}
    across = {width: ceil(columns / width) for width in WIDTHS}
    best: Number = 0.0
    for height, width, rate in TILES:
        waves = down[height] * across[width] * groups / units
        best = maximum(best, rate * waves / ceil(waves))
    return best
