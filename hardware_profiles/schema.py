"""What a hardware profile says: GPUs, links, clusters and what was measured on them.

Every number is SI (bytes, seconds, FLOP/s) and has an entry in `sources`, keyed by its field name
("peak_flops_per_s.bf16"), that says where it was read. A number nobody published is absent, not
guessed.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from meshplan.hardware_profiles.names import Name

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8"]
CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"
]
AttentionKernel = Literal["flash1", "triton", "efficient", "masked", "flex", "flash2", "flash3",
                          "flash4", "cudnn", "cudnn_mxfp8"]  # fmt: skip


MEMORY_MARGIN = 0.04
"""[fitted] Left free of a device's memory, so that predictions of fitting err on both sides alike:
chosen by hand on 1,688 rows of the Ultra-Scale Playbook, 883 of them out of memory, and the rows of
other suites that ran (2026-11-22, docs/accuracy.md)."""


MOST_COUNTED = 10**9  # of anything in a profile; a bound keeps a typo from being computed with
Count = Annotated[int, Field(gt=0, le=MOST_COUNTED)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Frozen(BaseModel):
    """Read from a file by people: immutable, numbers are finite, an unknown key is an error.

    What checks a class is built when it is first asked for: those inside another are part of its.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


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


class BusBandwidth(Frozen):
    """Bus bandwidth in bytes per second, as nccl-tests prints it (busbw), by collective."""

    model_config = ConfigDict(allow_inf_nan=True)  # infinite where there is no link (one device)

    all_reduce: float = Field(gt=0)
    all_gather: float = Field(gt=0)
    reduce_scatter: float = Field(gt=0)
    all_to_all: float = Field(gt=0)
    send: float = Field(gt=0)


class CurveFit(Frozen):
    """seconds = latency_s[i] + size_bytes / bandwidth_bytes_per_s[i] in regime i, small sizes
    first, for one group shape; regimes meet where their lines cross: `curves.curve_seconds`.

    residual  median of |fit / measured - 1| over the points behind it
    apart     the mean of theirs
    """

    kind: CollectiveKind
    ranks_per_node: Count
    nodes: Count
    latency_s: tuple[float, ...]
    bandwidth_bytes_per_s: tuple[float, ...]
    residual: NotNegative
    apart: NotNegative | None = None


class Link(Frozen):
    """One tier as large messages see it: inside a node, or between nodes.

    latency_s      one step of a ring through this tier (Simple protocol). All links of a ring step
                   at once, so a ring of n ranks over several nodes makes n-1 steps (all_gather,
                   reduce_scatter) or 2(n-1) (all_reduce), each as slow as its slowest link
    stall_s        what each step takes longer in a job whose network stalls: n-1 times for
                   all_gather and all_reduce alike, whatever the algorithm
    interference   `Tuning.interference` beside this tier's collectives, None: as the engine's
                   constants have it
    meshed         accelerators that have a link of their own to each other one, 0: a switch. Their
                   bus bandwidth is that of all of them; `send` that of one link
    bus_bandwidth  measured with all accelerators of the domain (node) or of full nodes (network).
      in `node`    what one rank moves. all_reduce may be above the wire where the switch adds up
                   (NVLS); a group of r of its g ranks then gets all_reduce x (r-1)/r x g/(g-1), and
                   all_gather's rate for r <= 4, where NCCL takes the ring (H200, B200, nccl-tests)
      in `network` all_reduce, all_gather, reduce_scatter: what one whole node moves through all its
                   network cards (a ring crosses each node's boundary once), so a group with r of a
                   node's g ranks gets r/g of it.
                   all_to_all, send: what one rank moves through its own card, whatever r is
    collective_fits  what groups inside one node took on links of this kind, where others measured
                   them: they win over the formula (built-in files name a file of `links`)
    """

    latency_s: float = Field(ge=0)
    stall_s: float = Field(default=0.0, ge=0)
    interference: float | None = Field(default=None, ge=0)
    meshed: int = Field(default=0, ge=0, le=MOST_COUNTED)
    bus_bandwidth: BusBandwidth
    collective_fits: tuple[CurveFit, ...] = ()


class CurvePoint(Frozen):
    """One measured collective. `size_bytes` is the whole array (after all_gather, before
    reduce_scatter). Every group of the shape runs at once, as in a layout: groups of 2 ranks per
    node share the network with the other groups of their nodes.

    processor_s  of a CPU rank's threads meanwhile, None on GPUs and where it was not measured
    apart        what the slowest rank of a group computed longer than its mean rank before each
                 call, over what that one computed; between CPU processes, else None
    """

    kind: CollectiveKind
    ranks_per_node: Count
    nodes: Count
    size_bytes: NotNegative
    seconds: NotNegative
    spread: NotNegative | None = None
    processor_s: NotNegative | None = None
    apart: NotNegative | None = None


class Interference(Frozen):
    """What overlapping costs: time under the other's load over time alone, both at least about 1.

    compute        matmul slowed by a collective that runs at the same time
    communication  collective slowed by matmuls that run at the same time
    """

    compute: float = Field(gt=0)
    communication: float = Field(gt=0)

    @property
    def slowdown(self) -> float:
        """`Tuning.interference` i: of B seconds of a message beside computing, B i / (1 + i) are
        seen. It lasts c B there, in which computing gets done what takes c B / k alone:

            i / (1 + i) = c (1 - 1 / k)        c, k  `communication`, `compute`

        but for `LEAST_HIDDEN` all of B where both at once take as long as one after the other: on a
        CPU a message takes a core.
        """
        seen = max(0.0, self.communication * (1 - 1 / self.compute))
        seen = min(1 - LEAST_HIDDEN, seen)
        return seen / (1 - seen)


LEAST_HIDDEN = 0.01
"""Of a message beside computing, where overlapping gains nothing: keeps `slowdown` finite."""


class Pod(Frozen):
    """Nodes that reach each other at full rate, and other pods at less.

    gpus              accelerators of a pod, whole nodes
    oversubscription  bandwidth of their network cards over that of the pod's links to other pods
    """

    gpus: Count
    oversubscription: float = Field(ge=1)


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
