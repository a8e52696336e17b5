"""What a layout is priced against: the model, the training, the cluster, the engine and its fitted
constants; and how this training changes the engine's habits.
"""

from typing import Self

from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine, Legality
from meshplan.hardware_profiles.kernel_habits import KernelHabits
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import KERNEL_SCALES, Tuning, load_fit


def places_modules(model: Model, legality: Legality) -> bool:
    """Whether modules of multi-token prediction are a part that a stage holds as it holds a layer:
    the engine may place them apart from the loss.
    """
    return model.mtp_layers > 0 and legality.modules_apart


def stack_of(model: Model, legality: Legality) -> tuple[int, ...]:
    """The kind of each part that stages hold between the embedding and the head, in model order:
    the layers, and placed modules, all together, as one part of a kind after the layers' kinds.
    """
    placed = places_modules(model, legality)
    return (*model.pattern, *((len(model.kinds),) if placed else ()))


@dataclass(frozen=True, slots=True)
class Setting:
    """What a layout is priced against. `empty_stages`: one without layers, which is priced with
    their buffers, is asked for what it holds; `waits_on_host`: what layers save may.
    """

    model: Model
    training: Training
    cluster: Cluster
    engine: Engine
    tuning: Tuning
    empty_stages: bool = False
    waits_on_host: bool = False

    @property
    def stack(self) -> tuple[int, ...]:
        """`stack_of` its model and engine."""
        return stack_of(self.model, self.engine.legality)

    @property
    def places_modules(self) -> bool:
        """Whether the last part of the stack is modules of multi-token prediction."""
        return places_modules(self.model, self.engine.legality)

    @property
    def has_several_kinds(self) -> bool:
        """Whether what stages hold is of several kinds, modules of multi-token prediction among
        them, or nothing, or part of it waits on the host, and the engine's passes are not counted:
        prices have a rank pay for the largest, also of what is on its way to the host.
        """
        several = len(set(self.stack)) > 1 or self.model.mtp_layers > 0 or self.empty_stages
        several |= self.waits_on_host
        return several and not self.engine.kernels.counts_passes

    @classmethod
    def fitted(cls, model: Model, training: Training, cluster: Cluster, engine: Engine) -> Self:
        """With what was fitted for this engine and GPU, what a profile of the cluster measured
        itself, and what the user's own runs corrected.
        """
        tuning = load_fit(engine.name, cluster.gpu.name).tuning
        if cluster.is_measured and cluster.interference:
            tuning = tuning.model_copy(update={"interference": cluster.interference.slowdown})
        if engine.learned and engine.learned.gpu == cluster.gpu.name:
            tuning = tuning.model_copy(update=engine.learned.values())
        return cls(model, training, cluster, engine, as_graphed(tuning, engine))


def as_graphed(tuning: Tuning, engine: Engine) -> Tuning:
    """Without the host's part where one graph holds a whole step, without the allocator's slack
    where a compiler gives each buffer its place beforehand, and with the engine's share of the
    scales of kernels.
    """
    changed: dict[str, float] = {}
    if engine.kernels.step_graph:
        changed |= {"launch_s": 0.0, "routing_s": 0.0, "micro_batch_s": 0.0}
    if engine.state.plans_buffers:
        changed |= {"state_slack_fraction": 0.0, "activation_slack_fraction": 0.0}
    if engine.kernels.kernel_share != 1:
        share = engine.kernels.kernel_share
        changed |= {name: share * getattr(tuning, name) for name in KERNEL_SCALES}
    return tuning.model_copy(update=changed) if changed else tuning


def kernels_of(setting: Setting) -> KernelHabits:
    """The engine's kernels under this training."""
    kernels, training = setting.engine.kernels, setting.training
    if training.precision != "fp8" or training.lora:  # more scales; adapters read 16 bits
        kernels = kernels.model_copy(update={"gathers_cast": False})
    if training.lora:  # no gradients of the weights for anything to stand for
        kernels = kernels.model_copy(update={"keeps_buffers": False})
    of_8bit = kernels.sink_8bit_token_s
    if training.precision in ("fp8", "mxfp8", "nvfp4") and of_8bit is not None:
        kernels = kernels.model_copy(update={"sink_token_s": of_8bit})
    return kernels


def gradient_bytes(engine: Engine, itemsize: float) -> float:
    """Read and written for each number of a weight's gradient when its product is there."""
    state = engine.state
    moved = {
        "fused": 0.0,
        "added": itemsize + 2 * state.gradient_bytes,
        "copied": itemsize + state.reduce_bytes,
        "left": 0.0,
    }
    return moved[engine.kernels.gradient_add]


def weight_gradient_bytes(engine: Engine) -> float:
    """Moved by the product itself for each number of a weight's gradient."""
    fused = engine.kernels.gradient_add == "fused"
    return 2 * engine.state.gradient_bytes if fused else 2.0
