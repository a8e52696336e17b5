"""What a hardware profile says: GPUs, their kernels, and clusters (their links: `network_schema`).

Every number is SI (bytes, seconds, FLOP/s) and has an entry in `sources`, keyed by its field name
("peak_flops_per_s.bf16"), that says where it was read. A number nobody published is absent, not
guessed.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from meshplan.hardware_profiles.frozen import Count, Frozen, NotNegative, Positive
from meshplan.hardware_profiles.names import Name
from meshplan.hardware_profiles.network_schema import CurveFit, CurvePoint, Interference, Link, Pod

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8"]
AttentionKernel = Literal[
    "flash1", "triton", "efficient", "masked", "flex", "flash2", "flash3", "flash4", "cudnn",
    "cudnn_mxfp8",
]  # fmt: skip


MEMORY_MARGIN = 0.04
"""[fitted] Left free of a device's memory, so that predictions of fitting err on both sides alike:
chosen by hand on 1,688 rows of the Ultra-Scale Playbook, 883 of them out of memory, and the rows of
other suites that ran (2026-11-22, docs/accuracy.md)."""


class Gpu(Frozen):
    """The datasheet of one accelerator.

    memory_bytes         what the device reports as total (an "80 GB" H100 reports 79.65 GiB)
    peak_flops_per_s     dense matmul peak by number format, without sparsity
    compute_units        SMs (NVIDIA), CUs (AMD) or cores (CPU): what a wave of tiles is quantised
                         by
    """

    name: Name
    title: str
    vendor: Literal["nvidia", "amd", "cpu"]
    memory_bytes: float = Field(gt=0)
    memory_bandwidth_bytes_per_s: float = Field(gt=0)
    peak_flops_per_s: dict[Dtype, Positive]
    compute_units: Count
    power_w: Positive | None = None
    sources: dict[str, str]

    @property
    def format_16_bit(self) -> Literal["bf16", "fp16"]:
        """The 16-bit format to train in: a V100 has no bf16."""
        return "bf16" if "bf16" in self.peak_flops_per_s else "fp16"

    def without_units(self, held: int) -> "Gpu":
        """What is left to compute with where other kernels hold so many units all the time."""
        left = self.compute_units - held
        assert left > 0, f"{self.name} has {self.compute_units} compute units"
        peaks = {d: peak * left / self.compute_units for d, peak in self.peak_flops_per_s.items()}
        return self.model_copy(update={"compute_units": left, "peak_flops_per_s": peaks})


class MatmulPoint(Frozen):
    """One measured matrix product (m x k) @ (k x n), `groups` of them in one kernel if above 1.

    layout  transposition of the operands as BLAS writes it: "TN" forward, "NN" dgrad, "NT" wgrad
    spread  interquartile range over median of the repeats, None where not published
    """

    dtype: Dtype
    m: Count
    n: Count
    k: Count
    groups: Count = 1
    layout: Literal["NN", "NT", "TN", "TT"] = "TN"
    flops_per_s: float = Field(gt=0)
    spread: NotNegative | None = None


def pointwise_name(kernel: str, dtype: Dtype) -> str:
    """The key of `kernel` on numbers of `dtype` in `Kernels.pointwise_bytes_per_s`."""
    return kernel if dtype == "fp32" else f"{kernel}_{dtype}"


class AttentionPoint(Frozen):
    """One measured attention; `flops_per_s` counts the causal half only if `causal`.

    kernel  as engines name it (`KernelHabits.attention`), None for the device's usual one
    """

    dtype: Dtype
    kernel: AttentionKernel | None = None
    direction: Literal["forward", "backward"]
    batch: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Count
    seq_len: Count
    causal: bool
    flops_per_s: float = Field(gt=0)
    spread: NotNegative | None = None


class Kernels(Frozen):
    """How close kernels come to the datasheet on one kind of GPU: fits, and the points behind them.

    matmul_efficiency      large-matmul fraction of `peak_flops_per_s`, sustained, by number format
    grouped_efficiency     the same for a grouped matmul with many rows per group
    grouped_overlap        p in (math^p + memory^p)^(1/p), the seconds of a grouped matmul: 1 where
                           moving hides behind nothing, 2 where most of the shorter does
    grouped_mm_fraction    rate of PyTorch's grouped matmul of 16 bits (torch._grouped_mm) over that
                           (None: as fast)
    attention_forward, attention_backward
                           fraction of the 16-bit peak at head_dim 128 and long sequences, FLOPs
                           of the causal half
    flash2_fraction        rate of FlashAttention-2 over the two above, which are the best kernel's
    attention_half_forward, attention_half_backward
                           keys that a query meets (half of them, if causal) at which attention
                           reaches half of that rate
    sdpa_forward, sdpa_backward, sdpa_half_forward, sdpa_half_backward
                           the same four of the kernel behind PyTorch's
                           scaled_dot_product_attention, where that is not FlashAttention-2 (None)
    sums16_backward, sums16_half_backward
                           the two of the backward whose gradients of queries are added up in 16
                           bits, where the kernel can (None)
    uneven_backward, uneven_half_backward
                           the two of the backward of heads whose values are narrower than their
                           queries (latent attention), where that is a slower kernel (None)
    sparse_backward, sparse_half_backward
                           the same of the backward over keys that each query chose, one head of
                           keys for all: its fraction of the 16-bit peak (None: as any other's), and
                           the keys at which it reaches half of that rate
    scan_forward, scan_backward
                           fraction of the 16-bit peak at which chunked recurrences (state spaces,
                           linear attention) run, FLOPs as `costmodels.operations.recurrent` counts
    alignment, misaligned_rate
                           elements that the columns and the inner side of a 16-bit matmul must be
                           multiples of, and the fraction of the rate that is left when one is not
    memory_efficiency      fraction of the memory bandwidth that pointwise kernels reach
    launch_s               the shortest kernel and the gap to the next, where the host is ahead
    burst_flops_per_s      large-matmul rate of the first moments after idling, by number format
    pointwise_bytes_per_s  bytes read and written per second, by `pointwise_name` ("copy", "rope")
    optimizer_efficiency   fraction of the memory bandwidth that a fused AdamW step reaches
    shared_slowdown        how much longer work took on the whole than the device takes alone, which
                           is what rates and points say, because others used it too: by number
                           format of products, "memory", "collectives"; empty if nobody did
    matmul_points, attention_points
                           measured shapes; the interpolated surface wins over the numbers above
    conditions             date, device, driver, versions, command, or the publication
    """

    gpu: str
    matmul_efficiency: dict[Dtype, Positive]
    grouped_efficiency: dict[Dtype, Positive] = {}
    grouped_overlap: Positive = 2.0
    grouped_mm_fraction: Positive | None = None
    attention_forward: Positive
    attention_backward: Positive
    flash2_fraction: Positive = 1.0
    attention_half_forward: Positive = 128.0
    attention_half_backward: Positive = 128.0
    sdpa_forward: Positive | None = None
    sdpa_backward: Positive | None = None
    sdpa_half_forward: Positive = 128.0
    sdpa_half_backward: Positive = 128.0
    sums16_backward: Positive | None = None
    sums16_half_backward: Positive = 128.0
    uneven_backward: Positive | None = None
    uneven_half_backward: Positive = 128.0
    sparse_backward: Positive | None = None
    sparse_half_backward: Positive = 128.0
    scan_forward: Positive = 0.07
    scan_backward: Positive = 0.052
    alignment: Count = 1
    misaligned_rate: Positive = 1.0
    memory_efficiency: Positive
    launch_s: NotNegative
    context_bytes: NotNegative | None = None
    burst_flops_per_s: dict[Dtype, Positive] = {}
    pointwise_bytes_per_s: dict[str, Positive] = {}
    optimizer_efficiency: Positive | None = None
    shared_slowdown: dict[str, Positive] = {}
    matmul_points: tuple[MatmulPoint, ...] = ()
    attention_points: tuple[AttentionPoint, ...] = ()
    conditions: dict[str, str]
    sources: dict[str, str]

    @property
    def is_measured(self) -> bool:
        """Whether it comes from the machine that it describes, rather than from publications."""
        return self.conditions.get("kind") == "measured"


class Cluster(Frozen):
    """Nodes of one kind of GPU, the links in and between them, and measured collective curves.

    gpus_per_node  accelerators that share the fast link: 8 in a DGX, 72 in an NVL72 rack
    max_gpus       accelerators of the whole cluster, None when it is only a kind of machine
    pod             the next tier of the network, None: every node reaches every other at full rate
    bandwidth_by_nodes  fraction of the network's bandwidth left at so many nodes, where measured
    communicator_bytes  device memory that one process group that leaves its node takes
    interference        what computing and communicating at the same time costs
    usable_memory_bytes     that a rank could use of a GPU, where measured
    plan_memory_bytes       that a plan may fill of a GPU: no part of a profile, set for a question
                            (`planner.case.memory_limit`)
    host_memory_bytes, host_memory_bytes_per_s
                        of a node's processors together, the bandwidth as the datasheet says
    host_link_bytes_per_s
                        between one GPU and its host, each way
    host_slowdown       seconds that its processors take to issue a kernel over those of the x86
                        hosts that engines' constants were learnt on
    """

    name: Name
    title: str
    gpu: Gpu
    gpus_per_node: Count
    max_gpus: Count | None = None
    node: Link
    network: Link
    pod: Pod | None = None
    bandwidth_by_nodes: dict[int, Positive] = {}
    kernels: Kernels | None = None
    collective_points: tuple[CurvePoint, ...] = ()
    collective_fits: tuple[CurveFit, ...] = ()
    usable_memory_bytes: Positive | None = None
    plan_memory_bytes: Positive | None = None
    communicator_bytes: NotNegative | None = None
    interference: Interference | None = None
    host_memory_bytes: Positive | None = None
    host_memory_bytes_per_s: float | None = Field(default=None, gt=0)
    host_link_bytes_per_s: Positive | None = None
    host_slowdown: Positive = 1.0
    gpu_hour_price: NotNegative | None = None
    conditions: dict[str, str] = {}
    sources: dict[str, str]

    @property
    def is_measured(self) -> bool:
        """Whether its curves come from the machine that it describes."""
        return self.conditions.get("kind") == "measured"

    @property
    def device_nouns(self) -> tuple[str, str]:
        """What one and several of what it runs ranks on are called."""
        return ("process", "processes") if self.gpu.vendor == "cpu" else ("GPU", "GPUs")

    @property
    def capacity_bytes(self) -> float:
        """What a rank may use: measured on the cluster, or the device's memory less a margin."""
        return self.usable_memory_bytes or self.gpu.memory_bytes * (1 - MEMORY_MARGIN)

    @property
    def fillable_bytes(self) -> float:
        """What a plan may fill of a GPU: less than a rank may use, so that it fits the surer."""
        return self.plan_memory_bytes or self.capacity_bytes

    @model_validator(mode="after")
    def _kernels_match(self) -> Self:
        if self.kernels and self.kernels.gpu != self.gpu.name:
            raise ValueError(f"kernels measured on {self.kernels.gpu}, cluster has {self.gpu.name}")
        return self

    @model_validator(mode="after")
    def _pods_are_nodes(self) -> Self:
        if self.pod and self.pod.gpus % self.gpus_per_node:
            raise ValueError(
                f"a pod of {self.pod.gpus} GPUs is not whole nodes of {self.gpus_per_node}"
            )
        return self
