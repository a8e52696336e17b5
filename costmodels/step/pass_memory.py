"""Peak of one pipeline rank where what is alive inside each pass is known (`passes`).

Every moment of the schedule is looked at: what the rank holds when an action begins, and the most
that the action adds. A backward pass walks its chunk from the last layer to the first:

    what is still saved + the layer's replay + its pass + weights and gradients whole for a moment

Whole for a moment, of a layer of N parameters over d ranks: its gradient (4 N) from ZeRO-2; that of
the layer after it while it is reduced (4 N, from ZeRO-2), with the part that arrives (4 N / d, from
ZeRO-1, below ZeRO-2 in the last micro-batch only); two layers' gathered weights (2 N each) under
ZeRO-3.

A pipeline also holds a message just sent and one posted early: two tensors of the residual stream.
Leaves out frozen weights: an engine whose passes are counted has no LoRA.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.costmodels.memory.backward_peak import (
    Step,
    backward_steps,
    largest_product_bytes,
    left_bytes,
    loss_bytes,
    peak_bytes,
    waiting_gradient_bytes,
)
from meshplan.costmodels.memory.states import Sharding
from meshplan.costmodels.model.parameters import RankParameters, padded_vocab
from meshplan.costmodels.schedule.held_micro_batches import Moment, Moments, fullest_moments
from meshplan.costmodels.step.stages import StageModel
from meshplan.hardware_profiles.dataclass import dataclass

WIDE = 4.0  # bytes of an fp32 number


@dataclass(frozen=True, slots=True)
class Peak:
    """The fullest moment of a rank: saved for the backward (replayed included), and the rest."""

    activations: float
    transient: float

    @property
    def total(self) -> float:
        """Bytes saved and the rest."""
        return self.activations + self.transient


NONE = Peak(0.0, 0.0)


class KnownPasses(NamedTuple):
    """Of backward passes by layer kind: their steps; and the most alive, by whether weight products
    are put off.
    """

    steps: dict[int, tuple[Step, ...]]
    peaks: dict[tuple[int, bool], float]


Layers = tuple[tuple[int, str], ...]
Ends = tuple[int, ...]
Known = dict[tuple[Layers, Ends], "Chunk"]
"""The chunks of one layout, by what they hold."""


def rank_peak(model: StageModel, rank: int, sharding: Sharding, known: Known) -> Peak:
    """The fullest moment of a pipeline rank, its weights, gradients and optimizer state apart.

    known  chunks of the layout that were looked at, and those of this rank from now on
    """
    chunks = [_chunk(model, index, sharding, known) for index in model.stages_of_rank[rank]]
    la = model.layout
    shape = la.schedule, la.pipeline_parallel, la.virtual_stages, model.m
    activations, transient = _at(chunks, fullest_moments(*shape)[rank])
    # Of equally full moments the one with most saved.
    most = np.lexsort((activations, activations + transient))[-1]
    return Peak(float(activations[most]), float(transient[most]))


def _chunk(model: StageModel, index: int, sharding: Sharding, known: Known) -> "Chunk":
    """A virtual stage, which is as any other that holds the same layers and ends."""
    layers = _layers(model, index, model.layout.stages[index])
    ends = tuple(end for end, at in enumerate(model.stage_of_end) if at == index)
    if (layers, ends) not in known:
        known[layers, ends] = Chunk(model, index, sharding, layers)
    return known[layers, ends]


def _layers(model: StageModel, index: int, stage: Stage) -> Layers:
    """Kind and mode of each layer of the chunk at `index`, recomputed as `stage` says."""
    before = sum(each.layers for each in model.layout.stages[:index])
    held = model.setting.model.pattern[before : before + stage.layers]
    return tuple(zip(held, stage.modes, strict=True))


def _at(chunks: list["Chunk"], found: Moments) -> tuple[Floats, Floats]:
    """`Peak` of each moment."""
    held, whole, gradients = np.zeros((3, len(found.each)))
    for at, chunk in enumerate(chunks):
        late = found.deferred[:, at]
        held += found.held[:, at] * chunk.saved_bytes + late * chunk.deferred_bytes
        whole += found.waits[:, at] * chunk.waiting_gradient_bytes
        gradients += late * chunk.output_gradient_bytes
    own = [chunks[moment.chunk].peak(moment) for moment in found.each]
    activations = held - gradients + np.array([peak.activations for peak in own])
    return activations, np.array([peak.transient for peak in own]) + whole + gradients


class Chunk:
    """One virtual stage on one rank. `passes` holds what is known of the layer kinds."""

    def __init__(
        self,
        model: StageModel,
        index: int,
        sharding: Sharding,
        layers: Layers,
        passes: "KnownPasses | None" = None,
    ) -> None:
        self.model, self.index, self.sharding = model, index, sharding
        self.first, self.last = index == 0, index == len(model.layout.stages) - 1
        self.zero, self.layers = int(model.layout.zero_stage), layers
        own = _layers(model, index, model.layout.stages[index])
        self._less = () if layers == own else own
        site = model.site
        self.stream = site.itemsize * float(site.shard.tokens_outside) * site.model.hidden
        self._passes = KnownPasses({}, {}) if passes is None else passes
        self._peaks: dict[tuple[str, bool, bool], Peak] = {}

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes of one micro-batch from its forward to its backward."""
        own = self.model.stage_saved_bytes[self.index]
        if not self._less:
            return own
        more = sum(self._saved(*each) for each in self.layers)
        return own + more - sum(self._saved(*each) for each in self._less)

    @cached_property
    def deferred_bytes(self) -> float:
        """Bytes of one micro-batch from I to W: inputs and output gradients of matrix products."""
        return sum(
            self._saved(kind, "none") + float(left_bytes(self.steps(kind)))
            for kind, _ in self.layers
        )

    @cached_property
    def output_gradient_bytes(self) -> float:
        """Of these, output gradients: the backward pass made them, nothing saved them."""
        return sum(float(waiting_gradient_bytes(self.steps(kind))) for kind, _ in self.layers)

    @cached_property
    def waiting_gradient_bytes(self) -> float:
        """From ZeRO-2, norms make I begin gradients that W completes: every layer's, whole."""
        if self.zero < 2:
            return 0.0
        return WIDE * sum(float(self._parameters(kind).dense) for kind, _ in self.layers)

    def peak(self, moment: Moment) -> Peak:
        """The most bytes that an action needs beyond what the rank holds when it begins."""
        whole = moment.last if self.zero < 2 else True
        key = (moment.kind, whole, moment.fresh)
        if key not in self._peaks:
            lingers = 0.0 if moment.fresh else self.lingering
            if moment.kind == "F":
                alone = self._forward(lingers)
            elif moment.kind == "W":
                alone = self._weights(lingers)
            else:
                alone = self._backward(whole, lingers, put_off=moment.kind == "I")
            self._peaks[key] = Peak(alone.activations, alone.transient + self.messages)
        return self._peaks[key]

    @property
    def lingering(self) -> float:
        """From ZeRO-2: the gradient that the chunk's backward pass completed last, still on its
        way when the next micro-batch begins, and the part that arrives.
        """
        model = self.model.setting.model
        if self.zero < 2:
            return 0.0
        if self.first and (model.learned_positions or model.embedding_norm):
            return 0.0
        if self.first or not self.layers:  # the embedding's table, or a head's that is alone
            return self._reducing(self._table, float(self.sharding.dense_ranks), True)
        return self._reducing(*self._completed_last(0), True)

    def _completed_last(self, at: int) -> tuple[float, float]:
        """Parameters of the part of a layer that completes last, its experts if any; its ranks."""
        parameters = self._parameters(self.layers[at][0])
        if parameters.expert:
            return float(parameters.expert), float(self.sharding.expert_ranks)
        return float(parameters.dense), float(self.sharding.dense_ranks)

    def _reducing(self, parameters: float, ranks: float, whole: bool) -> float:
        """A gradient on its way, from ZeRO-2 not kept beside it, and the part that arrives."""
        if ranks == 1:
            return 0.0
        return (WIDE * parameters if self.zero >= 2 else 0.0) + self._arriving(
            parameters, ranks, whole
        )

    @property
    def messages(self) -> float:
        """Bytes of pipeline messages: the one just sent, and the receive buffer posted early."""
        return 2 * self.stream if self.model.layout.pipeline_parallel > 1 else 0.0

    def _forward(self, lingers: float) -> Peak:
        """At its end everything is saved; the last stage then takes the loss."""
        whole = self.gathered(len(self.layers) - 1)
        if not self.last:
            return Peak(self.saved_bytes, self.stream + whole + lingers)
        return Peak(self.saved_bytes - self.stream, self._loss() + lingers)

    def _loss(self) -> float:
        """What the head holds, with its table and that one's gradient whole."""
        gradient = WIDE * self._table if self.zero >= 2 else 0.0
        gathered = self.model.site.itemsize * self._table if self.zero >= 3 else 0.0
        return float(loss_bytes(self.model.site, gradient)) + gathered

    @property
    def _table(self) -> float:
        """Numbers of one table of the vocabulary on this rank."""
        model, tp = self.model.setting.model, float(self.model.site.shard.tp)
        return float(padded_vocab(model.vocab, tp)) * model.hidden / tp

    def _backward(self, whole: bool, lingers: float, *, put_off: bool) -> Peak:
        """From the last layer to the first, then the embedding."""
        left, waiting, best = self.saved_bytes, 0.0, NONE
        if self.last:
            best = Peak(left, self.loss_arrives(whole))
            left -= 2 * self.stream
        for at in reversed(range(len(self.layers))):
            kind, mode = self.layers[at]
            replay = self._saved(kind, "none") - self._saved(kind, mode)
            inside = self.inside_bytes(kind, put_off)
            inside += self.stream if mode != "none" else 0.0  # the replayed output
            around = self.gathered(at) + self.gradients(at, whole, put_off)
            if at + 1 == len(self.layers) and not self.last:
                around += lingers
            now = Peak(left + replay, waiting + inside + around)
            best = max(best, now, key=lambda peak: peak.total)
            left -= self._saved(kind, mode)
            if put_off:
                gradients = float(waiting_gradient_bytes(self.steps(kind)))
                waiting += gradients
                left += self._saved(kind, "none") + float(left_bytes(self.steps(kind))) - gradients
        if self.first:
            now = Peak(left, waiting + self.embedding(whole))
            best = max(best, now, key=lambda peak: peak.total)
        return best

    def loss_arrives(self, whole: bool) -> float:
        """Beside all that is saved, when the head's gradient is reduced."""
        arriving = self._arriving(self._table, float(self.sharding.dense_ranks), whole)
        return self.stream + arriving

    def embedding(self, whole: bool) -> float:
        """The gathered gradient, its fp32 copy, and the table's own gradient."""
        site = self.model.site
        rows = site.itemsize * float(site.shard.tokens) * site.model.hidden
        table = WIDE * self._table if self.zero >= 2 else 0.0
        return (
            max(
                self.stream + 3 * rows,
                self._arriving(self._table, float(self.sharding.dense_ranks), whole),
            )
            + table
        )

    def _weights(self, lingers: float) -> Peak:
        """W: one product after another; every gradient is whole until its reduction."""
        kinds = {kind for kind, _ in self.layers}
        product = max((float(largest_product_bytes(self.steps(k))) for k in kinds), default=0.0)
        whole = sum(self._count(kind) for kind, _ in self.layers) if self.zero >= 2 else 0.0
        gradients = self.output_gradient_bytes
        return Peak(self.deferred_bytes - gradients, gradients + product + WIDE * whole + lingers)

    def gathered(self, at: int) -> float:
        """ZeRO-3's weights of a layer and of a neighbour."""
        if self.zero < 3 or at < 0:
            return 0.0
        pair = self.layers[max(at - 1, 0) : at + 1]
        return self.model.site.itemsize * sum(self._count(kind) for kind, _ in pair)

    def gradients(self, at: int, whole: bool, put_off: bool) -> float:
        """This layer's gradient and the one being reduced."""
        own = WIDE * self._count(self.layers[at][0]) if self.zero >= 2 else 0.0
        if put_off:
            return self.waiting_gradient_bytes
        if at + 1 == len(self.layers):
            return own
        return own + self._reducing(*self._completed_last(at + 1), whole)

    def _arriving(self, parameters: float, ranks: float, whole: bool) -> float:
        """The part of a reduced gradient that arrives."""
        return WIDE * parameters / ranks if self.zero and whole and ranks > 1 else 0.0

    def _count(self, kind: int) -> float:
        parameters = self._parameters(kind)
        return float(parameters.dense + parameters.expert)

    def _parameters(self, kind: int) -> RankParameters:
        return self.model.layer_parameters(kind)

    def _saved(self, kind: int, mode: str) -> float:
        return float(self.model.layer_saved_bytes(kind, mode))

    def steps(self, kind: int) -> tuple[Step, ...]:
        """Of the backward pass of a layer."""
        known = self._passes.steps
        if kind not in known:
            known[kind] = backward_steps(self.model.site, self.model.setting.model.kinds[kind])
        return known[kind]

    def inside_bytes(self, kind: int, put_off: bool) -> float:
        """The most alive in that pass."""
        known = self._passes.peaks
        if (kind, put_off) not in known:
            known[kind, put_off] = float(peak_bytes(self.steps(kind), put_off=put_off))
        return known[kind, put_off]
