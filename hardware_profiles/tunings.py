"""The few constants that datasheets and microbenchmarks do not give, learnt from measured runs.

`fits/ENGINE.toml` holds one table per GPU family, written by `meshplan validate --fit`, each with
its date, rows and residual, and apart from what the runs tell what stayed where learning started. A
family without a table takes the engine's table "any", an engine without a file takes `generic`'s:
so a framework that nobody measured is priced as the average of those that were. MESHPLAN_FITS names
a folder of a user's own, which is looked at first.
"""

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.frozen import Frozen

SHIPPED = Path(__file__).parent / "fits"
FOLDERS = (*([Path(folder)] if (folder := os.environ.get("MESHPLAN_FITS")) else []), SHIPPED)

FAMILIES = {
    "v100": "volta", "a100": "ampere", "a800": "ampere", "a30": "ampere", "h20": "hopper",
    "h100": "hopper", "h200": "hopper", "h800": "hopper", "gh200": "hopper", "b200": "blackwell",
    "b300": "blackwell", "gb200": "blackwell", "gb300": "blackwell", "mi210": "cdna2",
    "mi250": "cdna2", "mi250x": "cdna2", "mi300x": "cdna3", "mi325x": "cdna3", "mi350x": "cdna4",
    "mi355x": "cdna4", "cpu": "cpu",
}  # fmt: skip
"""GPU family by the first word of a GPU's name: constants learnt on one may hold for the others.
Workstation and gaming chips are in none.
"""

KERNEL_SCALES = ("matmul_scale", "attention_scale", "pointwise_scale")
"""Constants of a `Tuning` that scale the seconds of kernels."""


class Tuning(Frozen):
    """Corrections of one engine on one GPU family [fitted].

    matmul_scale, attention_scale, pointwise_scale
                           seconds of these kernels over what the hardware profile says
    expert_scale           the same for everything between router and combine, communication too
    launch_s               host time to issue one kernel: the floor of small kernels
    routing_s              host time of routing in a mixture-of-experts layer and direction: the
                           counts of tokens per expert come back to the host
    micro_batch_s          host and synchronisation time of each micro-batch on each pipeline rank
    boundary_s             what both ranks of a pipeline's transfer stand still for, where it leaves
                           a node
    pipelined_rank_s       host time of a tensor-parallel collective per rank of its group, where
                           the pipeline crosses nodes
    step_s                 fixed time of a step: data, logging, optimizer launch
    collective_scale       seconds of other collectives over what the cluster's links say
    interference           slowdown of compute while communication runs beside it, as a fraction
    memory_bytes           held by the framework beside what the cost model counts
    state_slack_fraction, activation_slack_fraction
                           what the caching allocator reserves beyond weights, gradients and
                           optimizer state, and beyond activations and transients, as fractions of
                           them
    pressed_s              what each micro-batch waits for an allocator that has to give back what
                           it holds before it can take more
    held_gathers, held_gathers_pipelined, queued_gathers
                           pairs of whole tensor-parallel tensors that the allocator holds back
                           for the communication stream: without a pipeline until it is pressed,
                           in a deep one for good, and beside any as many as the launches read that
                           a device has queued
    """

    matmul_scale: float = Field(default=1.0, gt=0)
    attention_scale: float = Field(default=1.0, gt=0)
    pointwise_scale: float = Field(default=1.0, gt=0)
    expert_scale: float = Field(default=1.0, gt=0)
    launch_s: float = Field(default=0.0, ge=0)
    routing_s: float = Field(default=0.0, ge=0)
    micro_batch_s: float = Field(default=0.0, ge=0)
    boundary_s: float = Field(default=0.0, ge=0)
    step_s: float = Field(default=0.0, ge=0)
    pipelined_rank_s: float = Field(default=0.0, ge=0)
    collective_scale: float = Field(default=1.0, gt=0)
    interference: float = Field(default=0.1, ge=0)
    memory_bytes: float = Field(default=0.0, ge=0)
    state_slack_fraction: float = Field(default=0.05, ge=0)
    activation_slack_fraction: float = Field(default=0.05, ge=0)
    pressed_s: float = Field(default=0.0, ge=0)
    held_gathers: float = Field(default=0.0, ge=0)
    held_gathers_pipelined: float = Field(default=0.0, ge=0)
    queued_gathers: float = Field(default=0.0, ge=0)

    @property
    def reserved_over_working(self) -> float:
        """Bytes reserved for each that activations and transients take."""
        return 1 + self.activation_slack_fraction


class Fit(Frozen):
    """A tuning with where it came from.

    In a file the constants that the runs tell stand under `tuning`, the others, which are where
    learning started, under `prior`.

    prior           names of those others
    error_fraction  median |predicted / measured - 1| of the step time: over held-out groups where
                    `validate --fit` wrote the file; `source` says where it is over the rows fitted
    """

    tuning: Tuning
    prior: tuple[str, ...] = ()
    date: str
    rows: int
    groups: int
    error_fraction: float
    source: str

    @model_validator(mode="before")
    @classmethod
    def _of_table(cls, table: dict[str, Any]) -> dict[str, Any]:
        kept = table.get("prior")
        if not isinstance(kept, dict):
            return table
        return table | {"tuning": kept | table["tuning"], "prior": tuple(kept)}

    def table(self) -> dict[str, Any]:
        """As it stands in a file."""
        found = self.model_dump(exclude_defaults=True)
        values = self.tuning.model_dump()
        names = found.pop("prior", ())
        told = {name: each for name, each in found["tuning"].items() if name not in names}
        kept = {name: values[name] for name in names}
        return found | {"tuning": told} | ({"prior": kept} if kept else {})


UNFITTED = Fit(
    tuning=Tuning(), date="", rows=0, groups=0, error_fraction=0.25,
    source="no measured runs: hardware profile as it is",
)  # fmt: skip


def gpu_family(gpu: str) -> str:
    """The family of a GPU's name, "any" for one that has none."""
    return FAMILIES.get(gpu.split("-")[0], "any")


@cache
def load_fit(engine: str, gpu: str) -> Fit:
    """What was learnt about `engine` on the family of `gpu`, or the nearest thing to it.

    Nothing that was learnt on GPUs holds for a CPU.
    """
    families = ("cpu",) if gpu == "cpu" else (gpu_family(gpu), "any")
    names = (load_engine(engine).fitted_as or engine, "generic")
    tables = (_tables(folder, name) for name in names for folder in FOLDERS)
    found = (each[family] for each in tables for family in families if family in each)
    return next(found, UNFITTED)


def fits_of(engine: str) -> dict[str, Fit]:
    """What ships of an engine, by GPU family."""
    return _tables(SHIPPED, engine)


@cache
def _tables(folder: Path, engine: str) -> dict[str, Fit]:
    path = folder / f"{engine}.toml"
    if not path.exists():
        return {}
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return {family: Fit.model_validate(table) for family, table in document.items()}
