"""Closed-form price of many layouts: what one layer, the embedding and the head cost in each.

The stage problem (how many layers each stage holds, which of them recompute) is left open: these are its
coefficients, linear in the counts. All seconds are lower bounds of what `simulate` gives, up to the bound
stated there, so that a search that trusts them cannot discard the best layout.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Coefficients of N layouts, K layer kinds and R = 3 recompute modes (none, selective, full).

    layer_s            (N, K, R) forward + backward of one layer and micro-batch, with its exposed
                       tensor, context and expert communication, and the recomputation of mode r
    layer_saved_bytes  (N, K, R) kept for the backward of one layer and micro-batch
    layer_state_bytes  (N, K) weights, gradients and optimizer state of one layer
    layer_step_s       (N, K) once per step: exposed gradient/weight communication and optimizer
                       update
    transient_bytes    (N, R) held only while some layer of mode r runs; a stage pays its largest
                       mode once
    embedding_*, head_* (N,) the same for the first and the last stage's ends (head: loss and MTP too)
    head_transient_bytes (N,) logits and their gradient, on the last stage only
    send_s             (N,) exposed activation + gradient transfer per virtual stage and micro-batch
    fixed_bytes        (N,) of every rank: context, communicators, workspaces, buckets not tied to a
                       layer
    slack_fraction     reserved = allocated * (1 + slack_fraction)
    capacity_bytes     usable memory of the accelerator
    fixed_step_s       (N,) once per step whatever the stages hold
    """

    layer_s: Floats
    layer_saved_bytes: Floats
    layer_state_bytes: Floats
    layer_step_s: Floats
    transient_bytes: Floats
    embedding_s: Floats
    embedding_saved_bytes: Floats
    embedding_state_bytes: Floats
    embedding_step_s: Floats
    head_s: Floats
    head_saved_bytes: Floats
    head_state_bytes: Floats
    head_step_s: Floats
    head_transient_bytes: Floats
    send_s: Floats
    fixed_bytes: Floats
    fixed_step_s: Floats
    slack_fraction: float
    capacity_bytes: float
