"""What was found of entries of the table of work, for another question of the same table.

An entry depends on its key (`costmodels.prices.tables.work_key`), the model, the training without
its batch, the cluster and the engine. Batches that are near each other have most keys in common.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layouts import Ints

Values = NDArray[Any]


class KnownWork:
    """Values by key, of questions that differ in the batch alone."""

    def __init__(self) -> None:
        self._found: dict[str, dict[bytes, Any]] = {}

    def of(self, what: str, key: Sequence[Ints], find: Callable[[Ints], Values]) -> Values:
        """`what` of each entry, by the columns of its key; `find` gives that of some entries."""
        known, entries = self._found.setdefault(what, {}), _as_bytes(key)
        new = np.array([at for at, each in enumerate(entries) if each not in known], np.int64)
        if len(new):
            known.update(zip((entries[at] for at in new), find(new), strict=True))
        return np.array([known[each] for each in entries])


def _as_bytes(key: Sequence[Ints]) -> list[bytes]:
    rows = np.ascontiguousarray(np.stack(key, axis=1), np.int64)
    found: list[Any] = rows.view(np.dtype((np.void, rows.strides[0]))).ravel().tolist()
    return found
