"""What a run's year, or the release in its framework's name, says of its kernels."""

import pytest
from rows import ROW

from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.runs import run_of
from meshplan.planner.runs.validate import step_model


@pytest.mark.parametrize(("year", "bytes_"), [
    pytest.param("2025", 0.5 + 1 / 64 + 4 / (64 * 256), id="each expert a module of nn.Linear"),
    pytest.param("2026", 2.0, id="transformers 5: one parameter, left in 16 bits"),
])  # fmt: skip
def test_which_experts_qlora_quantises(year: str, bytes_: float) -> None:
    """Of Mixtral's 8 x 3 x 4,096 x 14,336 numbers in each of 32 layers, beside those of a model
    with one expert.
    """
    row = ROW | {
        "framework": "HF transformers + PyTorch FSDP1", "year": year, "gpus": "1", "dp": "1",
        "zero": "0", "recompute": "full", "global_batch": "1", "moe_ffn": "14336", "top_k": "1",
        "adapters": "lora 16 attention nf4", "shared_experts": "0", "dense_layers": "0",
    }  # fmt: skip
    eight, one = (
        step_model(run_of(row | {"experts": experts}), Tuning()).memory()[0].weights
        for experts in ("8", "1")
    )
    routers = 2.0 * 32 * 7 * 4096
    expert = 32 * 7 * 3 * 4096 * 14336
    assert float(eight) - float(one) == pytest.approx(bytes_ * expert + routers, rel=1e-4)


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ({"year": "2026"}, 0.366),
        ({"year": "2025"}, 1.0),
        ({"year": "2026", "framework": "megatron-lm (NGC PyTorch 25.10)"}, 1.0),
        ({"year": "2025", "framework": "megatron-lm (NGC 26.01)"}, 0.366),
        ({"year": "2026", "gpu": "mi300x"}, 1.0),
        ({"year": "2026", "fused_kernels": "local"}, 1.0),
        ({"year": "2026", "framework": "megatron-bridge (NeMo 26.04)"}, 1.0),
        ({"year": "2025", "framework": "nemo 25.07"}, 1.0),
    ],
)
def test_when_transformer_engine_issues_dense_layers_as_pytorch_does(
    said: dict[str, str], share: float
) -> None:
    """From 2.11 on, of which NVIDIA's containers of 26.01 are the first."""
    run = run_of(ROW | {"framework": "megatron-lm"} | said)
    assert run.engine.kernels.product_share == share
    assert step_model(run, Tuning()).pricer.product_share == share


@pytest.mark.parametrize(
    ("said", "sends"),
    [
        ({"year": "2025"}, True),
        ({"year": "2024"}, False),
        ({"year": "2025", "framework": "nemo 25.04"}, False),
        ({"year": "2025", "framework": "megatron-bridge (NeMo 25.09)"}, True),
        ({"year": "2026", "framework": "torchtitan"}, False),
    ],
)
def test_which_megatron_sends_the_weights_of_tokens(said: dict[str, str], sends: bool) -> None:
    """Since Megatron-Core 0.13 of 2025, which NeMo did not come to."""
    kernels = run_of(ROW | {"framework": "megatron-lm"} | said).engine.kernels
    assert kernels.weights_apart == sends


@pytest.mark.parametrize(
    ("said", "kernels"),
    [
        ({"year": "2024"}, 26),
        ({"year": "2024", "framework": "nemo 24.07"}, 26),
        ({"year": "2025"}, 10),
        ({"year": "2025", "fused_kernels": "no_choosing"}, 22),
        ({"year": "2024", "framework": "torchtitan"}, 10),
    ],
)
def test_which_megatron_chooses_experts_by_operators(said: dict[str, str], kernels: int) -> None:
    """Before its router was fused in Megatron-Core 0.14 of September 2025; of that year, and later,
    where a row says so.
    """
    engine = run_of(ROW | {"framework": "megatron-lm"} | said).engine
    assert engine.kernels.routing_kernels == kernels


@pytest.mark.parametrize(
    ("said", "axes"),
    [
        ({}, ("ep",)),
        ({"fused_kernels": "local"}, ("tp", "ep")),
        ({"year": "2023"}, ("tp", "ep")),
        ({"year": "2023", "framework": "nemo 23.11"}, ("ep",)),
        ({"framework": "megatron-deepspeed"}, ("tp",)),
    ],
)
def test_where_functions_are_applied_on_a_rank_of_its_own(
    said: dict[str, str], axes: tuple[str, ...]
) -> None:
    """Megatron-LM's own layers apply them around tensor parallelism, all its versions at experts'
    exchange; Transformer Engine's layers none.
    """
    run = run_of(ROW | {"framework": "megatron-lm", "year": "2026"} | said)
    assert run.engine.kernels.functions_alone == axes
    assert step_model(run, Tuning()).pricer.functions_alone == axes


@pytest.mark.parametrize(
    ("zero", "said", "hooked_from", "added"),
    [
        ("2", {"framework": "megatron-bridge (NeMo 25.11)"}, 2, "copied"),
        ("3", {"framework": "megatron-bridge (NeMo 26.02)"}, 2, "copied"),
        ("3", {"framework": "megatron-bridge (NeMo 25.09)"}, 2, "fused"),
        ("3", {"framework": "megatron-bridge (NeMo 26.04)"}, 2, "fused"),
        ("1", {"framework": "megatron-bridge (NeMo 25.11)"}, 2, "fused"),
        ("1", {"framework": "megatron-bridge (NeMo 25.11, Megatron-FSDP)"}, 1, "added"),
        ("3", {"framework": "megatron-lm (2026, Megatron-FSDP v1)"}, 1, "fused"),
        ("3", {"framework": "megatron-lm (2026, Megatron-FSDP v2)"}, 1, "copied"),
        ("3", {"framework": "nemo 25.07"}, 2, "fused"),
    ],
)
def test_when_megatron_fsdp_adds_gradients_up_apart(
    zero: str, said: dict[str, str], hooked_from: int, added: str
) -> None:
    """Megatron-Bridge 0.2 and 0.3 (NeMo 25.11 to 26.02), and the second Megatron-FSDP; under
    ZeRO-1 where the name says that it ran.
    """
    kernels = run_of(ROW | {"zero": zero, "pp": "1"} | said).engine.kernels
    assert (kernels.hooked_from, kernels.gradient_add) == (hooked_from, added)
    assert kernels.keeps_buffers == (added == "fused")
