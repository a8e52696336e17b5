"""What PEFT's adapters in fp32 move and keep, beside what PyTorch moves for the same lines."""

from typing import Any, get_args

import pytest
import torch
from rows import ROW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meshplan.costmodels.operations.adapters import adapter_numbers, cast_bytes
from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.seconds.adapters import adapter_launches
from meshplan.costmodels.training import Lora
from meshplan.hardware_profiles.kernel_habits import AdapterCasts
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model

M, K, N, RANK = 4096, 512, 256, 2
PRODUCT = Matmul(name="output", m=M, k=K, n=N, recipe=True)
BASE_BYTES = 2.0 * (M * K + K * N + M * N)
VIEWS = {"t", "view", "transpose", "detach", "expand", "_unsafe_view", "alias"}


class Moved(TorchDispatchMode):
    """Counts the bytes of tensors that each operation reads and writes, and the kernels, but for
    casts of an adapter's own weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in VIEWS:
            leaves = tree_leaves((args, out))
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
            cast = func.overloadpacket.__name__ == "_to_copy"
            self.kernels += not cast or out.numel() >= M
        return out


def _moved(casts: AdapterCasts) -> tuple[Moved, Moved]:
    """Of PEFT's Linear.forward without dropout, and of its backward, beside the frozen product; or
    of AutoModel's, which scales the narrow output ("fused").
    """
    base = torch.randn(K, N, dtype=torch.bfloat16)
    dtype = torch.float32 if casts in ("inputs", "all") else torch.bfloat16
    first, second = (
        torch.nn.Linear(*size, bias=False, dtype=dtype) for size in ((K, RANK), (RANK, N))
    )
    inputs = torch.randn(M, K, dtype=torch.bfloat16, requires_grad=True)
    with Moved() as forward, torch.autocast("cpu", torch.bfloat16, enabled=casts == "inputs"):
        frozen = inputs @ base
        narrow = first(inputs.to(dtype))
        adapted = second(narrow * 2.0) if casts == "fused" else second(narrow) * 2.0
        result = (frozen + adapted).to(frozen.dtype)
    gradient = torch.ones_like(result)
    with Moved() as backward:
        result.backward(gradient)
    return forward, backward


@pytest.mark.parametrize("casts", get_args(AdapterCasts))
def test_bytes_beside_what_torch_moves(casts: AdapterCasts) -> None:
    """The weights of the adapters and the narrow output in fp32, not counted, are 0.5 %."""
    lora = Lora(rank=RANK)
    for measured, backward in zip(_moved(casts), (False, True), strict=True):
        numbers = adapter_numbers(PRODUCT, lora, backward=backward)
        counted = M * (2.0 * numbers + cast_bytes(PRODUCT, lora, casts, backward=backward))
        assert counted == pytest.approx(measured.bytes - BASE_BYTES, rel=0.005)


@pytest.mark.parametrize("casts", ["none", "inputs", "all"])
def test_kernels_beside_what_torch_issues(casts: AdapterCasts) -> None:
    """Beside one frozen product each way."""
    lora = Lora(rank=RANK)
    for measured, backward in zip(_moved(casts), (False, True), strict=True):
        counted = adapter_launches(PRODUCT, lora, casts, backward=backward)
        assert counted == measured.kernels - 1


LORA = ROW | {
    "framework": "HF transformers + PyTorch FSDP1", "year": "2024", "gpu": "a100-80gb-sxm",
    "gpus": "1", "dp": "1", "zero": "0", "recompute": "none", "seq_len": "4096", "compiled": "0",
    "adapters": "lora 16 qv bf16", "attention_kernel": "flash2", "fused_loss": "fp32",
    "fused_kernels": "norm rope liger_loss", "micro_batch": "1", "global_batch": "1",
}  # fmt: skip


def _allocated(word: str, **said: str) -> float:
    row = LORA | {"fused_kernels": f"{LORA['fused_kernels']} {word}"} | said
    return float(step_model(run_of(row), Tuning()).memory()[0].allocated)


@pytest.mark.parametrize(("word", "each"), [("cast_adapters", 2), ("wide_adapters", 4)])
def test_copies_are_kept(word: str, each: int) -> None:
    """Of query and value in 32 layers a copy of 4,096 numbers a token, for the normed input of the
    attention, which only frozen products read then.
    """
    more = _allocated(word) - _allocated("")
    assert more == 32 * 4096 * 4096 * (2 * each - 2)


def test_under_dropout_a_cast_copy_takes_the_place_of_the_dropped_one() -> None:
    """In 16 bits no more, in fp32 2 bytes more for each of two numbers."""
    dropped = {"adapters": "lora 16 qv bf16 0.1"}
    assert _allocated("cast_adapters", **dropped) == _allocated("", **dropped)
    more = _allocated("wide_adapters", **dropped) - _allocated("", **dropped)
    assert more == 32 * 4096 * 4096 * 2 * 2
