"""Kernels that a row's compiler or its own trainer makes."""

import pytest
from rows import engine_of

from meshplan.costmodels.setting import as_graphed
from meshplan.hardware_profiles.tunings import KERNEL_SCALES, Tuning, load_fit

EAGER = {"framework": "Halo (HF Trainer, FSDP2)", "compiled": "0"}


def test_a_compiler_pads_the_head_that_it_compiles() -> None:
    """A loop of one's own compiles the whole model, torchtitan its layers; nobody else pads."""
    for framework, compiled, pads in (
        ("nanoGPT (PyTorch, torch.compile)", "1", True),
        ("nanoGPT", "0", False),
        ("nanoGPT", "", False),
        ("torchtitan", "1", False),
    ):
        row = {"framework": framework, "compiled": compiled}
        assert engine_of(row).kernels.pads_products == pads


@pytest.mark.parametrize(("said", "scale"), [
    pytest.param({}, 1.0, id="compiled whole, on one GPU: published rates, 0.885 x 1.13"),
    pytest.param({"gpus": "2"}, 1.13, id="beside another GPU"),
    pytest.param({"compiled": "0"}, 1.13, id="operator by operator"),
    pytest.param({"compiled": ""}, 1.13, id="not said"),
    pytest.param({"framework": "torchtitan"}, 1.13, id="compiled layer by layer"),
])  # fmt: skip
def test_a_program_compiled_as_a_whole_has_published_rates(
    said: dict[str, str], scale: float
) -> None:
    """What all engines' scale of kernels has beyond them is frameworks' and many GPUs'."""
    engine = engine_of({"framework": "nanoGPT", "gpus": "1", "compiled": "1"} | said)
    tuning = as_graphed(load_fit("generic", "h100-sxm").tuning, engine)
    scales = [getattr(tuning, name) for name in KERNEL_SCALES]
    assert scales == pytest.approx([scale] * 3, rel=1e-3)
    taught = as_graphed(Tuning(matmul_scale=2 * 1.13), engine)
    assert taught.matmul_scale == pytest.approx(2 * scale, rel=1e-3)


def test_a_trainers_own_kernels_around_experts() -> None:
    """Without a compiler rows are moved and weighed by PyTorch's operators; where a kernel of the
    trainer's does it, nothing else of what is not compiled changes.
    """
    eager = engine_of(EAGER).kernels
    assert eager.permutes_by_index
    assert eager.weighs_apart
    assert not eager.fused_gated
    own = engine_of(EAGER | {"fused_kernels": "gated permutes gathers_biases"}).kernels
    assert own == eager.model_copy(
        update={
            "fused_gated": True,
            "permutes_by_index": False,
            "sums_by_index": False,
            "weighs_apart": False,
            "expert_biases": "gathered",
        }
    )
