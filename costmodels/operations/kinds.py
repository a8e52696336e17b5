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
from typing import Literal, NamedTuple

from meshplan.costmodels.elementwise import Condition, Number
from meshplan.hardware_profiles.dataclass import dataclass

Module = Literal[
    "core_attention", "layernorm", "mla_up_proj", "moe_act", "mlp", "shared_experts", "moe",
    "norm", "pointwise", "input", "linear", "attention", "experts", "unread", "sum",
]  # fmt: skip
Axis = Literal["tp", "cp", "cp_in_node", "cp_between_nodes", "ep", "etp"]
"""The groups that a layer's collectives run over; those of cp are also cut into their ranks of one
node, and into the ranks that have the same place on each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """A linear layer on one rank: `groups` independent (m x k) @ (k x n) products.

    recipe       whether the number format of the training applies (else 16 bit: head, router,
                 embeddings)
    in_16_bit    this layer computes in 16 bits even so
    casts        of its input, and as many of its output's gradient, where the format needs any
    cast_shares  fractions of the input's rows and of the gradient's that this rank casts: below 1
                 where ranks gather rows that each has cast
    parts        products over parts of the rows that the weight's gradient is the sum of
    joined       weights that are multiplied as one, and have an adapter each
    key_columns  columns of the key's weight, where that is one of the joined
    apart        columns of each of the products that a framework without joined weights runs
    biased       whether it adds a bias
    unaligned    whether rows of its output begin at addresses that are no multiples of 16 bytes
    kept_cast    in 8-bit training its output is kept for the backward in 8 bits
    imbalance    rows over those of the mean rank; the model's FLOPs count the mean rank's
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
    apart: tuple[Number, ...] = ()
    biased: bool = False
    unaligned: Condition = False
    kept_cast: bool = False
    imbalance: Number = 1.0
    saved_bytes: Number = 0.0
    modules: tuple[Module, ...] = ("linear",)

    @property
    def forward_flops(self) -> Number:
        """2 m n k for each group."""
        return 2.0 * self.m * self.n * self.k * self.groups


class ScoreOperators(NamedTuple):
    """What PyTorch's operators on a stored score do beyond one kernel that scales, masks and takes
    the softmax: bytes that they move and kernels, forward and backward, and bytes that they keep.
    """

    moved: tuple[float, float] = (0.0, 0.0)
    kernels: tuple[int, int] = (0, 0)
    kept: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCore:
    """softmax(q k^T) v on one rank.

    keys        average number of keys that one query meets (causal and window already applied)
    all_keys    the same without the causal mask, for FLOP conventions that ignore it
    fused       FlashAttention: nothing of size queries x keys is stored
    softmax_apart
                1 where scale, mask and softmax of stored scores are operators of PyTorch's and not
                one kernel
    apart       what such operators do beyond the one kernel
    chosen      each query has its own list of keys, read by index (sparse attention)
    wide        its heads are wider than the usual kernels take
    sinks_s     seconds that a slow kernel for attention sinks adds backward
    chunk       tokens of a chunk where context parallelism cuts a sequence into 2 cp of them: a
                rank has two, each in a kernel for its own keys and one for earlier ones; 0: one
                kernel for all
    in_turn     kernels, one after the other, that each meet as many of the keys
                (`operations.attention.pytorch_ring`)
    masked_keys  keys that the kernel multiplies where its mask is a tensor, whatever it hides; 0:
                 `keys`
    """

    name: str
    queries: Number
    keys: Number
    all_keys: Number
    heads: Number
    head_dim: int
    v_head_dim: int
    fused: bool
    softmax_apart: Number = 0.0
    apart: ScoreOperators = ScoreOperators()
    chosen: bool = False
    wide: bool = False
    sinks_s: Number = 0.0
    chunk: Number = 0.0
    in_turn: Number = 1.0
    masked_keys: Number = 0.0
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

    issued_share  of the launches, those that the host issues: others are part of a library's call
    operators    of PyTorch's own that the host issues one by one beside them, forward and backward
    forward_flops  of products inside them that are too narrow for more than memory's rate
    in_16_bit    what it hands to a product is kept in 16 bits, whatever the training's format
    kept_cast    see `Matmul`
    remade_bytes  of the output that the backward pass makes again instead (`operations.remade`)
    read_bytes   of its input, which is kept where it runs again without the product that made it
    measured_as  the names under which a profile of the machine itself has their rates, forward and
                 backward; what it does not have moves at the mean rate
    """

    name: str
    forward_bytes: Number
    backward_bytes: Number
    kernels: Number = 1
    issued_share: Number = 1.0
    operators: tuple[Number, Number] = (0.0, 0.0)
    forward_flops: Number = 0.0
    in_16_bit: bool = False
    kept_cast: bool = False
    measured_as: tuple[str, str] = ("", "")
    saved_bytes: Number = 0.0
    remade_bytes: Number = 0.0
    read_bytes: Number = 0.0
    modules: tuple[Module, ...] = ("pointwise",)


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router sends copies of a token to experts.

    copies              of each token, one to each expert that it visits
    groups, top_groups  the copies go to the best `top_groups` of so many groups of experts; 0: to
                        any expert
    cycle               of a benchmark's gate: tokens take the experts in turn, each token the ones
                        after the last token's, and so many experts make a round; 0: tokens choose
    """

    copies: int = 1
    groups: int = 0
    top_groups: int = 0
    cycle: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Collectives on the critical path of a layer; each moves `size_bytes`, the whole array.

    kind       of each of them; an all-reduce is listed as a reduce-scatter and an all-gather
    forward_count, backward_count
               how many in each direction; a gather in 8 bits counts as half of one
    regathers  those of `backward_count` that gather the input of a trained weight again
    routing    of a dispatch's tokens, which an engine may send once to each node
    hidden_by  the computing under which the engine may run it. "linear": the neighbouring matmul;
               "attention": the core attention (ring); "first_chunk": the core attention of the
               first of cp chunks of keys; "expert": the experts; "experts_up", "experts_down": that
               product alone, whose kernel sends or fetches; "nothing"
    present    1 in the layouts where the host issues it if there are several ranks, else 0
    differentiable
               whether autograd runs through it; not of whole numbers, counts and maps
    kept_cast  see `Matmul`
    scattered_bytes  what this rank gets of a reduce-scatter, where ranks share sequences
    """

    name: str
    axis: Axis
    kind: Literal["all_gather", "reduce_scatter", "all_to_all"]
    size_bytes: Number
    forward_count: Number
    backward_count: Number
    regathers: Number = 0.0
    routing: Routing = Routing()
    hidden_by: Literal[
        "linear", "attention", "first_chunk", "expert", "experts_up", "experts_down", "nothing"
    ]  # fmt: skip
    present: Number = 1
    differentiable: bool = True
    modules: tuple[Module, ...] = ("linear",)
    saved_bytes: Number = 0.0
    kept_cast: bool = False
    scattered_bytes: Number = 0.0


Operation = Matmul | AttentionCore | Scan | Pointwise | Communication


def matrices(operations: Iterable[Operation]) -> Number:
    """How many weights these operations multiply by."""
    return sum(op.joined * op.groups for op in operations if isinstance(op, Matmul))
