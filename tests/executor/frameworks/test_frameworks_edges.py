"""Scripts and YAML of 37 repositories read on 2026-11-27: misread, or refused for a wrong reason.

Each case is the few lines of a file that decided it, with the repository it was found in.
"""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import NothingToRead, UnreadableConfig
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

GPT = (
    "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers 80 "
    "--hidden-size 8192 --num-attention-heads 64 --seq-length 2048 --micro-batch-size 4 "
    "--global-batch-size 2040 --bf16"
)
BRIDGE = """\
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
TP=4
OVERRIDES=" \\
    model.tensor_model_parallel_size=$TP \\
    model.pipeline_model_parallel_size=4 \\
    model.context_parallel_size=1 model.expert_model_parallel_size=1 {stages}\\
    train.micro_batch_size=1 train.global_batch_size=16 model.seq_length=4096
"
CMD="python run_recipe.py --recipe x_pretrain_config"
CMD="$CMD $(echo "$OVERRIDES" | tr '\\n' ' ' | sed 's/  \\+/ /g')"
srun bash -c "$CMD"
"""


@pytest.mark.parametrize(
    "text",
    [
        # LLM360/k2-train scripts/pretrain_65b.sh
        pytest.param(f"bcprun -p 8 -c 'python /mount/main.py {GPT}'", id="behind -c"),
        pytest.param(f"torchrun k2_training/main.py {GPT}", id="a main.py that is no task"),
        pytest.param(f"srun -B $PWD x ./launch.sh pretrain_gpt.py {GPT}", id="$PWD is no flag"),
        pytest.param(
            f"true\nif [ $? -ne 0 ]; then exit; fi\npython pretrain_gpt.py {GPT}", id="$?"
        ),
    ],
)
def test_megatron_is_read(text: str) -> None:
    """Its degrees, and no note of what bash sets itself."""
    reading = read_config(text, "run.sh")
    assert (reading.facts["tensor_parallel"].value, reading.facts["pipeline_parallel"].value) == (
        8, 4,
    )  # fmt: skip
    assert not reading.unread
    assert not [note for note in reading.notes if "is taken to build the model" not in note]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("pretrain_gpt.py", False),
        ("/srv/fork/pretrain_gpt_deepspeed.py", False),
        ("pretrain_ours.py", True),
        ("$PROGRAM.py", True),
    ],
)
def test_a_program_of_another_name_is_a_note(program: str, said: bool) -> None:
    """Its model may be another one of the same arguments."""
    reading = read_config(f"torchrun {program} {GPT}", "run.sh")
    assert any("is taken to build the model" in note for note in reading.notes) == said


def test_a_yaml_of_megatron_is_named() -> None:
    """NVIDIA/Megatron-LM@d98e8a64 megatron/training/yaml_arguments.py: no flag says the sizes."""
    text = "ARGS=(--yaml-cfg gpt.yaml)\ntorchrun --nproc_per_node 4 pretrain_gpt.py ${ARGS[@]}\n"
    assert recognise("run.sh", text) is not None
    with pytest.raises(NothingToRead, match="in the file of --yaml-cfg"):
        read_config(text, "run.sh")


def test_a_module_of_olmo_core_is_no_configuration() -> None:
    """A folder with its source is not full of refusals."""
    text = "from olmo_core.config import Config\n\nclass TrainerConfig(Config):\n    pass\n"
    assert recognise("config.py", text) is None


def test_a_task_of_megatron_trains_no_gpt() -> None:
    """LumiOpen/Megatron-LM-lumi examples/msdp/eval_knwl_generation.sh."""
    with pytest.raises(NothingToRead, match="does not train a GPT"):
        read_config(f"python ./tasks/msdp/main.py {GPT}", "run.sh")


@pytest.mark.parametrize(
    ("expression", "named", "absent"),
    [
        # princeton-nlp/ProLong train_64K.sh; OpenGVLab/InternVL internvl3_5_gpt_oss
        ("$(($bsz / $n))", "--env N=VALUE", "bsz"),
        ("$((bsz / WORLD_SIZE))", "--env WORLD_SIZE=VALUE", "bsz"),
    ],
)
def test_what_arithmetic_waits_for_is_named(expression: str, named: str, absent: str) -> None:
    """By the names that would say it: `n=${N:-$(command)}` is said by N, and `bsz` is known."""
    text = f"bsz=${{BSZ:-64}}\nn=$(nvidia-smi -L | wc -l)\nn=${{N:-$n}}\naccu={expression}\n"
    text += f"python pretrain_gpt.py {GPT} --micro-batch-size $accu"
    with pytest.raises(UnreadableConfig) as refusal:
        read_config(text, "run.sh")
    assert named in str(refusal.value)
    assert absent not in str(refusal.value).partition("--env")[2]


@pytest.mark.parametrize(
    ("stages", "verdict", "words"),
    [
        # NVIDIA-NeMo/Megatron-Bridge examples/models/deepseek_v4/slurm_pretrain.sh, 43 layers on 4
        pytest.param("", "incomplete", "pipeline_model_parallel_layout", id="the recipe's"),
        pytest.param("model.pipeline_model_parallel_layout=null ", "illegal", "evenly", id="none"),
    ],
)
def test_a_recipe_may_cut_layers_unevenly(
    tmp_path: Path, stages: str, verdict: str, words: str
) -> None:
    """Overrides on one line by `tr` and `sed`; 43 layers do not split evenly over 4 stages."""
    (tmp_path / "run.sh").write_text(BRIDGE.format(stages=stages))
    given = Settings(cluster="dgx-h100", model="deepseek-v4-flash")
    (found,) = check_paths([tmp_path / "run.sh"], tools(), given)
    assert found.verdict == verdict
    assert words in found.text


def test_a_teacher_is_named() -> None:
    """NVIDIA/NeMo examples/nlp/language_modeling/conf/megatron_llama_distill.yaml states null."""
    text = "trainer:\n  devices: 8\nmodel:\n  tensor_model_parallel_size: 1\n"
    text += "  kd_teacher_restore_from_path: null\n  optim:\n    name: fused_adam\n"
    named = [str(fact.value) for fact in read_config(text, "a.yaml").unread]
    assert any("kd_teacher_restore_from_path" in each for each in named)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        # flagos-ai/FlagScale examples/aquila/conf/train_auto_tuner.yaml
        ("a.yaml", "experiment:\n  exp_name: a\n  task:\n    type: train\n", "FlagScale"),
        # allenai/open-instruct configs/train_configs/olmo2/olmo2_1124_13b_sft.yaml
        ("a.yaml", "model_name_or_path: a/b\nuse_slow_tokenizer: false\ndataset_mixer_list:\n",
         "open-instruct"),
        # hiyouga/LLaMA-Factory examples/v1/train_full/train_full_fsdp2.yaml
        ("a.yaml", "model: Qwen/Qwen3-0.6B\ntrain_dataset: a\ndist_config:\n  name: fsdp2\n",
         "LLaMA-Factory v1"),
        # verl-project/verl examples/sft/gsm8k/run_deepseek_v4_megatron_lite.sh
        ("a.sh", "torchrun -m verl_mlite.launch verl.trainer.sft_trainer a=1\n", "verl"),
        # OpenRLHF/OpenRLHF examples/scripts/train_nonrl_slurm.sh
        ("a.sh", 'srun bash -c " cd /openrlhf; pip install ."\n', "OpenRLHF"),
        # AI-Hypercomputer/gpu-recipes training/a4x-max/llama3-1-405b
        ("a.sh", "python scripts/performance/run_script.py --gpu x \\\n", "Megatron-Bridge's"),
    ],
)  # fmt: skip
def test_it_is_refused_by_its_name(name: str, text: str, words: str) -> None:
    """Not as another program's file, nor as no format at all."""
    assert recognise(name, text) is not None
    with pytest.raises(UnreadableConfig, match=words):
        read_config(text, name)


def test_a_loss_that_holds_a_reference_model_is_named() -> None:
    """hiyouga/LLaMA-Factory examples/extras/asft: its workflow makes one (train/sft)."""
    text = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\nbf16: true\n"
    text += "per_device_train_batch_size: 1\ncutoff_len: 2048\nuse_asft_loss: true\n"
    named = [str(fact.value) for fact in read_config(text, "a.yaml").unread]
    assert any("use_asft_loss (a second model" in each for each in named)


@pytest.mark.parametrize(
    ("flags", "noted"),
    [
        ("", True), ("--use-flash-attn", False), ("--transformer-impl transformer_engine", False),
        ("--recompute-activations", False),
    ],
)  # fmt: skip
def test_attention_of_2023_keeps_its_scores(flags: str, noted: bool) -> None:
    """alibaba/Megatron-LLaMA examples/pretrain_gpt.sh: `--data-impl` is of no later release."""
    reading = read_config(f"python pretrain_gpt.py {GPT} --data-impl mmap {flags}", "run.sh")
    assert any("keeps its scores" in note for note in reading.notes) == noted


def test_overrides_in_a_here_document_are_read_and_its_program_is_named() -> None:
    """AI-Hypercomputer/gpu-recipes training/a4/wan_14b: of a program that trains on video."""
    text = (
        "run=$(cat <<- EOM\n  python pretrain_wan.py model.tensor_model_parallel_size=1\nEOM\n)\n"
    )
    reading = read_config(text + "torchrun --no-python bash $run\n", "run.sh")
    assert any("pretrain_wan.py" in str(fact.value) for fact in reading.unread)
