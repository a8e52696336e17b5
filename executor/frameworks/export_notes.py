"""What every exporter needs: the plan unpacked, and words for what a format cannot say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Lora, Training
from meshplan.hardware_profiles.kernel_habits import ContextKind
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import CannotSay, Exported, Recompute

GPUS_PER_NODE = 8  # of the machines that the frameworks document; the caller may know better


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan as an exporter takes it.

    gpus_per_node  of the launch command: at most the number given, and a divisor of all GPUs
    """

    model: Model
    config: Mapping[str, Any]
    layout: Layout
    training: Training
    nodes: int
    gpus_per_node: int

    @property
    def sharding_ranks(self) -> int:
        """Ranks that ZeRO could shard over: dp x cp."""
        return self.layout.data_parallel * self.layout.context_parallel


def answer_of(plan: Plan, gpus_per_node: int) -> Answer:
    """Unpack `plan`; raises `UnsupportedModel` for a model configuration that is not priced."""
    layout = plan.layout
    world = layout.world_size
    per_node = max(n for n in range(1, min(gpus_per_node, world) + 1) if world % n == 0)
    return Answer(
        model=model_from_config(plan.model.config, plan.model.name),
        config=plan.model.config,
        layout=layout,
        training=plan.training,
        nodes=world // per_node,
        gpus_per_node=per_node,
    )


MEETING = "$MASTER:29500"


def torchrun_words(answer: Answer) -> str:
    """torchrun for the plan's ranks, the same on every node; several meet where `$MASTER` says."""
    each = f"--nproc-per-node {answer.gpus_per_node}"
    if answer.nodes == 1:
        return f"torchrun --standalone {each}"
    return f"torchrun --nnodes {answer.nodes} {each} --rdzv-backend c10d --rdzv-endpoint {MEETING}"


def unless(layout: Layout, why: str, *, left: bool = False, **sayable: object) -> list[CannotSay]:
    """One `CannotSay` for each field of `layout` that is not the one value the format implies."""
    return [
        CannotSay(f"layout.{name}", getattr(layout, name), why, left)
        for name, value in sayable.items()
        if getattr(layout, name) != value
    ]


def uniform_recompute(stages: tuple[Stage, ...]) -> Recompute | None:
    """The one rule that all stages follow: none, all layers, or the first k in full; else None."""
    if not any(stage.selective_layers or stage.full_layers for stage in stages):
        return Recompute()
    if all(stage.selective_layers == stage.layers for stage in stages):
        return Recompute("selective")
    if all(stage.full_layers == stage.layers for stage in stages):
        return Recompute("full")
    first = max(stage.full_layers for stage in stages)
    follows = all(
        stage.full_layers == min(first, stage.layers) and not stage.selective_layers
        for stage in stages
    )
    return Recompute("full", first=first) if follows else None


def nearest_recompute(stages: tuple[Stage, ...]) -> Recompute:
    """The rule that all stages follow, or else the nearest one that keeps no more on any stage:
    every layer as the selective ones, or the first k in full, k being what the neediest replays.
    """
    rule = uniform_recompute(stages)
    if rule is not None:
        return rule
    if not any(stage.full_layers for stage in stages):
        return Recompute("selective")
    first = max(stage.selective_layers + stage.full_layers for stage in stages)
    whole = first >= max(stage.layers for stage in stages)
    return Recompute("full", first=None if whole else first)


def recompute_unsaid(layout: Layout) -> list[CannotSay]:
    """For formats that recompute all layers alike."""
    rule = uniform_recompute(layout.stages)
    if rule is not None and rule.first is None:
        return []
    why = f"all layers recompute alike: {nearest_recompute(layout.stages).mode} is written"
    return [CannotSay("layout.stages.recompute", layout.recompute, why)]


def modules_unsaid(layout: Layout, why: str, *, left: bool = False) -> list[CannotSay]:
    """For formats whose selective recompute has a fixed meaning."""
    if not any(stage.selective_layers for stage in layout.stages):
        return []
    return [CannotSay("layout.selective_modules", ", ".join(layout.selective_modules), why, left)]


ROTATES: dict[str, ContextKind] = {"allgather": "all_gather", "alltoall": "ring"}
"""PyTorch's rotate methods, as torchtitan and Accelerate name them: "alltoall" passes chunks on, as
a ring does.
"""


def exchanges_unsaid(layout: Layout) -> list[CannotSay]:
    """For formats that do not choose what brings tokens to experts and queries to keys."""
    why = "it has one kind, which this file does not choose"
    return unless(layout, why, context_kind="", dispatcher="")


def place_of_modules_unsaid(layout: Layout) -> list[CannotSay]:
    """For formats that do not place modules of multi-token prediction."""
    return unless(layout, "it has them, if any, on the last stage", modules_apart=False)


def training_unsaid(training: Training) -> list[CannotSay]:
    """No format states how unevenly the router spreads the tokens, and few what is trained beside
    frozen weights.
    """
    unsaid = []
    if training.expert_imbalance != 1:
        why = "a measure of the data, not a setting"
        name = "training.expert_imbalance"
        unsaid.append(CannotSay(name, training.expert_imbalance, why))
    if training.packed_mean_length:
        name = "training.packed_mean_length"
        unsaid.append(CannotSay(name, training.packed_mean_length, "belongs to the data", True))
    if training.images:
        why = "images are the data's, and the training code builds the tower"
        unsaid.append(CannotSay("training.images", training.images.tokens, why, True))
    if training.optimizer_states:
        why = "the training code says it"
        states = training.optimizer_states
        unsaid.append(CannotSay("training.optimizer_states", states, why, True))
    if training.lora:
        why = "not written: all weights train unless the training code adds adapters"
        unsaid.append(CannotSay(LORA, lora_words(training.lora), why, True))
    return unsaid


LORA = "training.lora"


OTHER_TRAINING = (
    *(LORA, "training.optimizer_states", "training.packed_mean_length", "training.images"),
)
"""What would be measured is another kind of training than the plan's where these are not said."""


def check_training_is_said(name: str, exported: Exported) -> None:
    """Raise `InvalidLayout` where what would run is not what the plan predicts."""
    for each in exported.cannot_say:
        if each.name in OTHER_TRAINING:
            raise InvalidLayout(
                f"{name} would run without {each.name} ({each.value}), which its exported files do "
                "not say; `meshplan export` them, add it, and run them yourself"
            )


def lora_words(lora: Lora) -> str:
    """Rank, targets, dropout and what the frozen weights are kept in."""
    dropout = f", dropout {lora.dropout:g}" if lora.dropout else ""
    return f"rank {lora.rank}, {lora.targets}{dropout}, {lora.base_precision}"


def unwritten_parts(model: Model) -> list[CannotSay]:
    """One `CannotSay` for each part that the writers of a model's shape do not know."""
    why = "the writer for this framework does not know it"
    return [CannotSay("model", part, why) for part in rare_parts(model)]
