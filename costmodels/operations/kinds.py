"""The operations of a training step: shapes and bytes, from which FLOPs, memory and seconds follow.

A matrix product of m x k by k x n costs 2 m n k FLOPs forward and twice that backward: once for the
gradient of its input (m x n by n x k) and once for that of its weight (k x m by m x n).

    m, n, k        rows, columns and inner size on one rank; rows are tokens
    forward_bytes  what a pointwise kernel reads and writes, forward
    saved_bytes    bytes of the operation's *output* that stay until the backward of the micro-batch

`saved_bytes` is charged to the operation that produced the tensor, so replaying an operation in the
backward (recompute) drops exactly its own bytes and costs exactly its own forward.

Every number may be a numpy array over many layouts: see `costmodels.layouts`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from meshplan.costmodels.elementwise import Number

Module = Literal[
    "core_attention", "layernorm", "mla_up_proj", "moe_act", "mlp", "shared_experts", "moe",
    "norm", "pointwise", "input", "linear", "attention", "experts", "unread",
]  # fmt: skip
Axis = Literal["tp", "cp", "cp_in_node", "cp_between_nodes", "ep", "etp"]
"""The groups that a layer's collectives run over; those of cp are also cut into their ranks of one
node, and into the ranks that have the same place on each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """A linear layer on one rank: `groups` independent (m x k) @ (k x n) products.

    recipe   whether the number format of the training applies (else 16 bit: head, router,
             embeddings)
    in_16_bit  the layer keeps 16 bits all the same
    casts    of its input, and of its output's gradient, where that format needs them
    cast_shares
             of the rows of each that this rank casts: less than all where it gathers cast ones
    parts    of the rows, each with a product of its own, whose sum is the weight's gradient
    joined   weights that are multiplied as one, and have an adapter each
    key_columns  of them those of the key, where it is one of the joined
    kept_cast  in 8-bit training its output is kept for the backward in 8 bits
    imbalance  rows over those of the mean rank, which are what the model's FLOPs count
    """

    name: str
    m: Number
    n: Number
    k: Number
    groups: Number = 1
    recipe: bool = True
    in_16_bit: bool = False
    casts: int = 1
    cast_shares: tuple[Number, Number] = (1.0, 1.0)
    parts: Number = 1
    joined: int = 1
    key_columns: Number = 0
    kept_cast: bool = False
    imbalance: Number = 1.0
    saved_bytes: Number = 0.0
    modules: tuple[Module, ...] = ("linear",)

    @property
    def forward_flops(self) -> Number:
        """2 m n k for each group."""
        return 2.0 * self.m * self.n * self.k * self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCore:
    """softmax(q k^T) v on one rank.

    keys        average number of keys that one query meets (causal and window already applied)
    all_keys    the same without the causal mask, for FLOP conventions that ignore it
    fused       FlashAttention: nothing of size queries x keys is stored
    chosen      each query meets keys of its own, read by number (sparse attention)
    sinks_s     what a slow kernel for sinks takes longer backward
    chunk       tokens of each of the 2 cp chunks of a sequence that context parallelism makes (a
                rank has two, which run apart on their own keys and on earlier ones); 0: one kernel
    """

    name: str
    queries: Number
    keys: Number
    all_keys: Number
    heads: Number
    head_dim: int
    v_head_dim: int
    fused: bool
    chosen: bool = False
    sinks_s: Number = 0.0
    chunk: Number = 0.0
    saved_bytes: Number = 0.0
    modules: tuple[Module, ...] = ("core_attention",)

    @property
    def forward_flops(self) -> Number:
        """2 x queries x keys x heads x (head_dim + v_head_dim)."""
        return 2.0 * self.queries * self.keys * self.heads * (self.head_dim + self.v_head_dim)

    @property
    def narrowest(self) -> int:
        """The narrower of its two products; an indexer's second sums over heads, or is none."""
        return self.head_dim if self.v_head_dim <= 1 else min(self.head_dim, self.v_head_dim)

    @property
    def full_forward_flops(self) -> Number:
        """The same, counting keys behind the causal mask too."""
        return 2.0 * self.queries * self.all_keys * self.heads * (self.head_dim + self.v_head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A recurrence over chunks of tokens, on one rank; its backward does twice as much.

    kernels, backward_kernels  that the host issues forward and backward
    """

    name: str
    forward_flops: Number
    forward_bytes: Number
    kernels: int = 5
    backward_kernels: int = 21
    saved_bytes: Number = 0.0
    modules: tuple[Module, ...] = ("core_attention",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise:
    """Kernels bound by memory bandwidth; `kernels` launches forward and about as many backward.

    operators    of PyTorch's own that the host issues one by one beside them, forward and backward
    forward_flops  of products inside them that are too narrow for more than memory's rate
    in_16_bit    what it hands to a product is kept in 16 bits, whatever the training's format
    kept_cast    see `Matmul`
    measured_as  the names under which a profile of the machine itself has their rates, forward and
                 backward; what it does not have moves at the mean rate
    """

    name: str
    forward_bytes: Number
    backward_bytes: Number
    kernels: int = 1
    operators: tuple[Number, Number] = (0.0, 0.0)
    forward_flops: Number = 0.0
    in_16_bit: bool = False
    kept_cast: bool = False
    measured_as: tuple[str, str] = ("", "")
    saved_bytes: Number = 0.0
    modules: tuple[Module, ...] = ("pointwise",)


@dataclass(frozen=True, slots=True)
class Routing:
    """The copies that are made of each token, and how many of how many groups of experts they go
    to (0 groups: to any expert).

    cycle  experts that tokens go round in order, each token to those behind the last one's, as a
           benchmark's gate does; 0: they choose
    """

    copies: int = 1
    groups: int = 0
    top_groups: int = 0
    cycle: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Collectives on the critical path of a layer; each moves `size_bytes`, the whole array.

    kind          of each of them; an all-reduce is written as the reduce-scatter and all-gather it
                  is
    forward_count, backward_count  how many of them in each direction, a gather of 8 bits as half

    regathers  of `backward_count`, those that bring back the input of a trained weight
    routing    of the tokens of a dispatch, which an engine may send once to each node
    hidden_by  "linear": the engine may run it under the neighbouring matmul; "attention": under the
               core attention (ring); "first_chunk": under that of the first of cp chunks of keys;
               "expert": under the experts; "nothing"
    present    1 in the layouts that have it, 0 in the others
    kept_cast  see `Matmul`
    """

    name: str
    axis: Axis
    kind: Literal["all_gather", "reduce_scatter", "all_to_all"]
    size_bytes: Number
    forward_count: Number
    backward_count: Number
    regathers: Number = 0.0
    routing: Routing = Routing()
    hidden_by: Literal["linear", "attention", "first_chunk", "expert", "nothing"]
    present: Number = 1
    modules: tuple[Module, ...] = ("linear",)
    saved_bytes: Number = 0.0
    kept_cast: bool = False


Operation = Matmul | AttentionCore | Scan | Pointwise | Communication


def matrices(operations: Iterable[Operation]) -> Number:
    """How many weights these operations multiply by."""
    return sum(op.joined * op.groups for op in operations if isinstance(op, Matmul))
