"""The scan in chunks against its recurrence written token by token, and its backward pass."""

import pytest
import torch
import torch.nn.functional as F

from meshplan.executor.engine.parts import recurrent_kernels as kernels

ROWS, BATCH, HEADS, GROUPS, N, V = 13, 2, 4, 2, 3, 5


def inputs(*, delta: bool) -> list[torch.Tensor | None]:
    """q, k, v, a, b, decay, step, skip in fp32, from a seed."""
    torch.manual_seed(1)
    q, k = (torch.randn(ROWS, BATCH, GROUPS, N) for _ in "qk")
    v = torch.randn(ROWS, BATCH, HEADS, V)
    a, b = (torch.randn(ROWS, BATCH, HEADS) for _ in "ab")
    decay, step, skip = (torch.randn(HEADS) for _ in range(3))
    return [q, k, v, a, b if delta else None, decay, step, None if delta else skip]


def by_token(q, k, v, a, b, decay, step, skip):
    """The recurrence as the module's docstring states it, one token after another."""
    each = HEADS // GROUPS
    q, k = (x.repeat_interleave(each, dim=2) for x in (q, k))
    if b is not None:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        q = q / N**0.5
    state = torch.zeros(BATCH, HEADS, N, V)
    outputs = []
    for t in range(ROWS):
        dt = F.softplus(a[t] + step)
        kept = (-decay.exp() * dt).exp()[..., None, None] * state
        if b is None:
            u = dt[..., None] * v[t]
        else:
            returned = torch.einsum("bhnv,bhn->bhv", kept, k[t])
            u = torch.sigmoid(b[t])[..., None] * (v[t] - returned)
        state = kept + k[t][..., None] * u[..., None, :]
        out = torch.einsum("bhnv,bhn->bhv", state, q[t])
        outputs.append(out if skip is None else out + skip[:, None] * v[t])
    return torch.stack(outputs)


@pytest.mark.parametrize("delta", [True, False], ids=["gated DeltaNet", "Mamba-2"])
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_chunks_are_the_recurrence(delta: bool, chunk: int) -> None:
    """Outputs and all gradients, whatever the chunk: 13 tokens leave a short one at the end."""
    given = [None if x is None else x.requires_grad_() for x in inputs(delta=delta)]
    expected = by_token(*given)
    dout = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [x for x in given if x is not None], dout)
    plain = [None if x is None else x.detach() for x in given]
    out, states = kernels.scan(*plain, chunk)
    assert states.shape == (-(-ROWS // chunk), BATCH, HEADS, N, V)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-4, atol=1e-5)
    grads = [x for x in kernels.scan_backward(dout, states, *plain, chunk) if x.numel()]
    for found, each in zip(grads, wanted, strict=True):
        torch.testing.assert_close(found, each, rtol=1e-3, atol=1e-4)


def test_a_convolution_reads_the_past_alone() -> None:
    """Width 3, by hand: silu(1 x 1), silu(2 x 1 + 1 x 10), silu(3 x 1 + 2 x 10 + 1 x 100)."""
    x = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    found = kernels.short_conv(x, torch.tensor([[100.0, 10.0, 1.0]]), None)
    torch.testing.assert_close(found.flatten(), F.silu(torch.tensor([1.0, 12.0, 123.0])))


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_gated_norm_by_hand(gate_first: bool) -> None:
    """Groups of two: (3, 4) over sqrt(12.5), with the gate's silu before the norm or after it."""
    x, gate = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 1.0]]])
    found = kernels.gated_norm(x, gate, torch.ones(2), 0.0, 2, gate_first)
    norm = torch.tensor([3.0, 4.0]) / 12.5**0.5
    after = norm if gate_first else norm * F.silu(torch.tensor(1.0))
    torch.testing.assert_close(found.flatten(), after)
