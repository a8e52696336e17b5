"""What a rank sends once per step, as linear lower bounds for many layouts.

With T the seconds of all that the rank sends and R what it computes meanwhile, of one micro-batch,
`exposed_s` shows

    max(shown T, T - R)        shown = 1 - overlap + overlap i / (1 + i)        i  interference

Both are linear in what the rank holds, so their means over ranks are bounds too. T is a latency and
the bytes of all parts; where curves of a measured cluster stand for that it is at least what the
smallest part takes alone, since more bytes are never faster.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np

from meshplan.costmodels.layouts import Floats, Ints, packed_column
from meshplan.costmodels.prices.parts import parts_of
from meshplan.costmodels.prices.tables import Table
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LateTraffic:
    """Seconds of the gradients reduced after the last backward, or of the weights gathered after
    the update, of N layouts and K layer kinds.

    layer_s, ends_s  (N, K), (N, 2) of a layer's bytes, of the embedding's and the head's
    least_s          (N,) of each rank that holds anything, latencies
    latency_s        (N, K + 2) of a rank that holds a layer, the embedding or the head alone
    shown            (N,) fraction that nothing hides
    measured         by curves, of which these are bounds
    """

    layer_s: Floats
    ends_s: Floats
    least_s: Floats
    latency_s: Floats
    shown: Floats
    measured: bool

    def take(self, rows: Ints | slice) -> "LateTraffic":
        """Some of the rows."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        return LateTraffic(**columns, measured=self.measured)

    @classmethod
    def joined(cls, parts: Sequence["LateTraffic"]) -> "LateTraffic":
        """The rows of all `parts`, one after the other, packed."""
        columns: dict[str, Any] = {
            name: packed_column(np.concatenate([getattr(part, name) for part in parts]))
            for name in COLUMNS
        }
        return cls(**columns, measured=parts[0].measured)


COLUMNS = tuple(field.name for field in fields(LateTraffic) if field.name != "measured")


def late_traffic(
    weights: Table, name: Literal["once_s", "refresh_s"], overlap: Floats
) -> LateTraffic:
    """`WeightTraffic.once_s` or `refresh_s` of every row, of which `overlap` may be hidden."""
    setting, parts = weights.rank.setting, parts_of(weights)
    traffic = weights.rank.traffic
    i = weights.rows(traffic.interference(setting.tuning.interference))
    whole = weights.stacked(getattr(traffic, name)(part) for part in parts)
    bare = weights.stacked(getattr(traffic.latencies, name)(part) for part in parts)
    if setting.cluster.is_measured:
        bare, whole = whole, whole
    wire = np.maximum(whole - bare, 0.0)
    held = bare if setting.engine.legality.layers_count_ends else bare[:, :-2]
    return LateTraffic(
        layer_s=wire[:, :-2], ends_s=wire[:, -2:], least_s=held.min(axis=1),
        latency_s=bare, shown=1 - overlap + overlap * i / (1 + i),
        measured=setting.cluster.is_measured,
    )  # fmt: skip
