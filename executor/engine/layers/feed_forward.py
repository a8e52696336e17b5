"""Feed-forward layers: dense, and mixtures of routed and shared experts.

Routed experts are dropless: each rank routes its own tokens (its part of the sequence under tensor
parallelism), sends each row to the rank that holds its expert, and gets the weighted result back.
The router's weight of an expert multiplies inside the expert's activation, before its last matrix.
Which experts, and with which weights, is the model's own router (`numerics.Router`).
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshplan.costmodels.model.numerics import Router
from meshplan.costmodels.model.transformer import Experts
from meshplan.executor.engine.parts.functions import AllToAll, Combine, SwiGlu
from meshplan.executor.engine.parts.groups import exchange_counts
from meshplan.executor.engine.parts.projections import (
    ColumnLinear,
    GroupedLinear,
    Projection,
    RowLinear,
)
from meshplan.executor.engine.parts.rank_context import Local
from meshplan.executor.engine.parts.weights import Source, Weight


class Dense:
    """SwiGLU or GELU between matrices split over the tensor ranks."""

    def __init__(self, local: Local, name: str, width: int, bias: bool) -> None:
        self.local, hidden = local, local.model.hidden
        names = ("gate", "up") if local.model.gated else ("up",)
        self.into = tuple(local.column(f"{name}.{part}", width, hidden, bias) for part in names)
        self.down = local.row(f"{name}.down", hidden, width, bias)

    @property
    def weights(self) -> list[Weight]:
        """All weights of the layer."""
        return [w for p in (*self.into, self.down) for w in (p.weight, p.bias) if w]

    def __call__(self, x: Tensor) -> Tensor:
        """(local sequence, batch, hidden) to the same."""
        wide = ColumnLinear.apply(x, self.local.tp, self.into)
        y = SwiGlu.apply(*wide, None) if len(wide) == 2 else F.gelu(wide[0])
        out: Tensor = RowLinear.apply(y, self.local.tp, self.down)
        return out


@dataclass(frozen=True, slots=True)
class Routing:
    """Where rows go: this rank's by expert, and what it receives.

    order          the (token, choice) pairs sorted by expert
    send, receive  rows to and from each expert-parallel rank
    rows           rows of each local expert, once `regroup` has put them together
    regroup        the received rows' order by local expert, None if they arrive so
    """

    order: Tensor
    send: list[int]
    receive: list[int]
    rows: list[int]
    regroup: Tensor | None


class Mixture:
    """Routed experts, and a shared one that every token visits."""

    def __init__(self, local: Local, name: str, shape: Experts) -> None:
        assert local.model.gated, "experts without a gate"
        self.local, self.shape, hidden = local, shape, local.model.hidden
        self.chosen_by = local.model.numerics.router or Router(score="softmax", normalised=True)
        trained_bias = shape.router_bias and not self.chosen_by.bias
        self.router = local.whole(f"{name}.router", shape.experts, hidden, trained_bias)
        self.shared = (
            Dense(local, f"{name}.shared", shape.shared_ffn, bias=False)
            if shape.shared_ffn
            else None
        )
        self.shared_gate = (
            local.whole(f"{name}.shared_gate", 1, hidden) if shape.shared_gate else None
        )
        self.gate = self._expert(f"{name}.gate", shape.ffn, hidden)
        self.up = self._expert(f"{name}.up", shape.ffn, hidden)
        self.down = self._expert(f"{name}.down", hidden, shape.ffn)

    def _expert(self, name: str, rows: int, columns: int) -> Projection:
        """The local experts' matrices, each seeded by its own global name."""
        held = self.shape.experts // self.local.layout.expert_parallel
        first = self.local.groups.at.ep_rank * held
        numbers = range(first, first + held)
        matrices = tuple(Source(f"{name}.{e}", (rows, columns)) for e in numbers)
        bias = None
        if self.shape.bias:
            vectors = tuple(Source(f"{name}.{e}.bias", (rows,)) for e in numbers)
            bias = Weight(vectors, True, 0.0, replicated=False)
        return Projection(Weight(matrices, True, None, replicated=False), bias)

    @property
    def weights(self) -> list[Weight]:
        """The weights that are sharded like dense ones."""
        found = [w for w in (self.router.weight, self.router.bias) if w]
        found += self.shared.weights if self.shared else []
        return found + ([self.shared_gate.weight] if self.shared_gate else [])

    @property
    def expert_weights(self) -> list[Weight]:
        """The routed experts' weights."""
        return [w for p in (self.gate, self.up, self.down) for w in (p.weight, p.bias) if w]

    def __call__(self, x: Tensor) -> Tensor:
        """(local sequence, batch, hidden) to the same."""
        y = self._routed(x.flatten(0, 1)).view_as(x)
        if self.shared is None:
            return y
        shared = self.shared(x)
        if self.shared_gate is not None:
            (gate,) = ColumnLinear.apply(x, None, (self.shared_gate,))
            shared = shared * torch.sigmoid(gate)
        return y + shared

    def _routed(self, x: Tensor) -> Tensor:
        """The routed experts' part for (tokens, hidden)."""
        top_k, group = self.shape.top_k, self.local.groups.ep
        (logits,) = ColumnLinear.apply(x, None, (self.router,))
        chosen, weights = choices(logits.float(), self.chosen_by, top_k)
        routing = self._routing(chosen)
        weight = weights.flatten()[routing.order]
        token = routing.order // top_k
        rows = AllToAll.apply(x.index_select(0, token), routing.send, routing.receive, group)
        weight = AllToAll.apply(weight, routing.send, routing.receive, group)
        if routing.regroup is not None:
            rows, weight = rows.index_select(0, routing.regroup), weight[routing.regroup]
        gate = GroupedLinear.apply(rows, routing.rows, self.gate)
        up = GroupedLinear.apply(rows, routing.rows, self.up)
        y = GroupedLinear.apply(SwiGlu.apply(gate, up, weight), routing.rows, self.down)
        if routing.regroup is not None:
            y = y.index_select(0, routing.regroup.argsort())
        y = AllToAll.apply(y, routing.receive, routing.send, group)
        combined: Tensor = Combine.apply(y, token, x.shape[0])
        return combined

    def _routing(self, chosen: Tensor) -> Routing:
        """Sort (tokens, top_k) choices by expert and agree with the other ranks on the counts."""
        ep, experts = self.local.layout.expert_parallel, self.shape.experts
        held = experts // ep
        order = chosen.flatten().argsort(stable=True)
        if self.local.balanced:
            sent = _cut(_evenly(chosen.numel(), experts), held)
            received = sent[:1] * ep
        else:
            counts = torch.bincount(chosen.flatten(), minlength=experts)
            received = exchange_counts(counts, self.local.groups.ep).tolist()
            sent = _cut(counts.tolist(), held)
        regroup = None
        if ep > 1 and held > 1:
            regroup = self._by_expert(received, order)
        return Routing(
            order=order,
            send=[sum(rank) for rank in sent],
            receive=[sum(rank) for rank in received],
            rows=[sum(rank[e] for rank in received) for e in range(held)],
            regroup=regroup,
        )

    def _by_expert(self, received: list[list[int]], like: Tensor) -> Tensor:
        """The order that brings rows received as (rank, expert) blocks to (expert, rank) blocks."""
        owners = np.tile(np.arange(len(received[0])), len(received)).repeat(np.ravel(received))
        order = torch.from_numpy(owners.argsort(kind="stable"))
        return like.new_empty(len(order)).copy_(order)  # of the kind of `like`: a fake one, perhaps


def _evenly(total: int, parts: int) -> list[int]:
    """`total` in `parts` that differ by at most one."""
    base, more = divmod(total, parts)
    return [base + (part < more) for part in range(parts)]


def _cut(counts: list[int], size: int) -> list[list[int]]:
    """`counts` in lists of `size`."""
    return [counts[start : start + size] for start in range(0, len(counts), size)]


def choices(logits: Tensor, router: Router, top_k: int) -> tuple[Tensor, Tensor]:
    """(tokens, top_k) experts of each token, and their weights.

    The bias that corrects DeepSeek-V3's choice is learnt from the experts' load, not by gradient:
    it begins at zero, and in the few steps of a run stays there (arXiv 2412.19437, section 2.1.2).
    """
    if router.score == "softmax" and router.normalised is not False and not router.groups:
        largest, chosen = logits.topk(top_k, dim=-1)
        return chosen, largest.softmax(-1) * (router.scale or 1.0)
    scores = logits.sigmoid() if router.score == "sigmoid" else logits.softmax(-1)
    chosen = _of_best_groups(scores, router).topk(top_k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if router.normalised is not False:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * (router.scale or 1.0)


def _of_best_groups(scores: Tensor, router: Router) -> Tensor:
    """`scores` with those outside of the best groups at zero."""
    if not router.groups or not router.top_groups:
        return scores
    grouped = scores.view(*scores.shape[:-1], router.groups, -1)
    best = 1 if router.groups_by == "best" else 2
    of_group = grouped.topk(best, dim=-1).values.sum(-1)
    kept = torch.zeros_like(of_group).scatter(-1, of_group.topk(router.top_groups).indices, 1.0)
    masked: Tensor = (grouped * kept.unsqueeze(-1)).flatten(-2)
    return masked
