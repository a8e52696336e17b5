"""What a step takes once, in closed form: gradients reduced, weights updated and gathered again.

Without a pipeline, all that the rank's parts send hides under all that they compute. With one, the
layers of the mean rank hide their own traffic; that of an end hides under the end's computing and
under what the layers of the mean rank have to spare.
"""

from typing import Self

import numpy as np

from meshplan.costmodels.elementwise import Adds
from meshplan.costmodels.layouts import Bools, Floats
from meshplan.costmodels.seconds.interference import exposed_s
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Once(Adds):
    """Seconds once per step: (N, K, R) of a layer, (N, 2) of the ends, (N,) of any rank."""

    layers_s: Floats
    ends_s: Floats
    latency_s: Floats

    def where(self, rows: Bools, other: Self) -> Self:
        """These seconds in `rows`, those of `other` in the rest."""
        return type(self)(
            np.where(rows[:, None, None], self.layers_s, other.layers_s),
            np.where(rows[:, None], self.ends_s, other.ends_s),
            np.where(rows, self.latency_s, other.latency_s),
        )


@dataclass(frozen=True, slots=True)
class Room:
    """Computing under which a rank's communication may hide: (N, K, R) by layer, (N, 2) by end.

    overlap  (N,) fraction of the communication that may hide
    interference  (N,) by which fraction computing is slower beside it
    counts   layers of each kind in the model
    """

    layers_s: Floats
    ends_s: Floats
    overlap: Floats
    counts: Floats
    ranks: Floats
    interference: Floats

    def exposed(self, layers: Floats, ends: Floats, latency: Floats) -> Once:
        """Exposed seconds of the communication of each layer, of the ends and of the latencies."""
        alone = self._on_one_rank(layers, ends, latency)
        return alone.where(self.ranks == 1, self._on_mean_rank(layers, ends, latency))

    def _on_one_rank(self, layers: Floats, ends: Floats, latency: Floats) -> Once:
        """All communication hides under all computing. What stays exposed is shared out in
        proportion; what recomputation hides in addition goes to the layers that recompute.
        """
        whole = layers @ self.counts + ends.sum(axis=1) + latency
        room = self._all_layers_s + self.ends_s.sum(axis=1)[:, None]
        exposed = self._exposed(whole[:, None], room)
        fraction = _ratio(exposed[:, 0], whole)
        longer_s = self.layers_s - self.layers_s[:, :, :1]
        all_longer_s = self._all_layers_s - self._all_layers_s[:, :1]
        replayed = (exposed - exposed[:, :1])[:, None, :] * _ratio(
            longer_s, all_longer_s[:, None, :]
        )
        return Once(
            (layers * fraction[:, None])[:, :, None] + replayed,
            ends * fraction[:, None],
            latency * fraction,
        )

    def _on_mean_rank(self, layers: Floats, ends: Floats, latency: Floats) -> Once:
        """The layers' traffic hides under all layers; the rest under what the mean rank's layers
        have to spare.
        """
        whole, room = layers @ self.counts, self._all_layers_s
        together = layers[:, :, None] * _ratio(room, whole[:, None])[:, None, :]
        under = self.overlap * whole / (1 + self.interference)
        spare = np.maximum(room[:, 0] - under, 0.0) / self.ranks
        return Once(
            self._exposed(layers[:, :, None], np.maximum(self.layers_s, together)),
            self._exposed(ends, self.ends_s + spare[:, None]),
            self._exposed(latency, spare),
        )

    @property
    def _all_layers_s(self) -> Floats:
        """(N, R) seconds of all layers of the model if all recompute in mode r."""
        total: Floats = np.einsum("nkr,k->nr", self.layers_s, self.counts)
        return total

    def _exposed(self, whole: Floats, room: Floats) -> Floats:
        shape = (-1, *(1,) * (whole.ndim - 1))
        overlap, slowed = self.overlap.reshape(shape), self.interference.reshape(shape)
        return np.asarray(exposed_s(whole, room, overlap, slowed))


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole, 0 where there is no whole."""
    whole = np.broadcast_to(whole, part.shape)
    ratio: Floats = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return ratio
