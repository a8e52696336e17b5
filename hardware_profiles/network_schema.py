"""What a hardware profile says of links: their bandwidth, measured collectives, what overlapping
costs, and pods. Units and sources as in `schema`.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from meshplan.hardware_profiles.frozen import MOST_COUNTED, Count, Frozen, NotNegative

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"
]


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
                   node's g ranks gets r/g of it. Of a ring: what an all_reduce of two nodes prints
                   may be a tree's (`costmodels.seconds.trees.ring_rate`).
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
