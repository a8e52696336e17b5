"""What a rank keeps in its host's memory instead of its own, and the seconds that this takes.

    optimizer    the CPUs of a node update what its GPUs own, moving as many bytes per parameter as
                 a GPU would, and what the engine moves there beside it (`StateHabits.host_bytes`);
                 gradients come down the host link and updated weights go up it, under the update as
                 far as the engine overlaps:                    u + c - min(overlap c, u)
                 (of a fraction; the GPUs update the rest after it)
    gradients    where the engine keeps its shards of them on the host too, each micro-batch sends
                 its own, and all but the first fetch the sum before: 2 - 1/m copies a micro-batch
    activations  what a layer saves goes down beside its forward and up beside its backward, or
                 in turn with them, where the engine copies on the stream that computes

    u   bytes moved / a GPU's share of the host's memory bandwidth      c   bytes copied / link

Of the copies beside a pass, what lasts longer than all else in it is seen. The device keeps two
layers' activations, one on its way (`step_memory`).

Source: ZeRO-Offload (2101.06840, section 4); Megatron-Core optimizer/cpu_offloading.
Leaves out: PCIe switches that GPUs share, copies in both directions at once (counted one after the
other), updates that lag a step behind.
"""

from meshplan.costmodels.elementwise import Number, anywhere, maximum, minimum, where
from meshplan.costmodels.layout import InvalidLayout, Layout
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.memory.states import shards_gradients
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.weights.traffic import WeightTraffic
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Overlap
from meshplan.hardware_profiles.schema import Cluster

CPU_ADAM_EFFICIENCY = 0.43
"""Fraction of the host's memory bandwidth that an update on its CPUs reaches: 10e9 parameters x 28
bytes in 2.57 s on two Xeon 8168 with 256 GB/s (2101.06840, table 4)."""


@dataclass(frozen=True, slots=True)
class Host:
    """One GPU's host: bytes per second of its link, each way, and of its share of the memory."""

    link_bytes_per_s: float
    memory_bytes_per_s: float


def host_of(cluster: Cluster) -> Host:
    """Raises `InvalidLayout` where the profile does not say."""
    for name in ("host_link_bytes_per_s", "host_memory_bytes_per_s"):
        if getattr(cluster, name) is None:
            raise InvalidLayout(
                f"offload: the profile of {cluster.name} does not state {name}; add it, or keep "
                "everything on the device"
            )
    rate = (cluster.host_memory_bytes_per_s or 0.0) * CPU_ADAM_EFFICIENCY
    return Host(cluster.host_link_bytes_per_s or 0.0, rate / cluster.gpus_per_node)


def offloads(layout: Layout | Layouts) -> bool:
    """Whether anything of it, in any row, is kept on the host."""
    return anywhere(layout.optimizer_offload > 0) or anywhere(layout.activation_offload > 0)


def host_share_bytes(cluster: Cluster, gpus: Number) -> Number | None:
    """One GPU's share of its node's memory in a job of `gpus`; None where it is not known."""
    if cluster.host_memory_bytes is None:
        return None
    return cluster.host_memory_bytes / minimum(cluster.gpus_per_node * 1.0, gpus)


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """Seconds of copies and updates of one layout, or of each row of a grid."""

    layout: Layout | Layouts
    host: Host
    weights: WeightTraffic

    def gradients_s(self, parameters: RankParameters) -> Number:
        """One copy of this rank's shard of the gradients, where they are kept on the host."""
        state, sharding = self.weights.state, self.weights.sharding
        kept = (sharding.offloaded > 0) & shards_gradients(state, sharding)
        size_bytes = state.gradient_bytes * self.weights.updated(parameters)
        copy_s = sharding.offloaded * size_bytes / self.host.link_bytes_per_s
        return where(kept, copy_s, 0.0) * state.offloads_gradients

    def update_s(self, parameters: RankParameters, moved_bytes: float, overlap: Overlap) -> Number:
        """The whole optimizer's step on the CPUs; `moved_bytes` of memory for each parameter."""
        state, updated = self.weights.state, self.weights.updated(parameters)
        on_cpu = updated * (moved_bytes + state.host_bytes) / self.host.memory_bytes_per_s
        down = where(self.gradients_s(parameters) > 0, 0.0, state.gradient_bytes)
        copies = updated * (down + state.weight_bytes) / self.host.link_bytes_per_s
        return on_cpu + copies - minimum(overlap.host * copies, on_cpu)

    def activations_s(self, saved_bytes: Number) -> Number:
        """One way of a layer's saved activations."""
        return self.layout.activation_offload * saved_bytes / self.host.link_bytes_per_s


def copies_of_gradients(num_micro_batches: Number) -> Number:
    """Times that each micro-batch copies its gradients on average: sums are fetched from the second
    on.
    """
    return 2.0 - 1.0 / num_micro_batches


def exposed_copies_s(copy_s: Number, lasting_s: Number) -> Number:
    """Exposed copy time of a pass: by how much it lasts longer than all else that the pass does,
    sent over other links or computed.
    """
    return maximum(copy_s - lasting_s, 0.0)
