"""Which of a few runs are learnt from, and how far off learning may leave each of them.

    e_i = ln(measured / predicted) of run i at the prior

A run that took more than three times as long as predicted, or less than a third, stands still or
does something that its config does not say: an offload, a pressed allocator, another code path.
The host's seconds could explain it in numbers, and then make every other layout worse. So it
counts only if another run is as far off, within the same factor: two that agree are no accident.
Published sources chose the factor (`ODD`), and the limits of `allowed`:
docs/accuracy_history.md, "Ranges and `learn`".
"""

import math

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Bools

Vector = NDArray[np.float64]
ODD_TIMES = 3.0
ODD = math.log(ODD_TIMES)
FEWEST_OTHERS = 2


def believed(errors: Vector) -> Bools:
    """The runs that are within `ODD` of the prior or of another run."""
    apart = np.abs(errors[:, None] - np.append(errors, 0.0))
    np.fill_diagonal(apart, math.inf)
    return np.asarray(np.min(apart, axis=1) <= ODD)


def allowed(errors: Vector) -> Vector:
    """How far off each run may be after learning: no farther than before, or than most of the
    others were. One other run alone outvotes nothing.
    """
    sizes = np.abs(errors)
    if len(sizes) <= FEWEST_OTHERS:
        return sizes
    others = [np.median(np.delete(sizes, at)) for at in range(len(sizes))]
    return np.maximum(sizes, others)
