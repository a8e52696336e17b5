"""From what a config says to a question that can be priced: the missing facts, model and engine.

What layout and training follow is in `planner.case.stated_layout`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.costmodels.layout import Layout, check_layout
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.step.step import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import known_as, load_model_config
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.case.core_loss import with_loss
from meshplan.planner.case.host_memory import check_host
from meshplan.planner.case.missing import FLAGS, MissingFacts
from meshplan.planner.case.packed import check_options, is_packed, packed_note
from meshplan.planner.case.reading import (
    Fact,
    Reading,
    Recompute,
    Saving,
    accumulates,
)
from meshplan.planner.case.settings import Settings
from meshplan.planner.case.stated_layout import stated_layout
from meshplan.planner.case.trained import not_priced
from meshplan.planner.space.engine_rules import check_engine, check_precision, unpriced
from meshplan.planner.space.exchange_rules import check_exchanges, levels_unpriced

_BATCH = ("micro_batch_size", "global_batch_size", "num_micro_batches")  # two give the third
WITHOUT, WITH_USERBUFFERS = "megatron", "megatron-bridge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A config with everything that pricing needs; `notes` say what was assumed or left out,
    `assumed` what a verdict depends on and no file says ("": nothing), and `saving` what else the
    config may say where it does not fit.
    """

    model: Model
    layout: Layout
    training: Training
    cluster: Cluster
    engine: Engine
    notes: tuple[str, ...] = ()
    assumed: str = ""
    saving: Saving | None = None


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
    name = known_as(name)
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
    asked, given, near = given, _for_its_code(given, reading), _for_its_code(near, reading)
    reading, counted = _without_count(reading, given)
    reading = _of_whole_nodes(reading, given.fill(near))
    check_options(reading, given)
    facts = {**_filling(near, reading), **reading.facts, **_facts(given)}
    settings = given.fill(near)
    if model is None and near.model and "model" not in facts:
        model = model_named(near.model)  # the config states the shape; this one fills in its vocab
    _check_missing(facts, reading, settings, has_model=model is not None)
    model = _model(facts, reading, settings, model)
    engine = engine_named(settings.engine or reading.engine)
    engine = with_loss(_with_gradients(_overlapping(engine, reading), reading), reading.loss)
    recompute, said = _recompute(given, near, reading)
    layout, training = stated_layout(facts, replace(reading, recompute=recompute), model)
    if waits := reading.unread_of(layout, training):
        raise MissingFacts((), waits)
    if reading.defers_sums and accumulates(layout, training):
        engine = _with_state(engine, sums_before_reducing=True)
    return Case(
        model=model,
        layout=layout,
        training=training,
        cluster=cluster_named(str(settings.cluster)),
        engine=engine,
        assumed=_assumed(reading, given, model, layout),
        saving=None if settings.engine else reading.saving,
        notes=(
            *_replaced(given, reading), *_not_taken(asked, given),
            *_other_model(reading, given, model),
            *_recounted(counted, layout, training), *packed_note(facts, layout, training), *said,
            *_precision_assumed(facts, training), *_gpus_taken(facts, reading, given),
            *reading.notes, *_not_priced(facts, model, training),
            *unpriced(layout, engine),
        ),
    )  # fmt: skip


def _for_its_code(settings: Settings, reading: Reading) -> Settings:
    """The settings without what they say of code beside the file, where it leaves none to code."""
    if "pipeline_parallel" in reading.left_to_code:
        return settings
    return settings.model_copy(update={"pipeline_parallel": None})


def _not_taken(asked: Settings, taken: Settings) -> Iterator[str]:
    """The option that says something of another kind of file."""
    if asked.pipeline_parallel != taken.pipeline_parallel:
        said = f"{FLAGS['pipeline_parallel']} {asked.pipeline_parallel}"
        yield f"{said} is not taken: this file decides its pipeline itself"


def _precision_assumed(facts: dict[str, Fact], training: Training) -> Iterator[str]:
    """That nothing says the precision."""
    if "precision" not in facts:
        said = f"the precision is not stated: {training.precision} is assumed"
        yield f"{said}; `precision` in meshplan.toml says it"


def _gpus_taken(facts: dict[str, Fact], reading: Reading, given: Settings) -> Iterator[str]:
    """Whose number of GPUs is taken, where the launch leaves it open."""
    left, taken = reading.facts.get("gpus_open"), facts.get("gpus")
    if left is None or taken is None or "gpus" in reading.facts:
        return
    said = f"the {taken.value} of the settings file are taken"
    said = f"--gpus {taken.value} is taken" if given.gpus else said
    yield f"line {left.line}: {left.value}: {said}"


def _not_priced(facts: dict[str, Fact], model: Model, training: Training) -> Iterator[str]:
    """What no price holds of the model that the file or an option names."""
    named = facts.get("model")
    return not_priced(load_model_config(str(named.value)), model, training) if named else iter(())


def _assumed(reading: Reading, given: Settings, model: Model, layout: Layout) -> str:
    """What a recipe may set otherwise than it is priced."""
    moot = {
        "expert_parallel": not model.is_moe, "virtual_stages": layout.pipeline_parallel == 1,
        "stages": layout.pipeline_parallel == 1,
        "recompute": given.recompute is not None,
    }  # fmt: skip
    left = [word for name, word in reading.left_to_recipe.items() if not moot.get(name)]
    return f"the recipe leaves {', '.join(left)} at 1 or none" if left else ""


def _without_count(reading: Reading, given: Settings) -> tuple[Reading, Fact | None]:
    """The reading, and apart from it the number of micro-batches that it states, where an option
    decides the batch: the number follows from the options then.
    """
    count, total = reading.facts.get("num_micro_batches"), "global_batch_size" in reading.facts
    decides = given.global_batch_size or (given.micro_batch_size and total)
    if count is None or not decides:
        return reading, None
    left = {name: fact for name, fact in reading.facts.items() if name != "num_micro_batches"}
    known = left.keys() | _facts(given).keys() >= {"micro_batch_size", "global_batch_size"}
    return (replace(reading, facts=left), count) if known else (reading, None)


def _of_whole_nodes(reading: Reading, settings: Settings) -> Reading:
    """The reading with the GPUs of the nodes that its launch takes whole."""
    nodes = reading.facts.get("nodes")
    if nodes is None or "gpus" in reading.facts or settings.cluster is None:
        return reading
    each = cluster_named(str(settings.cluster)).gpus_per_node
    gpus = Fact(nodes.value * each, nodes.line)
    said = f"{nodes.value} x {each} GPUs of whole nodes, as {settings.cluster} has them"
    said = f"line {nodes.line}: {said}"
    return replace(reading, facts={**reading.facts, "gpus": gpus}, notes=(*reading.notes, said))


def _recounted(count: Fact | None, layout: Layout, training: Training) -> Iterator[str]:
    """That the options make another number of micro-batches than the file."""
    if count is None or training.global_batch_size % (
        layout.data_parallel * layout.micro_batch_size
    ):
        return
    made = layout.num_micro_batches(training)
    if made != count.value:
        yield f"the options make {made} micro-batches instead of the {count.value} of the file"


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


def _with_gradients(engine: Engine, reading: Reading) -> Engine:
    """The engine with gradients of the bytes that the config states."""
    if not reading.gradient_bytes:
        return engine
    size = reading.gradient_bytes
    return _with_state(engine, gradient_bytes=size, reduce_bytes=size)


def _with_state(engine: Engine, **said: float) -> Engine:
    return engine.model_copy(update={"state": engine.state.model_copy(update=said)})


def has_userbuffers(engine: Engine) -> bool:
    """Whether it hides more of tensor parallelism than Transformer Engine always does."""
    return engine.overlap.tensor > engine_named(WITHOUT).overlap.tensor


def check_levels(case: Case, reading: Reading) -> None:
    """Raise `MissingFacts` where the file's context parallelism has levels that no price knows:
    its framework runs them, so they are not illegal.
    """
    why = levels_unpriced(case.layout, case.engine, case.cluster)
    if why:
        kind = f"context_kind {case.layout.context_kind} ({why})"
        raise MissingFacts((), (Fact(kind, reading.line("context_kind")),))


def check_case(case: Case) -> None:
    """Raise `InvalidLayout` where mathematics, engine, GPU or host refuse the case."""
    check_layout(case.layout, case.model, case.training)
    check_engine(case.layout, case.model, case.training, case.engine)
    check_exchanges(case.layout, case.model, case.training, case.engine, case.cluster)
    check_precision(case.training, case.cluster.gpu, case.engine)
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


def _other_model(reading: Reading, given: Settings, model: Model) -> Iterator[str]:
    """That the file names a model that the catalogue lacks, and which one a settings file, that
    knows nothing of it, puts in its place.
    """
    if reading.unknown_model and "model" not in reading.facts and given.model is None:
        said = f"priced as {model.name}, which the settings file says"
        yield f"{reading.unknown_model} is not in the catalogue: {said}"


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
    names = ("gpus", "model", "seq_len", "global_batch_size", "micro_batch_size", "precision",
             "pipeline_parallel", "packed_mean_length")  # fmt: skip
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
    missing += _missing_sizes(facts)
    if missing or reading.unread:
        raise MissingFacts(tuple(missing), reading.unread, reading.unknown_model)


def _missing_sizes(facts: dict[str, Fact]) -> list[str]:
    """What of a step's tokens nobody says."""
    if is_packed(facts):
        return [] if "packed_mean_length" in facts else ["packed_mean_length"]
    missing = [] if "seq_len" in facts else ["seq_len"]
    batch = [name for name in _BATCH if name in facts]
    return missing + [name for name in _BATCH[:2] if name not in facts][: max(0, 2 - len(batch))]


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
