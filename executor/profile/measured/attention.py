"""Attention kernels, forward and backward, by head width, length, mask and query-to-key head ratio.

    forward   2 products of q_len x kv_len by head_dim and v_head_dim: 2 b h s^2 (d + dv) FLOPs
    backward  5 products (the scores again, dv, dp, dq, dk): 2 b h s^2 (3 d + 2 dv) FLOPs

halved if causal: the masked half is not counted even where a kernel computes it.
With d = dv the backward is 2.5 times the forward, as in FlashAttention-2 (arXiv 2307.08691, 4.1).
Kernels are told apart as engines are (`KernelHabits.attention`):

    flash2   the native engine's, which brings heads before tokens and back; CPUs, and GPUs that
             FlashAttention-2 runs on
    cudnn    cuDNN's, through `scaled_dot_product_attention`: where it is the faster, from Hopper on
    (none)   what `scaled_dot_product_attention` picks; older GPUs
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Literal

import torch
import torch.nn.functional as F

from meshplan.executor.engine.parts import kernels
from meshplan.executor.profile.bench import Bench, Call
from meshplan.executor.profile.measured.matmul import TORCH_DTYPE, dtypes_of
from meshplan.executor.profile.measurement import Measurement
from meshplan.executor.profile.record import Record
from meshplan.hardware_profiles.schema import AttentionKernel, AttentionPoint, Dtype

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One attention call: `batch` sequences of `seq_len` tokens."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    seq_len: int
    causal: bool

    @property
    def sides(self) -> tuple[tuple[int, int], ...]:
        """Heads and width of queries, keys and values."""
        keys, values = (self.kv_heads, self.head_dim), (self.kv_heads, self.v_head_dim)
        return (self.heads, self.head_dim), keys, values

    def flops(self, direction: Direction) -> float:
        """FLOPs of one call, of the unmasked half only if causal."""
        d, dv = self.head_dim, self.v_head_dim
        width = d + dv if direction == "forward" else 3 * d + 2 * dv
        full = 2.0 * self.batch * self.heads * self.seq_len**2 * width
        return full / 2 if self.causal else full


def shapes(*, is_cuda: bool, quick: bool) -> Iterator[Shape]:
    """What to measure: every head width and length causal, then the exceptions once.

    The shortest comes with four times the tokens too: with as many in all shapes, what a token
    takes could not be told from what a call takes. On a CPU two queries share a key, as in the
    models that one would train there: half the keys save a third of a bf16 backward.
    """
    lengths: tuple[int, ...]
    if is_cuda:
        lengths = (1024, 2048, 8192) if quick else (512, 1024, 2048, 4096, 8192, 16384, 32768)
        widths, heads, tokens = ([128] if quick else [64, 128, 256]), 32, 16384
        usual, other = heads, heads // 4
    else:
        lengths = (128, 512) if quick else (64, 128, 256, 512, 1024, 2048)
        widths, heads, tokens = ([32, 64] if quick else [32, 64, 128]), 4, 1024
        usual, other = heads // 2, heads
    every = partial(_shape, heads, kv_heads=usual)
    for width, length in product(widths, lengths):
        yield every(width, length, tokens)
    for width in widths:
        yield every(width, lengths[0], 4 * tokens)
    if quick and not is_cuda:
        yield every(128, 2048, tokens)  # what `Kernels.attention_forward` is defined by
    longest, width = lengths[-1], widths[-1]
    yield every(width, longest, tokens, causal=False)
    yield _shape(heads, width, longest, tokens, kv_heads=other)
    if not quick and is_cuda:  # latent attention as DeepSeek-V3 trains
        latent = _shape(128, 192, 4096, 4096, kv_heads=128)
        yield replace(latent, v_head_dim=128)


def _shape(
    heads: int,
    width: int,
    length: int,
    tokens: int,
    *,
    kv_heads: int,
    causal: bool = True,
) -> Shape:
    return Shape(
        batch=max(1, tokens // length),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        v_head_dim=width,
        seq_len=length,
        causal=causal,
    )


def kernels_of(device: torch.device) -> tuple[AttentionKernel | None, ...]:
    """The kernels to measure on `device`."""
    if device.type == "cpu" or torch.version.hip:
        return ("flash2",)
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return (None,)
    return ("flash2", "cudnn") if capability >= (9, 0) else ("flash2",)


def runs(kernel: AttentionKernel | None, shape: Shape) -> bool:
    """Whether `kernel` takes the shape: cuDNN's backward has heads of at most 128, all alike."""
    plain = shape.heads == shape.kv_heads and shape.head_dim == shape.v_head_dim <= 128
    return kernel != "cudnn" or plain


def attention_call(
    shape: Shape,
    dtype: Dtype,
    direction: Direction,
    device: torch.device,
    kernel: AttentionKernel | None = "flash2",
) -> Call:
    """A call of `kernel` that does the forward, or only the backward, once."""
    kind = TORCH_DTYPE[dtype]
    if kernel == "flash2":
        return native_call(shape, kind, direction, device)
    return pytorch_call(shape, kind, direction, device, cudnn=kernel == "cudnn")


def native_call(
    shape: Shape, kind: torch.dtype, direction: Direction, device: torch.device
) -> Call:
    """The native engine's, over (sequence, batch, heads, width)."""
    s = shape
    q, k, v, gradient = (
        torch.randn(s.seq_len, s.batch, heads, width, device=device).to(kind)
        for heads, width in (*s.sides, (s.heads, s.v_head_dim))
    )
    if direction == "forward":
        return lambda: kernels.attention(q, k, v, s.causal, None)
    out, lse = kernels.attention(q, k, v, s.causal, None)
    return lambda: kernels.attention_backward(gradient, q, k, v, out, lse, s.causal, None)


def pytorch_call(
    shape: Shape, kind: torch.dtype, direction: Direction, device: torch.device, *, cudnn: bool
) -> Call:
    """PyTorch's, over (batch, heads, sequence, width): cuDNN's, or what PyTorch picks."""
    s = shape
    q, k, v = (
        torch.randn(s.batch, heads, s.seq_len, width, device=device).to(kind).requires_grad_()
        for heads, width in s.sides
    )

    def forward() -> torch.Tensor:
        if cudnn:
            attend = torch.ops.aten._scaled_dot_product_cudnn_attention
            out: torch.Tensor = attend(q, k, v, None, True, is_causal=s.causal)[0]
            return out
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=s.causal, enable_gqa=s.heads != s.kv_heads
        )

    if direction == "forward":
        return torch.no_grad()(forward)
    out = forward()
    upstream = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True)


def measurements(device: torch.device, *, quick: bool) -> tuple[Measurement, ...]:
    """Forward and backward of every shape in 16 bit, and on the CPU in fp32 too."""
    offered = dtypes_of(device)
    dtypes: tuple[Dtype, ...] = ("bf16",) if "bf16" in offered else ("fp16",)
    if device.type == "cpu":
        dtypes = ("fp32", "bf16")
    found = tuple(shapes(is_cuda=device.type == "cuda", quick=quick))
    directions: tuple[Direction, ...] = ("forward", "backward")
    return tuple(
        _point(shape, dtype, direction, kernel)
        for shape, dtype, direction, kernel in product(
            found, dtypes, directions, kernels_of(device)
        )
        if runs(kernel, shape)
    )


def _point(
    shape: Shape, dtype: Dtype, direction: Direction, kernel: AttentionKernel | None
) -> Measurement:
    s = shape
    mask = "causal" if s.causal else "full"
    size = f"{s.batch}x{s.seq_len} {s.heads}/{s.kv_heads}x{s.head_dim}/{s.v_head_dim} {mask}"
    title = f"attention {dtype} {kernel or 'usual'} {direction} {size}"

    def run(bench: Bench) -> tuple[Record, ...]:
        timing = bench.measure(attention_call(s, dtype, direction, bench.device, kernel))
        point = AttentionPoint(
            dtype=dtype,
            kernel=kernel,
            direction=direction,
            **asdict(s),
            flops_per_s=s.flops(direction) / timing.seconds,
            spread=timing.spread,
        )
        return (Record.timed(key, point, timing),)

    key = title.replace(" ", "/")
    return Measurement(key, title, 1.0, run, every_sweep=True)
