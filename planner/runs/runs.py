"""Measured training runs: rows of a CSV file as settings and layouts that the cost model can price.

The columns are those of `docs/runs.md`. A row that cannot be priced is skipped with the reason,
never a crash. What a row leaves empty is filled in as its framework would run it, and `assumed`
says so.
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from meshplan import hardware_profiles
from meshplan.costmodels.layout import (
    VIRTUAL_STAGES,
    InvalidLayout,
    Layout,
    RecomputeModule,
    Schedule,
    Stage,
)
from meshplan.costmodels.model.bare_shape import model_from_shape
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.rules.family import with_16_bit_ends
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.stage_split import stages_with
from meshplan.costmodels.training import Images, Lora, OptimizerStates, Precision, Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.errors.asked import Asked
from meshplan.hardware_profiles.files.bounded_file import read_bounded
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.load_models import known_as, load_model_config, model_names
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.case.error_class import error_depends_on
from meshplan.planner.runs.clusters import cluster_of
from meshplan.planner.runs.habits import engine_of
from meshplan.planner.runs.memory import as_it_held
from meshplan.planner.runs.rows import Measured, Row, SkippedRow, imbalance_of, row_of
from meshplan.planner.runs.stage_counts import ends_count, stage_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row, ready to be priced."""

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

    @property
    def asked(self) -> Asked:
        """What the error of its prediction is known to depend on."""
        setting = Setting(self.model, self.training, self.cluster, self.engine, Tuning())
        return error_depends_on(setting, self.layout)

    @property
    def group(self) -> tuple[Any, ...]:
        """Runs that differ in nothing but the layout."""
        t = self.training
        return (
            self.suite, self.model.name, self.cluster.gpu.name, self.layout.world_size, t.seq_len,
            t.global_batch_size, t.precision, self.engine.name,
        )  # fmt: skip


BUILT_IN = Path(hardware_profiles.__file__).parent / "published" / "runs.csv"
FINE_GRAINED_EXPERTS = 32
MAX_RUNS_BYTES = 16 * 2**20  # the largest published file is of 1.7 MB
MODELS_KEPT = 256  # a file of thousands of runs names some hundred models again and again
NAMES_SHOWN = 6
MAX_COLUMNS = 500  # published runs have about a hundred; a short row costs all of them

SCHEDULE_WORDS: dict[str, Schedule] = {
    "gpipe": "gpipe", "afab": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved_1f1b",
    "zb": "zb_h1", "zb-h1": "zb_h1", "zb-v": "zb_v", "zbv": "zb_v", "v-half": "zb_v",
    "v-min": "zb_v", "dualpipe": "dualpipe_v",
}  # fmt: skip


def measured_step_s(run: Run) -> float:
    """The measured step time, of a run that states one."""
    assert run.measured.step_time_s is not None
    return run.measured.step_time_s


def read_runs(path: Path) -> Iterator[dict[str, str]]:
    """The rows of the file as they are, parted by commas, semicolons or tabs.

    Raises `OSError`, or `ValueError` without an `id` column and where it is no file, too large, too
    wide, not UTF-8 or no CSV.
    """
    text = read_bounded(path, MAX_RUNS_BYTES, "a CSV of runs").decode("utf-8-sig")
    try:
        sign = _parted_by(text.partition("\n")[0])
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=sign)
        names = reader.fieldnames or ()
        if "id" not in names:
            raise ValueError(f"no column 'id'{_first_of(names)}; docs/runs.md lists the columns")
        if len(names) > MAX_COLUMNS:
            raise ValueError(f"more than {MAX_COLUMNS} columns; keep those that are read")
        yield from reader
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from None


def _parted_by(header: str) -> str:
    """The sign that leaves a column `id`; a cell may hold the others."""
    signs = (sign for sign in ",;\t" if "id" in next(csv.reader([header], delimiter=sign), ()))
    return next(signs, ",")


def _first_of(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return f" among {shown[:100]!r}" if names else ""


def run_of(cells: Mapping[str, str]) -> Run:
    """The row as a run; raises `SkippedRow`."""
    row = row_of(cells)
    engine = engine_of(row)
    try:
        model = _model(row)
        model = _kept_in_16_bit(replace(model, mtp_layers=row.facts.mtp_modules), row)
        cluster = cluster_of(row)
        training = _training(row, model, engine)
        layout, assumed = _layout(row, model, training, engine)
    except (UnsupportedModel, UnknownProfile, InvalidLayout) as error:
        raise SkippedRow(str(error)) from None
    said = row.recompute and not row.facts.other_config
    if "recompute" in assumed and not said and row.measured.step_time_s and not row.measured.oom:
        layout = as_it_held(layout, model, training, cluster, engine)
    return Run(
        id=row.id, suite=row.suite, grade=row.grade, model=model, training=training, layout=layout,
        cluster=cluster, engine=engine, measured=row.measured, assumed=assumed,
    )  # fmt: skip


def _model(row: Row) -> Model:
    """The model that the row describes, or else names in the catalogue: `config`, or without a
    shape `model`.
    """
    if not row.config and "layers" in row.shape:
        return _described(tuple(row.shape.items()), row.model)
    known = known_as(row.config or row.model)
    if known not in model_names():
        column = "config" if row.config else "without a shape (layers, hidden, ...), model"
        raise SkippedRow(f"{column} {row.config or row.model!r} is no model of the catalogue "
                         "(`meshplan models`)")  # fmt: skip
    return _named(known, row.model)


@lru_cache(maxsize=MODELS_KEPT)
def _described(shape: tuple[tuple[str, str], ...], name: str) -> Model:
    return model_from_shape(dict(shape), name)


@lru_cache(maxsize=MODELS_KEPT)
def _named(config: str, name: str) -> Model:
    return model_from_config(load_model_config(config), name)


def _kept_in_16_bit(model: Model, row: Row) -> Model:
    """With its first and last layers in 16 bits, where the row says so."""
    if not row.facts.bf16_layers:
        return model
    found = re.fullmatch(r"(\d{1,4}) (\d{1,4})", row.facts.bf16_layers)
    first, last = (int(found[1]), int(found[2])) if found else (-1, -1)
    if not 0 <= first + last <= model.num_layers:
        raise SkippedRow(
            f"bf16_layers is {row.facts.bf16_layers!r}; it takes two numbers that add up to at most"
            f" {model.num_layers} layers, as in 1 1"
        )
    return with_16_bit_ends(model, first, last)


USUAL_RANK = 16
"""Of MLPerf's runs (their notes) and of AutoModel's benchmarks (hardware_profiles/engines)."""


def _lora(row: Row, engine: Engine) -> Lora | None:
    """What is trained where the row says that the rest is frozen; as its engine's recipes do it, of
    what the row leaves out.
    """
    kind, *said = row.facts.adapters.split()[:5] or [""]
    if kind != "lora":
        return None
    usual = engine.legality.lora_targets or ("attention",)
    words = [*said, *(str(USUAL_RANK), usual[0], "bf16", "0")[len(said) :]]
    try:
        named = dict(zip(("rank", "targets", "base_precision", "dropout"), words, strict=True))
        return TypeAdapter(Lora).validate_python(named)
    except ValidationError:
        raise SkippedRow(
            f"adapters is {row.facts.adapters!r}; it takes lora, or lora 16 attention nf4"
        ) from None


def _images(row: Row, model: Model, engine: Engine) -> Images | None:
    """What of a sequence came from images, where the row says it."""
    if not row.images:
        return None
    tokens, _, word = row.images.partition(" ")
    if model.tower is None or engine.legality.vision_tower == "none":
        raise SkippedRow(f"images: no tower of {row.config or 'a bare shape'} under {engine.name}")
    if word not in ("", "frozen") or not tokens.isdecimal() or not 0 < int(tokens) <= row.seq_len:
        raise SkippedRow(
            f"images is {row.images!r}; it takes at most {row.seq_len} tokens of a sequence,"
            f" 64, or 64 frozen"
        )
    return Images(tokens=int(tokens), number=1, frozen=word == "frozen")


def _training(row: Row, model: Model, engine: Engine) -> Training:
    known: tuple[Precision, ...] = get_args(Precision)
    usual = "fp16" if engine.state.bf16_sums_always else "bf16"  # another optimizer has bf16 there
    precision = row.precision or usual
    if precision not in known:
        raise SkippedRow(f"precision {precision!r} is not priced; known: {', '.join(known)}")
    return Training(
        seq_len=row.seq_len, global_batch_size=row.global_batch,
        precision=known[known.index(precision)], lora=_lora(row, engine),
        packed_mean_length=row.packed_mean_length, images=_images(row, model, engine),
        optimizer_states=_optimizer_states(row, engine), expert_imbalance=imbalance_of(row.facts),
    )  # fmt: skip


def _optimizer_states(row: Row, engine: Engine) -> OptimizerStates | None:
    """What the row says of them, None where it is what the engine does."""
    said, known = row.facts.optimizer_states, engine.legality.optimizer_states
    for states in known:
        if said in ("", states):
            return None if states == known[0] else states
    raise SkippedRow(f"optimizer_states {said!r} of {engine.name}; known: {', '.join(known)}")


def _layout(
    row: Row, model: Model, training: Training, engine: Engine
) -> tuple[Layout, tuple[str, ...]]:
    tp, pp, cp = row.tp, row.pp, row.cp
    dp = row.dp or row.gpus // (tp * pp * cp)
    if dp * tp * pp * cp != row.gpus:
        raise SkippedRow(f"dp {dp} x tp {tp} x pp {pp} x cp {cp} is not {row.gpus} GPUs")
    vpp = (row.vpp or _default_chunks(row, model, engine)) if pp > 1 else 1
    mbs, group = row.micro_batch or 1, row.facts.shard_group
    ep = row.ep or _default_ep(row, model, dp * cp)
    recompute, modules = _recompute(row.recompute)
    stages = _stages(row, model, engine, pp * vpp, recompute)
    zero = _default_zero(engine, dp * cp) if row.zero is None else row.zero
    layout = Layout(
        data_parallel=dp, tensor_parallel=tp, pipeline_parallel=pp, context_parallel=cp,
        virtual_stages=vpp, expert_parallel=ep,
        expert_tensor_parallel=row.etp or _default_etp(model, engine, tp, ep),
        sequence_parallel=_sequence_parallel(row, engine), zero_stage=zero,
        shard_group=group if group < dp * cp else 0, micro_batch_size=mbs,
        schedule=_schedule(row, vpp), stages=stages,
        selective_modules=modules,
        optimizer_offload=float(row.facts.optimizer_offload and engine.legality.optimizer_offload),
        activation_offload=row.facts.activation_offload,
        modules_apart=model.mtp_layers > 0 and len(stages) > 1 and stages[-1].layers == 0,
    )  # fmt: skip
    m = layout.num_micro_batches(training)
    if m < 1:
        raise SkippedRow(
            f"global batch {training.global_batch_size} is less than dp {dp} x micro batch {mbs}"
        )
    if layout.schedule == "interleaved_1f1b" and m > pp and m % pp:
        raise SkippedRow(f"{m} micro-batches are no multiple of {pp} pipeline ranks")
    return layout, _assumed(row, vpp)


def _assumed(row: Row, vpp: int) -> tuple[str, ...]:
    """The columns that the row leaves empty, or that a config file beside the result fills; of
    recompute also how many layers it is of.
    """
    stated = {
        "zero": row.zero is not None,
        "recompute": bool(row.recompute) and "not stated" not in row.recompute,
        "micro_batch": row.micro_batch is not None, "sp": row.sp is not None,
        "vpp": row.vpp is not None or vpp == 1,
    }  # fmt: skip
    filled = (key for key, said in stated.items() if row.facts.other_config or not said)
    return tuple(key for key in filled if key != "vpp" or vpp > 1)


def _stages(
    row: Row, model: Model, engine: Engine, number: int, recompute: str
) -> tuple[Stage, ...]:
    """As the row states them, or as its engine would cut them."""
    if not row.stages:
        counts = stage_counts(row, model, number, engine)
        share = row.facts.recomputed_share
        if share:
            return tuple(Stage(n, 0, round(n * share)) for n in counts)
        return stages_with(counts, recompute)
    found = [re.fullmatch(r"(\d{1,5})/(\d{1,5})/(\d{1,5})", word) for word in row.stages.split()]
    stages = tuple(Stage(*map(int, each.groups())) for each in found if each)
    if len(stages) != len(found) or len(stages) != number:
        raise SkippedRow(f"stages {row.stages!r} are not {number} times layers/selective/full")
    if sum(stage.layers for stage in stages) != model.num_layers:
        raise SkippedRow(f"stages {row.stages!r} do not hold {model.num_layers} layers")
    return stages


def _default_chunks(row: Row, model: Model, engine: Engine) -> int:
    """Virtual stages of a run that does not say how many: its schedule's, or if that has any number
    of them one for each layer.
    """
    words = row.schedule.split()
    schedule = SCHEDULE_WORDS.get(words[0], "1f1b") if words else "1f1b"
    if schedule in VIRTUAL_STAGES:
        return VIRTUAL_STAGES[schedule]
    return max(1, (model.num_layers + 2 * ends_count(row, engine)) // row.pp)


def _schedule(row: Row, vpp: int) -> Schedule:
    words = row.schedule.split()
    if row.pp == 1:
        return "1f1b"
    if words[:1] in ([], ["1f1b"]):
        return "interleaved_1f1b" if vpp > 1 else "1f1b"
    if words[0] not in SCHEDULE_WORDS:
        raise SkippedRow(f"schedule {words[0]!r} is not priced; known: {', '.join(SCHEDULE_WORDS)}")
    schedule = SCHEDULE_WORDS[words[0]]
    if VIRTUAL_STAGES.get(schedule, vpp) == vpp:
        return schedule
    if (schedule, vpp) == ("zb_h1", VIRTUAL_STAGES["zb_v"]):
        return "zb_v"
    raise SkippedRow(f"{words[0]} has {VIRTUAL_STAGES[schedule]} virtual stages, not {vpp}")


def _sequence_parallel(row: Row, engine: Engine) -> bool:
    always = engine.legality.sequence_parallel == "always"
    return row.tp > 1 and (always if row.sp is None else row.sp)


def _default_ep(row: Row, model: Model, ranks: int) -> int:
    """DeepEP dispatches over all ranks that it can unless told
    (NVIDIA-NeMo/Automodel@037e04a6 examples/benchmark/configs/gptoss_120b_te_deepep.yaml).
    """
    return math.gcd(model.num_experts, ranks) if row.facts.widest_ep else 1


def _default_etp(model: Model, engine: Engine, tp: int, ep: int) -> int:
    """Megatron splits experts over the tensor-parallel ranks unless told; recipes with many small
    experts tell it not to."""
    if not model.is_moe:
        return 1
    rules, few = engine.legality, model.num_experts < FINE_GRAINED_EXPERTS
    chosen = tp if few and rules.expert_tensor_parallel == "free" else 1
    return rules.experts_split_by(tp, ep, chosen)


def _default_zero(engine: Engine, ranks: int) -> int:
    if ranks == 1:
        return 0
    return max(
        z for z in engine.legality.zero_stages if z <= 1 or 1 not in engine.legality.zero_stages
    )


MODULES: dict[str, tuple[RecomputeModule, ...]] = {  # moe_expert, attn: FP8-Flow-MoE's fork
    "layernorm": ("layernorm",), "norm": ("norm",), "mla_up_proj": ("mla_up_proj",),
    "mlp": ("mlp",), "moe_act": ("moe_act",), "act": ("moe_act",), "moe": ("moe",),
    "moe_expert": ("experts",), "attn": ("attention",),
    "core_attn": ("core_attention",), "shared_expert": ("shared_experts",),
    "pointwise": ("norm", "pointwise"),
}  # fmt: skip


def _recompute(words: str) -> tuple[str, tuple[RecomputeModule, ...]]:
    """The mode and the modules that a row's words name."""
    if words in ("", "none"):
        return "none", ("core_attention",)
    if words == "full":
        return "full", ("core_attention",)
    named = re.split(r"[\s+,()]+", words)
    found = tuple(each for name, modules in MODULES.items() if name in named for each in modules)
    if "per-op" in words or "graph sac" in words or "default policy" in words:
        return "selective", (*load_engine("torchtitan").legality.recompute_modules, *found)
    return "selective", found or ("core_attention",)
