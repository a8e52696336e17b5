"""Runs that were left out, each beside what was predicted of it: what intervals are made of."""

from dataclasses import replace

from meshplan.hardware_profiles.errors.asked import Asked
from meshplan.hardware_profiles.errors.left_out_runs import Ratio

ASKED = Asked(engine="megatron", gpu="hopper", gpus=64, precision="bf16", model="dense")
RUN = Ratio(
    run="r", engine="megatron", gpu="hopper", suite="s", left_out="layout", gpus=64,
    precision="bf16", model="dense", step_time=1.0, reserved=None,
)  # fmt: skip


def layouts(*step_times: float) -> list[Ratio]:
    """Runs whose layouts were left out, each of a source of its own."""
    return [replace(RUN, suite=f"s{n}", step_time=x) for n, x in enumerate(step_times)]


def source(name: str, *step_times: float, engine: str = "nemo") -> list[Ratio]:
    """A source that was left out whole, of an engine that has others."""
    given = {"suite": name, "engine": engine, "gpu": "ampere", "left_out": "source"}
    return [replace(RUN, step_time=x, **given) for x in step_times]


def alike_sources(number: int, **change: object) -> list[Ratio]:
    """Of an engine without constants, one run each, 21 % longer than predicted."""
    given = {"left_out": "framework", **change}
    return [
        replace(row, **given)
        for n in range(number) for row in source(f"s{n}", 1.21, engine="deepspeed")
    ]  # fmt: skip
