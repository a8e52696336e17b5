"""Configurations of axolotl and LLaMA-Factory, written for the tests with the keys of their own
examples (axolotl-ai-cloud/axolotl@067b021c, hiyouga/LLaMA-Factory@ff6d4d12).
"""

AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B-Instruct
datasets:
  - path: some/data
    type: alpaca
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
deepspeed: configs/zero3.json
output_dir: out
"""


FACTORY = """\
model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
deepspeed: configs/zero3.json
output_dir: out
"""


BARE = AXOLOTL.replace("deepspeed: configs/zero3.json\n", "").replace(
    "gradient_checkpointing: true\n", ""
)
