"""Activations that outlive their pass, beside a hand count and what PyTorch itself holds."""

import pytest
import torch
from rows import ROW
from torch.autograd.graph import register_multi_grad_hook
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import predict_run, step_model

LORA = ROW | {
    "framework": "HF transformers + PyTorch FSDP1", "year": "2024", "gpu": "a100-80gb-sxm",
    "gpus": "4", "dp": "4", "zero": "3", "recompute": "full", "seq_len": "4096", "compiled": "0",
    "adapters": "lora 16 attention bf16", "attention_kernel": "flash2",
    "fused_kernels": "norm rope liger_loss", "micro_batch": "4", "global_batch": "16",
}  # fmt: skip
TOKENS, HIDDEN, LAYERS = 4 * 4096, 4096, 32
INPUT = 2 * TOKENS * HIDDEN


def _allocated(row: dict[str, str]) -> float:
    return float(step_model(run_of(row), Tuning()).memory()[0].allocated)


def _with(word: str) -> dict[str, str]:
    return LORA | {"fused_kernels": f"{LORA['fused_kernels']} {word}"}


def test_frozen_layers_inputs_have_gradients_that_live_until_the_backward_ends() -> None:
    """31 of 32 under FSDP1's reentrant checkpoints: no more where these are not reentrant, where
    nothing is sharded, or where all weights are trained.
    """
    assert _allocated(LORA) - _allocated(_with("no_reentrant")) == (LAYERS - 1) * INPUT
    for other in ({"gpus": "1", "dp": "1", "zero": "0", "global_batch": "4"}, {"adapters": ""}):
        assert _allocated(LORA | other) == _allocated(_with("no_reentrant") | other)


@pytest.mark.parametrize(("micro_batch", "measured_gib"), [("4", 17.99), ("16", 53.44)])
def test_peaks_that_were_measured(micro_batch: str, measured_gib: float) -> None:
    """LoRA of Llama 3 8B on four A100, PyTorch's max_memory_allocated: two sizes of a benchmark
    (foundation-model-stack/fms-acceleration@876e2ed), within 3 %.
    """
    row = LORA | {"micro_batch": micro_batch, "global_batch": str(4 * int(micro_batch))}
    found = predict_run(run_of(row), Tuning()).allocated_gib
    assert found == pytest.approx(measured_gib, rel=0.03)


@pytest.mark.parametrize(("recompute", "sets"), [("full", 2), ("none", 1)])
def test_keys_and_values_that_outputs_hold(recompute: str, sets: int) -> None:
    """8 heads of 128 each, 2 bytes, in every layer, of two steps; one of them a layer keeps anyway
    where nothing is recomputed.
    """
    row = LORA | {"recompute": recompute, "fused_loss": "fp32_held", "adapters": ""}
    row |= {"vocab": "4194304", "micro_batch": "1", "global_batch": "4"}  # the loss is the peak
    more = _allocated(row | {"fused_kernels": "returned_keys"}) - _allocated(
        row | {"fused_kernels": ""}
    )
    assert more == pytest.approx(sets * LAYERS * 2 * (8 * 128) * 2 * 4096)


class _Alive(TorchDispatchMode):
    """Bytes of all tensors made under it that are alive, at most."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor):
                storage = made.untyped_storage()
                self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._known = {key: each for key, each in self._known.items() if not each[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._known.values()))
        return out


def _most_in_inputs(*, reentrant: bool, hooked: bool) -> float:
    """The peak of a backward through eight frozen layers, each in a checkpoint and, as FSDP1 does
    it, with a hook on its input's gradient that is kept; in inputs of a layer.
    """
    handles: list[object] = []
    weight = torch.ones(64, 64)

    def layer(x: torch.Tensor) -> torch.Tensor:
        if hooked and torch.is_grad_enabled():
            handles.append(register_multi_grad_hook([x], _nothing))
        return torch.relu(x @ weight)

    with _Alive() as alive:
        x = torch.randn(512, 64, requires_grad=True)
        for _ in range(8):
            x = checkpoint(layer, x, use_reentrant=reentrant)
        alive.most = 0
        x.sum().backward()
    return alive.most / (512 * 64 * 4)


def _nothing(*_: object) -> None: ...


def test_pytorch_holds_them() -> None:
    """Seven of eight inputs' gradients more, and only under reentrant checkpoints."""
    plain = _most_in_inputs(reentrant=True, hooked=False)
    assert _most_in_inputs(reentrant=True, hooked=True) - plain == pytest.approx(7, abs=1.01)
    assert _most_in_inputs(reentrant=False, hooked=True) == _most_in_inputs(
        reentrant=False, hooked=False
    )


def test_a_mask_of_16_bits_is_kept_by_each_layer() -> None:
    """4,096 x 4,096 numbers of 2 bytes for each of four sequences and 32 layers beside causal
    kernels of the same library; one layer's where all are replayed.
    """
    row = LORA | {"adapters": "", "recompute": "none"}
    masked, plain = (
        _allocated(row | {"attention_kernel": kernel}) for kernel in ("masked", "efficient")
    )
    assert masked - plain == LAYERS * 4 * 4096 * 4096 * 2
