"""Whether a node's memory takes what its GPUs keep there, each as full as the fullest rank."""

from collections.abc import Iterable

from meshplan.costmodels.layout import InvalidLayout, Layout
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.units import format_bytes
from meshplan.costmodels.weights.offload import host_share_bytes, offloads
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.schema import Cluster


@dataclass(frozen=True, slots=True)
class HostUse:
    """Bytes for each GPU, and a GPU's share of its node's memory, None where that is not known."""

    used_bytes: float
    share_bytes: float | None

    @property
    def lacking_bytes(self) -> float:
        """Beyond the share; negative where it fits, and 0 where nobody knows."""
        return 0.0 if self.share_bytes is None else self.used_bytes - self.share_bytes

    @property
    def text(self) -> str:
        """One line, empty where nothing is on the host."""
        if not self.used_bytes:
            return ""
        held = f"host memory per GPU: {format_bytes(self.used_bytes)}"
        if self.share_bytes is None:
            return f"{held}; the profile does not state the memory of a node"
        verb = "more than" if self.lacking_bytes > 0 else "of"
        return f"{held}, {verb} its share of {format_bytes(self.share_bytes)}"


def host_use(host_bytes: Iterable[float], cluster: Cluster, gpus: int) -> HostUse:
    """Of a job on `gpus`, from what each pipeline rank keeps on its host."""
    share = host_share_bytes(cluster, float(gpus))
    return HostUse(max(host_bytes), None if share is None else float(share))


def host_takes(setting: Setting, layout: Layout) -> bool:
    """Whether a node's memory takes what the layout keeps there."""
    return not offloads(layout) or _use_of(setting, layout).lacking_bytes <= 0


def check_host(setting: Setting, layout: Layout) -> None:
    """Raise `InvalidLayout` where the host cannot take it, or its profile says too little."""
    if not host_takes(setting, layout):
        raise InvalidLayout(f"offload: {_use_of(setting, layout).text}")


def _use_of(setting: Setting, layout: Layout) -> HostUse:
    memory = StepModel(setting, layout).memory()
    return host_use((float(rank.host) for rank in memory), setting.cluster, layout.world_size)
