"""The engine's fused kernels as torch operators, so that a dry run sees what a GPU would run.

Each is defined once by its result and has a CPU body (plain torch), a CUDA body (the vendor's fused
kernel where there is one, else the CPU body compiled into one) and a shape-only body for fake
tensors: temporaries inside a body are not seen by a dry run, as a fused kernel has none.

    rms_norm        y = x * rstd * w,  rstd = 1 / sqrt(mean(x^2) + eps)              1910.07467
    swiglu          y = silu(gate) * up * scale, scale one number per row or absent  2002.05202
    rope            rotate the halves of the last dimension by the row's angle       2104.09864
    attention       softmax(q k^T * scale) v and the row's log-sum-exp               2307.08691
    grouped_linear  rows in consecutive groups, each times its own matrix

x, y of attention are (sequence, batch, heads, width); the log-sum-exp is (batch, heads, sequence)
in fp32.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

EPS = 1e-6  # of norms, where the model's file states none
# oneDNN compiles a bf16 product anew for each number of rows (1 ms, and memory that stays), and
# routing gives each expert another number at each step.
PADDED_ROWS = 64
LIBRARY = library.Library("meshplan", "DEF")  # type: ignore[no-untyped-call]
Kernel = Callable[..., Any]


def define(schema: str, cpu: Kernel, cuda: Kernel, meta: Kernel) -> Kernel:
    """Register one operator with its three bodies and return it."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    for key, body in (("CPU", cpu), ("CUDA", cuda), ("Meta", meta)):
        LIBRARY.impl(name, body, key)  # type: ignore[no-untyped-call]
    overload: Kernel = getattr(torch.ops.meshplan, name).default
    return overload


def _compiled(body: Kernel) -> Kernel:
    """`body` as one fused kernel, compiled at its first call, which takes seconds, and once more
    for a side that changes.
    """
    compile_once = cache(lambda: torch.compile(body))
    return lambda *arguments: compile_once()(*arguments)


def like_first(x: Tensor, *_: object) -> Tensor:
    """The shape-only body of an operator whose result is as its first argument."""
    return x.new_empty(x.shape)


def _rms_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd).to(x.dtype) * weight, rstd


def _rms_norm_cuda(x: Tensor, weight: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    y, rstd = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)
    return y, rstd


def _rms_norm_meta(x: Tensor, weight: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    normed = x.float() * rstd
    scaled = dy.float() * weight.float()
    dx = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    dw = (dy.float() * normed).reshape(-1, x.shape[-1]).sum(0)
    return dx.to(x.dtype), dw


def _rms_norm_backward_meta(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight, dtype=torch.float32)


def _swiglu(gate: Tensor, up: Tensor, scale: Tensor | None) -> Tensor:
    y = F.silu(gate).mul_(up)
    return y if scale is None else (y * scale.unsqueeze(-1)).to(gate.dtype)


def _swiglu_backward(
    dy: Tensor, gate: Tensor, up: Tensor, scale: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    silu = F.silu(gate.float())
    wide = dy.float() if scale is None else dy.float() * scale.unsqueeze(-1)
    dgate = torch.ops.aten.silu_backward(wide * up.float(), gate.float())
    dscale = (
        dy.new_empty(0, dtype=torch.float32)
        if scale is None
        else (dy.float() * silu * up.float()).sum(-1)
    )
    return dgate.to(gate.dtype), silu.mul_(wide).to(up.dtype), dscale


def _swiglu_backward_meta(
    dy: Tensor, gate: Tensor, up: Tensor, scale: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dscale = dy.new_empty(0 if scale is None else scale.shape, dtype=torch.float32)
    return torch.empty_like(gate), torch.empty_like(up), dscale


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None
) -> tuple[Tensor, Tensor]:
    width = v.shape[-1]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *_heads_first(q, k, _widen(v, q.shape[-1])),
        0.0,
        causal and window is None,
        attn_mask=_window_mask(q, k, window),
        scale=1 / math.sqrt(q.shape[-1]),
    )
    return out.permute(2, 0, 1, 3)[..., :width].contiguous(), lse


def _attention_cuda(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None
) -> tuple[Tensor, Tensor]:
    width = v.shape[-1]
    sides = _batch_first(q, k, _widen(v, q.shape[-1]))
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        *sides,
        None,
        None,
        q.shape[0],
        k.shape[0],
        0.0,
        causal,
        False,
        scale=1 / math.sqrt(q.shape[-1]),
        **_window_sides(window),
    )
    return out.transpose(0, 1)[..., :width].contiguous(), lse


def _attention_meta(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None
) -> tuple[Tensor, Tensor]:
    length, batch, heads, _ = q.shape
    lse = q.new_empty((batch, heads, length), dtype=torch.float32)
    return q.new_empty((length, batch, heads, v.shape[-1])), lse


def _attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    width, wide = v.shape[-1], q.shape[-1]
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *_heads_first(_widen(dout, wide), q, k, _widen(v, wide), _widen(out, wide)),
        lse,
        0.0,
        causal and window is None,
        attn_mask=_window_mask(q, k, window),
        scale=1 / math.sqrt(wide),
    )
    dq, dk, dv = (grad.permute(2, 0, 1, 3) for grad in grads)
    return dq.contiguous(), dk.contiguous(), dv[..., :width].contiguous()


def _attention_backward_cuda(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    width, wide = v.shape[-1], q.shape[-1]
    nothing = torch.zeros(2, dtype=torch.uint64, device=q.device)
    grads = torch.ops.aten._flash_attention_backward(
        *_batch_first(_widen(dout, wide), q, k, _widen(v, wide), _widen(out, wide)),
        lse,
        None,
        None,
        q.shape[0],
        k.shape[0],
        0.0,
        causal,
        nothing,
        nothing,
        scale=1 / math.sqrt(wide),
        **_window_sides(window),
    )
    dq, dk, dv = (grad.transpose(0, 1) for grad in grads)
    return dq.contiguous(), dk.contiguous(), dv[..., :width].contiguous()


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    """(sequence, batch, heads, width) as (batch, heads, sequence, width)."""
    return [x.permute(1, 2, 0, 3) for x in tensors]


def _batch_first(*tensors: Tensor) -> list[Tensor]:
    """(sequence, batch, heads, width) as (batch, sequence, heads, width)."""
    return [x.transpose(0, 1) for x in tensors]


def _widen(x: Tensor, width: int) -> Tensor:
    """`x` with zeros up to `width`: the flash kernels want values as wide as queries."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _window_mask(q: Tensor, k: Tensor, window: int | None) -> Tensor | None:
    """What a sliding window of `window` tokens hides, as the additive mask of the CPU kernel."""
    if window is None:
        return None
    distance = torch.arange(q.shape[0]).unsqueeze(1) - torch.arange(k.shape[0])
    hidden = (distance < 0) | (distance >= window)
    return torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, -math.inf)


def _window_sides(window: int | None) -> dict[str, int | None]:
    """The same for the flash kernel: how many keys before a query's own and after it are seen."""
    before, after = (None, None) if window is None else (window - 1, 0)
    return {"window_size_left": before, "window_size_right": after}


def _grouped_linear(x: Tensor, weight: Tensor, rows: Sequence[int]) -> Tensor:
    parts = zip(_groups(x, rows), weight, rows, strict=True)
    return torch.cat([(a @ w.t())[:n] for a, w, n in parts])


def _grouped_linear_cuda(x: Tensor, weight: Tensor, rows: Sequence[int]) -> Tensor:
    if x.dtype != torch.bfloat16:
        return _grouped_linear(x, weight, rows)
    return torch._grouped_mm(x, weight.transpose(-2, -1), offs=_offsets(rows, x))


def _grouped_linear_meta(x: Tensor, weight: Tensor, rows: Sequence[int]) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]))


def _grouped_outer(dy: Tensor, x: Tensor, rows: Sequence[int]) -> Tensor:
    pairs = zip(_groups(dy, rows), _groups(x, rows), strict=True)
    return torch.stack([d.t() @ a for d, a in pairs])


def _grouped_outer_cuda(dy: Tensor, x: Tensor, rows: Sequence[int]) -> Tensor:
    if x.dtype != torch.bfloat16:
        return _grouped_outer(dy, x, rows)
    return torch._grouped_mm(dy.t(), x, offs=_offsets(rows, x))


def _grouped_outer_meta(dy: Tensor, x: Tensor, rows: Sequence[int]) -> Tensor:
    return x.new_empty((len(rows), dy.shape[1], x.shape[1]))


def _groups(x: Tensor, rows: Sequence[int]) -> list[Tensor]:
    """The rows of each group, with zeros up to a multiple of `PADDED_ROWS`."""
    parts = x.split(list(rows))  # type: ignore[no-untyped-call]
    return [F.pad(part, (0, 0, 0, -len(part) % PADDED_ROWS)) for part in parts]


def _offsets(rows: Sequence[int], like: Tensor) -> Tensor:
    """Where each group of rows ends, as the grouped kernels want it."""
    return torch.tensor(rows, device=like.device).cumsum(0).to(torch.int32)


rms_norm = define(
    f"rms_norm(Tensor x, Tensor weight, float eps={EPS}) -> (Tensor, Tensor)",
    _rms_norm,
    _rms_norm_cuda,
    _rms_norm_meta,
)
rms_norm_backward = define(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)",
    _rms_norm_backward,
    _compiled(_rms_norm_backward),
    _rms_norm_backward_meta,
)
swiglu = define(
    "swiglu(Tensor gate, Tensor up, Tensor? scale) -> Tensor",
    _swiglu,
    _compiled(_swiglu),
    like_first,
)
swiglu_backward = define(
    "swiglu_backward(Tensor dy, Tensor gate, Tensor up, Tensor? scale) -> (Tensor, Tensor, Tensor)",
    _swiglu_backward,
    _compiled(_swiglu_backward),
    _swiglu_backward_meta,
)
rope = define(
    "rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", _rope, _compiled(_rope), like_first
)
attention = define(
    "attention(Tensor q, Tensor k, Tensor v, bool causal, int? window) -> (Tensor, Tensor)",
    _attention,
    _attention_cuda,
    _attention_meta,
)
attention_backward = define(
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    "bool causal, int? window) -> (Tensor, Tensor, Tensor)",
    _attention_backward,
    _attention_backward_cuda,
    lambda dout, *inputs: tuple(like_first(x) for x in inputs[:3]),
)
grouped_linear = define(
    "grouped_linear(Tensor x, Tensor weight, int[] rows) -> Tensor",
    _grouped_linear,
    _grouped_linear_cuda,
    _grouped_linear_meta,
)
grouped_outer = define(
    "grouped_outer(Tensor dy, Tensor x, int[] rows) -> Tensor",
    _grouped_outer,
    _grouped_outer_cuda,
    _grouped_outer_meta,
)
