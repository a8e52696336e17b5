"""What of a layer are DTensors under the tensor parallelism of a run that nothing compiled."""

from typing import Any

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.kernel_habits import DTensorPlan
from meshplan.planner.runs.rows import Row

KEPT = ("qwen3", "deepseek")
"""Models whose queries, keys and values torchtitan keeps DTensors: pytorch/torchtitan@00ca17aa
experiments/qwen3 (2025), @057fedda models/qwen3, @018740b7 models/deepseek_v3, infra/parallelize.py
of each. Llama's are tensors: @018740b7 models/llama3.
"""


def dtensor_said(row: Row, engine: Engine) -> dict[str, Any]:
    """The habit of an eager run whose framework's plan has been read."""
    plan = _plan(row) if row.facts.compiled is False and engine.name == "torchtitan" else ""
    return {"dtensor": plan} if plan else {}


def _plan(row: Row) -> DTensorPlan:
    words = row.framework.lower()
    if "kempnerforge" in words:  # @0c4eba1e kempnerforge/distributed/tensor_parallel.py
        return "sequence" if row.sp and row.pp == 1 else "columns"
    if "dtensor" in words:  # columns and rows alone: tohtana/benchmark_tp@2faebc2
        return "columns"
    if "torchtitan" not in words:
        return ""
    return "kept" if row.model.lower().startswith(KEPT) else "prepared"
