"""What a prediction is asked of, as far as its error depends on it, and which of it runs cover."""

from collections.abc import Sequence

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.errors.left_out_runs import Ratio
from meshplan.hardware_profiles.tunings import gpu_family

FARTHER = 2.0
"""Times the GPUs of the largest run that still count as covered."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a prediction is of, as far as its error is known to depend on it.

    gpu            the family
    model          its kind (`Model.kind`): "dense", "experts", or "state"
    between_nodes  experts exchange tokens between nodes by all-to-all (`exchanges_between_nodes`)
    """

    engine: str
    gpu: str
    gpus: int
    precision: str
    model: str
    between_nodes: bool = False


def asked_of(
    engine: str, gpu: str, *, gpus: int, precision: str, model: str, between_nodes: bool = False
) -> Asked:
    """With the family of `gpu`, the name of a profile."""
    return Asked(engine, gpu_family(gpu), gpus, precision, model, between_nodes)


def asked_like(run: Ratio) -> Asked:
    """What a prediction of this run is asked about."""
    return Asked(run.engine, run.gpu, run.gpus, run.precision, run.model, run.between_nodes)


@dataclass(frozen=True, slots=True)
class Covered:
    """What some runs cover; `widths`: precisions, fp16 and bf16 as one (the same kernels at the
    same rate); `pairs`: kinds of model on GPU families; no runs: nothing is outside of them.
    """

    gpus: frozenset[str]
    widths: frozenset[str]
    models: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    largest: int

    def outside(self, asked: Asked) -> tuple[str, ...]:
        """What of `asked` is not covered."""
        if not self.gpus:
            return ()
        kind = "GPUs of this kind" if asked.gpu == "any" else f"{asked.gpu} GPUs"
        both = asked.gpu in self.gpus and asked.model in self.models
        inside = {
            kind: asked.gpu in self.gpus,
            asked.precision: _width(asked.precision) in self.widths,
            f"{asked.model} models": asked.model in self.models,
            f"{asked.model} models on {kind}": (not both or (asked.model, asked.gpu) in self.pairs),
            f"{asked.gpus:,} GPUs": asked.gpus <= FARTHER * self.largest,
        }
        return tuple(name for name, found in inside.items() if not found)


def covered(runs: Sequence[Ratio]) -> Covered:
    """What they cover."""
    return Covered(
        frozenset(run.gpu for run in runs), frozenset(_width(run.precision) for run in runs),
        frozenset(run.model for run in runs), frozenset((run.model, run.gpu) for run in runs),
        max((run.gpus for run in runs), default=0),
    )  # fmt: skip


def _width(precision: str) -> str:
    """fp16 and bf16 have the same kernels."""
    return "16 bits" if precision in ("bf16", "fp16") else precision
