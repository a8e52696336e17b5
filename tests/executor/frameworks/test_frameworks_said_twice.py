"""One fact that two places of a file state, and arguments that their command never gets.

The lines are ours; what they show was found in kojimano/Megatron-DeepSpeed-ABCI
`abci/shells/old_shells/pretrain_gpt_13b_mp4_pp8.sh`, Fugaku-LLM/DeepSpeedFugaku
`examples/run_deepspeed_example.sh` and saforem2/torchtitan `train_configs/llama2_13b.toml`.
"""

import json

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading

FLAGS = """\
pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512
--max-position-embeddings 512 --micro-batch-size 4 --global-batch-size 1024 --fp16 --zero-stage 1
--tensor-model-parallel-size 1 --deepspeed --deepspeed_config ds.json""".replace("\n", " ")
AGREES = {"train_micro_batch_size_per_gpu": 4, "train_batch_size": 1024,
          "fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}  # fmt: skip


def read(text: str) -> Reading:
    return read_config(text, "run.sh")


def of_written(**changed: object) -> Reading:
    """A script that writes DeepSpeed's configuration and states the same by its flags."""
    written = {key: value for key, value in (AGREES | changed).items() if value is not None}
    return read(f"cat <<EOF > ds.json\n{json.dumps(written)}\nEOF\ndeepspeed {FLAGS}\n")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, ""),
        ({"train_batch_size": 64}, "global_batch_size 64, the flags say 1024"),
        ({"train_micro_batch_size_per_gpu": 8}, "micro_batch_size 8, the flags say 4"),
        ({"fp16": None, "bf16": {"enabled": True}}, "precision bf16, the flags say fp16"),
        ({"fp16": None}, "precision fp32, the flags say fp16"),
    ],
)
def test_what_flags_and_deepspeeds_json_say_otherwise_is_named(
    changed: dict[str, object], named: str
) -> None:
    """DeepSpeed runs by its JSON, Megatron's loop by the flags."""
    said = [str(fact.value) for fact in of_written(**changed).unread]
    assert said == [f"'ds.json': {named}"] * bool(named)


def test_deepspeeds_accumulation_is_held_against_the_flags_batch() -> None:
    """The JSON's number of micro-batches is a fact of the case, which its batch must be."""
    reading = of_written(train_batch_size=None, gradient_accumulation_steps=2)
    assert reading.facts["num_micro_batches"].value == 2
    assert reading.facts["global_batch_size"].value == 1024


@pytest.mark.parametrize(("end", "noted"), [(" \\", 0), ("", 1), (" # all", 1)])
def test_arguments_behind_a_line_without_a_backslash_are_named(end: str, noted: int) -> None:
    """bash looks for a command called `--checkpoint-activations`."""
    flags = FLAGS.replace(" --deepspeed --deepspeed_config ds.json", "")
    more = "\n --checkpoint-activations \\\n --sequence-parallel"
    reading = read(f"torchrun --nproc_per_node 8 {flags}{end}{more}")
    said = [note for note in reading.notes if "--checkpoint-activations is no argument" in note]
    assert len(said) == noted
    assert (reading.recompute.mode == "none") == bool(noted)


def test_several_such_lines_have_one_note() -> None:
    """The first line tells where the command ends, each time that the command runs."""
    flags = FLAGS.replace(" --deepspeed --deepspeed_config ds.json", "")
    lines = f"torchrun --nproc_per_node 8 {flags}\n --swiglu\n --sequence-parallel\n"
    notes = read(f"for seed in 1 2; do\n{lines}done\n").notes
    assert [note[:20] for note in notes if "is no argument" in note] == ["line 3: --swiglu is "]


def test_two_names_of_one_argument_of_a_recipe_with_two_values_are_named() -> None:
    """Which of them its function takes is not known; the same value twice says one thing."""
    recipe = "recipe:\n  _target_: a.llama3_8b_pretrain_config\n  context_parallelism: {}\n"
    rest = "  context_parallel_size: 2\nmodel:\n  tensor_model_parallel_size: 4\ntrain:\n" \
           "  global_batch_size: 8\n  micro_batch_size: 1\n"  # fmt: skip
    both = [read_config(recipe.format(each) + rest, "default.yaml") for each in (2, 4)]
    said = [[str(fact.value) for fact in reading.unread if "context" in str(fact.value)]
            for reading in both]  # fmt: skip
    assert said == [[], ["recipe.context_parallelism 4 and recipe.context_parallel_size 2"]]


@pytest.mark.parametrize(
    ("flavor", "model"),
    [("7B", "llama-2-7b"), ("13B", "llama-2-13b"), ("70B", "llama-2-70b"), ("26B", None)],
)
def test_torchtitans_older_models_are_the_catalogues(flavor: str, model: str | None) -> None:
    """26B is a deeper 13B of torchtitan's own."""
    text = f'[job]\n[model]\nname = "llama2"\nflavor = "{flavor}"\n[training]\nseq_len = 4096\n'
    fact = read_config(text, "train.toml").facts.get("model")
    assert (fact and fact.value) == model
