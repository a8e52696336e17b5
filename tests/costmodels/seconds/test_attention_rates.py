"""Attention kernels against published rates."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.kinds import AttentionCore
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.attention_kernels import sdpa_kernel
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.engines import HERE, VARIANTS, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning


@pytest.mark.parametrize(
    ("gpu", "kernel", "seq_len", "forward", "backward"),
    [
        ("mi300x", "cudnn", 4096, 434e12, 314e12),
        ("mi300x", "cudnn", 8192, 480e12, 373e12),
        ("mi300x", "cudnn", 16384, 522e12, 430e12),
        ("mi355x", "cudnn", 2048, 941e12, 630e12),
        ("mi355x", "cudnn", 8192, 1205e12, 773e12),
        ("mi355x", "flash2", 2048, 353e12, 157e12),
        ("mi355x", "flash2", 8192, 705e12, 224e12),
        ("mi355x", "flash2", 16384, 789e12, 259e12),
    ],
)
def test_published_attention(
    gpu: str, kernel: str, seq_len: int, forward: float, backward: float
) -> None:
    """Causal sequences of heads of 128, as Primus-Turbo timed AITER in PyTorch on MI300X (the
    longest without a mask, of half the length), HipKittens AITER's forward and PyTorch's kernels
    on MI355X, and ROCm/aiter its own backward there: within 8 %.
    """
    device = Device(
        load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], kernel, uses_sdpa=True
    )
    core = AttentionCore(
        name="attention", queries=8.0 * seq_len, keys=seq_len / 2, all_keys=float(seq_len),
        heads=64, head_dim=128, v_head_dim=128, fused=True,
    )  # fmt: skip
    seconds = [attention_s(device, core, backward=backward) for backward in (False, True)]
    assert core.forward_flops / seconds[0] == pytest.approx(forward, rel=0.08)
    assert 2.5 * core.forward_flops / seconds[1] == pytest.approx(backward, rel=0.08)


@pytest.mark.parametrize(
    ("keys", "published"),
    [pytest.param(4096, 130e12, id="no mask"), pytest.param(2048, 98e12, id="causal")],
)
def test_values_narrower_than_queries_are_slow_backward_on_mi300x(
    keys: float, published: float
) -> None:
    """4,096 tokens, heads of 192 and 128 (AMD-AGI/Primus-Turbo@221d75f1): backward within 1 %,
    whatever the precision of sums, and 2.9 times as slow as where both are as wide.
    """
    device = Device(load_gpu("mi300x"), load_kernels("mi300x"), Tuning(), RECIPES["bf16"], "cudnn")
    core = AttentionCore(
        name="attention", queries=16384.0, keys=keys, all_keys=4096.0, heads=64, head_dim=192,
        v_head_dim=128, fused=True,
    )  # fmt: skip
    flops, latent_s = 2.5 * core.forward_flops, attention_s(device, core, backward=True)
    assert flops / latent_s == pytest.approx(published, rel=0.01)
    in_16_bits = replace(device, sums_in_16_bits=True)
    assert attention_s(in_16_bits, core, backward=True) == latent_s
    even = replace(core, head_dim=160, v_head_dim=160)
    assert latent_s > 2.8 * attention_s(device, even, backward=True)


@pytest.mark.parametrize(("backward", "published"), [(False, 379e12), (True, 334e12)])
def test_flash2_on_blackwell(backward: bool, published: float) -> None:
    """16,384 tokens, heads of 64 without a mask (flash-attention issue 1589): within 20 %, where
    cuDNN, which PyTorch is told to call there, is three times as fast.
    """
    core = AttentionCore(
        name="attention", queries=16384.0, keys=16384.0, all_keys=16384.0, heads=32, head_dim=64,
        v_head_dim=64, fused=True,
    )  # fmt: skip
    package = Device(load_gpu("b200"), load_kernels("b200"), Tuning(), RECIPES["bf16"], "flash2")
    flops = core.forward_flops * (2.5 if backward else 1.0)
    assert flops / attention_s(package, core, backward=backward) == pytest.approx(
        published, rel=0.2
    )
    of_pytorch = replace(package, uses_sdpa=True)
    faster = attention_s(package, core, backward=backward)
    assert faster > 2.5 * attention_s(of_pytorch, core, backward=backward)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("gpu", "slower"), [("mi355x", True), ("h100-sxm", False)])
def test_pytorch_has_a_kernel_of_its_own_on_amd(gpu: str, slower: bool, backward: bool) -> None:
    """Where it calls FlashAttention-2 itself, who calls it makes no difference."""
    core = AttentionCore(
        name="attention", queries=4096.0, keys=2048.0, all_keys=4096.0, heads=32, head_dim=128,
        v_head_dim=128, fused=True,
    )  # fmt: skip
    package = Device(load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], "flash2")
    of_pytorch, of_package = (
        attention_s(replace(package, uses_sdpa=sdpa), core, backward=backward)
        for sdpa in (True, False)
    )
    assert (of_pytorch > 1.5 * of_package) if slower else of_pytorch == of_package


@pytest.mark.parametrize(
    ("gpu", "assembled"),
    [
        pytest.param("mi355x", True, id="gfx950"),
        pytest.param("mi300x", True, id="gfx942"),
        pytest.param("mi250x", False, id="gfx90a has Triton's alone"),
        pytest.param("b200", False, id="cuDNN's"),
    ],
)
def test_pytorchs_backward_on_amd_is_aiters(gpu: str, assembled: bool) -> None:
    """Backward alone, at the rate of the engines that call AITER: the forward stays Triton's."""
    core = AttentionCore(
        name="attention", queries=8192.0, keys=4096.0, all_keys=8192.0, heads=32, head_dim=128,
        v_head_dim=128, fused=True,
    )  # fmt: skip
    older = Device(
        load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], "flash2", uses_sdpa=True
    )
    newer, aiter = replace(older, sdpa_by_assembly=True), replace(older, attention="cudnn")
    assert attention_s(newer, core, backward=False) == attention_s(older, core, backward=False)
    expected = aiter if assembled else older
    assert attention_s(newer, core, backward=True) == attention_s(expected, core, backward=True)
    faster = attention_s(older, core, backward=True) / attention_s(newer, core, backward=True)
    assert (faster > 2) == assembled


@pytest.mark.parametrize(
    ("gpu", "kernel"),
    [("b200", "cudnn"), ("gb300", "cudnn"), ("h100-sxm", "cudnn"), ("a100-80gb-sxm", "flash2")],
)
def test_an_unknown_framework_calls_pytorchs_attention(gpu: str, kernel: str) -> None:
    """Of the release that is assumed: cuDNN's on Hopper and Blackwell, else FlashAttention-2."""
    habits = load_engine("generic").kernels
    core = AttentionCore(
        name="attention", queries=4096.0, keys=2048.0, all_keys=4096.0, heads=32, head_dim=128,
        v_head_dim=128, fused=True,
    )  # fmt: skip
    named = Device(load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], kernel)
    own = replace(
        named, attention=habits.attention, uses_sdpa=habits.uses_sdpa,
        kernel_order=habits.kernel_order,
    )  # fmt: skip
    for backward in (False, True):
        assert attention_s(own, core, backward=backward) == pytest.approx(
            attention_s(named, core, backward=backward)
        )


@pytest.mark.parametrize(("gpu", "release", "heads", "kernel"), [
    pytest.param("h100-sxm", "2.5.0", (128, 128), "cudnn", id="2.5.0: first"),
    pytest.param("h100-sxm", "2.5.1", (128, 128), "flash2", id="pull request 138522"),
    pytest.param("h200", "2.8.0", (64, 64), "flash2", id="last, until 162073"),
    pytest.param("gh200", "2.9.1", (128, 128), "cudnn", id="cuDNN 9.10.2 for 9.9"),
    pytest.param("gb300-nvl72", "2.9", (128, 128), "flash2", id="a minor revision of the chip"),
    pytest.param("b200", "2.10.0", (128, 128), "flash2", id="9.10.2 for more than 9.15.0"),
    pytest.param("gb300", "2.11", (128, 128), "cudnn", id="9.19"),
    pytest.param("h20", "2.13.0", (256, 256), "cudnn", id="heads of 256 on Hopper"),
    pytest.param("b200", "2.13", (256, 256), "flash2", id="not on Blackwell"),
    pytest.param("b200", "2.13", (192, 128), "cudnn", id="DeepSeek's"),
    pytest.param("b200", "2.13", (128, 192), "flash2", id="wider values"),
    pytest.param("a100-80gb-sxm", "2.13", (128, 128), "flash2", id="never first"),
    pytest.param("rtx-5090", "2.13", (128, 128), "flash2", id="sm120"),
    pytest.param("mi300x", "2.13", (128, 128), None, id="AOTriton's"),
    pytest.param("h100-sxm", "cudnn", (128, 128), "cudnn", id="a framework lists it first"),
    pytest.param("b200", "flash", (128, 128), "flash2", id="or calls the other itself"),
])  # fmt: skip
def test_which_kernel_pytorch_runs(
    gpu: str, release: str, heads: tuple[int, int], kernel: str | None
) -> None:
    """By check_prefer_cudnn_attention and check_cudnn_tensor_shapes, and the wheels' cuDNN."""
    assert sdpa_kernel(release, gpu, *heads) == kernel


@pytest.mark.parametrize(("gpu", "release", "as_", "listed"), [
    pytest.param("h100-sxm", "2.13", "cudnn", False, id="faster"),
    pytest.param("b200", "2.8.0", "flash2", False, id="slower"),
    pytest.param("mi300x", "2.13", "flash2", True, id="AMD's own is left"),
    pytest.param("b200", "", "flash2", True, id="a list of the framework's own"),
])  # fmt: skip
def test_a_release_is_priced_as_its_kernel(gpu: str, release: str, as_: str, listed: bool) -> None:
    """As an engine that calls that kernel itself; where no release decides, as before."""
    core = AttentionCore(
        name="attention", queries=4096.0, keys=2048.0, all_keys=4096.0, heads=32, head_dim=64,
        v_head_dim=64, fused=True,
    )  # fmt: skip
    named = Device(
        load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], as_, uses_sdpa=listed
    )
    asked = replace(named, attention="flash2", uses_sdpa=True, kernel_order=release)
    for backward in (False, True):
        told = attention_s(asked, core, backward=backward)
        assert told == attention_s(named, core, backward=backward)


@pytest.mark.parametrize("assembled", [False, True])
def test_flex_attention_is_tritons_on_amd(assembled: bool) -> None:
    """As PyTorch's own kernel without AITER's assembly, which no FlexAttention calls."""
    core = AttentionCore(
        name="attention", queries=4096.0, keys=2048.0, all_keys=4096.0, heads=32, head_dim=128,
        v_head_dim=128, fused=True,
    )  # fmt: skip
    triton = Device(
        load_gpu("mi300x"), load_kernels("mi300x"), Tuning(), RECIPES["bf16"], "flash2",
        uses_sdpa=True,
    )  # fmt: skip
    flex = replace(triton, attention="flex", sdpa_by_assembly=assembled)
    found = [attention_s(each, core, backward=True) for each in (triton, flex)]
    assert found[0] == found[1]
    by_assembly = replace(triton, sdpa_by_assembly=True)
    assert attention_s(by_assembly, core, backward=True) < found[0]


def test_a_step_runs_the_kernel_of_its_release() -> None:
    """cuDNN's, which 2.13 lists first on an H200, makes a step of 16,384 tokens shorter."""
    model = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")
    engine, training = load_engine("generic"), Training(seq_len=16384, global_batch_size=8)
    layout = Layout(data_parallel=8, zero_stage=3, stages=even_stages(model.num_layers, 1))
    seconds = []
    for release in ("2.10", "2.13"):
        kernels = engine.kernels.model_copy(update={"sdpa_order": release})
        own = engine.model_copy(update={"kernels": kernels})
        setting = Setting(model, training, load_cluster("dgx-h200"), own, Tuning())
        seconds.append(StepModel(setting, layout).time().step_time_s)
    assert seconds[1] < 0.97 * seconds[0]


def test_cudnns_kernel_takes_16_bits_alone() -> None:
    """Training in fp32 is priced under a release that lists it first as under one that does not."""
    core = AttentionCore(
        name="attention", queries=4096.0, keys=2048.0, all_keys=4096.0, heads=32, head_dim=128,
        v_head_dim=128, fused=True,
    )  # fmt: skip
    first, last = (
        Device(
            load_gpu("h200"), load_kernels("h200"), Tuning(), RECIPES["fp32"], "flash2",
            uses_sdpa=True, kernel_order=release,
        )
        for release in ("2.13", "")
    )  # fmt: skip
    assert attention_s(first, core, backward=True) == attention_s(last, core, backward=True)


def test_todays_order_is_of_engines_that_run_todays_pytorch() -> None:
    """None that is based on one of them, and trained with a kernel of its own, takes it over."""
    names = [path.stem for path in (*HERE.glob("*.toml"), *VARIANTS.glob("*.toml"))]
    asks = {name for name in names if load_engine(name).kernels.kernel_order[:1].isdigit()}
    assert asks == {"accelerate", "accelerate-chunked-loss", "generic", "transformers"}
