"""What a pipeline rank needs under many mixes at once, where an engine's passes are not counted.

The same as `step_memory` says of each mix, for the ranks of any cut of one layout. In a chunk the
first f layers recompute in full, the next s selectively, the rest keep everything. A rank needs
the most over

    each in-flight vector q and chunk c    states + sum of q_v saved_v + 2 G + max over the layers
                                           of c of what their backward holds beyond what they kept
    each in-flight vector on the last      the same with the logits instead
    the optimizer step                     states + update
    the last replays (`last_replays`)      where gradients come late

G is the largest layer of the rank's kinds as ZeRO-3 gathers it; the last rank holds its ends whole
too. So what is held at a moment is a sum over the chunks, as `mix_memory` has it.

Where a part w of what layers save waits on the host, a rank of one chunk holds of it no more than
two of its largest layers save, which are on their way: (1 - w) q saved + min(w q saved, 2 largest).
Over several chunks that is no sum. Prediction modules keep what they save on the device.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import add

import numpy as np

from meshplan.costmodels.elementwise import most_along
from meshplan.costmodels.layout import MODES
from meshplan.costmodels.layouts import Floats, Ints
from meshplan.costmodels.memory.states import Memory, comes_late, update_bytes
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.operations.embedding_head import logits_bytes
from meshplan.costmodels.ranks.last_replays import first_layers, to_come_bytes
from meshplan.costmodels.ranks.memory import (
    context_bytes,
    embedding_gathered_bytes,
    gathered_bytes,
    head_gathered_bytes,
    outliving_bytes,
)
from meshplan.costmodels.schedule.in_flight import in_flight
from meshplan.costmodels.step.memory import gathered_last_bytes, slack_bytes
from meshplan.costmodels.step.mix_memory import (
    FULL,
    NONE,
    SELECTIVE,
    RankMixes,
    Span,
)
from meshplan.costmodels.step.stages import EMBEDDING, StageModel

HEAD, MODULES = 1, 2  # the places of the other ends
Away = Callable[[Floats], Floats]


class HeldMixes:
    """The ranks of the cuts of one layout, whose own stages do not count but for how many there
    are. Where activations wait on the host a rank has one chunk.
    """

    def __init__(self, model: StageModel) -> None:
        self.model, la, setting = model, model.layout, model.setting
        self._vectors = in_flight(la.schedule, la.pipeline_parallel, la.virtual_stages, model.m)
        self._pattern = np.array(setting.stack)
        of_kind = self._pattern[:, None] == np.arange(self._pattern.max() + 1)
        self._counted = np.vstack([np.zeros_like(of_kind[:1], int), of_kind.cumsum(axis=0)])
        self._last = la.pipeline_parallel * la.virtual_stages - 1
        kinds = range(int(self._pattern.max()) + 1)
        self._saved, self._working, self._returned = (
            np.array([[float(bytes_of(kind, mode)) for kind in kinds] for mode in MODES])
            for bytes_of in (
                model.layer_saved_bytes, model.working_bytes, model.returned_keys_bytes
            )
        )  # fmt: skip
        waits = [model.layout.activation_offload * (not model.is_modules(kind)) for kind in kinds]
        self._waits = self._saved * np.array(waits)
        self._late = comes_late(model.state, model.m, la.pipeline_parallel)
        self._last_replays = first_layers(setting.model) if self._late else ()
        self._like: dict[object, int] = {}
        self._known_moments: dict[int, tuple[Floats, Floats]] = {}
        self._ends_bytes: dict[tuple[int, ...], float] = {}
        self._states: dict[object, tuple[float, float, list[float], float]] = {}

    def like(self, rank: int) -> int:
        """Equal for ranks that hold equally much in each moment."""
        return self._like.setdefault(self._vectors[rank], len(self._like))

    def rank(
        self, rank: int, spans: Sequence[Span], mixes: Sequence[tuple[Ints, Ints]]
    ) -> RankMixes:
        """What a rank needs whose chunks hold these layers, under mixes of each."""
        assert len(spans) == 1 or not self.model.layout.activation_offload
        held, backward = self._moments(rank)
        running, loss, after, _ = self._of_rank(spans)
        reserved = self.model.setting.tuning.reserved_over_working
        always = np.full(len(held), running)
        always[len(spans) : -len(after) : len(spans) + 1] += reserved * loss
        always[-len(after) :] = after
        kept = []
        for at, (span, mix) in enumerate(zip(spans, mixes, strict=True)):
            saved, working, away = self._of_chunk(span, *mix)
            bytes_ = saved[:, None] * held[:, at] + working[:, None] * backward[:, at]
            bytes_ -= away(held[:, at])
            for number, place in enumerate(reversed(self._last_replays), 1):
                bytes_[:, -number] += self._of_last_replay(span, *mix, place)
            kept.append(reserved * bytes_)
        return RankMixes(tuple(kept), always)

    def on_host(self, rank: int, span: Span, full: Ints, selective: Ints) -> tuple[Floats, float]:
        """[mix] bytes that wait on the host at the fullest moment of a rank of one chunk, and those
        there which no mix changes.
        """
        most = max(micro_batches for (micro_batches,) in self._vectors[rank])
        waits = _sum_of_layers(self._of_mode(span, full, selective), self._waits)
        return most * waits, self._of_rank([span])[3]

    def _moments(self, rank: int) -> tuple[Floats, Floats]:
        """[moment, chunk] micro-batches held, and 1 where a layer of the chunk is in its backward
        pass: of each vector every chunk, then the loss; then the optimizer step, and the last
        replays, of which `_of_last_replay` says what layers hold.
        """
        like = self.like(rank)
        if like not in self._known_moments:
            vectors = np.array(self._vectors[rank], float)
            chunks = vectors.shape[1]
            after = np.zeros((1 + len(self._last_replays), chunks))
            held = np.vstack([np.repeat(vectors, chunks + 1, axis=0), after])
            backward = np.tile(np.eye(chunks + 1)[:, :-1], (len(vectors), 1))
            self._known_moments[like] = held, np.vstack([backward, after])
        return self._known_moments[like]

    def _of_chunk(self, span: Span, full: Ints, selective: Ints) -> tuple[Floats, Floats, Away]:
        """[mix] what a chunk saves of a micro-batch; the most that the backward pass of one of its
        layers holds beyond what that kept; and what of so many micro-batches is on the host.
        """
        of_mode = self._of_mode(span, full, selective)
        kept, waits = (_sum_of_layers(of_mode, each) for each in (self._saved, self._waits))
        working, largest = (
            np.max([
                most_along((count > 0) * of_each[mode], 1) for mode, count in of_mode.items()
            ], axis=0) for of_each in (self._working, self._saved * (self._waits > 0))
        )  # fmt: skip
        away = partial(_on_host, waits, 2 * largest)
        return kept + self._ends_saved_bytes(span[0]), working, away

    def _of_mode(self, span: Span, full: Ints, selective: Ints) -> dict[int, Ints]:
        """[mix, kind] layers of a chunk in each mode."""
        _, first, end = span
        layers, second = self._counted[first : end + 1] - self._counted[first], full + selective
        return {
            FULL: layers[full],
            SELECTIVE: layers[second] - layers[full],
            NONE: layers[-1] - layers[second],
        }

    def _of_last_replay(self, span: Span, full: Ints, selective: Ints, place: int) -> Floats:
        """[mix] what a chunk holds in the backward of the layer at `place`: of those before it what
        they saved, all of its own, and what outputs hold of those behind it.
        """
        number, first, end = span
        layers, second = np.arange(end - first), (full + selective)[:, None]
        modes = np.where(layers < second, SELECTIVE, NONE)
        modes = np.where(layers < full[:, None], FULL, modes)
        saved, waits, working, returned = (
            each[modes, self._pattern[first:end]]
            for each in (self._saved, self._waits, self._working, self._returned)
        )
        layers = layers + first
        held = (saved - waits) * (layers < place) + returned * (layers > place)
        held += (saved + working) * (layers == place)
        ends = self.model.saved_bytes((), (EMBEDDING,)) if number == 0 else 0.0
        found: Floats = held.sum(axis=1) + ends
        return found

    def _ends_saved_bytes(self, chunk: int) -> float:
        ends = self._ends_of([chunk])
        if ends not in self._ends_bytes:
            self._ends_bytes[ends] = self.model.saved_bytes((), ends)
        return self._ends_bytes[ends]

    def _ends_of(self, chunks: Sequence[int]) -> tuple[int, ...]:
        """The ends on chunks, but for modules that are part of the stack."""
        ends = (EMBEDDING,) * (0 in chunks) + (HEAD,) * (self._last in chunks)
        with_head = self.model.has_modules and not self.model.setting.places_modules
        return ends + (MODULES,) * (with_head and self._last in chunks)

    def _of_rank(self, spans: Sequence[Span]) -> tuple[float, float, list[float], float]:
        """Bytes that no mix changes: with micro-batches in flight; what the loss makes beyond that,
        without slack; in the optimizer step and the last replays; and on the host.
        """
        kinds = tuple(sorted(int(k) for _, a, b in spans for k in self._pattern[a:b]))
        ends = self._ends_of([number for number, _, _ in spans])
        if (kinds, ends) not in self._states:
            self._states[kinds, ends] = self._found(kinds, ends)
        return self._states[kinds, ends]

    def _found(
        self, kinds: tuple[int, ...], ends: tuple[int, ...]
    ) -> tuple[float, float, list[float], float]:
        model, present = self.model, sorted(set(kinds))
        parts = [model.layer_parameters(kind) * kinds.count(kind) for kind in present]
        parts += [model.end_parameters[end] for end in ends]
        parameters = reduce(add, parts, RankParameters(dense=0.0))
        layers = [kind for kind in present if not model.is_modules(kind)]
        modules = MODULES in ends or len(layers) < len(present)
        kept = float(outliving_bytes(model, layers, model.m, head=HEAD in ends, modules=modules))
        states, update = model.state_memory(parameters), self._update_bytes(parameters)
        absent = float(states.gradients) if self._late else 0.0
        outside, transient = float(context_bytes(model)), self._gathered_bytes(present, ends)
        running = states + Memory(gradients=-absent, transient=kept + transient)
        stepping = states + Memory(transient=kept + update)
        last = [
            states + self._last_states(place) + Memory(transient=kept)
            for place in self._last_replays
        ]
        loss = float(logits_bytes(model.site)) if HEAD in ends else 0.0
        bytes_running, *after = (
            float(each.allocated) + slack_bytes(model, each) + outside
            for each in (running, stepping, *last)
        )
        return bytes_running, loss, after, float(states.host)

    def _last_states(self, place: int) -> Memory:
        """What is gathered in the backward of the layer at `place`, less the gradients to come."""
        whole = gathered_last_bytes(self.model, place)
        return Memory(gradients=-float(to_come_bytes(self.model, place)), transient=whole)

    def _update_bytes(self, parameters: RankParameters) -> float:
        model = self.model
        return float(update_bytes(model.state, parameters.dense, model.traffic.sharding))

    def _gathered_bytes(self, kinds: Sequence[int], ends: tuple[int, ...]) -> float:
        """What ZeRO-3 holds whole of the largest layer, twice, and of the ends at the loss."""
        model = self.model
        layers = (float(gathered_bytes(model, model.layer_parameters(kind))) for kind in kinds)
        whole = 2 * max(layers, default=0.0)
        if HEAD not in ends:
            return whole
        head = model.end_parameters[HEAD]
        if MODULES in ends:
            head = head + model.end_parameters[MODULES]
        whole += float(head_gathered_bytes(model, head))
        if model.layout.pipeline_parallel > 1 or model.layout.virtual_stages > 1:
            return whole
        return whole + float(embedding_gathered_bytes(model, model.end_parameters[EMBEDDING]))


def _sum_of_layers(of_mode: Mapping[int, Ints], bytes_: Floats) -> Floats:
    """[mix] the sum over layers of [mode, kind] bytes."""
    found: Floats = np.sum([count @ bytes_[mode] for mode, count in of_mode.items()], axis=0)
    return found


def _on_host(waits: Floats, buffers: Floats, held: Floats) -> Floats:
    """[mix, moment] what of `held` micro-batches, of each of which some of a chunk `waits`, is not
    on the device: all but its `buffers`.
    """
    return np.maximum(waits[:, None] * held - buffers[:, None], 0.0)
