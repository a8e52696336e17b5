"""What the page may ask, validated: the job, the layout on the sliders, an uploaded file."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from meshplan.costmodels.layout import MAX_COUNT, Schedule
from meshplan.hardware_profiles.engine_schema import Dispatcher
from meshplan.hardware_profiles.frozen import Frozen
from meshplan.hardware_profiles.kernel_habits import ContextKind
from meshplan.hardware_profiles.names import Name
from meshplan.planner.answer.question import Arguments
from meshplan.planner.case.input_limits import MAX_BYTES, MOST

MOST_LAYERS = 10_000
STAGE = r"\d{1,4}\*\d{1,4}/\d{1,4}/\d{1,4}"
Degree = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Short = Annotated[str, Field(min_length=1, max_length=40)]
Axis = Literal[
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_stages",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "zero_stage",
    "micro_batch_size",
    "recompute",
]
"""What has a slider, by the name of its pin."""


class JobWords(Frozen):
    """What is trained on what, in the words of `meshplan plan`.

    model         a name of the catalogue; with `model_config_text` what to call the uploaded one
    global_batch  sequences, or `global_batch_tokens`, as the command line takes them
    """

    model: Name
    model_config_text: str | None = Field(default=None, max_length=MAX_BYTES)
    cluster: Name
    gpus: int = Field(ge=1, le=MOST["gpus"])
    seq_len: Short
    global_batch: int | None = Field(default=None, ge=1, le=MOST["global_batch_size"])
    global_batch_tokens: Short | None = None
    engine: Short | None = None
    precision: Short = "bf16"
    optimizer: Short = "adamw"

    def arguments(self, pins: dict[str, str]) -> Arguments:
        """The same as the command line's words."""
        words = self.model_dump(exclude={"model_config_text"})
        return Arguments(**words, pins=pins)


MOST_LETTERS = 200  # of all modules together


class SliderLayout(Frozen):
    """The layout on the sliders; data parallel is what is left of the GPUs.

    schedule  None: 1F1B, interleaved where a rank has several stages
    context_kind, dispatcher
              "": the fastest that the engine has for the degrees
    modules_apart  on: multi-token prediction is on the stage before the last, with this cut
    replays   modules that selective layers replay, joined by +; "": the engine's smallest set
    stages    the cut into stages, in runs of COUNT*LAYERS/SELECTIVE/FULL; None: the most even one
    """

    tensor_parallel: Degree = 1
    pipeline_parallel: Degree = 1
    virtual_stages: Degree = 1
    context_parallel: Degree = 1
    expert_parallel: Degree = 1
    expert_tensor_parallel: Degree = 1
    zero_stage: int = Field(default=0, ge=0, le=3)
    shard_group: int = Field(default=0, ge=0, le=MAX_COUNT)
    micro_batch_size: int = Field(default=1, ge=1, le=MOST["micro_batch_size"])
    recompute: Literal["none", "selective", "full", "mixed"] = "none"
    schedule: Schedule | None = None
    context_kind: ContextKind | Literal[""] = ""
    dispatcher: Dispatcher | Literal[""] = ""
    modules_apart: Literal["", "on"] = ""
    replays: str = Field(default="", max_length=MOST_LETTERS, pattern=r"^[a-z_+]*$")
    stages: str | None = Field(
        default=None, max_length=MOST_LAYERS, pattern=rf"^{STAGE}(,{STAGE})*$"
    )


class PriceRequest(Frozen):
    """Price the layout of `choice` for `job`."""

    job: JobWords
    choice: SliderLayout


class SolveRequest(PriceRequest):
    """Find the best layout of `job`; the axes `pinned` stay as `choice` has them."""

    pinned: tuple[Axis, ...] = ()
    time_limit_s: float = Field(default=60.0, gt=0, le=3600)

    @model_validator(mode="after")
    def _pins_say_something(self) -> "SolveRequest":
        if "recompute" in self.pinned and self.choice.recompute == "mixed":
            raise ValueError("recompute is mixed, which is no pin; take none, selective or full")
        return self

    @property
    def pins(self) -> dict[str, str]:
        """The pins as the command line would take them."""
        return {axis: str(getattr(self.choice, axis)) for axis in self.pinned}


class CompareRequest(PriceRequest):
    """Set the training config `text` beside the layout of `choice`."""

    name: Name
    text: str = Field(min_length=1, max_length=MAX_BYTES)
