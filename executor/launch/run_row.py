"""A measured run as a row of the table that `meshplan validate` reads and learns from.

The row is read back before it is written: a run that the table's columns cannot say exactly (layers
of several kinds) gives no row rather than a wrong one.
"""

import csv
import io
from dataclasses import replace
from pathlib import Path

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.units import GIB
from meshplan.executor.launch.results import RunResult
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import run_of
from meshplan.planner.text_files import write_text

FILE = "runs.csv"
SCHEDULE_WORDS = {"interleaved_1f1b": "interleaved", "zb_h1": "zb", "zb_v": "zb-v",
             "dualpipe_v": "dualpipe"}  # fmt: skip


def write_row(plan: Plan, result: RunResult, gpu: str, folder: Path) -> Path | None:
    """Write `folder`/runs.csv with the one run; None if the table cannot say it."""
    row = row_of(plan, result, gpu)
    if row is None:
        return None
    path = folder / FILE
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(row), lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)
    write_text(path, text.getvalue())
    return path


def row_of(plan: Plan, result: RunResult, gpu: str) -> dict[str, str] | None:
    """The columns of a finished run, None if they do not read back as the plan's layout."""
    model = model_from_config(plan.model.config, plan.model.name)
    row = {**_shape(model), **_layout(plan), **_measured(result)}
    row |= {
        "id": f"{plan.model.name}-{result.layout.replace(' ', '-')}-{result.date}",
        "suite": "own", "grade": "A", "framework": result.engine, "model": plan.model.name,
        "gpu": gpu,
    }  # fmt: skip
    try:
        run = run_of(row)
    except SkippedRow:
        return None
    same = run.layout == plan.layout and replace(run.model, name="") == replace(model, name="")
    return row if same else None


def _shape(model: Model) -> dict[str, str]:
    kind = model.kinds[-1]  # the dense layers of a mixture of experts lead
    attention, experts = kind.attention, kind.experts
    dense = model.kinds[0].ffn
    said: dict[str, object] = {
        "layers": model.num_layers, "hidden": model.hidden, "ffn": dense or "",
        "heads": attention.heads, "kv_heads": attention.kv_heads, "head_dim": attention.head_dim,
        "vocab": model.vocab, "gated_mlp": int(model.gated), "tied": int(model.tied),
        "attention": "mla" if attention.is_mla else "gqa",
    }  # fmt: skip
    if experts:
        said |= {
            "experts": experts.experts, "top_k": experts.top_k, "moe_ffn": experts.ffn,
            "shared_experts": experts.shared_ffn // experts.ffn,
            "dense_layers": sum(not model.kinds[index].experts for index in model.pattern),
        }  # fmt: skip
    return {name: str(value) for name, value in said.items()}


def _layout(plan: Plan) -> dict[str, str]:
    la, training = plan.layout, plan.training
    said: dict[str, object] = {
        "seq_len": training.seq_len, "global_batch": training.global_batch_size,
        "precision": training.precision, "gpus": la.world_size, "dp": la.data_parallel,
        "tp": la.tensor_parallel, "pp": la.pipeline_parallel, "vpp": la.virtual_stages,
        "cp": la.context_parallel, "ep": la.expert_parallel, "etp": la.expert_tensor_parallel,
        "sp": int(la.sequence_parallel), "zero": la.zero_stage, "micro_batch": la.micro_batch_size,
        "schedule": SCHEDULE_WORDS.get(la.schedule, la.schedule), "recompute": la.recompute,
        "stages": " ".join(f"{s.layers}/{s.selective_layers}/{s.full_layers}" for s in la.stages),
    }  # fmt: skip
    return {name: str(value) for name, value in said.items()}


def _measured(result: RunResult) -> dict[str, str]:
    first = [rank for rank in result.ranks if rank.rank == 0]
    said = {"step_time_s": f"{result.step_time_s:.6g}" if result.step_time_s else ""}
    if first and result.device == "cuda":  # a CPU's resident set is not an allocator's peak
        said |= {
            "mem_gb": f"{first[0].reserved_peak_bytes / GIB:.3f}",
            "mem_kind": "allocator reserved, rank 0, GiB",
        }
    return said
