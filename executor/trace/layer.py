"""One kind of layer as a model file states it, from its records at two lengths of a sequence.

What grows with the tokens and what with their pairs is told apart by the two: F(t) = a t + b t^2.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from meshplan.executor.trace.flow import Flow
from meshplan.hardware_profiles.traced_model import (
    TracedAttention,
    TracedBytes,
    TracedExperts,
    TracedLayer,
    TracedProduct,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A layer's records at two lengths, the shorter first; `parameters` by name, their sizes."""

    name: str
    layers: int
    parameters: dict[str, int]
    flows: tuple[Flow, Flow]


def traced_layer(kind: Recorded) -> TracedLayer:
    """What one token costs in this layer."""
    flow = kind.flows[1]
    cut, routed = _weights(kind)
    written_out = _written_out(flow)
    attention = [each.attention for each in flow.record.kernels if each.kind == "attention"]
    attention += written_out
    state, state_pairs = _by_length(kind, _state_flops)
    saved, pairs = _bytes_by_length(kind, _saved)
    if written_out:  # its scores are the engine's kernel's
        pairs = 0.0
    moved, _ = _bytes_by_length(kind, _moved)
    return TracedLayer(
        name=kind.name, layers=kind.layers, parameters=sum(kind.parameters.values()),
        cut_parameters=cut, routed_parameters=routed, products=tuple(_products(kind)),
        attention=tuple(TracedAttention(heads=a, kv_heads=g, head_dim=d, v_head_dim=v, window=w)
                        for a, g, d, v, w in attention),
        experts=_experts(kind), entries=_entries(flow), state_flops=state,
        state_flops_per_key=state_pairs, mixed_by=tuple(_mixed_by(kind)), saved=saved,
        saved_per_key=pairs, fused_saved=_bytes_by_length(kind, _fused_saved)[0], moved=moved,
        fused_moved=_bytes_by_length(kind, _fused_moved)[0],
        kernels=sum(each.kind not in ("product", "attention", "state")
                    for each in flow.record.kernels),
        fused_kernels=sum(not (each.moves_rows and flow.copies) for each in flow.chains),
    )  # fmt: skip


def not_for_each_token(kind: Recorded) -> Iterator[str]:
    """Products whose rows do not grow with the tokens: not in the file's numbers."""
    short, long = (_rows(flow) for flow in kind.flows)
    for key, rows in long.items():
        if _rows_per_token(kind, short[key], rows) is None:
            name, groups, k, n, _ = key
            sizes = f"{groups} x {k} x {n}"
            yield f"{kind.name}: {name} ({sizes}) has {rows} rows for {kind.flows[1].tokens} tokens"


def _products(kind: Recorded) -> Iterator[TracedProduct]:
    short, long = (_rows(flow) for flow in kind.flows)
    for key, rows in long.items():
        name, groups, k, n, split = key
        each = _rows_per_token(kind, short[key], rows)
        if each is not None:
            apart = split not in ("expert_in", "expert_out")
            yield TracedProduct(name=name, n=n, k=k, groups=groups, split=split,  # type: ignore[arg-type]
                                rows=each // groups if apart else each)  # fmt: skip


def _rows_per_token(kind: Recorded, short: int, long: int) -> int | None:
    each = long // kind.flows[1].tokens
    proportional = all(rows == each * flow.tokens
                       for rows, flow in zip((short, long), kind.flows, strict=True))  # fmt: skip
    return each if proportional and each else None


def _rows(flow: Flow) -> Counter[tuple[str, int, int, int, str]]:
    """Rows of all groups by the product's name, sizes and split."""
    found: Counter[tuple[str, int, int, int, str]] = Counter()
    for at, kernel in flow.products.items():
        groups, _, k, n = kernel.sizes
        found[kernel.weight, groups, k, n, flow.splits[at]] += flow.rows(kernel)
    return found


def _weights(kind: Recorded) -> tuple[int, int]:
    """Parameters that tp cuts and those that ep does, biases of column products among the first."""
    flow = kind.flows[1]
    splits = {kernel.weight: flow.splits[at] for at, kernel in flow.products.items()}
    biases = {name.rpartition(".")[0] + ".bias" for name, split in splits.items()
              if split == "column" and name.endswith(".weight")}  # fmt: skip
    cut = {name for name, split in splits.items() if split in ("column", "row", "narrow")} | biases
    routed = {name for name, split in splits.items() if split in ("expert_in", "expert_out")}
    return _sum_of(kind, cut), _sum_of(kind, routed)


def _sum_of(kind: Recorded, names: set[str]) -> int:
    return sum(size for name, size in kind.parameters.items() if name in names)


def _experts(kind: Recorded) -> TracedExperts | None:
    flow = kind.flows[1]
    out = [kernel for at, kernel in flow.products.items() if flow.splits[at] == "expert_out"]
    if not out:
        return None
    groups, _, ffn, outer = out[-1].sizes
    top_k = max(flow.rows(out[-1]) // flow.tokens, 1)
    return TracedExperts(experts=groups, top_k=top_k, ffn=ffn, outer=outer)


def _entries(flow: Flow) -> int:
    """Tensors of the whole stream that products of all tokens read."""
    read = {value for at, kernel in flow.products.items()
            if flow.splits[at] in ("column", "whole") for value in kernel.reads}  # fmt: skip
    return len({value for value in read if flow.parts.get(value) == "stream"})


def _mixed_by(kind: Recorded) -> Iterator[str]:
    """What mixes tokens beside attention, in words: each is seen by the kernels that it takes."""
    short, long = (flow.record.kernels for flow in kind.flows)
    kinds = {each.kind for each in long}
    if "convolution" in kinds:
        yield "a convolution"
    if "state" in kinds:
        yield "products of activations with each other"
    if len(long) > len(short):
        yield "a loop over tokens"


def _state_flops(flow: Flow) -> float:
    """Of products of activations with each other, attention that is written out apart."""
    total = sum(each.flops for each in flow.record.kernels if each.kind == "state")
    written = sum(2 * a * flow.tokens**2 * (d + v) for a, _, d, v, _ in _written_out(flow))
    return float(total - written)


def _written_out(flow: Flow) -> list[tuple[int, int, int, int, None]]:
    """Attention as two products, of all queries with all keys and of the scores with values."""
    found = [each.sizes for each in flow.record.kernels if each.kind == "state"]
    scores = [(heads, k) for heads, rows, k, n in found
              if rows == n == flow.tokens and k != flow.tokens]  # fmt: skip
    values = [(heads, n) for heads, rows, k, n in found
              if rows == k == flow.tokens and n != flow.tokens]  # fmt: skip
    pairs = zip(scores, values, strict=False)
    same = len(scores) == len(values) and all(a == b for (a, _), (b, _) in pairs)
    return [(heads, heads, d, v, None)
            for (heads, d), (_, v) in zip(scores, values, strict=True)] if same else []  # fmt: skip


def _saved(flow: Flow) -> dict[str, float]:
    return _bytes_of(flow, (flow.record.saved & flow.own) - _statistics(flow))


def _fused_saved(flow: Flow) -> dict[str, float]:
    """What chains need, what products read, and what attention reads and writes.

    Of a copy in another type what it was made of is kept (a router's input in 32 bits, as in
    Megatron-LM@d98e8a64 core/transformer/moe/moe_utils.py RouterGatingLinearFunction). Attention
    keeps its operands, not the whole of a joint projection that they are views of (they are made
    contiguous: core/transformer/multi_latent_attention.py).
    """
    kept = {value for chain in flow.chains for value in chain.kept}
    for kernel in flow.record.kernels:
        if kernel.kind == "product":
            kept |= set(kernel.reads)
        if kernel.kind == "attention":
            kept |= set(kernel.writes)
    sources = _cast_from(flow)
    kept = {sources.get(value, value) for value in kept} & flow.own - _statistics(flow)
    found = defaultdict(float, _bytes_of(flow, kept))
    for value, size in _operands(flow).items():
        if value in flow.own and value not in kept:
            found[flow.parts.get(value, "stream")] += size
    return found


def _cast_from(flow: Flow) -> dict[int, int]:
    """For each copy in a wider type what it is a copy of."""
    values = flow.record.values
    return {value: kernel.reads[0] for kernel in flow.record.kernels if kernel.name == "_to_copy"
            for value in kernel.writes if value not in kernel.reads
            and values[value].nbytes > values[kernel.reads[0]].nbytes}  # fmt: skip


def _operands(flow: Flow) -> dict[int, float]:
    """Bytes of attention's queries, keys and values by the storage that they are in."""
    found: dict[int, float] = defaultdict(float)
    for kernel in flow.record.kernels:
        if kernel.kind == "attention":
            heads, kv_heads, d, d_v, _ = kernel.attention
            for value, width in zip(kernel.reads, (heads * d, kv_heads * d, kv_heads * d_v),
                                    strict=True):  # fmt: skip
                found[value] += 2.0 * flow.tokens * width
    sizes = flow.record.values
    return {value: min(size, sizes[value].nbytes) for value, size in found.items()}


def _statistics(flow: Flow) -> set[int]:
    """What attention keeps for itself, one number for each head: the price of its kernel has it."""
    return {value for each in flow.record.kernels if each.kind == "attention"
            for value in each.writes[1:]}  # fmt: skip


def _moved(flow: Flow) -> dict[str, float]:
    counted = [kernel for kernel in flow.record.kernels if kernel.kind not in
               ("product", "attention", "state")]  # fmt: skip
    return _added(flow, (v for each in counted for v in (*set(each.reads), *each.writes)))


def _fused_moved(flow: Flow) -> dict[str, float]:
    counted = [each for each in flow.chains if not (each.moves_rows and flow.copies)]
    return _added(flow, (v for chain in counted for v in (*chain.reads, *chain.writes)))


def _bytes_of(flow: Flow, values: Iterable[int]) -> dict[str, float]:
    return _added(flow, (v for v in set(values) if flow.record.values[v].floating))


def _added(flow: Flow, values: Iterable[int]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for value in values:
        found[flow.parts.get(value, "stream")] += flow.record.values[value].nbytes
    return found


def _bytes_by_length(
    kind: Recorded, measure: Callable[[Flow], dict[str, float]]
) -> tuple[TracedBytes, float]:
    """Bytes for each token by part, and for each pair of tokens of all parts together."""
    each, pairs = dict[str, float](), 0.0
    for part in ("stream", "whole", "cut", "copies"):
        each[part], pair = _by_length(kind, lambda flow, part=part: measure(flow).get(part, 0.0))  # type: ignore[misc]
        pairs += pair
    return TracedBytes(**each), pairs


def _by_length(kind: Recorded, measure: Callable[[Flow], float]) -> tuple[float, float]:
    """a and b of F(t) = a t + b t^2."""
    (t1, f1), (t2, f2) = ((flow.tokens, measure(flow)) for flow in kind.flows)
    b = (f2 / t2 - f1 / t1) / (t2 - t1)
    if abs(b) * t2 * t2 < 1e-3 * f2:  # constants beside what grows with tokens
        return f2 / t2, 0.0
    return max(f2 / t2 - b * t2, 0.0), max(b, 0.0)
