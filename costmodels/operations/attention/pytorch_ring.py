"""PyTorch's context parallelism: attention to one rank's keys after the other, merged outside.

    h      hops, the kernels after the first           cp - 1
    q, o   bytes of this rank's queries and outputs    2 t a d, 2 t a d_v
    kv     of its keys and values                      2 t a_kv (d + d_v)

Each rank has two chunks of a causal sequence, one from either end. Its own keys it meets under a
mask; of each other rank's as many pairs are left, all of half the queries or of half the keys: cp
kernels of as many products each. Their outputs and log-sum-exps are merged in fp32, by operators of
PyTorch's or by what the compiler makes of them (`KernelHabits.context_merge`). Of a hop they move

    operators  forward   a cast 3 o, out - block 6, times the sigmoid 4, out less that 6; keys and
                         values joined to be sent 2 kv
               backward  dq added 5 q; dk and dv added to half of what came 2.5 kv, both halves
                         joined 4, joined to be sent 4, keys and values joined 2
    compiled   forward   out, block and sum 5 o
               backward  dq in the sum of all 1 q; dk and dv added in the copy that is sent 4.5 kv

and once beside them: forward a cast of the first output and of the last sum, 3 o each, and of keys
and values a copy in their order, 2 kv; backward that copy, zeros 2 q + 2 kv, the first sums
5 (q + kv), put in order 4 kv and joined 4 kv, casts of the sums 3 (q + kv). Compiled, what is
merged first comes in 16 bits and what is merged last leaves so: 2 o less, and 2 kv; backward the
sum of dq 2 q, and 8 kv: a copy, the first sums joined 3, a cast 3. What the compiler makes was not
looked at in a trace.

Keys and values are gathered once a pass, or go round ("ring"); their gradients always go round, in
fp32, cp times: one hop more than keys do, for whose end nothing is left to compute.

Source: pytorch/pytorch v2.13.0 torch/distributed/tensor/experimental/_context_parallel/
_attention.py, `_templated_ring_attention`, `_templated_ring_attention_backward`, `_SDPAMerger`,
`_partial_update`; Llama 3 8B's and TRL's layers hand keys and values over transposed. Counted is
the last rank: it has all queries in each hop, the first rank half of them, for which forward a
third less is moved; ranks wait for each other in each layer. Leaves out: the log-sum-exps
themselves, one number for d_v of the output; the dispatch of DTensors around it.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from meshplan.costmodels.elementwise import Number, maximum, where
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Operation, Pointwise

OPERATORS: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "operators": ((4, 10), (13, 7)),
    "compiled": ((1, 1), (3, 1)),
}
"""That launch kernels beside attention's own, forward and backward, once and of a hop: two casts
and two copies; a cast, five differences, sigmoid, logsigmoid, a product and a joining of keys and
values. Backward four copies, three zeros, three sums, a joining and two casts; three sums and four
joinings. Compiled, one that merges or adds for each hop.
"""
PERMUTE_OPERATORS = {"operators": 15, "compiled": 1}
"""Of the host, `permute_tensor` takes as long as so many: 0.12 ms, in Python (torch 2.13 with its
fake process group on an AMD EPYC of Zen 4, 2026-11-29; a hop's ten operators took 0.07 there).
What is compiled calls the collective itself.
"""


def merges_outside(site: Site, attention: Attention) -> bool:
    """Whether the engine runs PyTorch's ring, which balances causal attention alone and knows of no
    windows. FlexAttention gathers keys and values for one kernel (`_ContextParallel.flex_input_fn`
    of the same file).
    """
    plain = attention.causal and not (attention.window or attention.compression)
    by_ring = site.kernels.context_merge and site.kernels.attention != "flex"
    return bool(by_ring) and plain and not attention.is_absorbed


def _in_ring(site: Site, attention: Attention) -> Number:
    """1 in the layouts whose sequences PyTorch's ring cuts, 0 in others."""
    if not merges_outside(site, attention):
        return 0.0
    by_keys = site.meets_keys_by("ring") | site.meets_keys_by("all_gather")
    return where((site.shard.cp > 1) & by_keys, 1.0, 0.0)


def kernels_in_turn(site: Site, attention: Attention) -> Number:
    """In how many kernels the core attention is computed."""
    there = _in_ring(site, attention)
    return 1.0 + there * (site.shard.cp - 1) if np.any(there) else 1.0


def ring_operations(site: Site, attention: Attention, kv: Number) -> Iterator[Operation]:
    """Gradients on their way, and what merges the hops; `kv` bytes of keys and values here."""
    there, cp = _in_ring(site, attention), site.shard.cp
    if not np.any(there):
        return
    hop = kv if site.itemsize == 4.0 else 2 * kv
    yield _gradients("key_value_gradients", cp * hop, there, "attention")
    yield _gradients("last_gradients", cp / maximum(cp - 1.0, 1.0) * hop, there, "nothing")
    yield _merges(site, attention, kv, there)


def _gradients(
    name: str, size_bytes: Number, there: Number, hidden_by: Literal["attention", "nothing"]
) -> Communication:
    """Hops of a ring, as a gather of `size_bytes` makes them; the host's part is `_merges`'."""
    return Communication(
        name=name, axis="cp", kind="all_gather", size_bytes=size_bytes, forward_count=0.0,
        backward_count=there, hidden_by=hidden_by, present=0.0, modules=("core_attention",),
    )  # fmt: skip


def _merges(site: Site, attention: Attention, kv: Number, there: Number) -> Pointwise:
    t, heads = site.shard.tokens, attention.heads / site.shard.tp
    q = site.itemsize * t * heads * attention.head_dim
    out = site.itemsize * t * heads * attention.v_head_dim
    by = site.kernels.context_merge
    hops, rounds = site.shard.cp - 1.0, 1.0 * site.meets_keys_by("ring")
    moved = _moved_compiled if by == "compiled" else _moved_by_operators
    forward_bytes, backward_bytes = moved(hops, q, out, kv)
    forward, backward = (once + hops * each for once, each in OPERATORS[by])
    permute = PERMUTE_OPERATORS[by]
    sent = permute * hops * rounds, permute * (hops * rounds + hops + 1)
    return Pointwise(
        name="context_merge", forward_bytes=there * forward_bytes, kernels=there * forward,
        backward_bytes=there * backward_bytes, issued_share=0.0,
        operators=(there * (forward + sent[0]), there * (backward + sent[1])),
        modules=("core_attention",),
    )  # fmt: skip


def _moved_by_operators(hops: Number, q: Number, out: Number, kv: Number) -> tuple[Number, Number]:
    forward = (6 + 19 * hops) * out + (2 + 2 * hops) * kv
    return forward, (10 + 5 * hops) * q + (20 + 12.5 * hops) * kv


def _moved_compiled(hops: Number, q: Number, out: Number, kv: Number) -> tuple[Number, Number]:
    return (5 * hops - 2) * out + 2 * kv, (2 + hops) * q + (8 + 4.5 * hops) * kv
