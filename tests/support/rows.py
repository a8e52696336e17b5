"""A row of a table of measured runs, and the engine that it was run with."""

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.planner.runs.habits import engine_of as engine_of_row
from meshplan.planner.runs.rows import row_of

ROW = {
    "id": "hand", "suite": "test", "grade": "A", "framework": "megatron-bridge",
    "model": "Llama 3 8B", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "vocab": "128256", "gated_mlp": "1", "tied": "0", "attention": "gqa",
    "seq_len": "8192", "gpu": "h100-sxm", "gpus": "8", "gpus_per_node": "8", "precision": "bf16",
    "dp": "8", "tp": "1", "pp": "1", "cp": "1", "zero": "1", "recompute": "none",
    "micro_batch": "1", "global_batch": "128", "step_time_s": "12.9",
}  # fmt: skip
"""Llama 3 8B on one DGX H100, as NVIDIA's DGX Cloud benchmarking publishes it (12.9 s in bf16)."""
TITAN = ROW | {"framework": "torchtitan", "zero": "3"}


def engine_of(words: dict[str, str]) -> Engine:
    """The engine of a row with these words."""
    return engine_of_row(row_of(ROW | words))
