"""Scripts of BigScience's Megatron-DeepSpeed, and what DeepSpeed does with bf16 at stage 0."""

import json

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.predict import step_model_of
from meshplan.planner.case.reading import UnreadableConfig
from meshplan.planner.case.resolve import Case, check_case, resolve
from meshplan.planner.case.settings import Settings

# the arguments of bigscience-workshop/bigscience@9e64ede train/tr11-176B-ml/tr11-176B-ml.slurm
# (Apache-2.0), which trained BLOOM 176B
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=48
#SBATCH --gres=gpu:8
ARGS=" \\
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 \\
    --pp-partition-method 'type:transformer|embedding' \\
    --num-layers 70 --hidden-size 14336 --num-attention-heads 112 \\
    --seq-length 2048 --max-position-embeddings 2048 \\
    --micro-batch-size 2 --global-batch-size 2048 \\
    --init-method-std 0.0048 --embed-layernorm --sync-tp-duplicated-parameters --bf16 \\
    --position-embedding-type alibi --checkpoint-activations --pad-vocab-size-to 250880 \\
    --deepspeed --deepspeed_config ./ds.json --zero-stage 0"
srun torchrun --nnodes 48 --nproc_per_node 8 pretrain_gpt.py $ARGS
"""


def case_of(text: str, name: str = "train.sh") -> Case:
    """The case of a script on A100s."""
    given = Settings(cluster="dgx-a100", gpus=384, model=None)
    return resolve(read_config(text, name), given, Settings())


def test_the_ends_count_as_layers() -> None:
    """(70 + 2) / 12 = 6 on each stage: five layers and the embedding, six, five and the head."""
    case = case_of(SCRIPT)
    assert [stage.layers for stage in case.layout.stages] == [5, *[6] * 10, 5]
    assert case.model.embedding_norm
    without = SCRIPT.replace("'type:transformer|embedding'", "type:transformer").replace(
        "--num-layers 70", "--num-layers 72"
    )
    assert [stage.layers for stage in case_of(without).layout.stages] == [6] * 12


def test_a_norm_behind_the_embedding_adds_two_vectors() -> None:
    """A LayerNorm's weight and bias: 2 h parameters more on the first rank."""
    plain = case_of(SCRIPT.replace("--embed-layernorm ", ""))
    assert not plain.model.embedding_norm
    with_norm, without = (
        step_model_of(case).end_parameters[0].dense for case in (case_of(SCRIPT), plain)
    )
    assert with_norm - without == 2 * 14336


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("--num-layers 70", "--num-layers 71", "73 layers and embeddings on 12 stages"),
        ("'type:transformer|embedding'", "parameters", "read are type:transformer, "),
    ],
)
def test_another_cut_is_refused_with_the_way_out(before: str, after: str, said: str) -> None:
    """What DeepSpeed would cut otherwise."""
    with pytest.raises(UnreadableConfig, match=said):
        read_config(SCRIPT.replace(before, after), "train.sh")


def test_a_norm_behind_other_embeddings_is_named() -> None:
    """Beside learned positions no family has it."""
    text = SCRIPT.replace("--position-embedding-type alibi ", "")
    (named,) = read_config(text, "train.sh").unread
    assert "--embed-layernorm" in str(named.value)


def test_bf16_at_stage_0_is_sharded_by_its_own_optimizer() -> None:
    """BF16_Optimizer: of P parameters a rank keeps 2 P of weights, (4 + 2) P of gradients and
    (4 + 8) P / 8 of masters and moments; fp16 keeps 12 P whole.
    """
    case = case_of(SCRIPT)
    assert case.layout.data_parallel == 8
    check_case(case)
    model = step_model_of(case)
    parameters = float(model.rank_parameters[3].dense)
    memory = model.memory()[3]
    assert float(memory.gradients) == pytest.approx(6 * parameters)
    assert float(memory.optimizer) == pytest.approx(12 / 8 * parameters, rel=1e-6)
    half = case_of(SCRIPT.replace("--bf16", "--fp16"))
    assert half.layout.zero_stage == 0
    assert any("BF16_Optimizer" in note for note in case.notes)
    assert not any("BF16_Optimizer" in note for note in half.notes)


def deepspeed(stage: int, **more: object) -> str:
    """DeepSpeed's JSON."""
    return json.dumps({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
                       "zero_optimization": {"stage": stage}, **more})  # fmt: skip


AXOLOTL = (
    "base_model: meta-llama/Llama-3.1-8B\ndatasets: [{path: x}]\nsequence_len: 4096\n"
    "micro_batch_size: 1\nbf16: true\ndeepspeed:\n  zero_optimization:\n    stage: 0\n"
)
ACCELERATE = (
    "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 0\n"
)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param("ds.json", deepspeed(0, bf16={"enabled": True}), 1, id="its JSON"),
        pytest.param("ds.json", deepspeed(0, fp16={"enabled": True}), 0, id="fp16: none"),
        pytest.param("ds.json", deepspeed(2, bf16={"enabled": True}), 0, id="ZeRO: none"),
        pytest.param("train.yaml", AXOLOTL, 1, id="inside a trainer's file"),
        pytest.param("acc.yaml", ACCELERATE, 1, id="Accelerate's questions"),
    ],
)
def test_what_earlier_releases_shard_is_said_once(name: str, text: str, said: int) -> None:
    """bf16 without ZeRO: DeepSpeed's releases from 0.18 on run it otherwise than those before."""
    notes = read_config(text, name).notes
    assert sum("BF16_Optimizer" in note for note in notes) == said
