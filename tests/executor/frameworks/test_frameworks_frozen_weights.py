"""What trainers keep of weights that they do not train: the format that they were loaded in."""

from pathlib import Path

import pytest

from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

AXOLOTL = """base_model: meta-llama/Llama-3.1-8B-Instruct
datasets: [{path: some/data, type: alpaca}]
sequence_len: 1024
micro_batch_size: 1
sample_packing: true
bf16: true
gradient_checkpointing: true
adapter: lora
lora_r: 8
lora_target_linear: true
"""
TUNE = """model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ["q_proj", "k_proj", "v_proj", "output_proj"]
  apply_lora_to_mlp: true
  lora_rank: 8
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 1024}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
optimizer: {_component_: torch.optim.AdamW}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
batch_size: 1
gradient_accumulation_steps: 1
enable_activation_checkpointing: true
dtype: bf16
"""
WEIGHTS_BYTES = 8.03e9 * 2


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(AXOLOTL, id="transformers' loss"),
        pytest.param(AXOLOTL + "use_liger_kernel: true\n", id="Liger's"),
        pytest.param(TUNE, id="torchtune"),
    ],
)
def test_frozen_weights_have_16_bits(tmp_path: Path, text: str) -> None:
    """8.03e9 x 2 bytes and little else on one GPU, whatever makes the loss; not 4 bytes each, which
    torchtitan's own LoRA keeps.
    """
    path = tmp_path / "lora.yaml"
    path.write_text(text)
    (found,) = check_paths([path], tools(), Settings(cluster="dgx-h100", gpus=1))
    assert found.verdict == "fits", found.text
    assert found.peak_bytes is not None
    assert WEIGHTS_BYTES < found.peak_bytes < WEIGHTS_BYTES + 6 * 2**30


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("sft.yaml", AXOLOTL.replace("meta-llama/Llama-3.1-8B-Instruct", "some/other-7b"),
         "base_model 'some/other-7b' is not in the catalogue: priced as llama-3.1-8b"),
        ("titan.toml", '[model]\nname = "llama4"\nflavor = "debugmodel"\n[training]\n'
         "local_batch_size = 1\nseq_len = 2048\n[parallelism]\ndata_parallel_shard_degree = -1\n",
         "model 'llama4' 'debugmodel' is not in the catalogue: priced as llama-3.1-8b"),
    ],
)  # fmt: skip
def test_a_note_says_which_model_stands_for_one_that_is_not_known(
    tmp_path: Path, name: str, text: str, named: str
) -> None:
    """A settings file fills in where the config names a model that is not known."""
    (tmp_path / "meshplan.toml").write_text(
        'cluster = "dgx-h100"\ngpus = 1\nmodel = "llama-3.1-8b"'
    )
    (tmp_path / name).write_text(text)
    (found,) = check_paths([tmp_path / name], tools())
    assert any(note.startswith(named) for note in found.notes), found


def test_quantised_experts_are_no_illegal_layout(tmp_path: Path) -> None:
    """QLoRA of Mixtral (modal-labs/llm-finetuning config/mixtral.yml) runs; nobody prices it."""
    text = AXOLOTL.replace("meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mixtral-8x7B-v0.1")
    path = tmp_path / "qlora.yaml"
    path.write_text(text.replace("adapter: lora", "adapter: qlora\nload_in_4bit: true"))
    (found,) = check_paths([path], tools(), Settings(cluster="dgx-h100", gpus=1))
    assert found.verdict == "incomplete"
    assert "its routed experts in nf4 are not modelled" in found.text
