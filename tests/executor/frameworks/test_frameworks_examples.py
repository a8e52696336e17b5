"""Configs that the frameworks publish: recognised, read right, checked, and written back the
same.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from random_plans import CLUSTER, differences, missing_facts, plan_of

from meshplan.costmodels.layout import Stage
from meshplan.executor.frameworks import FRAMEWORKS, read_config, recognise
from meshplan.planner.case.plan_file import PlanModel
from meshplan.planner.case.reading import Reading
from meshplan.planner.case.resolve import Case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

FOLDER = Path(__file__).parents[2] / "data" / "framework_configs"


@dataclass(frozen=True)
class Example:
    """A published file, what flags must add, and what it says."""

    path: str
    label: str
    given: dict[str, Any]
    layout: dict[str, Any]
    training: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)


EXAMPLES = [
    Example(
        "megatron/gpt3_175b.sh",
        "tp8 pp16 zero0 mbs1",
        {"vocab_size": 50257},
        {"data_parallel": 1, "stages": (Stage(6),) * 16, "schedule": "1f1b"},
        {"seq_len": 2048, "global_batch_size": 1536, "precision": "fp16"},
        {"tensor_parallel": 27, "global_batch_size": 22},
    ),
    Example(
        "megatron/llama3_8b_fp8.sh",
        "dp8 zero1 mbs1",
        {},
        {"sequence_parallel": False, "zero_stage": 1},
        {"seq_len": 8192, "global_batch_size": 128, "precision": "fp8"},
        {"zero_stage": 49},
    ),
    Example(
        "megatron/mixtral_8x7b.sh",
        "dp8 pp4 ep8 zero1 mbs1",
        {"vocab_size": 32000},
        {"expert_tensor_parallel": 1, "stages": (Stage(8),) * 4},
        {"seq_len": 4096, "global_batch_size": 256, "precision": "bf16"},
        {"expert_parallel": 32},
    ),
    Example(
        "megatron/deepseek_v3_fsdp.sh",
        "dp256 ep8 zero3 mbs4 recompute-selective",
        {"vocab_size": 129280},
        {"selective_modules": ("mlp", "moe", "mla_up_proj", "layernorm")},
        {"seq_len": 4096, "global_batch_size": 2048},
        {"gpus": 3},
    ),
    Example(
        "nanotron/tiny_llama.yaml",
        "dp4 tp2 zero0 mbs3",
        {},
        {"sequence_parallel": True, "stages": (Stage(28),)},
        {"seq_len": 4096, "global_batch_size": 12, "optimizer": "adamw"},
        {"data_parallel": 34, "zero_stage": 32},
    ),
    Example(
        "nanotron/qwen_moe.yaml",
        "dp2 zero0 mbs3",
        {},
        {"expert_parallel": 1},
        {"global_batch_size": 6},
    ),
    Example(
        "torchtitan/llama3_70b.toml",
        "dp8 tp8 zero3 mbs8 recompute-full",
        {"gpus": 64},
        {"sequence_parallel": True, "stages": (Stage(80, full_layers=80),)},
        {"seq_len": 8192, "global_batch_size": 64, "precision": "bf16"},
        {"tensor_parallel": 22},
    ),
    Example(
        "torchtitan/llama3_405b.toml",
        "dp16 tp8 zero3 mbs2 recompute-full",
        {"gpus": 128},
        {"stages": (Stage(126, full_layers=126),)},
        {"seq_len": 8192, "global_batch_size": 32, "precision": "fp8"},
    ),
    Example(
        "torchtitan/llama3_70b.py",
        "dp8 tp8 zero3 mbs8 recompute-full",
        {"gpus": 64},
        {"stages": (Stage(80, full_layers=80),)},
        {"seq_len": 8192, "global_batch_size": 64},
        {"tensor_parallel": 18, "seq_len": 14},
    ),
    Example(
        "bridge/llama32_1b.yaml",
        "dp8 zero1 mbs1",  # as its recipe has it, which the overrides leave out
        {"gpus": 8, "model": "llama-3.2-1b"},
        {"tensor_parallel": 1},
        {"seq_len": 4096, "global_batch_size": 8},
        {"global_batch_size": 7},
    ),
    Example(
        "bridge/llama31_405b.sh",
        "dp8 tp8 pp8 vpp8 cp2 zero1 mbs1",
        {"gpus": 1024, "model": "llama-3.1-405b"},
        {
            "schedule": "interleaved_1f1b",
            "stages": (Stage(1), *[Stage(2)] * 62, Stage(1)),
        },
        {"seq_len": 8192, "global_batch_size": 1536, "precision": "bf16"},
        {"virtual_stages": 7, "context_parallel": 7},
    ),
    Example(
        "deepspeed/gpt2_zero2_gas3.json",
        "dp4 zero2 mbs8",
        {"gpus": 4, "model": "gpt3-1.3b", "seq_len": 1024},
        {},
        {"global_batch_size": 96, "precision": "fp16"},
        {"num_micro_batches": 3},
    ),
    Example(
        "accelerate/tp_hsdp.yaml",
        "dp4 tp2 zero3 mbs1",
        {"model": "llama-3.1-8b", "seq_len": 2048, "micro_batch_size": 1, "global_batch_size": 16},
        {"shard_group": 2, "sequence_parallel": False},
        {"precision": "bf16"},
        {"tensor_parallel": 19, "gpus": 14},
    ),
    Example(
        "accelerate/cp.yaml",
        "cp8 zero3 mbs1 recompute-full",
        {"model": "llama-3.1-8b", "seq_len": 65536, "micro_batch_size": 1, "global_batch_size": 4},
        {"data_parallel": 1},
        {"precision": "bf16"},
    ),
]
by_file = pytest.mark.parametrize("example", EXAMPLES, ids=[example.path for example in EXAMPLES])


def _read(example: Example) -> Reading:
    path = FOLDER / example.path
    return read_config(path.read_text(), str(path))


def _case(example: Example) -> Case:
    return resolve(_read(example), Settings(cluster=CLUSTER, **example.given), Settings())


def test_every_file_has_its_row() -> None:
    """Each published file is in the table, so that none is left untested."""
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert files - {"README.md"} == {example.path for example in EXAMPLES}


@by_file
def test_recognised(example: Example) -> None:
    """A file is claimed by the framework whose folder it is in, and by no earlier one."""
    path = FOLDER / example.path
    found = recognise(path.name, path.read_text())
    assert found is not None
    assert found.name == example.path.split("/")[0]


@by_file
def test_read(example: Example) -> None:
    """The layout and the training are what the file says, and the facts know their lines."""
    case = _case(example)
    assert case.layout.label == example.label
    assert {name: getattr(case.layout, name) for name in example.layout} == example.layout
    assert {name: getattr(case.training, name) for name in example.training} == example.training
    facts = _read(example).facts
    assert {name: facts[name].line for name in example.lines} == example.lines


@by_file
def test_checked(example: Example, tmp_path: Path) -> None:
    """`check` reaches a verdict with a predicted peak, or names the rule that is broken."""
    path = tmp_path / Path(example.path).name
    path.write_text((FOLDER / example.path).read_text())
    (finding,) = check_paths([path], tools(), Settings(cluster=CLUSTER, **example.given))
    assert finding.verdict in ("fits", "does not fit"), finding.text
    assert finding.peak_bytes is not None


@by_file
def test_written_back(example: Example) -> None:
    """The layout of a published file survives its own format again."""
    reading, case = _read(example), _case(example)
    name = example.given.get("model") or reading.facts.get("model")
    known = name if isinstance(name, str) else (name.value if name else "llama-3.1-8b")
    plan = plan_of(known, case.layout, case.training)
    if reading.model_config is not None:
        config = {"vocab_size": example.given.get("vocab_size"), **reading.model_config}
        plan = plan.model_copy(update={"model": PlanModel.of("config", config)})
    exported = FRAMEWORKS[reading.framework].export(plan, 8)
    file = next(iter(exported.files))
    again = read_config(exported.files[file], file)
    back = resolve(again, missing_facts(plan, exported), Settings())
    assert not differences(case.layout, case.training, back, exported)
