"""The end of a step: whole gradients, their norm over all ranks, clipping, AdamW on the fp32
shards.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from meshplan.executor.engine.parts.groups import all_reduce, group_size
from meshplan.executor.engine.parts.rank_context import Local
from meshplan.executor.engine.parts.weights import Unit

CLIP_NORM = 1.0
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1


class Update:
    """AdamW over the units of one rank; every weight decays alike.

    tables  the units of the embedding and of the head, where tied and on different ranks: their
            gradients are summed over the two
    """

    def __init__(
        self, local: Local, units: Sequence[Unit], tables: Sequence[Unit], learning_rate: float
    ) -> None:
        self.local, self.units, self.tables = local, units, tables
        self.learning_rate = learning_rate
        self.masters = [unit.master for unit in units]
        self.moments = [torch.zeros_like(master) for master in self.masters * 2]
        self.steps = [torch.zeros((), device=local.device) for _ in units]

    def reduce(self) -> None:
        """Finish the reductions that the backward pass began, and those it could not begin."""
        for unit in self.units:
            unit.finish()
        self._sum_replicated()
        for table in self.tables:
            all_reduce(table.shard_gradient, self.local.groups.ties)

    def _sum_replicated(self) -> None:
        """Norms, routers and biases saw a part of the sequence on each tensor rank: sum the
        parts.
        """
        if self.local.tp is None:
            return
        slices = [unit.replicated_shard(unit.shard_gradient) for unit in self.units]
        flat = all_reduce(torch.cat(slices), self.local.tp)
        for part, summed in zip(slices, flat.split([len(s) for s in slices]), strict=True):  # type: ignore[no-untyped-call]
            part.copy_(summed)

    def norm_and_loss(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of the whole gradient and the whole loss, on every rank."""
        squares = sum(
            (self._square(unit) for unit in self.units), torch.zeros((), device=loss.device)
        )
        both = torch.stack((squares, loss / group_size(self.local.tp))).double()
        if dist.get_world_size() > 1:
            dist.all_reduce(both)
        return both[0].sqrt(), both[1]

    def _square(self, unit: Unit) -> Tensor:
        """This rank's part of the squared norm: what several ranks hold counts once among them."""
        copies = group_size(unit.sharding.replicas) * (2 if unit in self.tables else 1)
        gradient = unit.shard_gradient
        shared = unit.replicated_shard(gradient)
        own = gradient[len(shared) :]
        total = torch.linalg.vector_norm(own).square()
        total = total + torch.linalg.vector_norm(shared).square() / group_size(self.local.tp)
        part: Tensor = total / copies
        return part

    def apply(self, norm: Tensor) -> None:
        """Clip to `CLIP_NORM`, update the masters, start to bring the computing copies up to
        date.
        """
        factor = (CLIP_NORM / (norm + 1e-6)).clamp(max=1.0).float()
        gradients = [unit.shard_gradient.mul_(factor) for unit in self.units]
        torch._foreach_add_(self.steps, 1)
        torch._fused_adamw_(
            self.masters,
            gradients,
            self.moments[: len(self.units)],
            self.moments[len(self.units) :],
            [],
            self.steps,
            lr=self.learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=WEIGHT_DECAY,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )
        for unit in self.units:
            unit.refresh()
