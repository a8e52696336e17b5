"""The plan file: what was asked, the layout that answers it, and what it should do when it runs.

It is written by `plan` and read by `execute`, `check`, `explain` and `export`. The model's own
configuration is inside, so a plan needs no other file; the cluster is named and pinned by its hash.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_serializer, model_validator

from meshplan.costmodels.layout import InvalidLayout, Layout, check_layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.files.profile_file import first_fault
from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.learned import Learned
from meshplan.hardware_profiles.names import Name
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.input_limits import MOST
from meshplan.planner.case.plan_findings import BetterBatch, Choice, MeasuredRun, Sizes, SpareMemory
from meshplan.planner.case.reading import UnreadableConfig
from meshplan.planner.case.seal import (
    BESIDE,
    EDITED,
    SEAL,
    UNSEALED,
    content_hash,
    is_cut,
    is_edited,
    sealed,
)
from meshplan.planner.case.search_report import SearchReport
from meshplan.planner.text_files import write_text

VERSION = 1
RARE = (
    "lora", "optimizer_states", "packed_mean_length", "images", "context_kind", "dispatcher",
    "modules_apart",
)  # fmt: skip
"""Left out where there are none, as in files from before they were known."""
SCALAR_ERRORS = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML's constructors raise besides `YAMLError`: month 99, `!!int x`, nesting too deep."""


IS_PLAN = re.compile(r'^(?:\{\s*)?[ \t]*"?meshplan"?[ \t]*:', re.M)
"""What a plan file has and no config."""


class UnreadablePlan(ValueError):
    """A plan file that cannot be used; one line with the place, the value and the fix."""


class PlanModel(Frozen):
    """The model: the Hugging Face configuration it was read from, and a hash of it.

    name    as asked for
    config  the configuration itself
    sha256  of `config`
    """

    name: Name
    config: dict[str, Any]
    sha256: str

    @classmethod
    def of(cls, name: str, config: dict[str, Any]) -> Self:
        """The model `name` with its configuration, hashed."""
        return cls(name=name, config=config, sha256=content_hash(config))

    @model_validator(mode="after")
    def _hash_matches(self) -> Self:
        try:
            held = content_hash(self.config)
        except (TypeError, ValueError) as error:  # a date, a set, bytes: YAML has them
            raise ValueError(f"model.config is not JSON, as configs are: {error}") from None
        if self.sha256 != held:
            raise ValueError("model.sha256 does not match model.config; was it edited by hand?")
        return self


class PlanCluster(Frozen):
    """The cluster by name, the accelerators used, and the hash of the profile that priced the
    plan.

    name    the profile's
    gpus    accelerators used
    sha256  of the profile, its first digits
    """

    name: Name
    gpus: int = Field(gt=0, le=MOST["gpus"])
    sha256: str


class StageMemory(Frozen):
    """Predicted peak of one pipeline rank, by category, in bytes.

    weights      the computing copy
    gradients    as they are kept
    optimizer    its states, and an fp32 copy of the weights where there is one
    activations  saved for the backward pass
    transient    tensors that come and go within a pass: logits, gathered weights
    context      outside the allocator: the CUDA context and communicators
    slack        what the allocator has reserved and no tensor uses
    allocated    tensors: the sum of the first five
    reserved     what the allocator holds, which is what runs out
    host         in the host's memory, not the device's
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

    @property
    def needed(self) -> float:
        """What the rank cannot do without: the sum of its categories. What the allocator holds
        beyond that (`reserved`) it gives back under pressure.
        """
        return self.allocated + self.slack + self.context

    @property
    def device(self) -> float:
        """What the driver counts as used (`nvidia-smi`, `mem_get_info`): what the allocator holds,
        and what lies outside of it.
        """
        return self.reserved + self.context


class Prediction(Frozen):
    """What one step should take. The parts of the time add up to `step_time_s`.

    step_time_s             of one optimizer step
    compute_s               kernels of the busiest pipeline rank
    exposed_comm_s          communication that nothing hides
    bubble_s                waiting for other pipeline ranks
    optimizer_s             weight update and gradient norm, with what is sent for them and not
                            hidden
    step_time_low_s, step_time_high_s
                            between them 8 of 10 runs of this engine and GPU family fall
                            (`hardware_profiles.errors.intervals`); None in older plan files
    reserved_low_bytes, reserved_high_bytes
                            the same of the reserved memory of the fullest rank
    fits_probability        that no rank runs out of memory, by measured runs whose memory was
                            predicted too (`hardware_profiles.errors.memory_needs`); None on a CPU,
                            and in older plan files
    fits_runs               of the engine on the GPU family that say so; 0: those of other engines
                            do
    unmeasured              what of the layout no run of the engine covers, so that both ranges are
                            wider: a GPU family, a precision, a kind of model, a number of GPUs
    trained_parameters      of the whole model, that a step updates; None: all of them
    error_fraction          |predicted / measured - 1| that 8 of 10 runs stay within: `execute`'s
                            band
    tokens_per_s_per_gpu    tokens of the step over its time and the accelerators
    mfu                     model FLOPs over what the GPUs could do in the step at their peak; None
                            where formats are mixed
    hfu                     the same with the FLOPs of recomputation
    memory                  of each pipeline rank, in order; all in bytes
    gpu_memory_bytes        that the GPU has; in older plan files what a plan might fill
    usable_memory_bytes     of these, what a rank may use, beyond which a layout does not fit; None
                            in older plans
    plan_memory_bytes       of these, what a plan may fill (`planner.case.memory_limit`); None in
                            older plans
    """

    step_time_s: float = Field(gt=0)
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    optimizer_s: float
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    reserved_low_bytes: float | None = None
    reserved_high_bytes: float | None = None
    fits_probability: float | None = Field(default=None, ge=0, le=1)
    fits_runs: int = 0
    unmeasured: tuple[str, ...] = ()
    trained_parameters: int | None = None
    error_fraction: float
    tokens_per_s_per_gpu: float
    mfu: float | None
    hfu: float | None
    memory: tuple[StageMemory, ...]
    gpu_memory_bytes: float
    usable_memory_bytes: float | None = None
    plan_memory_bytes: float | None = Field(default=None, gt=0)


class RunnerUp(Frozen):
    """Another layout, and what it loses to the chosen one.

    layout              its own
    step_time_s         of its step
    reserved_bytes      of its fullest rank
    lost_by             seconds that it takes more than the chosen one, by part (those of
                        `time_parts` of `explain`); negative: less
    faster_probability  that the chosen one is faster, by pairs of measured runs
                        (`hardware_profiles.errors.layout_ratios`)
    expected_slower     by which fraction it is expected to take longer than the chosen one, what is
                        predicted corrected for the choice; negative: less long
    kind_bound_s        no layout of the space with the same tp, cp, pp and ep is faster, however it
                        is cut: its own step if it is the fastest of these; None where that is not
                        known, and in older plan files
    """

    layout: Layout
    step_time_s: float
    reserved_bytes: float
    lost_by: dict[str, float]
    faster_probability: float | None = None
    expected_slower: float | None = None
    kind_bound_s: float | None = None

    @field_serializer("layout")
    def _said(self, value: Layout) -> dict[str, Any]:
        return said(value)


class Plan(Frozen):
    """One answered question.

    meshplan      version of the file
    model         what is trained
    cluster       on what
    training      the job
    engine        the framework whose habits it is priced with
    layout        the answer
    prediction    what a step of it should take
    search        how the search ended
    runners_up    the best of other degrees
    reasons       why not a neighbour of the layout, a line each
    evidence      published runs near by, the nearest first
    learned       the user's own runs' constants that it was priced with
    pins          what the user fixed, by axis as typed; None in older plan files
    sizes         the numbers of GPUs tried, where the question left theirs open
    better_batch  a neighbour of the batch that is faster per sequence, where one was found
    choice        how it was chosen among ties; None: it is the fastest, and has none
    spare_memory  what the memory left free would buy; None on a CPU, and in older plan files
    notes         what was assumed of the question, how what was stated is read, what is not priced
    """

    meshplan: Literal[1] = 1
    model: PlanModel
    cluster: PlanCluster
    training: Training
    engine: Name
    layout: Layout
    prediction: Prediction | None = None
    search: SearchReport | None = None
    runners_up: tuple[RunnerUp, ...] = ()
    reasons: tuple[str, ...] = ()
    evidence: tuple[MeasuredRun, ...] = ()
    learned: Learned | None = None
    pins: dict[str, str] | None = None
    sizes: Sizes | None = None
    better_batch: BetterBatch | None = None
    choice: Choice | None = None
    spare_memory: SpareMemory | None = None
    notes: tuple[str, ...] = ()
    _edited: bool = PrivateAttr(default=False)
    _sealed: bool = PrivateAttr(default=True)

    @property
    def doubt(self) -> str:
        """What its file's seal leaves to doubt; empty for a file as `plan` wrote it, and for one
        that predicts nothing.
        """
        if self._edited:
            return EDITED
        return "" if self._sealed or self.prediction is None else UNSEALED

    def document(self) -> dict[str, Any]:
        """What a file says, with its seal."""
        return sealed(self.model_dump(mode="json"))

    @field_serializer("layout", "training")
    def _said(self, value: Layout | Training) -> dict[str, Any]:
        return said(value)

    def to_yaml(self) -> str:
        """The file's text; `Plan.from_yaml` reads it back to an equal plan."""
        from meshplan.planner.case.yaml_text import written

        return written(self.document())

    @classmethod
    def from_yaml(cls, text: str, place: str = "plan") -> Self:
        """Read a plan; raises `UnreadablePlan` with one line that names `place`."""
        from meshplan.planner.case.yaml_text import YAMLError, parsed

        try:
            data = parsed(text)
        except UnreadableConfig as error:
            raise UnreadablePlan(f"{place}: {error}") from None
        except (YAMLError, *SCALAR_ERRORS) as error:
            said = " ".join(str(error).replace('in "<unicode string>", ', "").split())
            raise UnreadablePlan(f"{place}: not YAML: {said}") from None
        if fault := cls._fault(data):
            raise UnreadablePlan(f"{place}: {fault}")
        try:
            plan = cls.model_validate({key: data[key] for key in data if key not in BESIDE})
        except ValidationError as error:
            raise UnreadablePlan(f"{place}: {first_fault(error, 'plan')}") from None
        whole = SEAL in data or text.endswith("\n")  # as `plan` ends every file
        plan._edited = is_edited(data) or not whole
        plan._sealed = SEAL in data
        return plan

    @classmethod
    def _fault(cls, data: Any) -> str:
        """Why `data` is no whole plan of this version; empty where it may be one."""
        if not isinstance(data, dict) or "meshplan" not in data:
            return f"not a plan file: it needs the key 'meshplan: {VERSION}'"
        if data["meshplan"] is True or data["meshplan"] != VERSION:
            version = f"plan version {data['meshplan']!r}; this meshplan reads {VERSION}"
            return f"{version}; write it anew with `meshplan plan`"
        if is_cut(data, tuple(cls.model_fields)):
            end = f"it ends early, after {list(data)[-1]!r}"
            return f"{end}: was it cut? `meshplan plan` writes it anew"
        return ""


def said(value: Layout | Training) -> dict[str, Any]:
    """The fields of a layout or a training that a plan file states: all but those of `RARE` that
    are empty (LoRA, images, packed documents, modules apart).
    """
    absent = {name for name in RARE if not getattr(value, name, None)}
    return {name: each for name, each in asdict(value).items() if name not in absent}


def read_plan(path: Path) -> Plan:
    """The plan in the file `path`, whose layout is one of its model, batch and GPUs.

    Raises `UnreadablePlan`, and `UnsupportedModel` for a model that is not read.
    """
    try:
        plan = Plan.from_yaml(text_of(path), str(path))
        _check_consistent(plan)
    except (UnreadableConfig, InvalidLayout) as error:
        raise UnreadablePlan(f"{path}: {error}") from None
    return plan


def _check_consistent(plan: Plan) -> None:
    """Raise `InvalidLayout` for a plan that was edited by hand into one that nothing can run."""
    check_gpus(plan.layout, plan)
    model = model_from_config(plan.model.config, plan.model.name)
    check_layout(plan.layout, model, plan.training)
    check_runners_up(plan, model)


def check_gpus(layout: Layout, plan: Plan) -> None:
    """Raise `InvalidLayout` for a layout of another number of GPUs than the plan's."""
    if layout.world_size != plan.cluster.gpus:
        raise InvalidLayout(
            f"cluster.gpus is {plan.cluster.gpus}, but the layout takes {layout.world_size}"
        )


def check_runners_up(plan: Plan, model: Model) -> None:
    """Raise `InvalidLayout` for another layout of the plan that nothing can run, by its place."""
    for place, other in enumerate(plan.runners_up):
        try:
            check_gpus(other.layout, plan)
            check_layout(other.layout, model, plan.training)
        except InvalidLayout as error:
            raise InvalidLayout(f"runners_up.{place}: {error}") from None


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan file as a whole; raises `CannotWrite`."""
    write_text(path, plan.to_yaml())
