"""What a dry run finds of one rank."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What one rank's step does.

    rank                    global
    pp_rank                 its pipeline rank
    peak_bytes              the most bytes alive at once
    peak_by_category        what they were: weights (computing copy), gradients, optimizer (masters
                            and moments; in fp32 below ZeRO-3 the masters are the weights),
                            activations (saved for backward), transient (the rest, gathered ZeRO-3
                            weights included)
    peak_by_phase           the most bytes alive in each phase of the step
    flops                   executed, by "phase.kind" (forward, backward; matmul, attention,
                            grouped)
    comm_bytes, comm_calls  by "axis.kind"; whole arrays, as `dryrun.work` says
    wall_s                  how long the dry run took
    """

    rank: int
    pp_rank: int
    peak_bytes: int
    peak_by_category: dict[str, int]
    peak_by_phase: dict[str, int]
    flops: dict[str, float]
    comm_bytes: dict[str, float]
    comm_calls: dict[str, int]
    wall_s: float
