"""Files of programs that are not read: refused by their name, and none taken for another."""

import pytest

from meshplan.executor.frameworks import recognise
from meshplan.planner.case.reading import UnreadableConfig


@pytest.mark.parametrize(
    ("title", "name", "text"),
    [
        (
            "OLMo-core",
            "train.py",
            "from olmo_core.train import TrainerConfig\ntrainer = TrainerConfig(save_folder='x')\n",
        ),
        ("NeMo 2", "recipe.py", "from nemo.collections import llm\n"),
        # THUDM/slime scripts/run-qwen3-4B.sh (Apache-2.0)
        (
            "slime",
            "run.sh",
            "python3 train.py \\\n  --rollout-batch-size 32 \\\n  --tensor-model-parallel-size 2\n",
        ),
        # modelscope/ms-swift examples/megatron/sft.sh (Apache-2.0)
        ("ms-swift", "sft.sh", "NPROC_PER_NODE=2 \\\nmegatron sft \\\n  --micro_batch_size 2\n"),
        (
            "slime",
            "run.sh",
            "ray job submit -- python3 train.py --tensor-model-parallel-size 2 --num-rollout 30\n",
        ),
        ("slime", "run.sh", "ARGS=(--rollout-batch-size 32)\npython3 train.py ${ARGS[@]}\n"),
        (
            "ms-swift",
            "sft.sh",
            "CUDA_VISIBLE_DEVICES=0,1  NOTE='two words' swift rlhf --model x --deepspeed zero2\n",
        ),
        # OpenRLHF/OpenRLHF examples/scripts/train_sft.sh (Apache-2.0)
        ("OpenRLHF", "sft.sh", "read -r command <<EOF\nopenrlhf.cli.train_sft \\\nEOF\n"),
        # Lightning-AI/litgpt config_hub/pretrain/tinyllama.yaml: was priced as Megatron-Bridge
        (
            "LitGPT",
            "a.yaml",
            "model_name: tiny\ntrain:\n  global_batch_size: 512\n"
            "  micro_batch_size: 4\nprecision: bf16-mixed\n",
        ),
        # NVIDIA-NeMo/RL examples/configs/recipes/llm
        ("NeMo RL", "a.yaml", "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 2\n"),
        # nebius/ml-cookbook slurm/verl/grpo_multinode.sh
        (
            "verl",
            "a.sh",
            "python3 -m verl.trainer.main_ppo \\\n"
            "  actor_rollout_ref.rollout.tensor_model_parallel_size=2\n",
        ),
        (
            "verl",
            "a.yaml",
            "actor_rollout_ref:\n  actor:\n    megatron:\n      tensor_model_parallel_size: 2\n",
        ),
        # InternLM/InternEvo configs/7B_sft.py
        ("InternEvo", "a.py", "JOB_NAME = 'x'\nparallel = dict(\n    zero1=dict(size=8),\n)\n"),
        # PaddlePaddle/PaddleNLP llm/config/llama/pretrain_argument.json
        (
            "PaddleNLP",
            "a.json",
            '{"per_device_train_batch_size": 4,\n'
            ' "tensor_parallel_degree": 2,\n "output_dir": "o"}\n',
        ),
        # oumi-ai/oumi configs/recipes, and the jobs beside them
        (
            "Oumi",
            "a.yaml",
            "model:\n  model_name: Qwen/Qwen3-8B\ntraining:\n"
            "  trainer_type: TRL_SFT\n  per_device_train_batch_size: 2\n",
        ),
        ("Oumi", "a.sh", "oumi distributed torchrun \\\n  -m oumi train -c sft.yaml\n"),
        (
            "ms-swift",
            "args.json",
            '{"output_dir": "o",\n "per_device_train_batch_size": 1,\n "swift_version": "3.8"}\n',
        ),
    ],
)
def test_other_formats_are_refused_by_name(title: str, name: str, text: str) -> None:
    """One line: what it is, and what to do instead."""
    found = recognise(name, text)
    assert found is not None
    with pytest.raises(UnreadableConfig, match=f"{title}.*not read"):
        found.read(text, name, None)


def test_a_script_of_megatron_is_not_refused() -> None:
    """The words of other programs' scripts, and of what a script says, are not its own."""
    said = "# not for --rollout-batch-size, nor: swift sft\necho run megatron pt later\n"
    launch = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2\n"
    found = recognise("train.sh", said + launch)
    assert found is not None
    assert found.name == "megatron"
