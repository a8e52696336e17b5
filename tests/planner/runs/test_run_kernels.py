"""Kernels that a row's compiler or its own trainer makes."""

from rows import engine_of

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
