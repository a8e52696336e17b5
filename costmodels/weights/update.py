"""What an optimizer's step moves of each parameter that it updates, in bytes.

    update   read and written: gradient, master weight and moments
    around   the gradient read for its norm, read and written to scale it; the master weight rounded
             to the 16-bit one. Measured on one H100 (2026-11-22): 17.3 ms for 1e9 parameters under
             AdamW, 46 bytes each at 2.7e12 per s

Where AdamW's step is PyTorch's multi-tensor operators one after the other (foreach, the default of
torch.optim.AdamW on a GPU), each of them reads and writes: weight decay 2 numbers, the first moment
3, the second 2 and 3, its root 2, divided 2, epsilon 2, the update 4 (pytorch/pytorch torch/optim/
adam.py, _multi_tensor_adam): 20, where one fused kernel moves 7.

States in 16 bits are half as wide, and nothing is rounded. Where ZeRO-1 adds up whole gradients,
each rank norms and scales all of its own (huggingface/nanotron@063020a8
src/nanotron/optim/clip_grads.py: those of its gradient accumulator, which holds all under ZeRO-1).
"""

from typing import NamedTuple

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.training import Training

UPDATE_BYTES = {"adamw": 28.0, "adamw8bit": 16.0, "muon": 40.0, "sgd": 16.0}
CLIP_BYTES, ROUND_BYTES = 12.0, 6.0
EIGHT_BIT_BYTES = 4.0  # two moments of one byte, read and written
OPERATORS_BYTES = 80.0  # AdamW's 20 numbers of 4 bytes


class Moved(NamedTuple):
    """Bytes per parameter by the update itself, around it, and of these by the gradient's norm and
    scale.
    """

    update_bytes: float
    around_bytes: float
    clip_bytes: float


def moved_of(training: Training, *, by_operator: bool = False) -> Moved:
    """Of each parameter under this training, AdamW's step by one kernel or operator by operator."""
    apart = by_operator and training.optimizer == "adamw"
    update_bytes = OPERATORS_BYTES if apart else UPDATE_BYTES[training.optimizer]
    if training.optimizer_states == "bf16":  # 8-bit moments are no narrower
        kept = EIGHT_BIT_BYTES if training.optimizer == "adamw8bit" else 0.0
        return Moved((update_bytes - kept) / 2 + kept, CLIP_BYTES / 2, CLIP_BYTES / 2)
    rounds = RECIPES[training.precision].itemsize == 2.0
    return Moved(update_bytes, CLIP_BYTES + (ROUND_BYTES if rounds else 0.0), CLIP_BYTES)


def on_device_s(moved: Moved, device: Device, updated: Number, clipped: Number) -> Number:
    """Seconds of the step of `updated` parameters, with `clipped` others whose gradients are normed
    and scaled beside them.
    """
    copied_bytes_per_s = device.moved_bytes_per_s("copy")
    each_s = moved.update_bytes / device.moved_bytes_per_s("adamw")
    each_s = each_s + moved.around_bytes / copied_bytes_per_s
    return updated * each_s + clipped * (moved.clip_bytes / copied_bytes_per_s)
