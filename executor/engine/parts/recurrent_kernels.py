"""Recurrent mixers' fused kernels as torch operators, as `kernels` has those of other layers.

    short_conv   silu of a causal convolution, a filter for each channel
    scan         a state of n x v numbers per head, carried from chunk to chunk      2405.21060
    gated_norm   a root-mean-square norm of groups of numbers, and a gate's silu
    gated_output a product with a gate's sigmoid                                     2505.06708

Tensors are (sequence, batch, heads, width), or (sequence, batch, channels) for the convolution.
A token's state S, its decay g = -exp(decay) dt with dt = softplus(a + step), and its output o:

    without b   S' = exp(g) S + k (dt v)^T                      o = S'^T q + skip v      (Mamba-2)
    with b      S' = exp(g) S + k u^T,  u = sigmoid(b) (v - exp(g) S^T k)       o = S'^T q
                of q and k of length one, q / sqrt(n)                  (gated DeltaNet, 2412.06464)

Within a chunk tokens meet by matrix products; what is kept is the state before each chunk. A
backward pass repeats a chunk's forward from its state. On a GPU the same plain torch runs, with
temporaries that a fused kernel would not have.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from meshplan.executor.engine.parts.kernels import define, like_first


def gradients(
    body: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor | None], dys: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of `inputs`, None for those that are None, by autograd through `body`."""
    with torch.enable_grad():
        leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
        made = body(*leaves)
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(made, wanted, dys))
    return [None if leaf is None else next(found) for leaf in leaves]


def _short_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = F.pad(x.permute(1, 2, 0), (weight.shape[1] - 1, 0))
    y = F.conv1d(rows, weight.unsqueeze(1), bias, groups=weight.shape[0])
    return F.silu(y).permute(2, 0, 1).contiguous()


def _short_conv_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    found = gradients(lambda *each: (_short_conv(*each),), (x, weight, bias), (dy,))
    dx, dw, db = found
    assert dx is not None
    assert dw is not None
    return dx.contiguous(), dw, x.new_empty(0) if db is None else db


def _short_conv_backward_meta(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    db = x.new_empty(0) if bias is None else torch.empty_like(bias)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), db


def _chunk(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None,
    decay: Tensor, step: Tensor, skip: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output of one chunk, and the state after it, in fp32."""
    q, k, v = (x.float().permute(1, 2, 0, 3) for x in (q, k, v))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    dt = F.softplus(a.float() + step.float()).permute(1, 2, 0)
    g = (-decay.float().exp()[:, None] * dt).cumsum(-1)
    ahead = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
    between = (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(ahead, -torch.inf).exp()
    since = g.exp().unsqueeze(-1)
    if b is None:
        u = v * dt.unsqueeze(-1)
    else:
        q, k = _unit(q) * q.shape[-1] ** -0.5, _unit(k)
        beta = b.float().sigmoid().permute(1, 2, 0).unsqueeze(-1)
        system = (beta * (k @ k.mT) * between).tril(-1)
        known = beta * (v - since * (k @ state))
        u = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    out = since * (q @ state) + ((q @ k.mT) * between) @ u
    if skip is not None:
        out = out + skip.float()[:, None, None] * v
    last = g[..., -1:]
    state = last.exp().unsqueeze(-1) * state + (k * (last - g).exp().unsqueeze(-1)).mT @ u
    return out.permute(2, 0, 1, 3), state


def _unit(x: Tensor) -> Tensor:
    """Rows of length one (flash-linear-attention's `l2norm`, with its epsilon)."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _scan(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None, decay: Tensor, step: Tensor,
    skip: Tensor | None, chunk: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    states, out = _scan_meta(q, k, v, a, b, decay, step, skip, chunk)[::-1]
    state = torch.zeros_like(states[0])
    for number in range(len(states)):
        at = slice(number * chunk, (number + 1) * chunk)
        states[number] = state
        parts = (q[at], k[at], v[at], a[at], None if b is None else b[at])
        out[at], state = _chunk(state, *parts, decay, step, skip)
    return out, states


def _scan_meta(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None, decay: Tensor, step: Tensor,
    skip: Tensor | None, chunk: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rows, batch, heads, width = v.shape
    shape = (-(-rows // chunk), batch, heads, q.shape[-1], width)
    return v.new_empty(v.shape), v.new_empty(shape, dtype=torch.float32)


def _scan_backward(
    dout: Tensor, states: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None,
    decay: Tensor, step: Tensor, skip: Tensor | None, chunk: int,
) -> list[Tensor]:  # fmt: skip
    grads = _scan_backward_meta(dout, states, q, k, v, a, b, decay, step, skip, chunk)
    dstate = torch.zeros_like(states[0])
    for total in grads[5:]:
        total.zero_()
    for number in reversed(range(len(states))):
        at = slice(number * chunk, (number + 1) * chunk)
        tokens = (q[at], k[at], v[at], a[at], None if b is None else b[at])
        inputs = (states[number], *tokens, decay, step, skip)
        found = gradients(_chunk, inputs, (dout[at].float(), dstate))
        assert found[0] is not None
        dstate = found[0]
        for total, part in zip(grads[:5], found[1:6], strict=True):
            if part is not None:
                total[at] = part
        for total, part in zip(grads[5:], found[6:], strict=True):
            if part is not None:
                total += part
    return grads


def _scan_backward_meta(
    dout: Tensor, states: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None,
    decay: Tensor, step: Tensor, skip: Tensor | None, chunk: int,
) -> list[Tensor]:  # fmt: skip
    each = (q, k, v, a, b, decay, step, skip)
    return [q.new_empty(0) if x is None else x.new_empty(x.shape) for x in each]


def _gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, width: int, gate_first: bool
) -> Tensor:
    """Norms of `width` numbers each, of x times the gate's silu or before it."""
    wide, opened = x.float(), F.silu(gate.float())
    entering = wide * opened if gate_first else wide
    grouped = entering.view(*x.shape[:-1], -1, width)
    normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + eps)
    each = weight.float().view(-1, width)  # one for all groups, or each its own
    y = (normed * each).flatten(-2)
    return y.to(x.dtype) if gate_first else (y * opened).to(x.dtype)


def _gated_norm_backward(
    dy: Tensor, x: Tensor, gate: Tensor, weight: Tensor, eps: float, width: int, gate_first: bool
) -> list[Tensor]:
    found = gradients(
        lambda x, gate, weight: (_gated_norm(x, gate, weight, eps, width, gate_first),),
        (x, gate, weight), (dy,),
    )  # fmt: skip
    return [grad for grad in found if grad is not None]


def _gated_output(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate)


def _gated_output_backward(dy: Tensor, x: Tensor, gate: Tensor) -> list[Tensor]:
    found = gradients(lambda *each: (_gated_output(*each),), (x, gate), (dy,))
    return [grad for grad in found if grad is not None]


def _like_inputs(dy: Tensor, *inputs: object) -> list[Tensor]:
    """The gradients of all tensors that a backward pass is given, by their shapes."""
    return [like_first(each) for each in inputs if isinstance(each, Tensor)]


SCANNED = (
    "Tensor q, Tensor k, Tensor v, Tensor a, Tensor? b, Tensor decay, Tensor step, Tensor? skip, "
    "int chunk"
)
NORMED = "Tensor x, Tensor gate, Tensor weight, float eps, int width, bool gate_first"
short_conv = define(
    "short_conv(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _short_conv, _short_conv, like_first,
)  # fmt: skip
short_conv_backward = define(
    "short_conv_backward(Tensor dy, Tensor x, Tensor weight, Tensor? bias) -> "
    "(Tensor, Tensor, Tensor)",
    _short_conv_backward, _short_conv_backward, _short_conv_backward_meta,
)  # fmt: skip
scan = define(f"scan({SCANNED}) -> (Tensor, Tensor)", _scan, _scan, _scan_meta)
scan_backward = define(
    f"scan_backward(Tensor dout, Tensor states, {SCANNED}) -> Tensor[]",
    _scan_backward, _scan_backward, _scan_backward_meta,
)  # fmt: skip
gated_norm = define(f"gated_norm({NORMED}) -> Tensor", _gated_norm, _gated_norm, like_first)
gated_norm_backward = define(
    f"gated_norm_backward(Tensor dy, {NORMED}) -> Tensor[]",
    _gated_norm_backward, _gated_norm_backward, _like_inputs,
)  # fmt: skip
gated_output = define(
    "gated_output(Tensor x, Tensor gate) -> Tensor", _gated_output, _gated_output, like_first
)
gated_output_backward = define(
    "gated_output_backward(Tensor dy, Tensor x, Tensor gate) -> Tensor[]",
    _gated_output_backward, _gated_output_backward, _like_inputs,
)  # fmt: skip
