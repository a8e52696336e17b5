"""Files of repositories drawn on 2026-11-26: misread, or refused though they could be read.

Each case is the few lines of a file that decided it, with the repository it was found in.
"""

import pytest
from unread import unread_of

from meshplan.executor.frameworks import read_config, recognise
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.case.reading import NothingToRead, Reading, Start, UnreadableConfig

NONE = Start(launched_by="none")
AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 2
"""
QLORA = "adapter: qlora\nlora_r: 32\nlora_target_linear: true\n"
FACTORY = """\
model_name_or_path: Qwen/Qwen3-8B
stage: sft
cutoff_len: 2048
per_device_train_batch_size: 1
"""
TRAINER = """\
model_name_or_path: meta-llama/Llama-3.1-8B
output_dir: out
per_device_train_batch_size: 1
max_seq_length: 2048
"""
TRL = TRAINER + "dataset_text_field: text\n"
FULL, LORA = "finetuning_type: full\n", "finetuning_type: lora\nlora_target: all\n"
DEEPSPEED = "deepspeed:\n  zero_optimization:\n    stage: 2\n  bf16:\n    enabled: auto\n"


def _yaml(text: str) -> Reading:
    return read_config(text, "train.yaml", None, NONE)


@pytest.mark.parametrize(
    ("text", "precision", "said"),
    [
        pytest.param(TRAINER, "fp32", "trained in fp32", id="transformers' default"),
        pytest.param(TRAINER + "bf16: false\n", "fp32", "trained in fp32", id="switched off"),
        pytest.param(TRAINER + "fp16: true\n", "fp16", "", id="fp16"),
        pytest.param(TRL, "bf16", "the default of trl", id="TRL's default"),
        pytest.param(TRL + "bf16: false\n", "fp32", "trained in fp32", id="TRL told not to"),
        pytest.param(AXOLOTL, "bf16", "the default of axolotl", id="axolotl's auto"),
        # LingYu6596/mytest qlora.yml has both off
        pytest.param(AXOLOTL + "bf16: false\nfp16: false\n", "fp32", "trained in fp32",
                     id="axolotl's weights in 32 bits"),
        pytest.param(FACTORY + FULL, "fp32", "trained in fp32", id="casts what it trains"),
        pytest.param(FACTORY + LORA, "bf16", "the checkpoint's format", id="not what is frozen"),
        pytest.param(FACTORY + LORA + DEEPSPEED, "fp32", "trained in fp32",
                     id="but DeepSpeed casts all of it"),
    ],
)  # fmt: skip
def test_precision_where_no_switch_is_on(text: str, precision: str, said: str) -> None:
    """All of them were priced in bf16 without a word."""
    reading = _yaml(text)
    assert reading.facts["precision"].value == precision
    assert said in " ".join(reading.notes)


def test_quantised_weights_beside_products_of_32_bits_are_named() -> None:
    """Of QLoRA without bf16; with it nothing is."""
    assert "fp32" in unread_of(_yaml(AXOLOTL + QLORA + "bf16: false\n"))
    assert not unread_of(_yaml(AXOLOTL + QLORA + "bf16: true\n"))


def test_axolotl_loads_weights_of_16_bits_by_its_default_too() -> None:
    """`bf16: auto`, which is what a file without the key says."""
    assert _yaml(AXOLOTL).facts["optimizer_states"].value == "bf16"


# redai-infra/PIPO third_party/sglang ... flux_sgld_sp.json: a drawing program's workflow
WORKFLOW = """\
{
  "last_node_id": 9,
  "nodes": [{
      "type": "Loader",
      "tp_size": 1
  }]
}
"""


def test_a_word_of_its_own_makes_no_distributed_config() -> None:
    """A `tp_size` somewhere in another program's JSON is none; a field at the top is."""
    assert recognise("flux.json", WORKFLOW) is None
    assert recognise("distributed.json", '{\n  "fsdp_size": 4,\n  "tp_size": 2\n}') is not None
    assert recognise("distributed.json", '{"fsdp_size": 4, "tp_size": 2}') is not None


TITAN = """\
[job]
description = "a run"
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 1
seq_len = 8192
data_parallel_degree = %s
tensor_parallel_degree = 2
[experimental]
pipeline_parallel_degree = %d
"""


@pytest.mark.parametrize(
    ("degree", "pipeline", "dp", "named"),
    [
        pytest.param("-1", 1, None, "", id="all that is left"),
        pytest.param("4", 1, 4, "", id="stated"),
        pytest.param("4", 2, None, "data_parallel_degree", id="a pipeline cut its batch otherwise"),
        pytest.param('4\ndata_parallel_type = "ddp"', 1, None, "data_parallel_degree", id="DDP"),
    ],
)
def test_torchtitan_of_2024(degree: str, pipeline: int, dp: int | None, named: str) -> None:
    """LeoXinhaoLee/torchtitan train_configs/llama3_8b.toml: FSDP's degree had another name."""
    reading = read_config(TITAN % (degree, pipeline), "llama3_8b.toml")
    stated = reading.facts.get("data_parallel")
    assert (stated.value if stated else None) == dp
    assert named in unread_of(reading) if named else not unread_of(reading)


FAULTS = """\
from torchtitan.config import TrainingConfig
def config() -> FaultTolerantTrainer.Config:
    return FaultTolerantTrainer.Config(
        training=TrainingConfig(local_batch_size=8, seq_len=2048),
        fault_tolerance=FaultTolerance(enable=%s, semi_sync_method="diloco"),
    )
"""


FLUX = """
from torchtitan.config import ParallelismConfig, TrainingConfig
def debug() -> FluxTrainer.Config:
    return FluxTrainer.Config(
        encoder=FluxEncoderConfig(t5_encoder="google/t5-v1_1-xxl"),
        training=TrainingConfig(local_batch_size=4),
        parallelism=ParallelismConfig(context_parallel_degree=1),
    )
def dev() -> FluxTrainer.Config:
    config = debug()
    config.training.local_batch_size = 32
    return config
"""


def test_a_model_that_trains_beside_encoders_is_named_in_python_too() -> None:
    """In each function of the file, by the field that holds them."""
    first = read_config(FLUX, "config_registry.py")
    assert [unread_of(reading) for reading in (first, *first.others)] == [
        "encoder (models beside the one that is read)"
    ] * 2
    assert not unread_of(read_config(FLUX.replace("encoder=", "decoder="), "config_registry.py"))


def test_steps_that_exchange_nothing_are_named_in_python_too() -> None:
    """AlbedoWang/torchtitan experiments/torchft/llama3/config_registry.py."""
    assert "semi_sync_method" in unread_of(read_config(FAULTS % "True", "config_registry.py"))
    assert not unread_of(read_config(FAULTS % "False", "config_registry.py"))


BRIDGE = "model:\n  tensor_model_parallel_size: 8\n  seq_length: 8192\ntrain:\n"
BATCH = "  global_batch_size: 16\n  micro_batch_size: 1\n"


def test_a_recipe_that_freezes_no_tower_has_one() -> None:
    """GeodesicResearch/geodesic-megatron examples/models/vlm/nemotron_vl: only these say it."""
    frozen = BRIDGE.replace("model:\n", "model:\n  freeze_vision_model: false\n")
    assert "freeze_vision_model" in unread_of(read_config(frozen + BATCH, "override.yaml"))
    assert not unread_of(read_config(BRIDGE + BATCH, "override.yaml"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # JackLingjie/LLama-Factory examples/train_qlora/llama3_lora_sft_otfq.yaml
        pytest.param(LORA + "quantization_bit: 4\nquantization_method: bitsandbytes\n", "",
                     id="the only method that is modelled, named"),
        pytest.param(LORA + "quantization_bit: 4\nquantization_method: hqq\n",
                     "quantization_method 'hqq'", id="another one"),
        # innovationcore/LLaMA-Factory examples/extras/loraplus/llama3_lora_sft.yaml
        pytest.param(LORA + "loraplus_lr_ratio: 16.0\n", "", id="LoRA+ is a learning rate"),
        # okeeper/LLaMA-Factory qwen/qwen3_full_sft.yaml
        pytest.param(FULL + "freeze_vision_tower: true\nfreeze_multi_modal_projector: true\n"
                     "freeze_language_model: false\n", "", id="no tower to freeze"),
        pytest.param(FULL + "freeze_language_model: true\n", "freeze_language_model",
                     id="all of it frozen"),
    ],
)  # fmt: skip
def test_llama_factory_says_what_changes_nothing(text: str, named: str) -> None:
    """Only what changes memory or time is named."""
    found = unread_of(_yaml(FACTORY + "bf16: true\n" + text))
    assert named in found if named else not found


@pytest.mark.parametrize(
    ("model", "named"),
    [
        pytest.param("Qwen/Qwen2.5-VL-7B-Instruct", "freeze_vision_tower", id="it has one"),
        pytest.param("here/pretrained", "", id="not known: --model says which it is"),
    ],
)
def test_a_tower_that_is_there_stays_named(model: str, named: str) -> None:
    """okeeper/LLaMA-Factory qwen/qwen3_full_pt_sft3.yaml names a folder of its own."""
    text = FACTORY.replace("Qwen/Qwen3-8B", model) + FULL + "bf16: true\n"
    assert unread_of(_yaml(text + "freeze_vision_tower: true\n")).partition(" ")[0] == named


def test_what_only_evaluates_trains_nothing() -> None:
    """chrisindris/LLaMA-Factory-LFS examples/train_lora/qwen2_5vl_eval_X62_on_SQA3Devery24.yaml."""
    with pytest.raises(NothingToRead, match="do_train is false"):
        _yaml(FACTORY + LORA + "do_train: false\ndo_eval: true\n")


def test_names_of_loggers_are_known_by_how_they_begin() -> None:
    """mwill20/CLI-Tuner configs/axolotl_config.yaml has `wandb_run_name`."""
    assert not unread_of(_yaml(AXOLOTL + QLORA + "bf16: true\nwandb_run_name: first\n"))
    assert "wandering" in unread_of(_yaml(AXOLOTL + QLORA + "bf16: true\nwandering: first\n"))


COMMAND = """\
CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train --stage sft --model_name_or_path Qwen/Qwen3-8B \\
    --finetuning_type lora --lora_target all --cutoff_len 2048 --bf16 \\
    --per_device_train_batch_size 2
"""


def test_llamafactory_cli_starts_torchrun_which_shards_nothing() -> None:
    """eit-nlp-industry/LLaMA-Factory fixed_training_script.sh: no Accelerate file can shard it."""
    reading = read_config(COMMAND, "train.sh")
    assert reading.facts["zero_stage"].value == 0
    assert not unread_of(reading)


MEGATRON = """\
python pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 --hidden-size 4096 \\
    --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
    --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 \\
    --rank $RANK --world-size 16 --local-rank 0 --dist-url tcp://$HOST:29500
"""


def test_where_a_rank_is_changes_nothing() -> None:
    """HYGON-AI/Megatron-LM-das examples/llama3/train_llama3_70B.sh, started by MPI."""
    assert not unread_of(read_config(MEGATRON, "train.sh"))


# of each model's own config.json: hidden, intermediate, layers, heads, kv heads, vocabulary, tied
SIZES = {
    "Qwen/Qwen2-0.5B-Instruct": (896, 4864, 24, 14, 2, 151936, True),
    "Qwen/Qwen2-1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen/Qwen2-7B-Instruct": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen/Qwen2-72B": (8192, 29568, 80, 64, 8, 152064, False),
    "Qwen/Qwen2.5-Coder-7B-Instruct": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen/Qwen2.5-Coder-32B-Instruct": (5120, 27648, 64, 40, 8, 152064, False),
    "Qwen/Qwen2.5-Math-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen/QwQ-32B": (5120, 27648, 64, 40, 8, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": (5120, 13824, 48, 40, 8, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": (5120, 27648, 64, 40, 8, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": (4096, 14336, 32, 32, 8, 128256, False),
}
FIELDS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "tie_word_embeddings"),
)


@pytest.mark.parametrize("name", SIZES)
def test_a_model_of_the_sizes_of_another_is_known(name: str) -> None:
    """A model by another name is the one of the catalogue that has its sizes."""
    reading = _yaml(FACTORY.replace("Qwen/Qwen3-8B", name) + LORA + "bf16: true\n")
    config = load_model_config(reading.facts["model"].value)
    assert tuple(config[field] for field in FIELDS) == SIZES[name]


def test_a_distillate_whose_head_is_not_tied_has_sizes_of_its_own() -> None:
    """Its config.json is Qwen2.5-1.5B's but for `tie_word_embeddings: false`."""
    name = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert name in _yaml(FACTORY.replace("Qwen/Qwen3-8B", name) + LORA).unknown_model


@pytest.mark.parametrize(
    ("text", "name"),
    [
        # ByteDance-Seed/VeOmni configs/text/seed_oss.yaml, which was read as Megatron-Bridge's
        ("data:\n  train_path: web\n  max_seq_len: 4096\ntrain:\n  accelerator:\n    fsdp_config:\n"
         "      fsdp_mode: fsdp2\n  micro_batch_size: 1\n  global_batch_size: 512\n", "VeOmni"),
        ("model_name: llama3.1-70b\nici_fsdp_parallelism: 8\n", "MaxText"),
        ("type: sft\nmicro_batch_size: 1\ndeepspeed:\n  zero_optimization:\n    stage: 3\nmodel:\n"
         "  name_or_path: meta-llama/Llama-3.1-8B-Instruct\n", "ArcticTraining"),
        ("device_train_microbatch_size: 4\nfsdp:\n  wrapping_strategy: by_block\n", "OLMo"),
        ("train_dataset:\n  component_key: dataset\n  variant_key: packed\n", "Modalities"),
        ("distributed:\n  fsdp_type: full_shard\n  tp_size: 1\n", "lingua"),
        # AMD-AGI/Primus examples/megatron_bridge/configs/MI300X/qwen3_8b_pretrain.yaml,
        # primus/configs/models/megatron/language_model.yaml
        ("modules:\n  pre_trainer:\n    framework: megatron_bridge\n    config: pretrain.yaml\n"
         "    overrides:\n      micro_batch_size: 8\ntrain:\n", "Primus"),
        ("extends:\n  - primus_megatron_model.yaml\ntensor_model_parallel_size: 1\n", "Primus"),
    ],
)  # fmt: skip
def test_frameworks_that_nobody_reads_are_refused_by_name(text: str, name: str) -> None:
    """With what to check instead."""
    found = recognise("train.yaml", text)
    assert found is not None
    with pytest.raises(UnreadableConfig, match=f"^{name}.*: not read .*check "):
        found.read(text, "train.yaml", None)


def test_a_file_of_bridge_is_no_file_of_veomni() -> None:
    """Sections that both have make it no stranger's."""
    text = "train:\n  micro_batch_size: 1\nddp:\n  use_distributed_optimizer: true\n"
    found = recognise("train.yaml", text)
    assert found is not None
    assert found.name == "bridge"


NEMO = """
trainer: {devices: 8, num_nodes: 1, precision: %s}
model:
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  micro_batch_size: 4
  global_batch_size: 32
  megatron_amp_O2: true
  fp8: %s
  optim: {name: fused_adam}
"""


@pytest.mark.parametrize(
    ("precision", "fp8", "named"),
    [("32", "true", "model.fp8 true, trainer.precision 32"), ("32", "false", ""),
     ("bf16", "true", "")],
)  # fmt: skip
def test_products_of_8_bit_beside_weights_of_32_are_named(
    precision: str, fp8: str, named: str
) -> None:
    """mlcommons/training_results_v5.1 llama2_70b_lora, AMD's megatron_llama_config.yaml: it was
    priced as weights of 16 bits.
    """
    reading = read_config(NEMO % (precision, fp8), "conf.yaml")
    assert unread_of(reading).partition(" (")[0] == named
    assert reading.facts["precision"].value == ("fp8" if fp8 == "true" else "fp32")
