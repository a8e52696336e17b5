"""Scripts that start torchtune's recipes: what their words say instead of the file."""

from pathlib import Path

import pytest
from unread import unread_of

from meshplan.costmodels.training import Lora
from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import NothingToRead, Reading, Start, UnreadableConfig

LORA = """
output_dir: /tmp/run
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: true
  lora_rank: 16
  lora_alpha: 32
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: true}
batch_size: 2
optimizer: {_component_: torch.optim.AdamW, lr: 3e-4}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
gradient_accumulation_steps: 4
enable_activation_checkpointing: true
dtype: bf16
"""
TUNE = "tune run --nnodes 2 --nproc_per_node=4 lora_finetune_distributed --config lora.yaml"


def read(folder: Path, text: str, start: Start | None = None) -> Reading:
    """`text` as a script in `folder`, beside its file."""
    (folder / "lora.yaml").write_text(LORA)
    return read_config(text, str(folder / "run.slurm"), None, start)


def stated(reading: Reading, *names: str) -> list[object]:
    """The facts of these names."""
    return [reading.facts[name].value for name in names]


def test_torchruns_words_give_the_gpus_and_the_file_the_rest(tmp_path: Path) -> None:
    """2 nodes of 4; all but the words is the file's."""
    reading = read(tmp_path, f"srun {TUNE}\n")
    assert unread_of(reading) == ""
    assert stated(reading, "gpus", "micro_batch_size", "num_micro_batches") == [8, 2, 4]
    assert reading.facts["lora"].value == Lora(rank=16, targets="all_but_key")


def test_words_win_over_the_file(tmp_path: Path) -> None:
    """A component by its own name, an entry below one, one that is taken out."""
    words = (
        "batch_size=6 tokenizer.max_seq_len=4096 model.lora_rank=64 ~gradient_accumulation_steps "
        "model=torchtune.models.llama3_2.lora_llama3_2_1b enable_activation_checkpointing=False"
    )
    reading = read(tmp_path, f"N=1\n{TUNE} {words} output_dir=$OUT\n")
    names = ("micro_batch_size", "seq_len", "num_micro_batches", "model")
    assert stated(reading, *names) == [6, 4096, 1, "llama-3.2-1b"]
    assert reading.facts["lora"].value.rank == 64
    assert reading.recompute.mode == "none"


def test_a_sourced_file_or_an_option_says_what_a_word_leaves_open(tmp_path: Path) -> None:
    """`$BATCH` is nobody's until one of them says it."""
    text = f". setup.sh\n{TUNE} batch_size=$BATCH\n"
    with pytest.raises(UnreadableConfig, match=r"batch_size is '\$BATCH'.*--env BATCH=VALUE"):
        read(tmp_path, text)
    given = read(tmp_path, text, Start(environment={"BATCH": "3"}))
    (tmp_path / "setup.sh").write_text("BATCH=5\n")
    assert stated(given, "micro_batch_size") == [3]
    assert stated(read(tmp_path, text), "micro_batch_size") == [5]


def test_a_recipe_of_one_device_runs_on_one(tmp_path: Path) -> None:
    """Whatever the job asks for."""
    text = "#SBATCH --gres=gpu:4\ntune run lora_finetune_single_device --config lora.yaml\n"
    reading = read(tmp_path, text)
    assert stated(reading, "gpus") == [1]
    assert any("recipe is of one device" in note for note in reading.notes)


@pytest.mark.parametrize("words", ["--nproc_per_node 4 mine/recipe.py", "lora_dpo_distributed"])
def test_recipes_that_train_something_else_are_named(tmp_path: Path, words: str) -> None:
    """One's own, and those of preferences."""
    reading = read(tmp_path, f"tune run {words} --config lora.yaml\n")
    assert "what this recipe trains is not known" in unread_of(reading)


@pytest.mark.parametrize(
    "command",
    [
        "tune run --nproc_per_node 4 lora_finetune_distributed --config llama3_1/8B_lora",
        "tune run eleuther_eval --config lora.yaml",
        "tune run lora_finetune_distributed --config gone.yaml",
    ],
)
def test_what_is_not_there_or_trains_nothing_is_refused_by_name(
    tmp_path: Path, command: str
) -> None:
    """torchtune's own file by its name, an evaluation, a file that is not there."""
    with pytest.raises(NothingToRead, match="a launch script of torchtune: not read"):
        read(tmp_path, f"{command}\n")


def test_a_job_of_skypilot_starts_a_recipe(tmp_path: Path) -> None:
    """With the GPUs of its `accelerators`."""
    (tmp_path / "lora.yaml").write_text(LORA)
    text = (
        "resources: {accelerators: 'H100:8'}\nrun: |\n  tune run --nproc_per_node 8 "
        "full_finetune_distributed --config lora.yaml batch_size=1\n"
    )
    reading = read_config(text, str(tmp_path / "sky.yaml"))
    assert stated(reading, "gpus", "micro_batch_size") == [8, 1]
