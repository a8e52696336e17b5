"""What is stated, changes the price, and is not understood: named, never passed over."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unread import unread_of

from meshplan.executor.frameworks import read_config, recognise
from meshplan.executor.frameworks.keys import lists
from meshplan.planner.case.reading import (
    IllegalConfig,
    NothingToRead,
    Reading,
    Recompute,
)

GPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 64 "
    "--num-attention-heads 4 --micro-batch-size 1 --seq-length 128 --bf16 "
)
DEEPSPEED = (
    '{"train_batch_size": 8, "optimizer": {"type": "%s"}, "zero_optimization": {"stage": 1}}'
)


def _read(more: str) -> Reading:
    return read_config(GPT + more, "train.sh")


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
%s
[parallelism]
tensor_parallel_degree = 2
[compile]
enable = true
"""


@pytest.mark.parametrize(
    ("line", "named", "noted"),
    [
        pytest.param("", "", "", id="nothing to say"),
        pytest.param('mixed_precision_reduce = "bfloat16"', "", "precision_reduce", id="sums"),
        pytest.param("weights_in_fp8 = true", "", "training.weights_in_fp8", id="a fork's own key"),
        pytest.param("[optimizer]\nearly_step_in_backward = true",
                     "early_step_in_backward", "", id="no gradients kept"),
        pytest.param('[fault_tolerance]\nenable = true\nsemi_sync_method = "diloco"',
                     "semi_sync_method", "", id="no sums in a step"),
        pytest.param('[fault_tolerance]\nenable = false\nsemi_sync_method = "diloco"',
                     "", "", id="switched off"),
        pytest.param("warmup_steps = 20\n[optimizer]\nlr = 3e-4", "", "", id="no effect"),
    ],
)  # fmt: skip
def test_torchtitan_names_what_it_does_not_price(line: str, named: str, noted: str) -> None:
    """Of the sections that decide memory and time every key is read, noted, named or harmless."""
    reading = read_config(TITAN % line, "train.toml")
    assert named in unread_of(reading)
    assert bool(named) == bool(reading.unread)
    notes = " ".join(reading.notes)
    assert noted in notes
    assert bool(noted) == bool(notes)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        pytest.param("--decoder-seq-length 3200", "--decoder-seq-length", id="a second sequence"),
        pytest.param("--img-h 336 --img-w 336", "--img-h", id="a vision tower"),
        pytest.param("--hybrid-override-pattern M-M*", "--hybrid-override-pattern", id="Mamba"),
        pytest.param("--window-size 128,0", "--window-size", id="a window"),
        pytest.param("--fp4-param-gather", "--fp4-param-gather", id="weights of 4 bit"),
        pytest.param("--partition-activations", "--partition-activations", id="split checkpoints"),
        pytest.param("--no-such-flag 3", "--no-such-flag (not known)", id="a flag of nobody"),
        pytest.param("--mtp-num-layers 1", "--mtp-num-layers", id="known elsewhere, not here"),
        pytest.param(
            "--num-experts 8", "--num-experts (without --swiglu", id="two matrices an expert"
        ),
        pytest.param(
            "--num-experts 8 --multi-latent-attention", "(without --swiglu", id="latents too"
        ),
        pytest.param(
            "--deepspeed --deepspeed_config ds.json", "ZeRO stage is in that file", id="in a file"
        ),
        pytest.param(
            "--deepspeed --zero-stage 1 --num-experts 8", "--num-experts", id="DeepSpeed's experts"
        ),
    ],
)
def test_a_flag_that_is_not_understood_is_named(flags: str, named: str) -> None:
    """A flag that changes layout, memory or shape and is not read is named with its reason."""
    assert named in unread_of(_read(flags))
    assert not _read("--attention-backend flash --transformer-impl transformer_engine").unread


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("$FLAGS", "line 1: flags of $FLAGS are left to the environment"),
        ("--swiglu ${EXTRA_ARGS[@]}", "line 1: flags of $EXTRA_ARGS are left to the environment"),
        ("--data-path $DATA", ""),
        ('"$@"', ""),
    ],
)
def test_flags_that_the_environment_may_add_are_said(more: str, said: str) -> None:
    """A variable where flags stand, which nothing sets; a flag's value is no such one, nor are the
    script's own arguments, of which there are none.
    """
    assert [note for note in _read(more).notes if "left to the" in note] == [said] * bool(said)


LAUNCHED = [
    "accelerate launch --num_processes 16 train.py --deepspeed ds.json\n",
    "export A=1\nACCELERATE_LOG_LEVEL=info accelerate launch --config_file z3.yaml sft.py c.yaml\n",
    "deepspeed --num_gpus=8 train.py --deepspeed ds.json\n",
    "torchrun --nproc_per_node=8 -m torchtitan.train --config llama3_8b\n",
    'NGPU=8 torchrun \\\n  -m torchtitan.train "$@"\n',
    "export A=1\nFORCE_TORCHRUN=1 llamafactory-cli train a.yaml learning_rate=1e-5\n",
    "axolotl train qlora.yml --micro-batch-size 2\n",
    "srun accelerate launch \\\n  -m axolotl.cli.train axolotl.yml\n",
    "tune run --nproc_per_node 8 full_finetune_distributed \\\n  --config llama3/8B_full\n",
    "torchrun --nproc_per_node=8 /opt/nanotron/run_train.py --config-file a.yaml\n",
    "python ./deepy.py train.py 1-3B.yml\n",
    "composer train/train.py yamls/mpt-125m.yaml max_duration=10ba\n",
]


@pytest.mark.parametrize("text", LAUNCHED)
def test_a_launch_script_that_is_not_read_says_what_to_check(text: str) -> None:
    """Alone it is refused by name; in a folder it is passed over, as its configuration is there."""
    with pytest.raises(NothingToRead, match=r"a launch script of .* not read .check the"):
        read_config(text, "run.sh")
    assert read_config(GPT.replace("torchrun", "deepspeed"), "run.sh").framework == "megatron"


@pytest.mark.parametrize(
    "text",
    [
        *("# accelerate launch train.py\n", "pip install deepspeed\n", "echo torchtitan.train\n"),
        *("llamafactory-cli webui\n", "composer install\n", "pip install axolotl torchtune\n"),
    ],
)
def test_a_script_that_launches_nothing_is_no_config(text: str) -> None:
    """A comment and an installation are not taken for a launch."""
    assert recognise("run.sh", text) is None


@given(st.from_regex(r"[a-z]{3,9}(-[a-z]{3,9}){0,3}", fullmatch=True))
def test_the_list_of_flags_is_closed(flag: str) -> None:
    """A flag is read, or is in a list, or is named."""
    classes = lists.flags_in(*lists.MEGATRON).classes
    reading = _read(f"--{flag} 3")
    name = flag.replace("-", "_")
    if name not in classes and name in reading.ignored:
        assert f"--{flag} " in unread_of(reading)


def test_each_flag_is_in_one_list() -> None:
    """No flag has two classes, and no flag that we write or read is refused."""
    path = Path(lists.__file__).with_name("megatron_flags.toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    kinds = ("not_modelled", "noted", "no_effect")
    words = [word for kind in kinds for text in table[kind].values() for word in text.split()]
    assert len(words) == len(set(words)) > 1000


def test_a_flag_that_changes_the_time_is_noted() -> None:
    """Overlap and fusions are priced as the engine has them, which one note says."""
    reading = _read("--moe-shared-expert-overlap --no-bias-swiglu-fusion --hidden-dropout 0.0")
    assert not reading.unread
    (note,) = reading.notes
    assert "whatever is said of --moe-shared-expert-overlap, --no-bias-swiglu-fusion" in note


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        pytest.param("5 --num-layers-per-virtual-pipeline-stage 1", True, id="more at once"),
        pytest.param("4 --num-virtual-stages-per-pipeline-rank 2", False, id="the default"),
        pytest.param("5", False, id="no chunks"),
    ],
)
def test_other_groups_of_micro_batches_are_named(flags: str, named: bool) -> None:
    """Megatron-LM's test gpt3_mr_mcore_te_tp1_pp4_vp1_tunable_overlap: 5 micro-batches over 4
    stages run in one group, and were refused; a larger group keeps more of them in flight.
    """
    size = "--microbatch-group-size-per-virtual-pipeline-stage"
    reading = _read(f"--pipeline-model-parallel-size 4 {size} {flags}")
    assert ("microbatch_group_size_per_vp_stage 5" in unread_of(reading)) == named
    assert not reading.notes
    bridge = "model.pipeline_model_parallel_size=4\nmodel.virtual_pipeline_model_parallel_size=2\n"
    words = read_config(f"{bridge}model.microbatch_group_size_per_vp_stage=5\n", "overrides.txt")
    assert "microbatch_group_size_per_vp_stage 5" in unread_of(words)


def test_logits_of_other_bytes_are_named() -> None:
    """The loss of training reads them: `megatron/core/models/gpt/gpt_model.py`, `output_dtype`."""
    assert "--output-logit-dtype" in unread_of(_read("--output-logit-dtype fp32"))
    assert not _read("--output-logit-dtype bf16").unread


def test_documents_that_attend_to_themselves_alone_are_noted() -> None:
    flag = "--dataloader-inter-document-masking"
    reading = _read(f"{flag} --otel-enabled")
    assert not reading.unread
    assert flag in " ".join(reading.notes)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-experts 8 --swiglu", True),
        ("--num-experts 8 --swiglu --moe-grouped-gemm", False),
        ("--swiglu", False),
    ],
)
def test_experts_that_megatron_multiplies_one_by_one_are_said(flags: str, said: bool) -> None:
    """Without the flag it takes SequentialMLP; the price is of one grouped product."""
    assert ("--moe-grouped-gemm" in " ".join(_read(flags).notes)) is said


def test_an_optimizer_of_a_fork_is_not_understood() -> None:
    """Another release may have it, so it is not illegal; how many bytes it keeps, nothing says."""
    reading = _read("--optimizer adamw-bnb")
    assert unread_of(reading).startswith("--optimizer 'adamw-bnb'")
    assert "optimizer" not in reading.facts


def test_two_lengths_of_megatron_bridge_are_named() -> None:
    """It stops where its data and its model differ (training/config.py, `validate`)."""
    lengths = (
        "model: {{seq_length: 4096, tensor_model_parallel_size: 2}}\ndataset: {{seq_length: {}}}"
    )
    assert not read_config(lengths.format(4096), "a.yaml", "bridge").unread
    named = unread_of(read_config(lengths.format(2048), "a.yaml", "bridge"))
    assert named.startswith("dataset.seq_length 2048 (the model's sequences have 4096")


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        pytest.param("--use-distributed-optimizer", "zero_stage", 1, id="ZeRO-1"),
        pytest.param("--use-custom-fsdp", "zero_stage", 3, id="the old name of Megatron-FSDP"),
        pytest.param(
            "--use-custom-fsdp --data-parallel-sharding-strategy optim_grads", "zero_stage", 2,
            id="which shards less",
        ),
        pytest.param("--use-torch-fsdp2", "zero_stage", 3, id="FSDP2"),
        pytest.param(
            "--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "zero_stage", 2,
            id="FSDP2 that keeps the weights",
        ),
        pytest.param("--deepspeed --zero-stage 2", "zero_stage", 2, id="Megatron-DeepSpeed"),
        pytest.param("--moe-expert-parallel-size 4", "expert_parallel", 4, id="its experts"),
        pytest.param("--model-parallel-size 4", "tensor_parallel", 4, id="Megatron-LM v1.0"),
        pytest.param("--fp8-hybrid", "precision", "fp8", id="Megatron-LM v3"),
    ],
)  # fmt: skip
def test_older_names(flags: str, name: str, value: object) -> None:
    """The names of older releases and of forks say the same."""
    assert _read(flags).facts[name].value == value


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        pytest.param("--checkpoint-activations", Recompute("full"), id="v2.5 and DeepSpeed"),
        pytest.param(
            "--activations-checkpoint-method block --activations-checkpoint-num-layers 3",
            Recompute("full", first=3), id="v2.6",
        ),
        pytest.param("", Recompute(), id="none"),
    ],
)  # fmt: skip
def test_older_recompute(flags: str, rule: Recompute) -> None:
    """Recompute by its older names."""
    assert _read(flags).recompute == rule


@pytest.mark.parametrize("program", ["pretrain_bert.py", "tools/run_text_generation_server.py"])
def test_another_program_is_not_read(program: str) -> None:
    """A program that takes the same arguments and trains no GPT is refused by name."""
    with pytest.raises(NothingToRead, match="does not train a GPT"):
        read_config(GPT.replace("pretrain_gpt.py", program), "train.sh")


def test_a_zero_stage_that_does_not_exist_is_illegal() -> None:
    """--zero-stage 7 is refused with the ones that exist."""
    with pytest.raises(IllegalConfig, match="zero_stage is '7'; known are 0, 1, 2, 3"):
        _read("--deepspeed --zero-stage 7")


def test_each_round_of_a_loop_is_a_case() -> None:
    """A script that trains once for each degree is as many cases."""
    loop = f"for TP in 1 2 4; do\n{GPT} --tensor-model-parallel-size $TP\ndone"
    reading = read_config(loop, "train.sh")
    cases = [reading, *reading.others]
    assert [case.facts["tensor_parallel"].value for case in cases] == [1, 2, 4]


@pytest.mark.parametrize(
    ("header", "gpus"),
    [
        pytest.param("#SBATCH -N 4\n#SBATCH --gres=gpu:8", 32, id="-N"),
        pytest.param("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=a100:4", 8, id="with a type"),
        pytest.param("#SBATCH --nodes=2\n#SBATCH --gres=gpu:1_0", None, id="no number"),
        pytest.param("#SBATCH --nodes=1-2\n#SBATCH --gres=gpu:8", None, id="a range"),
        pytest.param(
            "#SBATCH -N 2\n#SBATCH --gres=gpu:8\n#SBATCH hetjob\n#SBATCH -N 4\n"
            "#SBATCH --gres=gpu:4",
            None,
            id="components of two kinds",
        ),
    ],
)
def test_gpus_of_slurm(header: str, gpus: int | None) -> None:
    """Nodes x GPUs of a node by Slurm's lines where the launcher does not say."""
    text = "#!/bin/bash\n" + header + "\n" + GPT.replace("--nproc_per_node 8", "")
    fact = read_config(text, "a.slurm").facts.get("gpus")
    assert (fact.value if fact else None) == gpus


@pytest.mark.parametrize(
    ("off", "precision"), [("false", "bf16"), ("null", "bf16"), ("hybrid", "fp8")]
)
def test_a_precision_that_is_switched_off(off: str, precision: str) -> None:
    """`fp8: false` is no FP8."""
    text = f"model: {{tensor_model_parallel_size: 1, fp8: {off}, bf16: true}}"
    assert read_config(text, "a.yaml").facts["precision"].value == precision


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ('"_description": "pinned off"', False),
        ('"_context": {"host": "a", "ram": [1, 2]}', False),
        ('"// why": 4', False),
        ('"description": "pinned off"', True),
        ('"bf16": {"enabled": true, "_own": 1}', True),
    ],
)
def test_a_key_of_deepspeed_that_only_explains_says_nothing(key: str, named: bool) -> None:
    """DeepSpeed looks at none that it does not know; here other new names are named."""
    text = f'{{"train_batch_size": 8, "zero_optimization": {{"stage": 2}}, {key}}}'
    assert bool(read_config(text, "ds.json").unread) == named


@pytest.mark.parametrize("kind", ["OneBitAdam", "Lion", "ZeroOneAdam"])
def test_an_optimizer_of_deepspeed_that_is_not_priced_is_legal(kind: str) -> None:
    """DeepSpeed runs it: it is named as not modelled, and is not called illegal."""
    assert kind in unread_of(read_config(DEEPSPEED % kind, "ds.json"))
    assert not read_config(DEEPSPEED % "AdamW", "ds.json").unread


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # FlagOpen/FlagScale@da4935ec examples/llama3/conf/train/8b.yaml
        pytest.param(
            "system:\n  tensor_model_parallel_size: 2\nmodel:\n  micro_batch_size: 1\n",
            "system.tensor_model_parallel_size", id="a degree in another section",
        ),
        # NVIDIA/NeMo@8cfedd72 examples/nlp/language_modeling/conf/megatron_gpt_inference.yaml
        pytest.param(
            "model:\n  tensor_model_parallel_size: -1\n  micro_batch_size: 1\n",
            "tensor_model_parallel_size -1", id="a degree of the checkpoint",
        ),
        # NVIDIA/NeMo@8cfedd72 tests/functional_tests/L2_Megatron_NMT_Training_TP2.sh
        pytest.param(
            "python a.py model.tensor_model_parallel_size=2 model.encoder.num_layers=2",
            "encoder", id="an encoder on a command line",
        ),
    ],
)  # fmt: skip
def test_what_lies_elsewhere_in_the_file_is_named(text: str, named: str) -> None:
    """A degree that is not where it is looked for is named, not taken as 1."""
    reading = read_config(text, "a.sh" if text.startswith("python") else "a.yaml", "bridge")
    assert named in unread_of(reading)
