"""Megatron-LM arguments: a launch script out, and launch scripts as people write them in.

    ours                       theirs
    data_parallel              what is left of --nproc-per-node x --nnodes
    tensor_parallel            --tensor-model-parallel-size
    virtual_stages, stages     --num-virtual-stages-per-pipeline-rank, or uneven stages as
                               --pipeline-model-parallel-layout "Et*3|t*4|t*3L"
    zero_stage 1               --use-distributed-optimizer
    zero_stage 2, 3            --use-megatron-fsdp --data-parallel-sharding-strategy
                               optim_grads[_params]
    recompute                  --recompute-granularity, -method, -num-layers, -modules
    gradients of 16 bit        --grad-reduce-in-bf16 (the engine megatron-bridge; else megatron)

The rest is in `megatron_settings` and `megatron_model`. Reading takes what the command line would
be after the script's own variables (`shell`), and `#SBATCH` lines for the number of GPUs.

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py`, `examples/`.
"""

import re
import shlex
from collections.abc import Mapping

from executor.frameworks.megatron_model import model_config_of, model_settings
from executor.frameworks.megatron_settings import (
    COUNTS,
    dispatch_unsaid,
    layout_facts,
    layout_settings,
    narrow_gradients,
    training_facts,
    training_settings,
)
from executor.frameworks.saying import GPUS_PER_NODE, Answer, answer_of
from executor.frameworks.shell import flags_of, read_script
from executor.frameworks.values import Values, put, shown
from planner.plan import Plan
from planner.reading import Exported, Fact, IllegalConfig, Reading, UnreadableConfig

FILE = "train.sh"
_RENAMED = {
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "virtual_pipeline": "num_virtual_stages_per_pipeline_rank",
    "cpu_offloading": "",  # follows from the number of layers
    "add_bias_linear": "",  # Megatron's default; its absence is --disable-bias-linear
}
_LAUNCHER = ("nproc_per_node", "nnodes")
_MARKS = frozenset((*COUNTS.values(), "num_layers", "hidden_size", "use_distributed_optimizer"))


def claims(name: str, text: str) -> bool:
    """Whether a file looks like a script with Megatron's arguments."""
    flags = "--tensor-model-parallel-size" in text or (
        "--num-layers" in text and "--micro-batch-size" in text
    )
    return flags and not name.endswith(".py")  # a program that takes the flags is no config


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as a bash script that launches `pretrain_gpt.py` with mock data."""
    answer = answer_of(plan, gpus_per_node)
    model, no_model = model_settings(answer)
    layout, no_layout = layout_settings(answer)
    training, no_training = training_settings(answer.training)
    if training.get("bf16") and narrow_gradients(plan.engine):
        training["grad_reduce_in_bf16"] = True
    if not answer.model.bias:
        model["disable_bias_linear"] = True
    script = _script(answer, plan.model.name, model, layout | training)
    return Exported(
        framework="megatron",
        files={FILE: script},
        launch=f"bash {FILE}",
        cannot_say=(*no_layout, *no_training, *no_model, *dispatch_unsaid(plan.engine, answer)),
    )


def _script(
    answer: Answer, name: str, model: Mapping[str, object], run: Mapping[str, object]
) -> str:
    """The whole script: world, three arrays of arguments, one command."""
    overlap = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    if "use_distributed_optimizer" in run:
        run = {**run, **overlap}
    if "use_megatron_fsdp" in run:
        run = {**run, "no_gradient_accumulation_fusion": True, "ckpt_format": "fsdp_dtensor"}
    data = {"mock_data": True, "tokenizer_type": "NullTokenizer"}
    steps = {"train_iters": 20, "lr": 1e-5, "log_interval": 1, "log_throughput": True}
    lines = [
        "#!/usr/bin/env bash",
        f"# {_comment(name)}: {answer.layout.label} on {answer.layout.world_size} GPUs.",
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


def read(text: str, path: str) -> Reading:
    """The arguments of the launch script `text`; raises `UnreadableConfig` and `IllegalConfig`."""
    words = flags_of(read_script(text), lambda word: word.lstrip("-").replace("-", "_") in _MARKS)
    found = arguments(words)
    if not set(found) & _MARKS:
        raise UnreadableConfig("no Megatron arguments found, such as --tensor-model-parallel-size")
    values = Values(found)
    config = model_config_of(values)
    facts, placement, recompute, notes = layout_facts(values)
    facts |= training_facts(values)
    facts.setdefault("precision", Fact("fp32", 1))  # no --bf16, --fp16 or --fp8-format
    put(facts, gpus=_gpus(values, text))
    if "global_batch_size" not in facts:  # then micro-batch x data_parallel
        put(facts, num_micro_batches=Fact(1, facts.get("micro_batch_size", Fact(1, 1)).line))
    if "zero_stage" not in facts:
        put(facts, zero_stage=Fact(0, 1))
    return Reading(
        framework="megatron",
        engine="megatron-bridge" if values.on("grad_reduce_in_bf16") else "megatron",
        path=path,
        facts=facts,
        placement=placement,
        recompute=recompute,
        model_config=config,
        expert_tensor_follows=True,
        ignored=values.ignored(),
        notes=(*notes, *values.suspects(_MARKS)),
    )


def arguments(words: list[Fact]) -> dict[str, Fact]:
    """`--flag value` pairs by name with underscores; several values become a list, none is true."""
    found: dict[str, Fact] = {}
    name, collected, line = "", [], 0
    for word in [*words, Fact("--", 0)]:
        text = str(word.value)
        if not text.startswith("--"):
            collected.append(text)
            continue
        if name:
            _store(found, name, collected, line)
        flag, _, value = text[2:].partition("=")
        name, line = flag.replace("-", "_"), word.line
        collected = [value] if value else []
    return found


def _store(found: dict[str, Fact], name: str, texts: list[str], line: int) -> None:
    kept = [text.strip("\"'") for text in texts if text != "\\"]
    if name in _MARKS and (unset := next((text for text in kept[:1] if "$" in text), None)):
        raise UnreadableConfig(
            f"--{name.replace('_', '-')} is {shown(unset)}, which the script does not set; give it "
            "a default such as ${TP:-8}",
            line,
        )
    if name == "recompute_modules":
        found[name] = Fact(kept, line)
    else:
        found[name] = Fact(kept[0] if kept else True, line)


def _gpus(values: Values, text: str) -> Fact | None:
    """GPUs of the launch: torchrun's arguments, else Slurm's headers."""
    if values.get(*_LAUNCHER) is not None and not _unset(values):
        each, nodes = (values.count(name) for name in _LAUNCHER)
        if each is not None:
            return Fact(each.value * (nodes.value if nodes else 1), each.line)
    header = dict(re.findall(r"^#SBATCH\s+--([a-z-]+)[= ]\s*(\S+)", text, re.M))
    each_text = header.get("gpus-per-node") or header.get("gres", "")
    sizes = (
        re.search(r"(?:^|:)([0-9]{1,6})$", each_text),
        re.fullmatch(r"[0-9]{1,6}", header.get("nodes", "1")),
    )
    if sizes[0] is None or sizes[1] is None:
        return None
    line = text[: text.index("#SBATCH")].count("\n") + 1
    gpus = int(sizes[0][1]) * int(sizes[1][0])
    if not gpus:
        raise IllegalConfig("#SBATCH asks for 0 GPUs; it must be at least 1", line)
    return Fact(gpus, line)


def _unset(values: Values) -> bool:
    return any("$" in str(values.found[name].value) for name in _LAUNCHER if name in values.found)
