"""Small configurations of the formats that are read and not written, for tests and the fuzzer.

Written for the tests, with the keys and the sizes of EleutherAI/gpt-neox@ea7aefd8 configs/1-3B.yml,
configs/pythia/1-4B.yml and configs/llama/7B.yml, and of mosaicml/llm-foundry@8c8dd48f
scripts/train/yamls/pretrain/mpt-1b.yaml and mcli/mcli-1b-max-seq-len-8k.yaml.
"""

NEOX = """\
{
  # a flow mapping with comments, as GPT-NeoX's own files are
  "pipe-parallel-size": 1,
  "model-parallel-size": 1,
  "num-layers": 24,
  "hidden-size": 2048,
  "num-attention-heads": 16,
  "seq-length": 2048,
  "max-position-embeddings": 2048,
  "norm": "layernorm",
  "pos-emb": "rotary",
  "rotary-pct": 0.25,
  "no-weight-tying": true,
  "gpt-j-residual": true,
  "attention-config": [[["flash"], 24]],
  "optimizer": {"type": "Adam", "params": {"lr": 0.0002, "betas": [0.9, 0.95]}},
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000},
  "train_micro_batch_size_per_gpu": 16,
  "gradient_accumulation_steps": 4,
  "checkpoint-activations": true,
  "checkpoint-num-layers": 1,
  "fp16": {"enabled": true, "loss_scale": 0},
  "lr-decay-style": "cosine",
  "train-iters": 143000,
}
"""
FOUNDRY = """\
variables:
  max_seq_len: 2048
  global_seed: 17
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  init_device: meta
  d_model: 2048
  n_heads: 16
  n_layers: 24
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  attn_config:
    attn_impl: flash
tokenizer:
  name: EleutherAI/gpt-neox-20b
  kwargs: {model_max_length: "${variables.max_seq_len}"}
train_loader:
  name: text
  dataset: {split: train, max_seq_len: "${variables.max_seq_len}"}
optimizer: {name: decoupled_adamw, lr: 2.0e-4}
algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}
max_duration: 24800ba
global_train_batch_size: 512
device_train_microbatch_size: 4
seed: ${variables.global_seed}
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: false
callbacks: {speed_monitor: {window_size: 10}, lr_monitor: {}}
"""


def with_line(text: str, line: str) -> str:
    """`text` with `line` in the place of the line that states its key, at the same indent, or last.

    A flow mapping (GPT-NeoX's) takes it before its closing brace.
    """
    key = line.strip().partition(":")[0]
    kept = [each for each in text.splitlines() if not each.strip().startswith(f"{key}:")]
    if kept[-1] == "}":
        return "\n".join([*kept[:-1], f"  {line},", "}"]) + "\n"
    at = next((i for i, each in enumerate(text.splitlines()) if each.strip().startswith(f"{key}:")),
              len(kept))  # fmt: skip
    return "\n".join([*kept[:at], line, *kept[at:]]) + "\n"


AUTOMODEL = """\
recipe: BenchmarkingRecipeForNextTokenPrediction
benchmark: {warmup_steps: 10, peak_tflops: 989, num_nodes: 1}
step_scheduler: {global_batch_size: 512, local_batch_size: 16, max_steps: 30}
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 1
  pp_size: 4
  ep_size: 8
  sequence_parallel: false
  activation_checkpointing: true
  pipeline:
    pp_schedule: interleaved1f1b
    pp_microbatch_size: 2
    layers_per_stage: 5
    round_virtual_stages_to_pp_multiple: up
    patch_inner_model: false
  moe: {reshard_after_forward: false, wrap_outer_model: true}
dist_env: {backend: nccl, timeout_minutes: 10}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    _target_: transformers.AutoConfig.from_pretrained
    pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
  torch_dtype: bf16
  trust_remote_code: false
  backend:
    _target_: nemo_automodel.components.models.common.BackendConfig
    attn: te
    linear: te
    experts: gmm
    dispatcher: deepep
    fake_balanced_gate: true
checkpoint: {enabled: false}
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy, fp32_upcast: false}
dataset:
  _target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset
  seq_len: 4096
optimizer: {_target_: torch.optim.Adam, lr: 1.0e-4, betas: [0.9, 0.999]}
"""
"""With the keys and the sizes of NVIDIA-NeMo/Automodel@36044ad examples/llm_benchmark/qwen."""

AUTOMODEL_DENSE = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
distributed: {strategy: fsdp2, dp_size: none, tp_size: 1, cp_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}
dataset: {_target_: nemo_automodel.components.datasets.llm.x.Column, seq_length: 2048}
packed_sequence: {packed_sequence_size: 0}
optimizer: {_target_: torch.optim.AdamW, lr: 1e-5}
"""
