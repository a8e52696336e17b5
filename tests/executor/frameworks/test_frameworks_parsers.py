"""Emitted configs, read by the frameworks' own parsers (an optional group: docs/frameworks.md).

Each parser runs in a process of its own: in this interpreter, or in the first of those that
MESHPLAN_FRAMEWORKS_PYTHON names (separated as in PATH) that has the framework. A framework that
none has skips, with the reason.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from parse_with import MISSING
from random_plans import model_named, plan_of

from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import exporter_named

PYTHONS = os.environ.get("MESHPLAN_FRAMEWORKS_PYTHON", sys.executable).split(os.pathsep)
SCRIPT = Path(__file__).parents[2] / "support" / "parse_with.py"
TRAINING = Training(seq_len=4096, global_batch_size=256)

pytestmark = pytest.mark.frameworks


def _layout(recompute: Any = "none", **degrees: Any) -> Layout:
    stages = degrees.get("pipeline_parallel", 1) * degrees.get("virtual_stages", 1)
    return Layout(stages=even_stages(80, stages, recompute), **degrees)


PIPELINED = {"data_parallel": 8, "tensor_parallel": 4, "pipeline_parallel": 2, "virtual_stages": 2,
             "schedule": "interleaved_1f1b", "sequence_parallel": True}  # fmt: skip
MEGATRON = {"virtual_pipeline_model_parallel_size": None, "global_batch_size": 256, "fp8": None,
            "sequence_parallel": False, "recompute_granularity": None, "num_experts": None,
            "pipeline_model_parallel_layout": None}  # fmt: skip
CASES = [
    pytest.param(
        "megatron", "megatron-lm",
        _layout("selective", **PIPELINED, zero_stage=1),
        {**MEGATRON, "data_parallel_size": 8, "virtual_pipeline_model_parallel_size": 2,
         "sequence_parallel": True, "recompute_granularity": "selective"},
        id="megatron-lm: dp = 64 / (4 x 2) = 8",
    ),
    pytest.param(
        "megatron", "megatron-lm",
        Layout(data_parallel=8, pipeline_parallel=2, zero_stage=1, stages=(Stage(41), Stage(39))),
        {**MEGATRON, "data_parallel_size": 8, "pipeline_model_parallel_layout": "Et*41|t*39L"},
        id="megatron-lm: 41 + 39 layers as a layout string",
    ),
    pytest.param(
        "megatron", "megatron-lm",
        Layout(data_parallel=16, zero_stage=3, shard_group=8, optimizer_offload=True,
               stages=(Stage(80, full_layers=5),)),
        {**MEGATRON, "data_parallel_size": 16, "recompute_granularity": "full"},
        id="megatron-lm: Megatron-FSDP, hybrid, offload, 5 layers recompute",
    ),
    pytest.param(
        "megatron", "megatron-lm",
        Layout(data_parallel=8, tensor_parallel=8, sequence_parallel=True, zero_stage=1,
               optimizer_offload=True, activation_offload=True, stages=(Stage(80),)),
        {**MEGATRON, "data_parallel_size": 8, "sequence_parallel": True},
        id="megatron-lm: optimizer and activations on the host",
    ),
    pytest.param(
        "nanotron", "nanotron",
        _layout("full", data_parallel=8, tensor_parallel=4, sequence_parallel=True, zero_stage=1),
        {"world": 32, "global_batch_size": 256, "engine": "OneForwardOneBackwardPipelineEngine",
         "tp_mode": "REDUCE_SCATTER", "recompute": True, "zero_stage": 1, "layers": 80},
        id="nanotron: 8 x 4 = 32 ranks, 1 x 32 x dp 8 = 256",
    ),
    pytest.param(
        "deepspeed", "deepspeed",
        _layout(data_parallel=32, zero_stage=2, micro_batch_size=2),
        {"train_batch_size": 256, "micro_batch_size": 2, "num_micro_batches": 4, "zero_stage": 2,
         "bf16": True},
        id="deepspeed: 2 x 4 x dp 32 = 256",
    ),
    pytest.param(
        "accelerate", "accelerate",
        _layout("full", data_parallel=8, tensor_parallel=4, context_parallel=2, zero_stage=3,
                shard_group=4),
        {"num_processes": 64, "total_size": 64, "dp_replicate_size": 4, "dp_shard_size": 2,
         "tp_size": 4, "cp_size": 2},
        id="accelerate: 4 x 2 x tp 4 x cp 2 = 64",
    ),
    pytest.param(
        "torchtitan-0.2", "torchtitan-0.2",
        _layout("full", **PIPELINED, zero_stage=2),
        {"degrees": [1, 8, 1, 4, 2, 1], "local_batch_size": 32, "global_batch_size": 256,
         "seq_len": 4096, "schedule": "Interleaved1F1B", "stages": 4, "reshard": "never",
         "recompute": "full"},
        id="torchtitan 0.2: 256 / dp 8 = 32 local",
    ),
    pytest.param(
        "torchtitan-0.3", "torchtitan-0.3",
        _layout("full", **PIPELINED, zero_stage=3),
        {"degrees": [1, 8, 1, 4, 2, 1], "local_batch_size": 32, "global_batch_size": 256,
         "seq_len": 4096, "schedule": "Interleaved1F1B", "stages": 4, "reshard": "always"},
        id="torchtitan 0.3: 256 / dp 8 = 32 local",
    ),
    pytest.param(
        "torchtitan-0.3", "torchtitan-0.3",
        _layout("selective", data_parallel=8, context_parallel=2, tensor_parallel=4, zero_stage=3,
                shard_group=8, sequence_parallel=True, context_kind="all_gather"),
        {"degrees": [2, 4, 2, 4, 1, 1], "local_batch_size": 1, "global_batch_size": 256},
        id="torchtitan 0.3: 2 copies x 4 shards x cp 2 x tp 4 = 64",
    ),
    pytest.param(
        "bridge", "megatron-core",
        _layout("selective", **PIPELINED, zero_stage=1),
        {"tensor_parallel": 4, "pipeline_parallel": 2, "virtual_stages": 2, "context_parallel": 1,
         "recompute": "selective"},
        id="megatron-core: the model section of the overrides",
    ),
    pytest.param(
        "bridge", "megatron-bridge",
        _layout("selective", **PIPELINED, zero_stage=1),
        {"bf16": True, "params_dtype": "torch.bfloat16", "fp8": None, "grad_reduce_in_fp32": True,
         "use_distributed_optimizer": True},
        id="megatron-bridge: a named precision",
    ),
]  # fmt: skip


LACKING: dict[str, subprocess.CompletedProcess[str]] = {}
"""What a parser said that no interpreter has: asked once, as starting one takes seconds."""


def _parsed(parser: str, path: Path, gpus: int) -> subprocess.CompletedProcess[str]:
    if parser in LACKING:
        return LACKING[parser]
    for python in PYTHONS:
        done = subprocess.run(
            [python, str(SCRIPT), parser, str(path), str(gpus)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode != MISSING:
            return done
    LACKING[parser] = done
    return done


@pytest.mark.parametrize(("exporter", "parser", "layout", "expected"), CASES)
def test_the_framework_reads_what_we_write(
    exporter: str, parser: str, layout: Layout, expected: dict[str, object], tmp_path: Path
) -> None:
    """The framework's own parser accepts the file and sees the plan's degrees and batch."""
    exported = exporter_named(exporter)(plan_of("llama-3.1-70b", layout, TRAINING), 8)
    for name, text in exported.files.items():
        (tmp_path / name).write_text(text)
    first = tmp_path / next(iter(exported.files))
    done = _parsed(parser, first, layout.world_size)
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-2000:]
    understood = json.loads(done.stdout.splitlines()[-1])
    assert {name: understood.get(name) for name in expected} == expected


ROUTED = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
BUILT = [
    pytest.param(
        "llama-3.1-8b",
        {"config": "TransformerConfig", "rotary_base": 500_000, "layernorm_epsilon": 1e-5},
        id="llama-3.1-8b: base 500000",
    ),
    pytest.param(
        "deepseek-v3",
        {**ROUTED, "config": "MLATransformerConfig", "layernorm_epsilon": 1e-6,
         "moe_router_num_groups": 8, "moe_router_group_topk": 4, "rope_type": "yarn",
         "moe_router_topk_scaling_factor": 2.5, "rotary_scaling_factor": 40.0},
        id="deepseek-v3: a sigmoid router, 4 of 8 groups, times 2.5",
    ),
    pytest.param(
        "tiny-mla", {**ROUTED, "rope_type": "rope", "moe_router_num_groups": None},
        id="tiny-mla: no scaling, no groups",
    ),
    pytest.param(
        "nemotron-4-15b", {"init_method_std": 0.0134, "rotary_base": 10_000}, id="squared ReLU"
    ),
    pytest.param("gpt-oss-20b", {"rotary_base": 150_000, "num_experts": 32}, id="YaRN"),
    pytest.param("qwen2-57b-a14b", {"moe_router_score_function": "softmax"}, id="pre-softmax"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "expected"), BUILT)
def test_megatron_builds_the_model(model: str, expected: dict[str, object], tmp_path: Path) -> None:
    """`core_transformer_config_from_args` builds the model's configuration from the script."""
    layers = model_named(model).num_layers
    layout = Layout(data_parallel=8, zero_stage=1, stages=(Stage(layers),))
    plan = plan_of(model, layout, Training(seq_len=2048, global_batch_size=8))
    script = tmp_path / "train.sh"
    script.write_text(exporter_named("megatron")(plan, 8).files["train.sh"])
    done = _parsed("megatron-lm", script, 8)
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-2000:]
    understood = json.loads(done.stdout.splitlines()[-1])
    assert {name: understood.get(name) for name in expected} == expected


def test_bridge_builds_16_bit_gradients(tmp_path: Path) -> None:
    """Bridge builds a MixedPrecisionConfig from the mapping, in the YAML and in Hydra's words."""
    layout = Layout(data_parallel=8, zero_stage=1, stages=(Stage(32),))
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=2048, global_batch_size=8))
    exported = exporter_named("bridge")(plan.model_copy(update={"engine": "megatron-bridge"}), 8)
    for name, text in exported.files.items():
        (tmp_path / name).write_text(text)
    done = _parsed("megatron-bridge", tmp_path / "overrides.yaml", 8)
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-2000:]
    understood = json.loads(done.stdout.splitlines()[-1])
    assert (understood["bf16"], understood["grad_reduce_in_fp32"]) == (True, False)
