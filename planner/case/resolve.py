"""From what a config says to a question that can be priced: the missing facts, the degrees, the
stages.

data_parallel   stated, or gpus / (tp cp pp)
virtual_stages  stated, or what `layers_per_stage` makes of the model's layers
shard_group     stated, or dp cp / shard_replicas
global batch    stated, or micro-batches x mbs x dp
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.step.step import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.case.host_memory import check_host
from meshplan.planner.case.reading import (
    Fact,
    IllegalConfig,
    Reading,
    Recompute,
    check_dividing,
)
from meshplan.planner.case.settings import Settings
from meshplan.planner.case.stage_rules import stage_layers
from meshplan.planner.space.engine_rules import check_engine, check_precision, unpriced
from meshplan.planner.space.exchange_rules import check_exchanges

_BATCH = ("micro_batch_size", "global_batch_size", "num_micro_batches")  # two give the third
_OPTIONS = (
    *("sequence_parallel", "selective_modules", "optimizer_offload", "activation_offload"),
    *("context_kind", "dispatcher", "modules_apart"),
)
WITHOUT, WITH_USERBUFFERS = "megatron", "megatron-bridge"
_SHOWN = 6  # things that are not understood, of one file
ENDS = 2  # the embedding and the head may have a stage of their own
FLAGS = {
    "cluster": "--cluster",
    "gpus": "--gpus",
    "model": "--model",
    "seq_len": "--seq-len",
    "global_batch_size": "--global-batch",
    "micro_batch_size": "--micro-batch",
    "vocab_size": "--vocab-size",
}


class MissingFacts(ValueError):
    """A config that leaves out what a price needs, with no flag or settings file to say it, or
    that states something which is not understood (`unread`) and which changes the price.
    """

    def __init__(
        self, names: tuple[str, ...], unread: tuple[Fact, ...] = (), unknown_model: str = ""
    ) -> None:
        said = [_unread_text(unread)] if unread else []
        if unknown_model and "model" in names:
            said.append(f"{unknown_model} is not in the catalogue (--model takes a config.json)")
        super().__init__("; ".join([*said, self._missing(names)] if names else said))
        self.names = names
        self.line = unread[0].line if unread else 1

    @staticmethod
    def _missing(names: tuple[str, ...]) -> str:
        given = " ".join(FLAGS[name] for name in names if name in FLAGS)
        keys = ", ".join(names)
        by = f"give {given} or set" if given else "set"
        return f"missing: {keys}; {by} {keys} in meshplan.toml or [tool.meshplan]"


def _unread_text(unread: tuple[Fact, ...]) -> str:
    """`not understood: NAME (why), NAME (why) and 3 more`, each reason once."""
    shown = ", ".join(str(fact.value) for fact in unread[:_SHOWN])
    more = f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else ""
    return f"not understood: {shown}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A config with everything that pricing needs; `notes` say what was assumed or left out."""

    model: Model
    layout: Layout
    training: Training
    cluster: Cluster
    engine: Engine
    notes: tuple[str, ...] = ()


@cache
def cluster_named(name: str) -> Cluster:
    """`load_cluster`, once per process; raises `UnknownProfile`."""
    return load_cluster(name)


@cache
def engine_named(name: str) -> Engine:
    """`load_engine`, once per process; raises `UnknownEngine`."""
    return load_engine(name)


@cache
def model_named(name: str) -> Model:
    """A built-in model or a config.json by path; raises `UnknownModel` and `UnsupportedModel`."""
    label = Path(name).stem if name.endswith(".json") or "/" in name else name
    return model_from_config(load_model_config(name), label)


def resolve(
    reading: Reading, given: Settings, near: Settings, *, model: Model | None = None
) -> Case:
    """The case that `reading` states, completed by `given` (flags, which win) and `near` (a file).

    Raises `MissingFacts`, `InvalidLayout` where no layout follows (`check_case` asks whether it is
    legal), and the loaders' errors for unknown names. `model` is the one to take when neither the
    file nor the settings name one.
    """
    facts = {**_filling(near, reading), **reading.facts, **_facts(given)}
    settings = given.fill(near)
    if model is None and near.model and "model" not in facts:
        model = model_named(near.model)  # the config states the shape; this one fills in its vocab
    _check_missing(facts, reading, settings, has_model=model is not None)
    model = _model(facts, reading, settings, model)
    engine = _overlapping(engine_named(settings.engine or reading.engine), reading)
    recompute, said = _recompute(given, near, reading)
    layout, training = _layout(facts, replace(reading, recompute=recompute), model)
    if waits := reading.unread_of(layout, training):
        raise MissingFacts((), waits)
    return Case(
        model=model,
        layout=layout,
        training=training,
        cluster=cluster_named(str(settings.cluster)),
        engine=engine,
        notes=(*_replaced(given, reading), *said, *reading.notes, *unpriced(layout, engine)),
    )


def _overlapping(engine: Engine, reading: Reading) -> Engine:
    """The engine as the config's switches have its collectives hidden: those of tensor parallelism
    as NVIDIA's recipes do with userbuffers, without them what Transformer Engine always hides; of
    the replicas' all but what the switches expose.
    """
    said = dict.fromkeys(reading.exposed, 0.0)
    if reading.userbuffers not in (None, has_userbuffers(engine)):
        named = engine_named(WITH_USERBUFFERS if reading.userbuffers else WITHOUT)
        said |= {"tensor": named.overlap.tensor}
    if not said:
        return engine
    return engine.model_copy(update={"overlap": engine.overlap.model_copy(update=said)})


def has_userbuffers(engine: Engine) -> bool:
    """Whether it hides more of tensor parallelism than Transformer Engine always does."""
    return engine.overlap.tensor > engine_named(WITHOUT).overlap.tensor


def check_case(case: Case) -> None:
    """Raise `InvalidLayout` where mathematics, engine, GPU or host refuse the case."""
    check_layout(case.layout, case.model, case.training)
    check_engine(case.layout, case.model, case.training, case.engine)
    check_exchanges(case.layout, case.model, case.training, case.engine, case.cluster)
    check_precision(case.training, case.cluster.gpu)
    unfitted = Setting(case.model, case.training, case.cluster, case.engine, Tuning())
    check_host(unfitted, case.layout)


def _replaced(given: Settings, reading: Reading) -> Iterator[str]:
    """What an option says otherwise than the file."""
    for name, fact in _facts(given).items():
        stated = reading.facts.get(name)
        if stated is not None and stated.value != fact.value:
            option = FLAGS.get(name, f"--{name}")
            yield f"{option} {fact.value} instead of the {stated.value} of line {stated.line}"
        elif name == "model" and stated is None and reading.model_config is not None:
            yield f"--model {fact.value} instead of the shape that the file states"


def _recompute(
    given: Settings, near: Settings, reading: Reading
) -> tuple[Recompute, tuple[str, ...]]:
    """Which layers recompute, and what is assumed or replaced of what the file says."""
    if given.recompute:
        before = reading.recompute.mode
        said = f"--recompute {given.recompute} instead of the {before} that the file states"
        replaced = not reading.recompute_unsaid and given.recompute != before
        return Recompute(given.recompute), (said,) if replaced else ()
    if not reading.recompute_unsaid:
        return reading.recompute, ()
    if near.recompute:
        return Recompute(near.recompute), ()
    said = f"no recompute of activations is assumed: {reading.recompute_unsaid}"
    return reading.recompute, (f"{said}; `check --recompute full` prices it",)


def _facts(settings: Settings) -> dict[str, Fact]:
    names = ("gpus", "model", "seq_len", "global_batch_size", "micro_batch_size", "precision")
    return {name: Fact(getattr(settings, name), 1) for name in names if getattr(settings, name)}


def _filling(near: Settings, reading: Reading) -> dict[str, Fact]:
    """What a settings file adds: nothing about the batch, the GPUs or the model's shape once the
    config itself determines them.
    """
    known: set[str] = {"gpus"} if "data_parallel" in reading.facts else set()
    known |= {"model"} if reading.model_config is not None else set()
    stated = [name for name in _BATCH if name in reading.facts]
    if len(stated) >= 2:
        known |= set(_BATCH)
    elif stated == ["num_micro_batches"] and near.micro_batch_size:
        known |= {"global_batch_size"}  # two of the three determine the batch; a third may deny it
    return {name: fact for name, fact in _facts(near).items() if name not in known}


def _check_missing(
    facts: dict[str, Fact], reading: Reading, settings: Settings, *, has_model: bool
) -> None:
    missing = []
    if "model" not in facts and not has_model:
        if reading.model_config is None:
            missing.append("model")
        elif "vocab_size" not in reading.model_config and settings.vocab_size is None:
            missing.append("vocab_size")
    if settings.cluster is None:
        missing.append("cluster")
    if not facts.keys() & {"gpus", "data_parallel"}:
        missing.append("gpus")
    if "seq_len" not in facts:
        missing.append("seq_len")
    batch = [name for name in _BATCH if name in facts]
    missing += [name for name in _BATCH[:2] if name not in facts][: max(0, 2 - len(batch))]
    if missing or reading.unread:
        raise MissingFacts(tuple(missing), reading.unread, reading.unknown_model)


def _model(
    facts: dict[str, Fact], reading: Reading, settings: Settings, other: Model | None
) -> Model:
    if "model" in facts:
        return model_named(str(facts["model"].value))
    if reading.model_config is None:
        assert other is not None
        return other
    vocab = settings.vocab_size or (other.vocab if other else None)
    config: dict[str, Any] = {"vocab_size": vocab, **reading.model_config}
    return model_from_config(config, Path(reading.path).stem or "config")


def _layout(facts: dict[str, Fact], reading: Reading, model: Model) -> tuple[Layout, Training]:
    def count(name: str) -> int:
        return int(facts[name].value) if name in facts else 1

    tp, cp, pp = (count(f"{axis}_parallel") for axis in ("tensor", "context", "pipeline"))
    dp = _data_parallel(facts, tp * cp * pp)
    mbs = _micro_batch(facts, dp)
    if reading.micro_batch_is_most and "global_batch_size" in facts:
        mbs = _within_share(facts, mbs, dp)
    training = Training(
        seq_len=count("seq_len"),
        global_batch_size=_batch(facts, dp * mbs),
        precision=facts.get("precision", Fact("bf16", 1)).value,
        optimizer=facts.get("optimizer", Fact("adamw", 1)).value,
        optimizer_states=facts.get("optimizer_states", Fact(None, 1)).value,
        lora=facts.get("lora", Fact(None, 1)).value,
    )
    vpp = _virtual_stages(facts, reading, model, pp)
    follows = tp if reading.expert_tensor_follows else 1
    etp = count("expert_tensor_parallel") if "expert_tensor_parallel" in facts else follows
    options = {name: facts[name].value for name in _OPTIONS if name in facts}
    layout = Layout(
        data_parallel=dp,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        virtual_stages=vpp,
        context_parallel=cp,
        expert_parallel=count("expert_parallel"),
        expert_tensor_parallel=etp if model.is_moe else 1,  # engines look at it for experts only
        zero_stage=facts.get("zero_stage", Fact(0, 1)).value,
        shard_group=_shard_group(facts, dp * cp),
        micro_batch_size=mbs,
        schedule=facts["schedule"].value
        if "schedule" in facts
        else ("interleaved_1f1b" if vpp > 1 else "1f1b"),
        stages=_stages(reading, model, pp, vpp),
        **options,
    )
    return layout, training


def _data_parallel(facts: dict[str, Fact], inner: int) -> int:
    gpus, stated = facts.get("gpus"), facts.get("data_parallel")
    if stated is not None:
        if gpus is not None and stated.value * inner != gpus.value:
            raise IllegalConfig(
                f"data_parallel {stated.value} x tp x cp x pp {inner} = {stated.value * inner} "
                f"GPUs, but there are {gpus.value}",
                stated.line,
            )
        return int(stated.value)
    assert gpus is not None
    check_dividing(facts, gpus.value, inner)
    return int(gpus.value // inner)


def _micro_batch(facts: dict[str, Fact], dp: int) -> int:
    if "micro_batch_size" in facts:
        return int(facts["micro_batch_size"].value)
    total, count = facts["global_batch_size"], facts["num_micro_batches"]
    mbs, rest = divmod(total.value, count.value * dp)
    if rest or not mbs:
        raise IllegalConfig(
            f"global batch {total.value} is not a multiple of micro-batches {count.value} x "
            f"data_parallel {dp}",
            total.line,
        )
    return int(mbs)


def _within_share(facts: dict[str, Fact], mbs: int, dp: int) -> int:
    """The micro-batch that a replica's share of the batch leaves; raises `MissingFacts` where the
    last one would be smaller, which no layout says.
    """
    share, rest = divmod(int(facts["global_batch_size"].value), dp)
    if rest or not share:
        return mbs  # no batch of this many replicas, which `check_layout` says
    mbs = min(mbs, share)
    if share % mbs:
        line = facts["micro_batch_size"].line
        why = f"of {share} samples of a GPU the last micro-batch is smaller: not modelled"
        raise MissingFacts((), (Fact(f"micro-batch {mbs} ({why})", line),))
    return mbs


def _batch(facts: dict[str, Fact], per_pass: int) -> int:
    total, count = facts.get("global_batch_size"), facts.get("num_micro_batches")
    if total is None:
        assert count is not None
        return int(count.value * per_pass)
    if count is not None and total.value != count.value * per_pass:
        raise IllegalConfig(
            f"global batch {total.value} is not micro-batches {count.value} x (data_parallel x "
            f"micro_batch_size) {per_pass} = {count.value * per_pass}",
            total.line,
        )
    return int(total.value)


def _shard_group(facts: dict[str, Fact], ranks: int) -> int:
    copies = facts.get("shard_replicas")
    if copies is None or copies.value == 1:
        return int(facts["shard_group"].value) if "shard_group" in facts else 0
    if ranks % copies.value:
        raise IllegalConfig(
            f"{copies.value} copies of the shards do not divide dp x cp = {ranks}", copies.line
        )
    return int(ranks // copies.value)


def _virtual_stages(facts: dict[str, Fact], reading: Reading, model: Model, pp: int) -> int:
    place = reading.placement
    chunks = int(facts["virtual_stages"].value) if "virtual_stages" in facts else 1
    if "virtual_stages" not in facts and place.layers_per_stage is not None:
        total = model.num_layers + place.embedding + place.head
        stages = place.stages(total, pp)
        if stages % pp:
            raise IllegalConfig(
                f"{total} layers in stages of {place.layers_per_stage} make {stages} stages, not "
                f"a multiple of pipeline_parallel {pp}",
                place.line,
            )
        chunks = stages // pp
    most = model.num_layers + ENDS + ("modules_apart" in facts)
    if pp * chunks > most:
        raise IllegalConfig(
            f"pipeline_parallel {pp} x virtual_stages {chunks} = {pp * chunks} stages, but "
            f"{model.name} has {model.num_layers} layers",
            reading.line("pipeline_parallel"),
        )
    return chunks


def _stages(reading: Reading, model: Model, pp: int, vpp: int) -> tuple[Stage, ...]:
    try:
        counts = stage_layers(reading.placement, model, pp, vpp)
    except InvalidLayout as error:
        raise IllegalConfig(str(error), reading.placement.line) from None
    return tuple(map(reading.recompute.stage, counts))
