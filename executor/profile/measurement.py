"""What a session measures: a list of `Measurement`, each of which runs on every rank at once."""

from collections.abc import Callable
from dataclasses import dataclass

from meshplan.executor.profile.bench import Bench
from meshplan.executor.profile.record import Record


@dataclass(frozen=True, slots=True)
class Measurement:
    """One entry of the session's plan.

    key          names it in the partial file; the same in every run of the same options
    title        what the progress bar shows
    weight       its share of the time, relative to the others
    run          does it; all ranks call it together, and each returns the same records
    every_sweep  whether each sweep repeats it (`sweeps`)
    """

    key: str
    title: str
    weight: float
    run: Callable[[Bench], tuple[Record, ...]]
    every_sweep: bool = False
