"""The plan file: what was asked, the layout that answers it, and what it should do when it runs.

It is written by `plan` and read by `execute`, `check`, `explain` and `export`. The model's own
configuration is inside, so a plan needs no other file; the cluster is named and pinned by its hash.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from costmodels.layout import Layout, RecomputeModule, Schedule, Stage
from costmodels.training import Optimizer, Precision, Training
from hardware_profiles.load import first_fault
from hardware_profiles.schema import Frozen
from planner.text_files import write_text

VERSION = 1
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where there is one: 8 x as fast
_SCALAR_ERRORS = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML's constructors raise besides `YAMLError`: month 99, `!!int x`, nesting too deep."""


class UnreadablePlan(ValueError):
    """A plan file that cannot be used; one line with the place, the value and the fix."""


class PlanModel(Frozen):
    """The model: the Hugging Face configuration it was read from, and a hash of it."""

    name: str
    config: dict[str, Any]
    sha256: str

    @classmethod
    def of(cls, name: str, config: dict[str, Any]) -> Self:
        """The model `name` with its configuration, hashed."""
        return cls(name=name, config=config, sha256=content_hash(config))

    @model_validator(mode="after")
    def _hash_matches(self) -> Self:
        if self.sha256 != content_hash(self.config):
            raise ValueError("model.sha256 does not match model.config; was it edited by hand?")
        return self


class PlanCluster(Frozen):
    """The cluster by name, the accelerators used, and the hash of the profile that priced the
    plan.
    """

    name: str
    gpus: int = Field(gt=0)
    sha256: str


class PlanTraining(Frozen):
    """`costmodels.training.Training`, as people write it."""

    seq_len: int = Field(gt=0)
    global_batch_size: int = Field(gt=0)
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    expert_imbalance: float = Field(default=1.0, ge=1)


class PlanStage(Frozen):
    """`costmodels.layout.Stage`, as people write it."""

    layers: int = Field(ge=0)
    selective_layers: int = Field(default=0, ge=0)
    full_layers: int = Field(default=0, ge=0)


class PlanLayout(Frozen):
    """`costmodels.layout.Layout`, as people write it."""

    data_parallel: int = Field(default=1, gt=0)
    tensor_parallel: int = Field(default=1, gt=0)
    pipeline_parallel: int = Field(default=1, gt=0)
    virtual_stages: int = Field(default=1, gt=0)
    context_parallel: int = Field(default=1, gt=0)
    expert_parallel: int = Field(default=1, gt=0)
    expert_tensor_parallel: int = Field(default=1, gt=0)
    sequence_parallel: bool = False
    zero_stage: int = Field(default=0, ge=0)  # check_layout knows the stages
    shard_group: int = Field(default=0, ge=0)
    micro_batch_size: int = Field(default=1, gt=0)
    schedule: Schedule = "1f1b"
    stages: tuple[PlanStage, ...]
    selective_modules: tuple[RecomputeModule, ...] = ("core_attention",)
    optimizer_offload: float = Field(default=0.0, ge=0, le=1)
    activation_offload: float = Field(default=0.0, ge=0, le=1)


class StageMemory(Frozen):
    """Predicted peak of one pipeline rank, by category, in bytes; `reserved` is what runs out.
    `host` is in the host's memory, not the device's.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    context: float
    slack: float
    allocated: float
    reserved: float
    host: float = 0.0


class Prediction(Frozen):
    """What one step should take. The parts of the time add up to `step_time_s`."""

    step_time_s: float
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    optimizer_s: float
    error_fraction: float
    tokens_per_s_per_gpu: float
    mfu: float | None
    hfu: float | None
    memory: tuple[StageMemory, ...]
    gpu_memory_bytes: float


class RunnerUp(Frozen):
    """Another layout, and what it loses to the chosen one."""

    layout: PlanLayout
    step_time_s: float
    reserved_bytes: float
    lost_by: dict[str, float]


class SearchReport(Frozen):
    """How the search ended. `OPTIMAL` only when every legal layout was solved or bounded away."""

    status: Literal["OPTIMAL", "FEASIBLE"]
    bound_s: float
    gap: float
    candidates: int
    priced: int
    cpsat_solves: int
    wall_s: float
    dropped: dict[str, int] = {}


class Plan(Frozen):
    """One answered question."""

    meshplan: Literal[1] = 1
    model: PlanModel
    cluster: PlanCluster
    training: PlanTraining
    engine: str
    layout: PlanLayout
    prediction: Prediction | None = None
    search: SearchReport | None = None
    runners_up: tuple[RunnerUp, ...] = ()
    reasons: tuple[str, ...] = ()

    def to_yaml(self) -> str:
        """The file's text; `Plan.from_yaml` reads it back to an equal plan."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, width=100)

    @classmethod
    def from_yaml(cls, text: str, place: str = "plan") -> Self:
        """Read a plan; raises `UnreadablePlan` with one line that names `place`."""
        try:
            data = yaml.load(text, Loader=LOADER)
        except (yaml.YAMLError, *_SCALAR_ERRORS) as error:
            raise UnreadablePlan(f"{place}: not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(data, dict) or "meshplan" not in data:
            raise UnreadablePlan(
                f"{place}: not a plan file: it needs the key 'meshplan: {VERSION}'"
            )
        if data["meshplan"] != VERSION:
            raise UnreadablePlan(
                f"{place}: plan version {data['meshplan']!r}; this meshplan reads {VERSION}; "
                "write it anew with `meshplan plan`"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise UnreadablePlan(f"{place}: {first_fault(error, 'plan')}") from None


def content_hash(content: object) -> str:
    """sha256 of `content` as canonical JSON, so that reordering keys does not change it."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def layout_of(plan: PlanLayout) -> Layout:
    """The layout as the cost model takes it."""
    fields = dict(plan)
    fields["stages"] = tuple(Stage(**dict(stage)) for stage in plan.stages)
    return Layout(**fields)


def training_of(plan: PlanTraining) -> Training:
    """The training as the cost model takes it."""
    return Training(**dict(plan))


def read_plan(path: Path) -> Plan:
    """The plan in the file `path`; raises `UnreadablePlan`."""
    try:
        return Plan.from_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadablePlan(f"{path}: cannot be read: {error}") from None


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan file as a whole; raises `CannotWrite`."""
    write_text(path, plan.to_yaml())
