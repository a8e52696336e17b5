"""A compiler copies what is not aligned into a padded tensor where that is faster."""

from dataclasses import replace

import pytest

from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.operation import Direction, matmul_pass_s
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.tunings import Tuning

DIRECTIONS: tuple[Direction, ...] = ("forward", "input_grad", "weight_grad")
HEAD = Matmul(name="head", m=4096, n=50257, k=768, recipe=False, unaligned=True)


def device(gpu: str = "a100-80gb-sxm", *, pads: bool = True) -> Device:
    return Device(load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], pads_products=pads)


@pytest.mark.parametrize(
    ("direction", "copied"),
    [
        pytest.param("forward", 768 * 50257, id="the weight, h V"),
        pytest.param("input_grad", 50257 * 768, id="the weight, V h"),
        pytest.param("weight_grad", 4096 * 50257, id="the gradient of the logits, t V"),
    ],
)
def test_a_padded_product_copies_one_operand(direction: Direction, copied: float) -> None:
    """The aligned product, and a kernel that reads and writes 2 bytes of each number of it."""
    on = device()
    aligned = matmul_pass_s(on, replace(HEAD, unaligned=False), direction)
    copy = on.kernels.launch_s + 4 * copied / on.bandwidth_bytes_per_s
    assert matmul_pass_s(on, HEAD, direction) == pytest.approx(aligned + copy)


def test_no_product_is_padded_where_the_copy_costs_more() -> None:
    """Of 64 tokens the copied weight outweighs what the product gains; AMD's gain nothing, and on
    Hopper compiled runs do not show that any was.
    """
    few = replace(HEAD, m=64)
    assert matmul_pass_s(device(), few, "forward") == matmul_pass_s(
        device(pads=False), few, "forward"
    )
    for gpu in ("mi300x", "h200"):
        one, bare = device(gpu), device(gpu, pads=False)
        assert matmul_pass_s(one, HEAD, "forward") == matmul_pass_s(bare, HEAD, "forward")


def test_karpathys_lecture_on_ugly_numbers() -> None:
    """GPT-2 of 124M, 16 x 1,024 tokens on an A100, compiled: 96 ms with 50,257 words, 93 with
    50,304; not compiled the difference would be ten times that.
    """
    ugly = replace(HEAD, m=16 * 1024)
    nice = replace(ugly, n=50304, unaligned=False)

    def longer_s(pads: bool) -> float:
        on = device(pads=pads)
        return sum(
            float(matmul_pass_s(on, ugly, each)) - float(matmul_pass_s(on, nice, each))
            for each in DIRECTIONS
        )

    assert longer_s(pads=True) == pytest.approx(3e-3, abs=1e-3)
    assert longer_s(pads=False) > 25e-3
