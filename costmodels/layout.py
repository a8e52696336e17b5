"""How one training step is spread over the accelerators, and the rules that a layout must obey.

world_size        = dp * cp * tp * pp              (expert parallel reuses dp, cp and tp ranks)
num_micro_batches = global_batch_size / (dp * micro_batch_size)
ep * etp          divides dp * cp * tp
"""

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from meshplan.costmodels.model.config_fields import MAX_LAYERS
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Dispatcher
from meshplan.hardware_profiles.engine_schema import RecomputeModule as RecomputeModule
from meshplan.hardware_profiles.kernel_habits import ContextKind

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
CONTEXT_KINDS: tuple[ContextKind, ...] = get_args(ContextKind)
DISPATCHERS: tuple[Dispatcher, ...] = get_args(Dispatcher)
BY_HEADS: tuple[ContextKind, ...] = ("all_to_all", "hierarchical")
"""Those that exchange heads for tokens: attention keeps what it exchanged."""

MODES = ("none", "selective", "full")
"""How much of a layer the backward pass recomputes; grids of prices have them in this order."""

Mode = str | tuple[RecomputeModule, ...]
"""What a layer recomputes: one of `MODES`, or these modules."""

VIRTUAL_STAGES: dict[Schedule, int] = {
    "gpipe": 1, "1f1b": 1, "zb_h1": 1, "zb_v": 2, "dualpipe_v": 2,
}  # fmt: skip
"""The chunks per rank that a schedule is made of; interleaving has any number of them."""


class InvalidLayout(ValueError):
    """A layout that breaks a rule; the text gives the value, the rule and a fix."""


FROM_FILE = ConfigDict(extra="forbid")  # read from a plan file, an unknown key is an error
MAX_COUNT = 10**9  # no degree is larger; a bound keeps a typo from filling memory
Degree = Annotated[int, Field(gt=0, le=MAX_COUNT)]
Count = Annotated[int, Field(le=MAX_LAYERS)]
Fraction = Annotated[float, Field(ge=0, le=1)]
SELECTIVE: tuple[RecomputeModule, ...] = ("core_attention",)
"""What a selectively recomputed layer replays unless the layout says otherwise."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one (virtual) pipeline stage, and how many of them recompute what.

    layers            in it
    selective_layers  recompute `selective_modules`
    full_layers       recompute all; these are the first
    """

    __pydantic_config__ = FROM_FILE

    layers: Count
    selective_layers: Count = 0
    full_layers: Count = 0

    def __post_init__(self) -> None:
        if min(self.layers, self.selective_layers, self.full_layers) < 0:
            raise InvalidLayout(f"stage {self}: a count is negative; every count is at least 0")
        if self.selective_layers + self.full_layers > self.layers:
            raise InvalidLayout(f"stage {self}: it recomputes more layers than it holds")

    @property
    def modes(self) -> tuple[str, ...]:
        """Of `MODES`, what each layer recomputes: the first ones all, the next selectively."""
        none, selective, full = MODES
        plain = self.layers - self.selective_layers - self.full_layers
        return (full,) * self.full_layers + (selective,) * self.selective_layers + (none,) * plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parallel degrees, the sharding, the schedule and the stages.

    data_parallel           replicas
    tensor_parallel         ranks that share each layer's matrices
    pipeline_parallel       pipeline ranks
    virtual_stages          stages of each pipeline rank
    context_parallel        ranks that share a sequence
    expert_parallel         ranks that share the experts
    expert_tensor_parallel  ranks that share each expert's matrices
    sequence_parallel       whether tensor-parallel ranks share norms and residuals by tokens
    zero_stage              what ZeRO shards: 1 optimizer states, 2 gradients too, 3 weights too
    shard_group             ranks over which ZeRO shards (HSDP); 0 means all of dp * cp
    micro_batch_size        sequences of a micro-batch
    schedule                the order of forwards and backwards
    context_kind            how queries meet all keys, "": as the engine usually does it
    dispatcher              what brings tokens to experts, "": what the engine usually does
    stages                  pipeline_parallel * virtual_stages of them, in model order; the
                            embedding belongs to the first and the head to the last
    selective_modules       what a selectively recomputed layer replays
    optimizer_offload       fraction of the optimizer's states that is kept and updated on the host
    activation_offload      fraction of what layers save that waits on the host
    modules_apart           multi-token-prediction modules are on the stage before the last, which
                            has the heads alone (Megatron's `pipeline_model_parallel_layout`,
                            "...m|L")
    """

    __pydantic_config__ = FROM_FILE

    data_parallel: Degree = 1
    tensor_parallel: Degree = 1
    pipeline_parallel: Degree = 1
    virtual_stages: Degree = 1
    context_parallel: Degree = 1
    expert_parallel: Degree = 1
    expert_tensor_parallel: Degree = 1
    sequence_parallel: bool = False
    zero_stage: Annotated[int, Field(ge=0)] = 0  # `check_layout` knows the stages
    shard_group: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    micro_batch_size: Degree = 1
    schedule: Schedule = "1f1b"
    context_kind: ContextKind | Literal[""] = ""
    dispatcher: Dispatcher | Literal[""] = ""
    stages: tuple[Stage, ...]
    selective_modules: tuple[RecomputeModule, ...] = SELECTIVE
    optimizer_offload: Fraction = 0.0
    activation_offload: Fraction = 0.0
    modules_apart: bool = False

    @property
    def stage_ranks(self) -> int:
        """Accelerators that hold a share of the same stages: those of one pipeline rank."""
        return self.data_parallel * self.context_parallel * self.tensor_parallel

    @property
    def world_size(self) -> int:
        """Accelerators."""
        return self.stage_ranks * self.pipeline_parallel

    @property
    def recompute(self) -> Literal["none", "selective", "full", "mixed"]:
        """What the stages recompute, in one word ("mixed" when layers differ)."""
        layers = sum(stage.layers for stage in self.stages)
        selective = sum(stage.selective_layers for stage in self.stages)
        full = sum(stage.full_layers for stage in self.stages)
        if selective == full == 0:
            return "none"
        if selective == layers:
            return "selective"
        return "full" if full == layers else "mixed"

    def num_micro_batches(self, training: Training) -> int:
        """Micro-batches per replica and step."""
        return training.global_batch_size // (self.data_parallel * self.micro_batch_size)

    @property
    def label(self) -> str:
        """The compact name, such as `dp8 tp4 pp2 zero1 mbs2`; degrees of 1 are left out."""
        parts = [
            f"{short}{degree}"
            for short, degree in (
                ("dp", self.data_parallel),
                ("tp", self.tensor_parallel),
                ("pp", self.pipeline_parallel),
                ("vpp", self.virtual_stages),
                ("cp", self.context_parallel),
                ("ep", self.expert_parallel),
                ("etp", self.expert_tensor_parallel),
            )
            if degree > 1
        ]
        parts += [f"zero{self.zero_stage}", f"mbs{self.micro_batch_size}"]
        if self.recompute != "none":
            parts.append(f"recompute-{self.recompute}")
        away = (("optimizer", self.optimizer_offload), ("activation", self.activation_offload))
        parts += [f"{what}-offload" + f"-{part:.0%}" * (part < 1) for what, part in away if part]
        return " ".join(parts)

    @property
    def full_label(self) -> str:
        """`label`, and the ranks that ZeRO shards over where these are not all that could."""
        ranks, group = self.data_parallel * self.context_parallel, self.shard_group
        return f"{self.label} shard{group}" if self.zero_stage and 0 < group < ranks else self.label


CHOSEN_AXES = (
    "tensor_parallel", "pipeline_parallel", "virtual_stages", "context_parallel", "expert_parallel",
    "expert_tensor_parallel", "zero_stage", "micro_batch_size", "schedule", "recompute",
)  # fmt: skip
"""What one question leaves to choose; data parallelism follows from the others."""


def differing_axes(one: Layout, other: Layout) -> tuple[str, ...]:
    """The chosen axes on which two layouts of one question differ."""
    return tuple(axis for axis in CHOSEN_AXES if getattr(one, axis) != getattr(other, axis))


def even_stages(
    num_layers: int, num_stages: int, recompute: Literal["none", "selective", "full"] = "none"
) -> tuple[Stage, ...]:
    """`num_layers` over `num_stages` as evenly as they divide, the longer stages first."""
    base, longer = divmod(num_layers, num_stages)
    return stages_with([base + (stage < longer) for stage in range(num_stages)], recompute)


def stages_with(counts: Iterable[int], recompute: str) -> tuple[Stage, ...]:
    """Stages of so many layers, all recomputing the same way."""
    return tuple(
        Stage(n, n * (recompute == "selective"), n * (recompute == "full")) for n in counts
    )


ZERO_STAGES = (0, 1, 2, 3)
"""None; the optimizer; and the gradients; and the weights. Rajbhandari et al. 2020, section 5."""


def check_layout(layout: Layout, model: Model, training: Training) -> None:
    """Raise `InvalidLayout` unless `layout` can hold `model` and reach the batch of `training`.

    These are the rules of the mathematics; an engine's own come from
    `hardware_profiles.engine_schema.Engine`.
    """
    la = layout
    if la.zero_stage not in ZERO_STAGES:
        raise InvalidLayout(f"zero_stage {la.zero_stage}; it is 0, 1, 2 or 3")
    for what in ("optimizer_offload", "activation_offload"):
        if not 0 <= getattr(la, what) <= 1:
            raise InvalidLayout(f"{what} {getattr(la, what)} is not a fraction; it is from 0 to 1")
    _check_stages(la, model)
    per_step = la.data_parallel * la.micro_batch_size
    if training.global_batch_size % per_step:
        raise InvalidLayout(
            f"global batch {training.global_batch_size} is not a multiple of data_parallel "
            f"{la.data_parallel} x micro_batch_size {la.micro_batch_size} = {per_step}"
        )
    _check_tensor(la, model)
    _check_context(la, model, training)
    _check_experts(la, model)


def _check_stages(la: Layout, model: Model) -> None:
    if len(la.stages) != la.pipeline_parallel * la.virtual_stages:
        raise InvalidLayout(
            f"{len(la.stages)} stages, but pipeline_parallel {la.pipeline_parallel} x "
            f"virtual_stages {la.virtual_stages} = {la.pipeline_parallel * la.virtual_stages}"
        )
    chunks = VIRTUAL_STAGES.get(la.schedule, la.virtual_stages)
    if la.virtual_stages != chunks:
        raise InvalidLayout(
            f"schedule {la.schedule} has virtual_stages {chunks}, not {la.virtual_stages}"
        )
    held = sum(stage.layers for stage in la.stages)
    if held != model.num_layers:
        raise InvalidLayout(f"the stages hold {held} layers; {model.name} has {model.num_layers}")
    if la.modules_apart:
        _check_apart(la, model)
    modules_at = len(la.stages) - 2 if la.modules_apart else None
    for index, stage in enumerate(la.stages[1:-1], start=1):
        if stage.layers < 1 and index != modules_at:
            raise InvalidLayout(
                f"stage {index} of {len(la.stages)} is empty; only the first (the embedding's) and "
                "the last (the head's) may hold no layer"
            )


def _check_tensor(la: Layout, model: Model) -> None:
    for kind in model.kinds:
        for what, size in kind.divided_by_tp.items():
            if size % la.tensor_parallel:
                verb = "does" if what == "ffn" else "do"
                named = f"{what} {size}" if what == "ffn" else f"{size} {what}"
                raise InvalidLayout(
                    f"{named} {verb} not divide by tensor_parallel {la.tensor_parallel}"
                )


def _check_context(la: Layout, model: Model, training: Training) -> None:
    if la.context_parallel == 1:
        return
    if training.seq_len % (2 * la.context_parallel):
        raise InvalidLayout(
            f"sequence length {training.seq_len} does not divide by 2 x context_parallel "
            f"{la.context_parallel}"
        )
    if model.mixed_by:
        raise InvalidLayout(
            f"context_parallel {la.context_parallel}: {model.name} is known by a trace, which does "
            f"not say how {model.mixed_by[0]} is split by tokens; it must be 1"
        )


def _check_apart(la: Layout, model: Model) -> None:
    if not model.mtp_layers:
        raise InvalidLayout(f"modules_apart: {model.name} has no modules of multi-token prediction")
    if len(la.stages) < 2 or la.stages[-1].layers:
        raise InvalidLayout(
            "modules_apart: the last of several stages has the heads alone; it must hold 0 layers"
        )


def _check_experts(layout: Layout, model: Model) -> None:
    ep, etp = layout.expert_parallel, layout.expert_tensor_parallel
    ranks = layout.stage_ranks
    if ep * etp > 1 and not model.is_moe:
        name, degree = ("expert_parallel", ep) if ep > 1 else ("expert_tensor_parallel", etp)
        raise InvalidLayout(f"{model.name} has no experts: {name} must be 1, not {degree}")
    if ranks % (ep * etp):
        raise InvalidLayout(
            f"expert_parallel {ep} x expert_tensor_parallel {etp} does not divide "
            f"dp x cp x tp = {ranks}"
        )
    if ep > 1 and model.num_experts % ep:
        raise InvalidLayout(f"{model.num_experts} experts do not divide by expert_parallel {ep}")
    experts = (kind.experts for kind in model.kinds if kind.experts)
    for width in (width for each in experts for width in each.widths):
        if width % etp:
            raise InvalidLayout(
                f"the experts' ffn {width} does not divide by expert_tensor_parallel {etp}"
            )
