"""What a framework's config says, in our words: facts with the line they were read from.

A config never says everything: the GPU, the model or the batch may be elsewhere. A `Reading` keeps
what the file does say, the rule by which its framework cuts the layers into stages, and what it
leaves out; `planner.case.resolve` adds the missing facts. `Exported` is the way back: files, a
command, and what the format cannot express.
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass

COUNTS = frozenset(
    (
        *("data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_stages"),
        *("context_parallel", "expert_parallel", "expert_tensor_parallel", "micro_batch_size"),
        *("shard_replicas", "seq_len", "global_batch_size", "num_micro_batches", "gpus"),
        *("documents", "documents_at_once", "tokens_at_once", "packed_mean_length"),
        *("longest_document", "nodes"),
    )
)
"""Facts that are whole numbers of at least 1. `nodes` are those of which a launch takes all GPUs,
where it does not say how many that are. `shard_replicas` is how many copies of the sharded
state there are: dp * cp / shard_group. `documents` and those behind it: `planner.case.packed`."""

FIELDS = COUNTS | frozenset(
    (
        *("sequence_parallel", "zero_stage", "shard_group", "schedule", "selective_modules"),
        *("optimizer_offload", "activation_offload", "precision", "optimizer", "model"),
        *("lora", "optimizer_states", "context_kind", "dispatcher", "modules_apart", "gpus_open"),
    )
)
"""Every fact a config may state: fields of `Layout` and `Training`, `gpus`, `model` (a name), and
`gpus_open`, what of a launch leaves the GPUs to an option or the settings.
"""


Mode = Literal["none", "selective", "full"]
UNRECOGNISED = (
    "no config format recognised: of those that are read, --framework names one whose file looks "
    "otherwise; of another program, `meshplan plan MODEL --gpus 64 --tp 8 ...` prices its layout"
)


class UnreadableConfig(ValueError):
    """A config that cannot be read; one line with the reason and the fix, and where it is."""

    def __init__(self, text: str, line: int = 1) -> None:
        super().__init__(text)
        self.line = line


class NothingToRead(UnreadableConfig):
    """A file with no layout of its own: skipped in a folder, unreadable if it was named."""


class IllegalConfig(InvalidLayout):
    """A config that reads, but that its framework would refuse; with the line to change."""

    def __init__(self, text: str, line: int = 1) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class Fact:
    """One value, and the line of the file (from 1) that states it."""

    value: Any
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a file is started with, where it leaves that to whoever starts it.

    environment  a script's variables by name; its arguments by number ("1" is `$1`)
    launched_by  the path of the launcher's file (Accelerate's YAML, DeepSpeed's JSON), or "none":
                 no launcher shards; "": nobody said
    joined_with  paths of the other files of a configuration in several (GPT-NeoX's)
    instead      what options say themselves, by the names of `FIELDS`: a script need not
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    launched_by: str = ""
    joined_with: tuple[str, ...] = ()
    instead: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a framework cuts the layers into pipeline stages (the rules are in `stage_rules`).

    rule            "even": all equal, or an error; "ends": even, but the first and the last rank
                    may hold another number, and the ends may count as layers (Megatron);
                    "weighted": as even as it goes with the ends weighing some layers (torchtitan);
                    "cost": by the parameters of a block (nanotron); "given": `layers` says it
    first, last     layers of the first and the last rank, None for the even share
    embedding, head layers that the embedding and the head count as
    layers          of each virtual stage in model order
    layers_per_stage  the stages follow from it (Megatron, torchtitan), None when they are counted
    rounds          to a multiple of the ranks: "up" or "down" (AutoModel); "": they must be one
    fewest_chunks   stages of a rank that the schedule needs, where they follow
    """

    rule: Literal["even", "ends", "weighted", "cost", "given"] = "even"
    first: int | None = None
    last: int | None = None
    embedding: int = 0
    head: int = 0
    layers: tuple[int, ...] = ()
    layers_per_stage: int | None = None
    rounds: Literal["", "up", "down"] = ""
    fewest_chunks: int = 1
    line: int = 1

    def stages(self, layers: int, ranks: int) -> int:
        """How many stages of `layers_per_stage` hold `layers`; raises `IllegalConfig`."""
        assert self.layers_per_stage is not None
        stages = math.ceil(layers / self.layers_per_stage)
        rest = stages % ranks
        if rest and self.rounds:
            stages += (ranks if self.rounds == "up" else 0) - rest
        if stages < self.fewest_chunks * ranks:
            raise IllegalConfig(
                f"{layers} layers in stages of {self.layers_per_stage} make {stages} stages; the "
                f"schedule needs {self.fewest_chunks} on each of {ranks} ranks", self.line,
            )  # fmt: skip
        return stages


@dataclass(frozen=True, slots=True)
class Recompute:
    """Which layers recompute: all in `mode`, or `first` of each stage, or one in `every`."""

    mode: Mode = "none"
    first: int | None = None
    every: int | None = None

    def layers(self, held: int) -> int:
        """How many of a stage's `held` layers recompute."""
        if self.mode == "none":
            return 0
        if self.first is not None:
            return min(self.first, held)
        return held // self.every if self.every else held

    def stage(self, held: int) -> Stage:
        """A stage of `held` layers, of which so many recompute."""
        some = self.layers(held)
        return Stage(held, some * (self.mode == "selective"), some * (self.mode == "full"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A switch of the file that saves memory and is no part of a layout, and the engine that prices
    the file with it on.
    """

    text: str
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One config in our words.

    engine          the engine profile that prices it
    facts           by name, of `FIELDS`
    recompute_unsaid
                    where else recompute is set, where the file does not say it; "": it does
    model_config    the model's shape as a Hugging Face configuration, where the file states it
    unknown_model   what the file says of its model, where the catalogue does not have it
    userbuffers     whether tensor parallel's collectives run beside products by userbuffers
                    (Megatron's tp_comm_overlap), None: as the engine usually does
    exposed         of `Overlap`, what its switches have the replicas exchange beside nothing
    gradient_bytes  of one gradient, kept and exchanged, 0: as the engine has it
    loss            how the loss is computed, a word of `core_loss`; "": as the engine does
    defers_sums     without a pipeline, sharded gradients add up whole over a step's micro-batches
                    and are reduced after the last
    micro_batch_is_most  the micro-batch is at most a replica's share of the batch (llm-foundry)
    expert_tensor_follows  expert tensor parallel equals tensor parallel unless stated (Megatron)
    ignored         keys that say nothing about the layout
    unread          what changes layout, memory or shape and is not understood, by its line: then
                    nothing is priced
    unread_if_accumulated
                    the same where sharded replicas add up several micro-batches without a pipeline
    left_to_recipe  fields of the layout that a recipe, a program that is not read, may set, and its
                    words for them: priced as 1 or none, which is said beside the verdict
    left_to_code    degrees that the training code may set, and this file never does: 1, unless the
                    GPUs deny it
    saving          what the file may say besides, where it does not fit
    others          further cases of the same file, such as the rounds of a loop over a degree
    notes           what the file says that a layout cannot hold, one line each
    """

    framework: str
    engine: str
    path: str
    facts: Mapping[str, Fact]
    placement: Placement = field(default_factory=Placement)
    recompute: Recompute = field(default_factory=Recompute)
    recompute_unsaid: str = ""
    model_config: dict[str, Any] | None = None
    unknown_model: str = ""
    expert_tensor_follows: bool = False
    userbuffers: bool | None = None
    exposed: tuple[str, ...] = ()
    gradient_bytes: float = 0.0
    loss: str = ""
    defers_sums: bool = False
    micro_batch_is_most: bool = False
    ignored: tuple[str, ...] = ()
    left_to_recipe: Mapping[str, str] = field(default_factory=dict)
    left_to_code: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    unread: tuple[Fact, ...] = ()
    unread_if_accumulated: tuple[Fact, ...] = ()
    saving: Saving | None = None
    others: tuple["Reading", ...] = ()

    def __post_init__(self) -> None:
        assert set(self.facts) <= FIELDS, sorted(set(self.facts) - FIELDS)

    def line(self, *names: str) -> int:
        """The line of the first of the facts `names` that the file states, else 1."""
        return next((self.facts[name].line for name in names if name in self.facts), 1)

    def unread_of(self, layout: Layout, training: Training) -> tuple[Fact, ...]:
        """What is not understood of this layout: `unread_if_accumulated`, where it applies."""
        return self.unread_if_accumulated if accumulates(layout, training) else ()

    def alone(self) -> "Reading":
        """This case, if its file has no other; raises `UnreadableConfig`."""
        if self.others:
            number = 1 + len(self.others)
            raise UnreadableConfig(f"{number} runs in one file; name a config of this run alone")
        return self


def accumulates(layout: Layout, training: Training) -> bool:
    """Whether sharded replicas add up several micro-batches without a pipeline."""
    once = layout.data_parallel * layout.micro_batch_size
    sharded = layout.data_parallel * layout.context_parallel > 1
    return sharded and training.global_batch_size > once and layout.pipeline_parallel == 1


@dataclass(frozen=True, slots=True)
class CannotSay:
    """One thing of a plan that a format has no word for: the field, its value, and why.

    left  whether the training code or its data may say it
    """

    name: str
    value: object
    why: str
    left: bool = False

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan in a framework's own format: texts by file name, and the command that runs them."""

    framework: str
    files: Mapping[str, str]
    launch: str
    cannot_say: tuple[CannotSay, ...] = ()


def python_path(launch: str, files: Mapping[str, str], folder: Path) -> str:
    """What stands before a command that starts one of the files in `folder` as a module, so that
    Python finds it; "" where none is.
    """
    words = shlex.split(launch)
    if any(Path(name).stem in words for name in files if name.endswith(".py")):
        return f"PYTHONPATH={shlex.quote(str(folder))}:$PYTHONPATH "
    return ""


def check_dividing(facts: Mapping[str, Fact], gpus: int, inner: int) -> None:
    """Raise `IllegalConfig` where tensor x context x pipeline, `inner`, does not divide the GPUs:
    at the first degree that does not, else at the largest.
    """
    if gpus % inner == 0:
        return
    names = ("pipeline_parallel", "tensor_parallel", "context_parallel")
    stated = [facts[name] for name in names if name in facts]
    largest = max(stated, key=lambda fact: fact.value, default=Fact(1, 1))
    at = next((fact for fact in stated if gpus % fact.value), largest)
    said = f"{gpus} GPUs are not a multiple of tensor x context x pipeline = {inner}"
    raise IllegalConfig(said, at.line)
