"""What all layers of one rank share, and the weights they are built from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from meshplan.costmodels.layout import Layout, RecomputeModule
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.executor.engine.parts.functions import LayerNorm, RmsNorm
from meshplan.executor.engine.parts.groups import Groups
from meshplan.executor.engine.parts.hooks import Recompute
from meshplan.executor.engine.parts.kernels import EPS
from meshplan.executor.engine.parts.projections import Projection
from meshplan.executor.engine.parts.weights import Ledger, Sharding, Source, Unit, Weight

ROPE_BASE = 10000.0  # where the model's file states none
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(slots=True, kw_only=True)
class Local:
    """One rank's surroundings.

    balanced   every expert gets the same number of tokens (dry runs, which have no token values)
    anchor     an empty tensor that requires a gradient: where a stage without a
               differentiable input starts
    """

    model: Model
    layout: Layout
    training: Training
    groups: Groups
    device: torch.device
    balanced: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    anchor: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.anchor = torch.empty(0, device=self.device, requires_grad=True)

    @property
    def tp(self) -> ProcessGroup | None:
        """The tensor-parallel group."""
        return self.groups.tp

    @property
    def norm_epsilon(self) -> float:
        """What the model's file states, or else the engine's own."""
        stated = self.model.numerics.norm_epsilon
        return EPS if stated is None else stated

    @property
    def dtype(self) -> torch.dtype:
        """The computing precision."""
        return DTYPES[self.training.precision]

    @property
    def local_seq_len(self) -> int:
        """Tokens of one sequence on this context-parallel rank."""
        return self.training.seq_len // self.layout.context_parallel

    @property
    def positions(self) -> Tensor:
        """The global positions of this rank's tokens: chunks r and 2 cp - 1 - r of 2 cp
        (zig-zag).
        """
        cp, rank = self.layout.context_parallel, self.groups.at.cp_rank
        if cp == 1:
            return torch.arange(self.training.seq_len)
        chunk = self.training.seq_len // (2 * cp)
        starts = (rank * chunk, (2 * cp - 1 - rank) * chunk)
        return torch.cat([torch.arange(start, start + chunk) for start in starts])

    def rope_tables(self, width: int) -> tuple[Tensor, Tensor]:
        """cos and sin of (local sequence, 1, 1, width / 2), fp32; frequencies are not scaled."""
        base = self.model.numerics.rotary.base or ROPE_BASE
        frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(self.positions.double(), frequencies)[:, None, None, :]
        return angles.cos().float().to(self.device), angles.sin().float().to(self.device)

    def matrix(self, name: str, rows: int, columns: int, split: int | None) -> Weight:
        """A (rows, columns) matrix, split over the tensor ranks along dimension `split` if any.

        The pieces are equal; a vocabulary that does not divide leaves the last rank with fewer
        rows.
        """
        if split is None:
            return Weight((Source(name, (rows, columns)),), False, None, replicated=True)
        tp, rank = self.layout.tensor_parallel, self.groups.at.tp_rank
        whole = (rows, columns)[split]
        piece = -(-whole // tp)
        source = Source(name, (rows, columns), split, rank * piece, min(whole, (rank + 1) * piece))
        return Weight((source,), False, None, replicated=False)

    def vector(self, name: str, size: int, fill: float, split: bool = False) -> Weight:
        """A (size,) weight that starts at `fill`."""
        if not split:
            return Weight((Source(name, (size,)),), False, fill, replicated=True)
        tp, rank = self.layout.tensor_parallel, self.groups.at.tp_rank
        piece = size // tp
        source = Source(name, (size,), 0, rank * piece, (rank + 1) * piece)
        return Weight((source,), False, fill, replicated=False)

    def column(self, name: str, rows: int, columns: int, bias: bool = False) -> Projection:
        """A projection whose output is split over the tensor ranks."""
        vector = self.vector(f"{name}.bias", rows, 0.0, split=True) if bias else None
        return Projection(self.matrix(name, rows, columns, 0), vector)

    def row(self, name: str, rows: int, columns: int, bias: bool = False) -> Projection:
        """A projection whose input is split over the tensor ranks."""
        vector = self.vector(f"{name}.bias", rows, 0.0) if bias else None
        return Projection(self.matrix(name, rows, columns, 1), vector)

    def whole(self, name: str, rows: int, columns: int, bias: bool = False) -> Projection:
        """A projection that every tensor rank holds and applies to its own tokens."""
        vector = self.vector(f"{name}.bias", rows, 0.0) if bias else None
        return Projection(self.matrix(name, rows, columns, None), vector)

    def unit(self, name: str, weights: Sequence[Weight], experts: bool = False) -> Unit:
        """Lay `weights` out in one unit, sharded as dense weights or as experts are."""
        groups = self.groups
        sharding = Sharding(
            zero_stage=self.layout.zero_stage,
            shard=groups.expert_shard if experts else groups.shard,
            replicas=groups.expert_replicas if experts else groups.replicas,
            dtype=self.dtype,
            device=self.device,
        )
        return Unit(name, list(weights), sharding, self.ledger)

    def maybe_recompute(self, module: RecomputeModule, selective: bool) -> Callable[..., Tensor]:
        """`call(function, *inputs)`: replayed in backward if the layer recomputes `module`."""
        if selective and module in self.layout.selective_modules:
            return lambda function, *inputs: Recompute.apply(function, *inputs)
        return lambda function, *inputs: function(*inputs)


class Norm:
    """The model's norm over the last dimension, `width` wide; `eps` where it is not the model's."""

    def __init__(self, local: Local, name: str, width: int, eps: float | None = None) -> None:
        self.kind, self.eps = local.model.norm, local.norm_epsilon if eps is None else eps
        fill = {"rmsnorm": (1.0,), "layernorm": (1.0, 0.0), "none": ()}[self.kind]
        self.weights = [
            local.vector(f"{name}.{part}", width, value)
            for part, value in zip(("weight", "bias"), fill, strict=False)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """The normed rows of `x`."""
        y: Tensor
        if self.kind == "rmsnorm":
            y = RmsNorm.apply(x, self.weights[0], self.eps)
        else:
            y = LayerNorm.apply(x, *(self.weights or (None, None)), self.eps)
        return y
