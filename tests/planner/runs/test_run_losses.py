"""What a row's words say of how its framework computed the loss."""

import pytest
from rows import engine_of

from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.core_loss import CORE_LOSSES, loss_word


@pytest.mark.parametrize(
    ("row", "chunks"),
    [
        pytest.param({"framework": "torchtitan", "year": "2025"}, 1, id="before"),
        pytest.param({"framework": "torchtitan", "year": "2026"}, 8, id="since April 2026"),
        pytest.param({"framework": "torchtitan"}, 8, id="as today"),
        pytest.param({"framework": "torchtitan 0.2.2", "year": "2026"}, 1, id="an old release"),
        pytest.param({"framework": "torchtitan 0.3.0", "year": "2025"}, 8, id="a new release"),
        pytest.param(
            {"framework": "torchtitan", "year": "2026", "fused_loss": "whole"}, 1, id="said"
        ),
        pytest.param({"framework": "prime-rl (FSDP2)", "year": "2026"}, 1, id="another trainer"),
        pytest.param({"framework": "NeMo AutoModel", "year": "2026"}, 1, id="an engine apart"),
    ],
)
def test_torchtitans_loss_is_in_chunks_since_2026(row: dict[str, str], chunks: int) -> None:
    """Those of its own configurations; the table's gradient is then taken where its input is."""
    kernels = engine_of(row).kernels
    assert (kernels.loss_chunks, kernels.chunked_loss) == (chunks, chunks > 1)


@pytest.mark.parametrize(("said", "bytes_"), [
    pytest.param({}, (4.0, 0.0, True), id="compiled: logits and their gradient, 2 + 2"),
    pytest.param({"compiled": "0"}, (12.0, 16.0, False), id="fp32: 4 + 4 + 4, cut 4 x 4"),
    pytest.param({"fused_loss": "eager"}, (12.0, 16.0, False), id="beside a compiled model"),
    pytest.param({"compiled": "0", "fused_loss": "compiled"}, (4.0, 0.0, True), id="it alone"),
    pytest.param({"fused_loss": "chunks eager"}, (12.0, 16.0, False), id="two words"),
])  # fmt: skip
def test_what_became_of_torchtitans_loss(
    said: dict[str, str], bytes_: tuple[float, float, bool]
) -> None:
    """Bytes of a logit, whole and cut over ranks, and whether one kernel computes it."""
    kernels = engine_of({"framework": "torchtitan", "year": "2025"} | said).kernels
    found = kernels.logits_bytes, kernels.cut_logits_bytes, kernels.fused_cross_entropy
    assert found == bytes_
    assert kernels.keeps_listed == (said.get("compiled") == "0")
    assert kernels.loss_chunks == (8 if "chunks" in said.get("fused_loss", "") else 1)


@pytest.mark.parametrize(("row", "fused"), [
    pytest.param({"year": "2024"}, False, id="layers alone were compiled"),
    pytest.param({"year": "2025"}, True, id="compiled since"),
    pytest.param({}, True, id="as today"),
    pytest.param({"year": "2024", "fused_loss": "whole"}, True, id="said"),
    pytest.param({"year": "2024", "framework": "prime-rl (FSDP2)"}, True, id="another trainer"),
])  # fmt: skip
def test_torchtitans_loss_was_not_compiled_until_2025(row: dict[str, str], fused: bool) -> None:
    """Then each logit holds its log-probability and two gradients in fp32, instead of 2 + 2."""
    kernels = engine_of({"framework": "torchtitan"} | row).kernels
    assert kernels.fused_cross_entropy == fused
    assert kernels.logits_bytes == (4.0 if fused else 12.0)


def test_a_loss_in_fp32_and_a_kernel_that_is_named() -> None:
    """A row may say both; a kernel that is named is not the one that PyTorch picks."""
    row = {"framework": "prime-rl (FSDP2)", "year": "2026"}
    said = engine_of(row | {"fused_loss": "fp32", "attention_kernel": "flash2"}).kernels
    assert (said.logits_bytes, said.fused_cross_entropy) == (14.0, False)
    assert (said.attention, said.uses_sdpa) == ("flash2", False)
    narrow = engine_of(row | {"fused_loss": "bf16"}).kernels
    assert (narrow.logits_bytes, narrow.fused_cross_entropy) == (6.0, False)
    assert engine_of(row | {"attention_kernel": "cudnn"}).kernels.attention == "cudnn"
    assert engine_of(row | {"attention_kernel": "efficient"}).kernels.attention == "efficient"
    assert engine_of(row | {"attention_kernel": "masked"}).kernels.attention == "masked"
    for kernel in ("flash4", "cudnn_mxfp8", "flex"):
        assert engine_of(row | {"attention_kernel": kernel}).kernels.attention == kernel
    asked = engine_of({"framework": "a trainer", "attention_kernel": "sdpa"}).kernels
    assert (asked.attention, asked.uses_sdpa) == ("flash2", True)


@pytest.mark.parametrize(("framework", "release"), [
    ("nanoGPT (PyTorch 2.8.0, torch.compile)", "2.8.0"), ("a trainer, torch 2.13 cu130", "2.13"),
    ("torchtitan 0.2.1 (PyTorch 2.10)", "cudnn"),
    ("megatron-lm (NGC PyTorch 25.10)", ""), ("HF transformers + accelerate (FSDP2)", ""),
])  # fmt: skip
def test_a_row_keeps_the_attention_of_its_release(framework: str, release: str) -> None:
    """That which `plan` assumes is not a measured run's; NVIDIA's containers count years."""
    assert engine_of({"framework": framework}).kernels.sdpa_order == release


@pytest.mark.parametrize(("said", "bytes_", "gathers"), [
    pytest.param("bf16_held", 8.0, False, id="16 bits: logits, log-probabilities, two gradients"),
    pytest.param("fp32_held", 16.0, False, id="the same in fp32"),
    pytest.param("whole bf16_held gathered", 8.0, True, id="tensor ranks have all logits"),
])  # fmt: skip
def test_a_variable_that_holds_the_logits(said: str, bytes_: float, gathers: bool) -> None:
    """Until the next ones take their place."""
    kernels = engine_of({"framework": "KempnerForge (FSDP2)", "fused_loss": said}).kernels
    assert (kernels.logits_bytes, kernels.gathers_logits) == (bytes_, gathers)
    assert not kernels.fused_cross_entropy


def test_a_gradient_in_place_of_logits() -> None:
    """16 bits of each logit and a copy in fp32; 2 more where its rows less the last are copied."""
    words = ("fp32_shifted", "fp32_in_place")
    found = [engine_of({"framework": "FSDP2", "fused_loss": word}).kernels for word in words]
    assert [kernels.logits_bytes for kernels in found] == [6.0, 8.0]
    assert all(kernels.fused_cross_entropy for kernels in found)


@pytest.mark.parametrize(("said", "bytes_", "fused"), [
    pytest.param("", 2.0, True, id="performance recipes: te"),
    pytest.param("native", 13.0, False, id="native: as NeMo's"),
    pytest.param("unfused", 8.0, False, id="unfused: as Megatron-LM's"),
])  # fmt: skip
def test_the_losses_of_megatron_core(said: str, bytes_: float, fused: bool) -> None:
    """By the fields that a recipe of Megatron-Bridge sets."""
    row = {"framework": "megatron-bridge (NeMo 26.06)", "fused_loss": said}
    kernels = engine_of(row).kernels
    assert (kernels.logits_bytes, kernels.fused_cross_entropy) == (bytes_, fused)


@pytest.mark.parametrize(
    ("engine", "word"), [("megatron-bridge", "te"), ("nemo", "native"), ("megatron", "unfused")]
)
def test_an_engines_own_loss_has_a_word(engine: str, word: str) -> None:
    """A fact of one home: the bytes of a word are those that its engine's file states."""
    assert loss_word(load_engine(engine)) == word
    assert CORE_LOSSES[word]["logits_bytes"] == load_engine(engine).kernels.logits_bytes
