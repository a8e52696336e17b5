"""The precision and the states that trainers keep, by what their configurations say."""

from pathlib import Path

import pytest
from trainer_files import AXOLOTL, BARE, FACTORY

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

QLORA = (
    BARE
    + """gradient_checkpointing: true
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_linear: true
"""
)


MEASURED_24_GB = 5789


@pytest.mark.parametrize(
    ("tokens", "more", "verdict"),
    [
        pytest.param(4096, "", "fits", id="as measured"),
        pytest.param(8192, "", "does not fit", id="14 bytes of each of 8,192 x 128,256 logits"),
        pytest.param(8192, "use_liger_kernel: true\n", "fits", id="Liger's loss"),
    ],
)
def test_qlora_on_one_rtx_4090(tmp_path: Path, tokens: int, more: str, verdict: str) -> None:
    """The verdict is that of the measured limit."""
    assert (tokens <= MEASURED_24_GB or bool(more)) == (verdict == "fits")
    text = QLORA.replace("sequence_len: 4096", f"sequence_len: {tokens}")
    path = tmp_path / "qlora.yaml"
    path.write_text(text.replace("micro_batch_size: 2", "micro_batch_size: 1") + more)
    given = Settings(cluster="workstation-4x4090", gpus=1)
    (found,) = check_paths([path], tools(), given)
    assert found.verdict == verdict, found.text


FULL_8B = BARE.replace("adamw_torch_fused", "paged_adamw_8bit").replace(
    "micro_batch_size: 2", "micro_batch_size: 1\ngradient_checkpointing: true"
)


def test_axolotl_trains_the_16_bit_weights_that_it_loads(tmp_path: Path) -> None:
    """8.03e9 x (2 weights + 2 gradients + 2.03 moments) bytes = 45.1 GiB: on one GPU of 80 GB."""
    (tmp_path / "fft-8b.yaml").write_text(FULL_8B)
    (found,) = check_paths(
        [tmp_path / "fft-8b.yaml"], tools(), Settings(cluster="dgx-h100", gpus=1)
    )
    assert found.verdict == "fits", found.text
    assert found.peak_bytes > 8.03e9 * 6.03
    assert any("moves states to the host" in note for note in found.notes)


@pytest.mark.parametrize(
    ("more", "optimizer", "named"),
    [
        pytest.param(
            "adapter: lora\nlora_r: 8\nlora_target_linear: true\n",
            "adamw_torch_4bit",
            False,
            id="two half bytes of few adapters",
        ),
        pytest.param("", "adamw_torch_4bit", True, id="two half bytes of all weights"),
        pytest.param("fsdp: [full_shard]\n", "paged_adamw_32bit", False, id="fp32 weights"),
        pytest.param("", "paged_adamw_32bit", True, id="32 bits beside 16-bit weights"),
    ],
)
def test_states_of_other_optimizers(more: str, optimizer: str, named: bool) -> None:
    """Of adapters alone they are priced as AdamW's, with a note; of all weights they are named."""
    reading = read_config(BARE.replace("adamw_torch_fused", optimizer) + more, "train.yaml")
    assert any(optimizer in str(fact.value) for fact in reading.unread) == named
    assert (reading.facts.get("optimizer") is None) == (named and "4bit" in optimizer)
    assert any("priced as AdamW" in note for note in reading.notes) == (
        bool(reading.facts.get("lora")) and not named
    )


@pytest.mark.parametrize(
    ("text", "states"),
    [
        pytest.param(BARE, "bf16", id="weights loaded in bf16"),
        pytest.param(BARE + "adapter: lora\nlora_r: 8\n", None, id="adapters are fp32"),
        pytest.param(BARE + "fsdp: [full_shard]\n", None, id="FSDP keeps fp32 ones"),
        pytest.param(FACTORY.replace("deepspeed: configs/zero3.json\n", 'fsdp: ""\n'), None,
                     id="LLaMA-Factory casts what it trains to fp32"),
    ],
)  # fmt: skip
def test_states_in_16_bits(text: str, states: str | None) -> None:
    """Whose optimizer works on 16-bit weights."""
    fact = read_config(text, "train.yaml").facts.get("optimizer_states")
    assert (fact.value if fact else None) == states


@pytest.mark.parametrize("text", [AXOLOTL, FACTORY])
def test_fp8_wins_over_the_bf16_beside_it(text: str) -> None:
    """axolotl's own FP8 examples state both."""
    assert read_config(text + "fp8: true\n", "train.yaml").facts["precision"].value == "fp8"
    assert read_config(text + "fp8: false\n", "train.yaml").facts["precision"].value == "bf16"
