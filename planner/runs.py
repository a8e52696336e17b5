"""Measured training runs: rows of a CSV file as settings and layouts that the cost model can price.

The columns are those of `docs/accuracy.md`. A row that cannot be priced is skipped with the reason,
never a crash. What a row leaves empty is filled in as its framework would run it, and `assumed`
says so.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodels.config_fields import UnsupportedModel
from costmodels.layout import (
    VIRTUAL_STAGES,
    InvalidLayout,
    Layout,
    RecomputeModule,
    Schedule,
)
from costmodels.model import Model
from costmodels.shape import model_from_shape
from costmodels.stage_split import split_by_cost, split_evenly, stages_with
from costmodels.training import Precision, Training
from costmodels.units import GIB
from hardware_profiles.engine_schema import Engine
from hardware_profiles.load import UnknownProfile
from hardware_profiles.schema import Cluster
from planner.run_cells import SkippedRow, count, number
from planner.run_clusters import cluster_of
from planner.run_habits import engine_of, expert_ranks, mtp_modules, whole_step_graph
from planner.run_memory import as_it_held


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the row says happened; None where it does not. `rank_0`: memory is the first stage's."""

    step_time_s: float | None
    allocated_gib: float | None
    reserved_gib: float | None
    rank_0: bool
    oom: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row, ready to be priced.

    step_graph  one CUDA graph holds a whole step, so the host issues no kernels
    """

    id: str
    suite: str
    grade: str
    model: Model
    training: Training
    layout: Layout
    cluster: Cluster
    engine: Engine
    measured: Measured
    assumed: tuple[str, ...]
    step_graph: bool = False

    @property
    def group(self) -> tuple[Any, ...]:
        """Runs that differ in nothing but the layout."""
        t = self.training
        return (
            self.suite, self.model.name, self.cluster.gpu.name, self.layout.world_size, t.seq_len,
            t.global_batch_size, t.precision, self.engine.name,
        )  # fmt: skip


SCHEDULES: dict[str, Schedule] = {
    "gpipe": "gpipe", "afab": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved_1f1b",
    "zb": "zb_h1", "zb-h1": "zb_h1", "zb-v": "zb_v", "zbv": "zb_v", "v-half": "zb_v",
    "v-min": "zb_v", "dualpipe": "dualpipe_v",
}  # fmt: skip


def read_runs(path: Path) -> Iterator[dict[str, str]]:
    """The rows of the file as they are; raises `OSError`, or `ValueError` without an `id` column.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if "id" not in (reader.fieldnames or ()):
            raise ValueError(f"{path}: no column 'id'; docs/accuracy.md lists the columns")
        yield from reader


def run_of(row: dict[str, str]) -> Run:
    """The row as a run; raises `SkippedRow`."""
    engine = engine_of(row)
    try:
        model = model_from_shape(row, row.get("model") or row["id"])
        model = replace(model, mtp_layers=mtp_modules(row, engine))
        cluster = cluster_of(row)
        training = _training(row)
        layout, assumed = _layout(row, model, training, engine)
    except (UnsupportedModel, UnknownProfile, InvalidLayout) as error:
        raise SkippedRow(str(error)) from None
    measured = _measured(row)
    if "recompute" in assumed and measured.step_time_s and not measured.oom:
        layout = as_it_held(layout, model, training, cluster, engine)
    return Run(
        id=row["id"], suite=row.get("suite") or "", grade=row.get("grade") or "", model=model,
        training=training, layout=layout, cluster=cluster, engine=engine, measured=measured,
        assumed=assumed, step_graph=whole_step_graph(row),
    )  # fmt: skip


def _training(row: dict[str, str]) -> Training:
    precision = (row.get("precision") or "bf16").strip().lower()
    known: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
    if precision not in known:
        raise SkippedRow(f"precision {precision!r} is not priced; known: {', '.join(known)}")
    return Training(
        seq_len=count(row, "seq_len"), global_batch_size=count(row, "global_batch"),
        precision=known[known.index(precision)],
        adapters_only=any("lora" in (row.get(key) or "").lower() for key in ("model", "note")),
    )  # fmt: skip


def _layout(
    row: dict[str, str], model: Model, training: Training, engine: Engine
) -> tuple[Layout, tuple[str, ...]]:
    tp, pp, cp = (count(row, key, 1) for key in ("tp", "pp", "cp"))
    gpus = count(row, "gpus")
    dp = count(row, "dp", gpus // (tp * pp * cp))
    if dp * tp * pp * cp != gpus:
        raise SkippedRow(f"dp {dp} x tp {tp} x pp {pp} x cp {cp} is not {gpus} GPUs")
    vpp = count(row, "vpp", _default_chunks(row, model, pp, engine)) if pp > 1 else 1
    mbs = count(row, "micro_batch", 1)
    ep = count(row, "ep", expert_ranks(row, model.num_experts, dp * cp))
    unsure = FROM_ANOTHER_RUN.search(row.get("note") or "")
    filled = ("zero", "recompute", "micro_batch", "sp", *(("vpp",) if vpp > 1 else ()))
    assumed = [key for key in filled if unsure or not row.get(key)]
    recompute, modules = _recompute(row.get("recompute") or "", row)
    counts = _stage_counts(row, model, pp * vpp, engine)
    layout = Layout(
        data_parallel=dp, tensor_parallel=tp, pipeline_parallel=pp, context_parallel=cp,
        virtual_stages=vpp, expert_parallel=ep,
        expert_tensor_parallel=count(row, "etp", _default_etp(model, engine, tp)),
        sequence_parallel=_sequence_parallel(row, tp, engine),
        zero_stage=count(row, "zero", _default_zero(engine, dp * cp), least=0),
        shard_group=_shard_group(row, dp * cp), micro_batch_size=mbs,
        schedule=_schedule(row, pp, vpp), stages=stages_with(counts, recompute),
        selective_modules=modules, optimizer_offload=_optimizer_offload(row, engine),
        modules_apart=model.mtp_layers > 0 and len(counts) > 1 and counts[-1] == 0,
    )  # fmt: skip
    m = layout.num_micro_batches(training)
    if m < 1:
        raise SkippedRow(
            f"global batch {training.global_batch_size} is less than dp {dp} x micro batch {mbs}"
        )
    if layout.schedule == "interleaved_1f1b" and m > pp and m % pp:
        raise SkippedRow(f"{m} micro-batches are no multiple of {pp} pipeline ranks")
    return layout, tuple(assumed)


def _shard_group(row: dict[str, str], ranks: int) -> int:
    """What a note such as "shard_group=8" says of hybrid sharding, 0 if nothing."""
    found = re.search(r"shard_group=(\d+)", row.get("note") or "")
    size = int(found[1]) if found else 0
    return size if size < ranks else 0


BLOCKS_BESIDE_LAYERS = 5
"""What nanotron cuts by cost beside layers: embedding, final norm, head, cast and loss
(huggingface/nanotron src/nanotron/models/llama.py, its `PipelineBlock`s).
"""


def _stage_counts(
    row: dict[str, str], model: Model, num_stages: int, engine: Engine
) -> tuple[int, ...]:
    by_cost, ends = engine.legality.uneven_stages == "cost", _ends_count(row, engine)
    if num_stages > model.num_layers + (BLOCKS_BESIDE_LAYERS if by_cost else 2 * ends):
        raise SkippedRow(f"{num_stages} stages for {model.num_layers} layers")
    if by_cost:
        return split_by_cost(model, num_stages)
    return split_evenly(model.num_layers, num_stages, ends_count=ends, mtp_layers=model.mtp_layers)


def _ends_count(row: dict[str, str], engine: Engine) -> bool:
    return engine.legality.layers_count_ends or row.get("suite") == "zb"


def _default_chunks(row: dict[str, str], model: Model, pp: int, engine: Engine) -> int:
    """Virtual stages of a run that does not say how many: its schedule's, or if that has any number
    of them one for each layer.
    """
    words = (row.get("schedule") or "").lower().split()
    schedule = SCHEDULES.get(words[0], "1f1b") if words else "1f1b"
    if schedule in VIRTUAL_STAGES:
        return VIRTUAL_STAGES[schedule]
    return max(1, (model.num_layers + 2 * _ends_count(row, engine)) // pp)


def _schedule(row: dict[str, str], pp: int, vpp: int) -> Schedule:
    words = (row.get("schedule") or "").lower().split()
    if pp == 1:
        return "1f1b"
    if words[:1] in ([], ["1f1b"]):
        return "interleaved_1f1b" if vpp > 1 else "1f1b"
    if words[0] not in SCHEDULES:
        raise SkippedRow(f"schedule {words[0]!r} is not priced; known: {', '.join(SCHEDULES)}")
    schedule = SCHEDULES[words[0]]
    if VIRTUAL_STAGES.get(schedule, vpp) == vpp:
        return schedule
    if (schedule, vpp) == ("zb_h1", VIRTUAL_STAGES["zb_v"]):
        return "zb_v"
    raise SkippedRow(f"{words[0]} has {VIRTUAL_STAGES[schedule]} virtual stages, not {vpp}")


def _sequence_parallel(row: dict[str, str], tp: int, engine: Engine) -> bool:
    if row.get("sp"):
        return row["sp"] == "1" and tp > 1
    return tp > 1 and engine.legality.sequence_parallel == "always"


def _optimizer_offload(row: dict[str, str], engine: Engine) -> float:
    """1 if the row's note says that the optimizer ran on the host, and the engine can do it."""
    note = (row.get("note") or "").lower()
    said = any(words in note for words in OFFLOADED)
    return float(said and engine.legality.optimizer_offload)


FROM_ANOTHER_RUN = re.compile(r"\bmay differ from the measured run\b")
"""Said of a row whose layout was filled in from a config file beside the published result."""

OFFLOADED = ("cpu-offloaded optimizer", "cpu offload of adamw")

FINE_GRAINED_EXPERTS = 32


def _default_etp(model: Model, engine: Engine, tp: int) -> int:
    """Megatron splits experts over the tensor-parallel ranks unless told; recipes with many small
    experts tell it not to."""
    splits = engine.legality.expert_tensor_parallel and model.is_moe
    return tp if splits and model.num_experts < FINE_GRAINED_EXPERTS else 1


def _default_zero(engine: Engine, ranks: int) -> int:
    if ranks == 1:
        return 0
    return max(
        z for z in engine.legality.zero_stages if z <= 1 or 1 not in engine.legality.zero_stages
    )


MODULES: dict[str, tuple[RecomputeModule, ...]] = {
    "layernorm": ("norm",), "norm": ("norm",), "mla_up_proj": ("mla_up_proj",), "mlp": ("mlp",),
    "moe_act": ("moe_act",), "act": ("moe_act",), "moe": ("moe",), "moe_expert": ("moe",),
    "attn": ("core_attention",), "core_attn": ("core_attention",), "shared_expert": ("mlp",),
}  # fmt: skip


def _recompute(text: str, row: dict[str, str]) -> tuple[str, tuple[RecomputeModule, ...]]:
    """The mode and the modules that a row's words name."""
    words = text.lower()
    if words in ("", "none"):
        return "none", ("core_attention",)
    if words == "full":
        return "full", ("core_attention",)
    if "per-op" in words or "graph sac" in words or "default policy" in words:
        return "selective", ("pointwise", "norm", "linear_half")
    found = tuple(
        module for name, modules in MODULES.items()
        if name in words.replace("+", " ").replace(",", " ").replace("(", " ").split()
        for module in modules
    )  # fmt: skip
    return "selective", found or ("core_attention",)


PRINTED_BYTES = re.compile(r"peak_memory_usage (\d+) bytes")
"""A log's own number, exact where `mem_gb` is that number in another unit."""

ALSO_RESERVED = re.compile(r"\(max reserved ([\d.]+) GiB\)")
"""Beside an allocated peak."""


def _measured(row: dict[str, str]) -> Measured:
    note = row.get("note") or ""
    kind = (row.get("mem_kind") or note).lower()
    printed = PRINTED_BYTES.search(note)
    memory = int(printed[1]) / GIB if printed else number(row, "mem_gb")
    said = re.findall("allocated|reserved", kind)[:1]  # the first is its own
    beside = ALSO_RESERVED.search(note)
    reserved = memory if said == ["reserved"] else float(beside[1]) if beside else None
    allocated = memory if said == ["allocated"] else None
    return Measured(
        step_time_s=number(row, "step_time_s"), allocated_gib=allocated, reserved_gib=reserved,
        rank_0="rank 0" in kind, oom=(row.get("oom") or "0") not in ("0", ""),
    )  # fmt: skip
