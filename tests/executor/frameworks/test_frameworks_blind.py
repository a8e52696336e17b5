"""Files that people published and that were read without a word, or refused for a wrong reason.

Each case is the few lines of a file that decided it, with the repository it was found in.
"""

import pytest
from unread import unread_of

from meshplan.executor.frameworks import read_config, recognise
from meshplan.executor.frameworks.megatron.settings import training_settings
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.case.reading import NothingToRead, Reading, Start, UnreadableConfig
from meshplan.planner.case.resolve import resolve
from meshplan.planner.case.settings import Settings

NONE = Start(launched_by="none")
SFT = """\
model_name_or_path: %s
dataset_text_field: text
max_length: 4096
per_device_train_batch_size: 4
bf16: true
gradient_checkpointing: true
output_dir: out
"""
FACTORY = """\
model_name_or_path: %s
stage: sft
finetuning_type: lora
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
"""
AXOLOTL = """\
base_model: %s
sequence_len: 4096
micro_batch_size: 1
adapter: lora
lora_r: 8
lora_target_linear: true
"""


LING = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --bf16 "
    "--num-attention-heads 6 --seq-length 4096 --micro-batch-size 2 --global-batch-size 16 "
    "--use-distributed-optimizer --vocab-size 32000 --bias-zero-mean-update --optimizer %s\n"
)


def test_an_optimizer_of_a_fork() -> None:
    """inclusionAI/Ling-V2: bitsandbytes' AdamW keeps two bytes a parameter and two scales of 4 for
    256, not 8, divided over 8 ranks beside the same master weights. Megatron itself has no such
    word: a plan of it is not written with one.
    """
    optimizers = {}
    for word in ("adam", '"adamw-bnb-8bit"'):
        reading = read_config(LING % word, "train.sh")
        assert not reading.unread
        case = resolve(reading, Settings(cluster="dgx-h100"), Settings())
        optimizers[case.training.optimizer] = stage_memory(step_model_of(case))[0].optimizer
        said = training_settings(case.training)
    assert said[0].get("optimizer") is None
    assert [each.name for each in said[1]] == ["training.optimizer"]
    parameters = (optimizers["adamw"] - optimizers["adamw8bit"]) * 8 / (8 - 2 - 8 / 256)
    assert optimizers["adamw"] == pytest.approx(12 * parameters / 8)


VERL = """\
sp_size=4
python3 -m verl.trainer.main_ppo \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp_size} \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n=16 \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \\
    # actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8
"""


def test_verls_refusal_says_what_goes_into_a_plan() -> None:
    """The keys of the script with their last values; those of a file without options by name."""
    with pytest.raises(UnreadableConfig) as script:
        read_config(VERL, "train.sh")
    said = str(script.value)
    for part in (
        "context_parallel: actor.ulysses_sequence_parallel_size=${sp_size};",
        "global_batch_size: actor.ppo_mini_batch_size=32 x rollout.n=16;",
        "tokens of a packed micro-batch and GPU: actor.ppo_max_token_len_per_gpu=16384)",
    ):
        assert part in said
    assert "tensor_parallel" not in said
    assert "\n" not in said
    with pytest.raises(UnreadableConfig, match=r"; tensor_parallel: actor\.megatron"):
        read_config("actor_rollout_ref:\n  actor: {strategy: fsdp}\n", "ppo.yaml")


def _yaml(text: str) -> Reading:
    return read_config(text, "train.yaml", None, NONE)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # swallow-llm/gpt-oss-recipes configs/sft_lora.yaml
        pytest.param(SFT % "Qwen/Qwen3-8B" + "attn_implementation: eager\n",
                     "attn_implementation 'eager'", id="eager attention"),
        pytest.param(SFT % "Qwen/Qwen3-8B" + "attn_implementation: sdpa\n", "", id="SDPA"),
        pytest.param(SFT % "Qwen/Qwen3-8B", "", id="SDPA is what transformers chooses"),
        pytest.param(SFT % "openai/gpt-oss-20b", "gpt_oss runs eager attention",
                     id="but not for gpt-oss, whose module has none"),
        pytest.param(SFT % "openai/gpt-oss-20b" + "attn_implementation: kernels-community/fa3\n",
                     "", id="which flash attention mends"),
        pytest.param(FACTORY % "Qwen/Qwen3-8B" + "flash_attn: disabled\n", "flash_attn 'disabled'",
                     id="LLaMA-Factory's word for eager"),
        pytest.param(FACTORY % "Qwen/Qwen3-8B" + "flash_attn: auto\n", "", id="and for SDPA"),
        pytest.param(AXOLOTL % "Qwen/Qwen3-8B" + "eager_attention: true\n", "eager_attention",
                     id="axolotl's switch"),
        pytest.param(AXOLOTL % "Qwen/Qwen3-8B" + "eager_attention: false\n", "", id="switched off"),
        # chats-bug/jsr-config, bobyres/Config_qlora, aurkakoak/finetune: axolotl's keys of 2023
        pytest.param(AXOLOTL % "Qwen/Qwen3-8B" + "base_model_config: Qwen/Qwen3-8B\n"
                     "eval_table_max_new_tokens: 128\n", "", id="the model's own shape"),
        pytest.param(AXOLOTL % "Qwen/Qwen3-8B" + "base_model_config: Qwen/Qwen3-4B\n",
                     "base_model_config", id="another one's"),
        # hiyouga/LLaMA-Factory examples/train_qlora/llama3_lora_sft_awq.yaml
        pytest.param(FACTORY % "TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "quantised weights",
                     id="weights of 4 bits by their repository's name"),
        pytest.param(FACTORY % "unsloth/llama-3-8b-bnb-4bit", "quantised weights", id="bnb-4bit"),
        pytest.param(AXOLOTL % "unsloth/llama-3-8b-bnb-4bit" + "load_in_4bit: true\n", "",
                     id="whose format a key states"),
    ],
)  # fmt: skip
def test_what_a_trainers_attention_and_weights_are(text: str, named: str) -> None:
    """Scores that are kept, and weights that are packed, are named; the rest is not."""
    reading = _yaml(text)
    assert named in unread_of(reading)
    assert bool(named) == bool(reading.unread)


@pytest.mark.parametrize(
    ("model", "said"), [("Qwen/Qwen3-30B-A3B", True), ("Qwen/Qwen3-8B", False)]
)
def test_experts_without_adapters_are_said(model: str, said: bool) -> None:
    """Releases before transformers 5 adapt Qwen3-MoE's experts, which are linear layers there."""
    assert any("routed experts" in note for note in _yaml(FACTORY % model).notes) == said


def test_overrides_inside_another_documents_text_are_no_layout() -> None:
    """A job's YAML (SkyPilot's, Kubernetes') with Megatron's words in its commands states none."""
    text = "resources:\n  gpus: 8\nrun: |\n  python a.py --x model.tensor_model_parallel_size=2\n"
    assert getattr(recognise("job.yaml", text), "name", "") == "bridge"
    with pytest.raises(NothingToRead, match="no layout"):
        read_config(text, "job.yaml")


def test_a_script_that_writes_accelerates_file_is_a_script() -> None:
    """johnlund/epistemic-stance unused/run_training.sh: was read as YAML."""
    text = "cat > a.yaml <<EOF\ncompute_environment: LOCAL_MACHINE\nEOF\naccelerate launch a.py\n"
    assert getattr(recognise("run.sh", text), "name", "") == "script"


def test_torchtitans_fp8_of_before_its_converters() -> None:
    """saforem2/torchtitan train_configs/llama3_405b.toml, of November 2024."""
    text = (
        "[job]\n[training]\nbatch_size = 2\nseq_len = 8192\n[float8]\nenable_float8_linear = %s\n"
    )
    kinds = [read_config(text % on, "a.toml").facts["precision"].value for on in ("true", "false")]
    assert kinds == ["fp8", "bf16"]


def test_a_section_that_torchtitan_has_not_is_said() -> None:
    """graphcore-research/torchtitan-fork transformers_modeling_backend/configs/full.toml."""
    text = "[job]\n[training]\nseq_len = 8192\n[hf_transformers]\nmodel = 'Qwen/Qwen3-4B'\n"
    assert any("hf_transformers.model" in note for note in read_config(text, "a.toml").notes)


def test_torchtitans_training_by_rewards_is_named() -> None:
    """pytorch/torchtitan@b5bcd76 experiments/rl: its trainer's sections are those of any other."""
    text = """from torchtitan.experiments.rl.grpo import RLTrainer
def rl_grpo_qwen3_0_6b() -> RLTrainer.Config:
    return RLTrainer.Config(
        trainer=PolicyTrainer.Config(
            training=TrainingConfig(),
            parallelism=ParallelismConfig(tensor_parallel_degree=4),
        ),
        generator=VLLMGenerator.Config(),
    )
"""
    assert "generator (it trains and generates in turn" in unread_of(read_config(text, "a.py"))


MOE = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
    "--global-batch-size 8 --bf16 --tensor-model-parallel-size 1 --num-experts 8 "
    "--moe-ffn-hidden-size 256 --swiglu --moe-grouped-gemm --vocab-size 1024 "
)


@pytest.mark.parametrize(
    "more", ["", "--multi-latent-attention", "--moe-shared-expert-intermediate-size 256"]
)
def test_no_module_of_multi_token_prediction(more: str) -> None:
    """Ascend/MindSpeed-LLM tests/poc: `--mtp-num-layers 0` is none, as Megatron takes it."""
    plain, none = (read_config(MOE + more + each, "a.sh").model_config
                   for each in ("", " --mtp-num-layers 0"))  # fmt: skip
    assert plain is not None
    assert none is not None
    assert none.pop("num_nextn_predict_layers", 0) == plain.pop("num_nextn_predict_layers", 0) == 0
    assert none == plain


@pytest.mark.parametrize(
    "launcher",
    ["torchrun --nproc_per_node 8 -m a.train", "accelerate launch --module a.train",
     "python -m torch.distributed.run --nproc_per_node 8 -m a.train"],
)  # fmt: skip
def test_a_program_may_be_a_module(launcher: str) -> None:
    """princeton-nlp/ProLong train_64K.sh: torchrun's `-m`, which is no launcher itself."""
    text = f"{launcher} --per_device_train_batch_size 2 --bf16 --output_dir o\n"
    reading = read_config(text, "run.sh", None, NONE)
    assert reading.facts["micro_batch_size"].value == 2
    assert any(note.startswith("a.train is taken") for note in reading.notes)


def test_latent_attention_makes_the_width_of_a_head_idle() -> None:
    """NVIDIA/Megatron-LM's Megatron-FSDP example of DeepSeek-V3: `--kv-channels` beside it."""
    latent = MOE + "--multi-latent-attention --v-head-dim 64 --qk-head-dim 64"
    plain, idle = (read_config(latent + more, "a.sh") for more in ("", " --kv-channels 128"))
    assert not idle.unread
    assert idle.model_config == plain.model_config


def test_flags_of_forks_that_change_nothing() -> None:
    """llm-jp/scripts pretrain/scripts/v4-training: Open MPI's ranks instead of torchrun's."""
    assert not read_config(MOE + "--use-mpi --moe-token-drop-policy probs", "a.sh").unread


@pytest.mark.parametrize("program", ["llamafactory-cli train", "torchrun src/train.py"])
def test_a_script_of_llama_factory_states_the_keys_of_its_file(program: str) -> None:
    """hiyouga/LLaMA-Factory examples/train_lora/qwen3_lora_sft.sh: rank 8, recompute by default."""
    stated = "--model_name_or_path Qwen/Qwen3-4B --stage sft --finetuning_type lora --bf16 true"
    sizes = "--cutoff_len 2048 --per_device_train_batch_size 1 --gradient_accumulation_steps 8"
    reading = read_config(f"{program} {stated} {sizes}\n", "run.sh", None, NONE)
    said = {name: reading.facts[name].value for name in ("seq_len", "num_micro_batches", "model")}
    assert said == {"seq_len": 2048, "num_micro_batches": 8, "model": "qwen3-4b"}
    assert (reading.facts["lora"].value.rank, reading.recompute.mode) == (8, "full")
    assert not reading.unread
