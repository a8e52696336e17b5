"""What a model file says in words: what was assumed, and what is in none of its numbers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from meshplan.executor.trace.layer import Recorded, not_for_each_token
from meshplan.hardware_profiles.traced_model import TracedLayer

CUT = {
    "column": "column parallel, into a mixer or feed-forward",
    "row": "row parallel, out of it",
    "narrow": "row parallel in between, its narrow output whole",
    "whole": "whole on each tensor-parallel rank",
    "own": "whole on each rank, for its own tokens",
    "expert_in": "experts' first, by expert parallelism and columns",
    "expert_out": "experts' last, by expert parallelism and rows",
}
MOST_NAMES = 12


@dataclass(frozen=True, slots=True)
class Ends:
    """Parameters beside the layers: of the norm before the head, of all else; what is left out."""

    final_norm: int
    others: int
    left_out: tuple[str, ...]


def ends_of(module: Any, inside: str, ran: set[str], ran_last: set[str]) -> Ends:
    """What is beside the layers (all that is under the path `inside`), embedding and head apart."""
    final, others, idle, left = 0, 0, Counter[str](), list[str]()
    for path, each, size in _beside(module, inside):
        if path and path not in ran:
            idle[".".join(path.split(".")[:2])] += size
        elif path in ran_last and not final and _is_norm(each):
            final = size
        else:
            others += size
            if isinstance(each, nn.Linear):
                sizes = f"{each.in_features} x {each.out_features}"
                left.append(f"seconds of {path} ({sizes}), a product beside the layers")
    left += [f"{top}: {size:,} parameters of modules that do not run on text alone"
             for top, size in idle.items()]  # fmt: skip
    return Ends(final, others, tuple(left))


def _beside(module: Any, inside: str) -> Iterator[tuple[str, nn.Module, int]]:
    """Modules beside the layers with parameters of their own, and how many these are."""
    head = module.get_output_embeddings()
    ends = [each for each in (module.get_input_embeddings(), head) if each is not None]
    known = {id(each.weight) for each in ends}
    for path, each in module.named_modules():
        size = sum(p.numel() for p in each.parameters(recurse=False) if id(p) not in known)
        if size and each is not head and not f"{path}.".startswith(f"{inside}."):
            yield path, each, size


def _is_norm(module: nn.Module) -> bool:
    return all(each.dim() == 1 for each in module.parameters(recurse=False))


def not_attributed(kind: Recorded) -> Iterator[str]:
    """What this layer computes that is in no number of the file."""
    yield from not_for_each_token(kind)
    flow = kind.flows[1]
    handed_on = flow.numbers(flow.record.output) // flow.tokens
    if handed_on != flow.hidden:
        yield (f"{kind.name} hands on {handed_on} numbers of a token: what a pipeline sends, and "
               f"what an end holds, is priced for {flow.hidden}")  # fmt: skip
    for each in sorted({each.name for each in flow.record.kernels
                        if each.kind == "state" and not any(each.sizes)}):  # fmt: skip
        yield f"{kind.name}: {each}, by torch's FLOP counter, is priced as a product of activations"


def assumed(layers: Sequence[TracedLayer]) -> Iterator[str]:
    """What the numbers of these layers rest on and the trace does not show."""
    for split, words in CUT.items():
        names = [each.name for layer in layers for each in layer.products if each.split == split]
        if names:
            yield f"{words}: {_listed(list(dict.fromkeys(names)))}"
    yield "weights that no product reads (norms, convolutions, decays) are whole on each rank"
    if any(each.window is None for layer in layers for each in layer.attention):
        yield "attention is causal, over all earlier tokens where its module names no window"
        yield "masks are not seen: chunks, and keys that an indexer chose"
    if any(layer.state_flops or layer.state_flops_per_key for layer in layers):
        yield ("products of activations with each other run as transformers' own code has them, at "
               "the rate of a scan; fused kernels may compute less")  # fmt: skip
    yield from _of_experts(layers)


def _of_experts(layers: Sequence[TracedLayer]) -> Iterator[str]:
    found = {layer.experts for layer in layers if layer.experts}
    for experts in sorted(found, key=lambda each: each.experts):
        if experts.top_k == experts.experts:
            yield f"every one of {experts.experts} experts computes every token"
        else:
            yield f"tokens are spread evenly over {experts.experts} experts"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"
