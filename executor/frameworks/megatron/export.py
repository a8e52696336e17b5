"""Megatron-LM's launch script of a plan: `pretrain_gpt.py` with its arguments, on mock data.

The arguments are those of `launch_script`, which reads them back; `settings` and `model` word them.

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py`, `examples/`.
"""

import shlex
from collections.abc import Mapping

from meshplan.costmodels.units import counted
from meshplan.executor.frameworks.export_notes import GPUS_PER_NODE, Answer, answer_of
from meshplan.executor.frameworks.megatron.core_loss import loss_flags, loss_unsaid
from meshplan.executor.frameworks.megatron.exchanges import dispatch_unsaid
from meshplan.executor.frameworks.megatron.model import model_settings
from meshplan.executor.frameworks.megatron.settings import (
    layout_settings,
    narrow_gradients,
    training_settings,
)
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import Exported
from meshplan.planner.case.resolve import engine_named, has_userbuffers

FILE = "train.sh"
_RENAMED = {
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "virtual_pipeline": "num_virtual_stages_per_pipeline_rank",
    "cpu_offloading": "",  # follows from the number of layers
    "add_bias_linear": "",  # Megatron's default; its absence is --disable-bias-linear
}


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as a bash script that launches `pretrain_gpt.py` with mock data."""
    answer = answer_of(plan, gpus_per_node)
    model, no_model = model_settings(answer)
    layout, no_layout = layout_settings(answer)
    training, no_training = training_settings(answer.training)
    if training.get("bf16") and narrow_gradients(plan.engine):
        training["grad_reduce_in_bf16"] = True
    if answer.layout.tensor_parallel > 1 and has_userbuffers(engine_named(plan.engine)):
        training["tp_comm_overlap"] = True
    model = {name: value for name, value in model.items() if name not in layout}
    if not answer.model.bias:
        model["disable_bias_linear"] = True
    run = layout | training | loss_flags(plan.engine)
    script = _script(answer, plan.model.name, model, run)
    return Exported(
        framework="megatron",
        files={FILE: script},
        launch=f"bash {FILE}",
        cannot_say=(
            *no_layout, *no_training, *no_model, *loss_unsaid(plan.engine),
            *dispatch_unsaid(plan.engine, answer),
        ),
    )  # fmt: skip


def _script(
    answer: Answer, name: str, model: Mapping[str, object], run: Mapping[str, object]
) -> str:
    """The whole script: world, three arrays of arguments, one command."""
    run = {**run, "overlap_grad_reduce": True}
    if "use_distributed_optimizer" in run:
        run = {**run, "overlap_param_gather": True}
    if "use_megatron_fsdp" in run:
        run = {**run, "no_gradient_accumulation_fusion": True, "ckpt_format": "fsdp_dtensor"}
    data = {"mock_data": True, "tokenizer_type": "NullTokenizer"}
    steps = {"train_iters": 20, "lr": 1e-5, "log_interval": 1, "log_throughput": True}
    lines = [
        "#!/usr/bin/env bash",
        f"# {_comment(name)}: {answer.layout.label} on {counted(answer.layout.world_size, 'GPU')}.",
        "set -euo pipefail",
        "unset CUDA_DEVICE_MAX_CONNECTIONS"  # Megatron-FSDP refuses 1, the others want it
        if "use_megatron_fsdp" in run
        else "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        f"GPUS_PER_NODE={answer.gpus_per_node}",
        f"NUM_NODES={answer.nodes}",
        *_array("MODEL_ARGS", model),
        *_array("RUN_ARGS", run),
        *_array("DATA_ARGS", {**data, **steps}),
        "torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NUM_NODES \\",
        "    --node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-localhost} \\",
        "    --master-port ${MASTER_PORT:-29500} pretrain_gpt.py \\",
        '    "${MODEL_ARGS[@]}" "${RUN_ARGS[@]}" "${DATA_ARGS[@]}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def _array(name: str, settings: Mapping[str, object]) -> list[str]:
    flags = []
    for key, value in settings.items():
        flag = _RENAMED.get(key, key).replace("_", "-")
        if not flag:
            continue
        if value is True:
            flags.append(f"    --{flag}")
        elif isinstance(value, list):
            flags.append(f"    --{flag} {shlex.join(value)}")
        else:
            flags.append(f"    --{flag} {shlex.quote(str(value))}")
    return [f"{name}=(", *flags, ")"]


def _comment(text: str) -> str:
    """`text` as a comment holds it: a newline would end the comment."""
    return "".join(char if char.isprintable() else "?" for char in text)
