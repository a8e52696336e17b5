"""What a plan file says beside its layout and prediction: why this one of several, what memory or
another batch would buy, which sizes were looked at, and which published runs are near.
"""

from typing import Literal

from meshplan.hardware_profiles.frozen import Frozen

LEAST_GAIN = 0.001
"""A smaller gain by more memory is called nothing."""


class BetterBatch(Frozen):
    """A neighbour of a batch that divides badly (`planner.answer.better_batch`).

    global_batch_size  sequences per step
    step_time_s        of the best layout that was found for it, which is not proved the best
    label              of that layout
    faster_fraction    per sequence, at least
    """

    global_batch_size: int
    step_time_s: float
    label: str
    faster_fraction: float


class Choice(Frozen):
    """How the plan was chosen among layouts that measured runs do not tell apart
    (`planner.answer.ties`), or by `--robust`.

    robust                  by `--robust`
    candidates              layouts that were chosen among
    fastest                 the label of the fastest layout, which `search` speaks of
    fastest_step_time_s     the step of that layout
    slower_fraction         of the plan than that one; 0: it is the plan
    worst_loss_fraction     of the plan, where one figure is off: slower than the best candidate
    worst_where             which figure
    fastest_worst_loss_fraction
                            of the fastest, likewise
    fastest_worst_where     which figure
    spares_bytes            that the plan needs less of a GPU than the fastest
    """

    robust: bool
    candidates: int
    fastest: str
    fastest_step_time_s: float
    slower_fraction: float
    worst_loss_fraction: float
    worst_where: str
    fastest_worst_loss_fraction: float
    fastest_worst_where: str
    spares_bytes: float


class Bought(Frozen):
    """What a plan's degrees do with more memory (`planner.answer.spare_memory`).

    step_time_s       of the best layout that was found, which is not proved the best
    label             of that layout
    faster_fraction   than the same degrees without more memory, at least
    fits_probability  of that layout on the same GPUs; None: no measured run says
    fits_probability on the same GPUs
    """

    step_time_s: float
    label: str
    faster_fraction: float
    fits_probability: float | None


class SpareMemory(Frozen):
    """The memory that a plan may not use, and what it would buy.

    free_bytes              left free of each GPU
    chosen                  whether by `--headroom`
    one_gib                 with one GiB more than the plan may use; None: nothing was found
    one_gib_most, all_most  by which fraction the plan's degrees are faster then at most, 0.001
                            (`LEAST_GAIN`) where by no more than that; None: not known
    all_bytes               how much more the profile lets a rank use
    all                     with all of that; None: nothing was found
    """

    free_bytes: float
    chosen: bool
    one_gib: Bought | None
    one_gib_most: float | None = None
    all_bytes: float
    all: Bought | None
    all_most: float | None = None


class Size(Frozen):
    """The best plan found for one number of GPUs, proved or not by its status.

    gpus                    the number
    status                  `OPTIMAL` is proved
    label                   of the layout
    step_time_s             of the layout
    mfu                     None where formats are mixed
    tokens_per_s            of all GPUs
    gpu_hours_per_trillion_tokens
                            GPU-hours of 1e12 tokens
    cost_per_trillion_tokens
                            in the currency of the price; None where no price is known
    """

    gpus: int
    status: Literal["OPTIMAL", "FEASIBLE"]
    label: str
    step_time_s: float
    mfu: float | None
    tokens_per_s: float
    gpu_hours_per_trillion_tokens: float
    cost_per_trillion_tokens: float | None


class Sizes(Frozen):
    """The numbers of GPUs that were tried for `--gpus auto` (`planner.sweep.auto`).

    least_gpus     the fewest that hold a step
    cheapest_gpus  least cost of a token; None where no price is known
    knee_gpus      least time x cost: what was chosen
    tried          each of them
    """

    least_gpus: int
    cheapest_gpus: int | None
    knee_gpus: int
    tried: tuple[Size, ...]


class MeasuredRun(Frozen):
    """A published run near the plan (`planner.runs.evidence`), and what is predicted for it.

    id                      its row among the published runs
    suite                   the source's short name
    framework               with its release
    engine                  that it is priced as
    model                   as the source names it
    parameters              of the model
    gpu                     the profile's name
    gpus                    of the run
    seq_len                 tokens of a sequence
    global_batch_size       sequences per step
    precision               of the matmuls' inputs
    layout                  in short
    distance                how unlike the plan it is, 0: alike (`planner.runs.evidence`)
    near                    whether it is near enough to speak of the plan, and of the same kind of
                            model
    measured_step_time_s    as published
    predicted_step_time_s   with the constants that ship: they may be fitted to this very run
    predicted_unseen_s      with constants that had not seen the run's source, None: never priced so
    measured_reserved_gib   of the fullest rank; None: not published
    predicted_reserved_gib  of the fullest rank
    """

    id: str
    suite: str
    framework: str
    engine: str
    model: str
    parameters: float
    gpu: str
    gpus: int
    seq_len: int
    global_batch_size: int
    precision: str
    layout: str
    distance: float
    near: bool = False
    measured_step_time_s: float
    predicted_step_time_s: float
    predicted_unseen_s: float | None
    measured_reserved_gib: float | None
    predicted_reserved_gib: float
