"""A row of a file of measured runs, its cells read once: numbers, words, and the facts beside them.

Every cell is checked here, so what is said of a run later is typed, and a cell that makes no sense
skips the row with its reason.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from meshplan.costmodels.model.bare_shape import SHAPE_FIELDS
from meshplan.costmodels.training import MOST_IMBALANCE
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.input_limits import MAX_COUNT
from meshplan.planner.runs.dispatchers import GATES
from meshplan.planner.runs.notes import with_facts

Cells = Mapping[str, str]


class SkippedRow(ValueError):
    """A row that says too little, or nothing that can be priced; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """How a run was run, where that is not how its framework usually runs.

    The columns of `planner.runs.notes.FACTS`; "", 0, False and None: the source does not say.
    """

    flash_attention: bool | None
    attention_kernel: str
    compiled: bool | None
    recomputed_share: float
    fused_kernels: str
    fused_loss: str
    gradient_add: str
    fp8_scaling: str
    bf16_layers: str
    stalling_p2p: bool
    async_tensor: bool
    comm_overlap: str
    cp_kind: str
    dispatcher: str
    widest_ep: bool
    gate: str
    hidden_exchanges: bool | None
    mtp_modules: int
    ends_are_layers: bool
    cuda_graph: str
    shard_group: int
    optimizer_offload: bool
    optimizer_states: str
    activation_offload: float
    adapters: str
    other_config: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidths:
    """Bus bandwidths in 1e9 bytes/s that a job measured itself, with 1 GiB; None: not stated."""

    all_reduce: float | None
    all_gather: float | None
    reduce_scatter: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the row says happened; None where it does not. `rank_0`: memory is the first stage's,
    `last_rank`: the last one's.
    """

    step_time_s: float | None
    allocated_gib: float | None
    reserved_gib: float | None
    rank_0: bool
    oom: bool
    last_rank: bool = False

    @property
    def ran(self) -> bool:
        """Whether it ran, as a time or a peak of memory says."""
        stated = self.step_time_s or self.allocated_gib or self.reserved_gib
        return bool(stated) and not self.oom


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row. None: not stated. `shape`: the cells that describe the model.

    config  a model of the catalogue that was trained, "": `shape` is all that is known
    gpu     the profile that it is priced with
    packed_mean_length  tokens of the documents packed in a sequence, where they attend apart
    images  tokens of a sequence that its one image gave, "64", or "64 frozen": tower not trained
    stages  layers/selective/full of each virtual stage, "3/1/1 1/0/1", where they are not alike
    """

    id: str
    suite: str
    grade: str
    framework: str
    year: int | None
    model: str
    config: str
    shape: Cells
    seq_len: int
    packed_mean_length: int | None
    precision: str
    gpu: str
    gpus: int
    gpus_per_node: int | None
    interconnect: str
    node: Bandwidths
    world: Bandwidths
    dp: int | None
    tp: int
    pp: int
    vpp: int | None
    cp: int
    ep: int | None
    etp: int | None
    sp: bool | None
    zero: int | None
    schedule: str
    recompute: str
    stages: str
    images: str
    micro_batch: int | None
    global_batch: int
    facts: Facts
    measured: Measured


def row_of(cells: Cells) -> Row:
    """The cells as a row; raises `SkippedRow`. Columns that are not there count as empty."""
    cells = with_facts(cells)
    text = {key: value.strip() for key, value in cells.items() if isinstance(value, str)}
    if "id" not in text:
        raise SkippedRow("the row ends before its id")
    return Row(
        id=text["id"], suite=text.get("suite", ""), grade=text.get("grade", ""),
        framework=text.get("framework", ""), year=_year(text.get("year", "")),
        model=text.get("model") or text["id"], config=text.get("config", ""),
        shape={key: text[key] for key in SHAPE_FIELDS if key in text},
        seq_len=_stated(text, "seq_len"),
        packed_mean_length=_whole(text, "packed_mean_length"),
        precision=(text.get("precision") or "").lower(),
        gpu=text.get("priced_gpu") or text.get("gpu", ""), gpus=_stated(text, "gpus"),
        gpus_per_node=_whole(text, "gpus_per_node"), interconnect=text.get("interconnect", ""),
        node=_bandwidths(text, "node"), world=_bandwidths(text, "world"),
        dp=_whole(text, "dp"), tp=_whole(text, "tp") or 1, pp=_whole(text, "pp") or 1,
        vpp=_whole(text, "vpp"), cp=_whole(text, "cp") or 1, ep=_whole(text, "ep"),
        etp=_whole(text, "etp"), sp=_flag(text, "sp"), zero=_whole(text, "zero", least=0),
        schedule=text.get("schedule", "").lower(), recompute=text.get("recompute", "").lower(),
        stages=text.get("stages", ""), images=text.get("images", "").lower(),
        micro_batch=_whole(text, "micro_batch"), global_batch=_stated(text, "global_batch"),
        facts=_facts(text), measured=_measured(text),
    )  # fmt: skip


def _facts(text: Cells) -> Facts:
    readers: dict[Any, Callable[[str], Any]] = {
        bool: lambda key: bool(_flag(text, key)),
        bool | None: lambda key: _flag(text, key),
        float: lambda key: _share(text, key),
        int: lambda key: _whole(text, key, least=int(key != "mtp_modules")) or 0,
        str: lambda key: text.get(key, "").lower(),
    }
    return Facts(**{each.name: readers[each.type](each.name) for each in fields(Facts)})


def imbalance_of(facts: Facts) -> float:
    """Rows of the busiest expert rank over the mean, where routers are said to choose."""
    if facts.gate in GATES:
        return 1.0
    word, *numbers = facts.gate.split()
    try:
        number = float(*numbers) if word == "natural" else 0.0
    except (TypeError, ValueError):
        number = 0.0
    if not 1 <= number <= MOST_IMBALANCE:
        raise SkippedRow(f"gate is {facts.gate!r}; it takes dealt, capacity or natural 1.5")
    return number


def _bandwidths(text: Cells, scope: str) -> Bandwidths:
    return Bandwidths(
        all_reduce=_number(text, f"{scope}_allreduce_gbs"),
        all_gather=_number(text, f"{scope}_allgather_gbs"),
        reduce_scatter=_number(text, f"{scope}_reducescatter_gbs"),
    )


def _measured(text: Cells) -> Measured:
    rank = text.get("memory_of", "")
    if rank not in ("", "0", "last"):
        raise SkippedRow(f"memory_of is {rank!r}; it takes 0, last or nothing")
    return Measured(
        step_time_s=_number(text, "step_time_s"), allocated_gib=_number(text, "allocated_gib"),
        reserved_gib=_number(text, "reserved_gib"), rank_0=rank == "0",
        oom=text.get("oom", "0") not in ("0", ""), last_rank=rank == "last",
    )  # fmt: skip


def _number(text: Cells, key: str) -> float | None:
    """The number in a cell, None if it is empty; raises `SkippedRow` unless it can be measured."""
    cell = text.get(key, "")
    try:
        value = float(cell) if cell else None
    except ValueError:
        raise SkippedRow(f"{key} is {cell!r}, not a number") from None
    if value is not None and not 0 <= value < math.inf:
        raise SkippedRow(f"{key} is {cell}; it takes a number from 0")
    return value


def _share(text: Cells, key: str) -> float:
    value = _number(text, key) or 0.0
    if value > 1:
        raise SkippedRow(f"{key} is {value:g}; it takes a number from 0 to 1")
    return value


def _whole(text: Cells, key: str, *, least: int = 1) -> int | None:
    value = _number(text, key)
    if value is None:
        return None
    if value != int(value) or not least <= value <= MAX_COUNT:
        raise SkippedRow(f"{key} is {value:g}; it takes a whole number from {least} to {MAX_COUNT}")
    return int(value)


def _stated(text: Cells, key: str) -> int:
    value = _whole(text, key)
    if value is None:
        raise SkippedRow(f"{key} is not stated")
    return value


def _flag(text: Cells, key: str) -> bool | None:
    cell = text.get(key, "")
    if cell not in ("", "0", "1"):
        raise SkippedRow(f"{key} is {cell!r}; it takes 1, 0 or nothing")
    return cell == "1" if cell else None


def _year(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) == 4 else None
