"""The few constants that datasheets and microbenchmarks do not give, learnt from measured runs.

A `Tuning` belongs to one engine on one GPU family. Its values are read from data files that
`meshplan validate --fit` writes, each with its date, rows and residual; the defaults below mean
"no correction".
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Corrections of one engine on one GPU family [fitted].

    matmul_scale, attention_scale, pointwise_scale
                           seconds of these kernels over what the hardware profile says
    launch_s               host time to issue one kernel: the floor of small kernels
    micro_batch_s          host and synchronisation time of each micro-batch on each pipeline rank
    boundary_s             the same for each crossing of a pipeline boundary
    step_s                 fixed time of a step: data, logging, optimizer launch
    collective_scale       seconds of collectives over what the cluster's links say
    interference           slowdown of compute while communication runs beside it, as a fraction
    memory_bytes           held by the framework beside what the cost model counts
    memory_slack_fraction  reserved over allocated, minus one
    """

    matmul_scale: float = 1.0
    attention_scale: float = 1.0
    pointwise_scale: float = 1.0
    launch_s: float = 0.0
    micro_batch_s: float = 0.0
    boundary_s: float = 0.0
    step_s: float = 0.0
    collective_scale: float = 1.0
    interference: float = 0.1
    memory_bytes: float = 0.0
    memory_slack_fraction: float = 0.05
