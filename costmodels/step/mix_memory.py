"""What a pipeline rank cannot do without where passes are counted, under many mixes at once.

The same as `step_memory` says of each mix, for the ranks of any cut of one layout. In a chunk the
first f layers recompute in full, the next s selectively, the rest keep everything. Its backward
walks from the last layer to the first; when it is at layer l, it holds

    what the layers before l saved, all that l saves, and A(l), which no mix changes; and the
    replayed output where l recomputes

so with P_mode(l), what the first l layers save in a mode, the fullest is the largest of

    l < f           P_full(l) + A(l)
    f <= l < f + s  P_full(f) - P_sel(f) + P_sel(l) + A(l)
    f + s <= l      P_full(f) - P_sel(f) + P_sel(f+s) - P_none(f+s) + P_none(l) + A(l)

each the largest of a running maximum. A rank needs the most over its moments
(`costmodels.schedule.held_micro_batches`) of what its chunks hold and what the action adds.
"""

from collections.abc import Sequence
from functools import cached_property, reduce
from operator import add
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import MODES
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.memory.backward_peak import left_bytes
from meshplan.costmodels.memory.states import Memory
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.ranks.memory import context_bytes, outliving_bytes
from meshplan.costmodels.schedule.held_micro_batches import Moment, fullest_moments
from meshplan.costmodels.step.memory import slack_bytes
from meshplan.costmodels.step.pass_memory import Chunk, KnownPasses
from meshplan.costmodels.step.stages import StageModel

NONE, SELECTIVE, FULL = (MODES.index(mode) for mode in ("none", "selective", "full"))
Span = tuple[int, int, int]
"""A chunk's number, its first layer and the one after its last."""


class ChunkMixes:
    """One virtual stage under mixes that recompute so many of its layers `full` and `selective`.

    saved_bytes   [mix] of a micro-batch
    """

    def __init__(self, chunk: Chunk, saved: Floats, full: Ints, selective: Ints) -> None:
        self.chunk, self.full, self.second = chunk, full, full + selective
        self._saved = saved[:, [kind for kind, _ in chunk.layers]]
        self._before = np.zeros((len(MODES), len(chunk.layers) + 1))
        self._saved.cumsum(axis=1, out=self._before[:, 1:])
        self._peaks: dict[tuple[str, bool, bool], Floats] = {}
        none = float(self._before[NONE, -1])
        self.ends_bytes = chunk.saved_bytes - none
        self.saved_bytes = self.ends_bytes + self._kept_beyond(self.second)
        self.saved_bytes += self._before[NONE, -1] - self._before[NONE, self.second]

    def _kept_beyond(self, second: Ints) -> Floats:
        """[mix] of the layers that recompute."""
        before, full = self._before, self.full
        kept: Floats = before[FULL, full] - before[SELECTIVE, full] + before[SELECTIVE, second]
        return kept

    def peak(self, moment: Moment) -> Floats:
        """[mix] the most bytes that an action needs beyond what the rank holds when it begins."""
        whole = moment.last if self.chunk.zero < 2 else True
        key = (moment.kind, whole, moment.fresh)
        if key not in self._peaks:
            self._peaks[key] = self._peak(moment, whole)
        return self._peaks[key]

    def _peak(self, moment: Moment, whole: bool) -> Floats:
        if moment.kind in "FW":  # what is held at one moment; of F what is saved is linear
            alone = self.chunk.peak(moment).total
            changes = moment.kind == "F"
            return alone + changes * (self.saved_bytes - self.chunk.saved_bytes)
        return self._backward(whole, moment.kind == "I", moment.fresh) + self.chunk.messages

    def _backward(self, whole: bool, put_off: bool, fresh: bool) -> Floats:
        chunk, before, full, second = self.chunk, self._before, self.full, self.second
        layers = np.arange(len(chunk.layers))
        beside = self._beside(whole, put_off, fresh)
        of_full, of_selective, of_none = before[:, layers][[FULL, SELECTIVE, NONE]] + beside
        walked = np.stack([
            _before(of_full)[full] + chunk.stream,
            _between(of_selective, full, second) + before[FULL, full] - before[SELECTIVE, full]
            + chunk.stream,
            _after(of_none)[second] + self._kept_beyond(second) - before[NONE, second],
        ])  # fmt: skip
        ends = self.ends_bytes - 2 * chunk.stream * chunk.last
        found: Floats = walked.max(axis=0) + ends
        if chunk.last:
            found = np.maximum(found, self.saved_bytes + chunk.loss_arrives(whole))
        if chunk.first:
            found = np.maximum(found, ends + put_off * self._deferred[0] + chunk.embedding(whole))
        return found

    @cached_property
    def _deferred(self) -> Floats:
        """[layer] what it and those behind it hold from I to W."""
        each = [
            self._saved[NONE, at] + float(left_bytes(self.chunk.steps(kind)))
            for at, (kind, _) in enumerate(self.chunk.layers)
        ]
        return np.array([*each, 0.0])[::-1].cumsum()[::-1]

    def _beside(self, whole: bool, put_off: bool, fresh: bool) -> Floats:
        """[layer] what its backward holds beside what the layers before it saved and its output
        where it recomputes.
        """
        chunk = self.chunk
        passes = [
            chunk.inside_bytes(kind, put_off)
            + chunk.gathered(at)
            + chunk.gradients(at, whole, put_off)
            for at, (kind, _) in enumerate(chunk.layers)
        ]
        found: Floats = self._saved[NONE] + put_off * self._deferred[1:] + np.array(passes, float)
        if len(found) and not chunk.last and not fresh:
            found[-1] += chunk.lingering
        return found


def _before(of_layer: Floats) -> Floats:
    """[n] the largest of the first n."""
    return np.maximum.accumulate(np.concatenate([[-np.inf], of_layer]))


def _after(of_layer: Floats) -> Floats:
    """[n] the largest but the first n."""
    return _before(of_layer[::-1])[::-1]


def _between(of_layer: Floats, first: Ints, end: Ints) -> Floats:
    """[mix] the largest of those from its `first` to before its `end`."""
    if not (end > first).any():
        return np.full(len(first), -np.inf)
    layers = np.arange(len(of_layer))
    begun = np.where(layers >= layers[:, None], of_layer, -np.inf)
    most = np.maximum.accumulate(begun, axis=1)
    found: Floats = most[np.minimum(first, len(layers) - 1), np.maximum(end, 1) - 1]
    return np.where(end > first, found, -np.inf)


class RankMixes(NamedTuple):
    """A rank whose chunks hold certain layers, each under some mixes.

    kept     [chunk][mix, moment] bytes of what it holds in its micro-batches in flight and, where
             its action runs then, of that
    always   [moment] bytes that no mix changes
    """

    kept: tuple[Floats, ...]
    always: Floats

    def needed(self, mixes: Sequence[Ints]) -> Floats:
        """[way] bytes under the mixes of each chunk with these numbers."""
        found = self.always + sum(each[at] for each, at in zip(self.kept, mixes, strict=True))
        most: Floats = found.max(axis=1)
        return most


class MixMemory:
    """The ranks of the cuts of one layout, whose own stages do not count but for how many there
    are.
    """

    def __init__(self, model: StageModel) -> None:
        self.model, self.sharding, la = model, model.traffic.sharding, model.layout
        shape = la.schedule, la.pipeline_parallel, la.virtual_stages, model.m
        self._moments = fullest_moments(*shape)
        self._like: dict[tuple[Moment, ...], int] = {}
        self._passes = KnownPasses({}, {})
        self._pattern = model.setting.model.pattern
        self._chunks: dict[tuple[object, ...], ChunkMixes] = {}
        self._always: dict[tuple[object, ...], float] = {}
        kinds = range(len(model.setting.model.kinds))
        self._saved = np.array([
            [float(model.layer_saved_bytes(kind, mode)) for kind in kinds] for mode in MODES
        ])  # fmt: skip

    def like(self, rank: int) -> int:
        """Equal for ranks that hold equally much in each moment."""
        return self._like.setdefault(self._moments[rank].each, len(self._like))

    def rank(
        self, rank: int, spans: Sequence[Span], mixes: Sequence[tuple[Ints, Ints]]
    ) -> RankMixes:
        """What a rank needs whose chunks hold these layers, under mixes of each."""
        found, scale = self._moments[rank], self.model.setting.tuning.reserved_over_working
        chunks = [self._chunk(*span, *mix) for span, mix in zip(spans, mixes, strict=True)]
        always = np.full(len(found.each), self._states_bytes(spans))
        kept = []
        for at, chunk in enumerate(chunks):
            always += scale * found.deferred[:, at] * chunk.chunk.deferred_bytes
            always += scale * found.waits[:, at] * chunk.chunk.waiting_gradient_bytes
            held = chunk.saved_bytes[:, None] * found.held[:, at]
            for number, moment in enumerate(found.each):
                if moment.chunk == at:
                    held[:, number] += chunk.peak(moment)
            kept.append(scale * held)
        return RankMixes(tuple(kept), always)

    def _chunk(self, number: int, first: int, end: int, full: Ints, selective: Ints) -> ChunkMixes:
        kinds, last = self._pattern[first:end], len(self.model.layout.stages) - 1
        key = kinds, number == 0, number == last, full.tobytes(), selective.tobytes()
        if key not in self._chunks:
            layers = tuple((kind, MODES[NONE]) for kind in kinds)
            chunk = Chunk(self.model, number, self.sharding, layers, self._passes)
            self._chunks[key] = ChunkMixes(chunk, self._saved, full, selective)
        return self._chunks[key]

    def _states_bytes(self, spans: Sequence[Span]) -> float:
        """What a rank holds all the time, and what lives outside its tensors."""
        kinds = tuple(sorted(kind for _, a, b in spans for kind in self._pattern[a:b]))
        held = {number for number, _, _ in spans}
        ends = tuple(end for end, at in enumerate(self.model.stage_of_end) if at in held)
        if (kinds, ends) not in self._always:
            self._always[kinds, ends] = self._states_of(kinds, ends)
        return self._always[kinds, ends]

    def _states_of(self, kinds: tuple[int, ...], ends: tuple[int, ...]) -> float:
        model = self.model
        parts = [model.layer_parameters(kind) * kinds.count(kind) for kind in sorted(set(kinds))]
        parts += [model.end_parameters[end] for end in ends]
        parameters = reduce(add, parts, RankParameters(dense=0.0))
        kept = outliving_bytes(
            model, sorted(set(kinds)), model.m, head=1 in ends, modules=2 in ends
        )
        memory = model.state_memory(parameters) + Memory(transient=float(kept))
        outside = float(context_bytes(model))
        return float(memory.allocated) + slack_bytes(model, memory) + outside
