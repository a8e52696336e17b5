"""What you run now beside what we would run, in the same words and units.

    cost per trillion tokens = 1e12 / tokens per second and GPU / 3600 * price per GPU-hour

A fact that the config leaves out is taken from the plan, so that both answer the same question;
where the config states another batch, sequence or model, the difference is said.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.units import SECONDS_PER_HOUR, TRILLION, format_bytes
from meshplan.planner.case.plan_file import Plan, Prediction
from meshplan.planner.case.reading import Reading
from meshplan.planner.case.resolve import Case, check_case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import case_of
from meshplan.planner.check.fixes import peak_bytes
from meshplan.planner.check.verdicts import fullest, usable_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of both layouts; the unit is in the name, None where it is not known."""

    name: str
    yours: float | str | None
    ours: float | str | None

    @property
    def change(self) -> float | None:
        """ours / yours - 1, None for text and unknowns."""
        if not isinstance(self.yours, float) or not isinstance(self.ours, float) or not self.yours:
            return None
        return self.ours / self.yours - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows, and where the two are not the same question."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def compare(
    plan: Plan,
    reading: Reading,
    price: Callable[[Case], Prediction],
    *,
    given: Settings | None = None,
    gpu_hour_price: float | None = None,
) -> Comparison:
    """The config `reading` beside `plan`, both priced now by `price`.

    `gpu_hour_price` in any currency; without it the cost is None. Raises `InvalidLayout`,
    `MissingFacts` and the loaders' errors when the config cannot be priced.
    """
    ours = case_of(plan)
    yours = resolve(reading, given or Settings(), _facts_of(plan), model=_model_of(plan))
    check_case(yours)
    rate = gpu_hour_price if gpu_hour_price is not None else ours.cluster.gpu_hour_price
    priced = [price(case) for case in (yours, ours)]
    columns = [_quantities(*pair, rate) for pair in zip((yours, ours), priced, strict=True)]
    rows = tuple(Row(name, columns[0][name], columns[1][name]) for name in columns[1])
    return Comparison(rows, (*_misfit(yours, priced[0]), *_differences(yours, ours), *yours.notes))


def _misfit(yours: Case, now: Prediction) -> tuple[str, ...]:
    """That what runs now is not predicted to fit: its step time is then a wish."""
    rank, memory = fullest(now)
    over = peak_bytes(memory) - usable_bytes(yours.cluster)
    return (
        (f"your config does not fit: rank {rank} lacks {format_bytes(over)}",) if over > 0 else ()
    )


def _model_of(plan: Plan) -> Model:
    return model_from_config(plan.model.config, plan.model.name)


def _facts_of(plan: Plan) -> Settings:
    return Settings(
        cluster=plan.cluster.name,
        gpus=plan.cluster.gpus,
        seq_len=plan.training.seq_len,
        global_batch_size=plan.training.global_batch_size,
        micro_batch_size=1,
        precision=plan.training.precision,
    )


def cost_per_trillion_tokens(tokens_per_s_per_gpu: float, gpu_hour_price: float) -> float:
    """In the currency of `gpu_hour_price`; it does not depend on the number of GPUs."""
    return TRILLION / tokens_per_s_per_gpu / SECONDS_PER_HOUR * gpu_hour_price


def _quantities(case: Case, now: Prediction, rate: float | None) -> dict[str, float | str | None]:
    """The column of one layout, in the order in which the rows are shown."""
    cost = None if rate is None else cost_per_trillion_tokens(now.tokens_per_s_per_gpu, rate)
    peak = peak_bytes(fullest(now)[1])
    return {
        "layout": case.layout.label,
        "gpus": float(case.layout.world_size),
        "step_time_s": now.step_time_s,
        "compute_s": now.compute_s,
        "exposed_comm_s": now.exposed_comm_s,
        "bubble_s": max(now.bubble_s, 0.0),  # of one rank, rounding leaves less than nothing
        "optimizer_s": now.optimizer_s,
        "tokens_per_s_per_gpu": now.tokens_per_s_per_gpu,
        "mfu": now.mfu,
        "hfu": now.hfu,
        "peak_bytes": peak,
        "margin_bytes": usable_bytes(case.cluster) - peak,
        "cost_per_trillion_tokens": cost,
    }


def _differences(yours: Case, ours: Case) -> tuple[str, ...]:
    gpus = (yours.layout.world_size, ours.layout.world_size)
    found = [f"gpus: your config runs on {gpus[0]}, the plan on {gpus[1]}"] * (gpus[0] != gpus[1])
    found += [
        f"{field.name}: your config says {old}, the plan {new}"
        for field in fields(ours.training)
        if (old := getattr(yours.training, field.name))
        != (new := getattr(ours.training, field.name))
    ]
    same = (yours.model.hidden, yours.model.pattern) == (ours.model.hidden, ours.model.pattern)
    return tuple(found if same else [*found, f"model: {yours.model.name}, not {ours.model.name}"])
