"""Norms of a layer: kernels of their own, fused or by PyTorch's operators, and what they keep.

A fused norm of s bytes moves 2 s forward and 3 s backward, 3 s and 5 s of an input in fp32; of an
engine without fused norms `KernelHabits.own_norm_bytes`, and six kernels instead of one.
"""

from collections.abc import Iterator

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.operations.feed_forward import Site, own_operators
from meshplan.costmodels.operations.kinds import Matmul, Module, Operation, Pointwise

MEASURED_NORMS = {
    "rmsnorm": ("rms_norm", "rms_norm_backward"),
    "layernorm": ("layer_norm", "layer_norm_backward"),
    "layernorm_without_bias": ("layer_norm", "layer_norm_backward"),
    "none": ("", ""),
}


def norm_module(site: Site, *, apart: bool) -> Module | None:
    """The recompute module of a norm that is its own kernel: where `apart`, or where the engine
    fuses no norm into the product behind it; else None.
    """
    return "layernorm" if apart or not site.kernels.norms_in_products else None


def norm(site: Site, name: str, module: Module | None = None) -> Pointwise:
    """RMSNorm or LayerNorm over the tokens outside the matmuls; the next matmul reads it."""
    width = site.stream_bytes
    forward_bytes, backward_bytes = _norm_bytes(site, width, wide=site.kernels.wide_stream)
    outputs = max(site.model.norms_per_layer / 2, 1)  # Gemma normalises the outputs too
    kernels = round(_norm_kernels(site) * outputs)
    own = own_operators(site, kernels, round(outputs))
    return Pointwise(
        name=name,
        forward_bytes=forward_bytes * outputs,
        backward_bytes=backward_bytes * outputs,
        kernels=kernels,
        issued_share=1.0 - own / kernels,
        operators=(own, own),
        measured_as=MEASURED_NORMS[site.model.norm],
        saved_bytes=width * _kept_norms(site) * outputs,
        modules=("norm", "pointwise", *([module] if module else [])),
    )


def inner_norm(
    site: Site, name: str, size: Number, number: int, also: tuple[Module, ...] = ()
) -> Pointwise:
    """So many RMSNorms over `size` bytes of other widths than the hidden one; they are kept."""
    forward_bytes, backward_bytes = _norm_bytes(site, size)
    kernels = number * _norm_kernels(site)
    own = own_operators(site, kernels, number)
    return Pointwise(
        name=name,
        forward_bytes=forward_bytes,
        backward_bytes=backward_bytes,
        kernels=kernels,
        issued_share=1.0 - own / kernels,
        operators=(own, own),
        measured_as=MEASURED_NORMS["rmsnorm"],
        saved_bytes=size,
        modules=("norm", "pointwise", *also),
    )


def norm_gate(site: Site, rank: int, name: str) -> Iterator[Operation]:
    """A norm's output times the sigmoid of a feed-forward of it, h x rank and rank x h (A.X-K2,
    transformers 5.24 `modeling_axk2.py`); kept are the norm's output, the narrow numbers, the gate
    and what it makes of the output.
    """
    t, size = site.shard.tokens_outside, site.stream_bytes
    narrow = site.itemsize * t * rank
    yield Matmul(name=f"{name}_down", m=t, n=rank, k=site.model.hidden, recipe=False,
                 saved_bytes=2 * narrow)  # fmt: skip
    yield Matmul(
        name=f"{name}_up", m=t, n=site.model.hidden, k=rank, recipe=False, saved_bytes=size
    )
    yield Pointwise(name=name, forward_bytes=3 * size, backward_bytes=5 * size, saved_bytes=size)


def _norm_bytes(site: Site, size: Number, *, wide: bool = False) -> tuple[Number, Number]:
    """Moved forward and backward by a norm of `size` bytes, in one kernel or in several; `wide`: of
    an input in fp32.
    """
    if site.kernels.fused_norm:
        return (3 * size, 5 * size) if wide else (2 * size, 3 * size)
    forward, backward = site.kernels.own_norm_bytes
    return forward / 2 * size, backward / 2 * size


def _norm_kernels(site: Site) -> int:
    return 1 if site.kernels.fused_norm else 6


def _kept_norms(site: Site) -> Number:
    """Tensors that a norm keeps for the backward: its output (unless the copy that is gathered for
    tensor parallelism is kept in its place) and, unfused, two intermediates.
    """
    intermediates = 0.0 if site.kernels.fused_norm else 2.0
    return intermediates + where(site.kernels.saves_gathered and site.shard.tp > 1, 0.0, 1.0)
