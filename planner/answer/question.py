"""What the command line says, as a question that the search can answer.

model      a name of the catalogue, a config.json, or the folder that holds one
cluster    a profile's name or file; or a GPU, GPUs per node and the network of each GPU, which
           together are named GPU:PER_NODE:NETWORK (`planner.answer.stated_cluster`)
training   lengths, batch, formats, adapters, images (`planner.answer.stated_training`)
engine     whose rules and habits count; `native` on this machine's processors, `megatron-bridge`
           elsewhere, where nothing is said
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.seconds.attention_kernels import sdpa_kernel
from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load_models import known_as
from meshplan.hardware_profiles.local_cpu import NOT_MEASURED, is_unmeasured
from meshplan.hardware_profiles.names import checked_name
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.answer.arguments import Arguments as Arguments
from meshplan.planner.answer.headroom import with_headroom
from meshplan.planner.answer.models import read_model
from meshplan.planner.answer.sizes import BadQuestion as BadQuestion
from meshplan.planner.answer.sizes import parse_length
from meshplan.planner.answer.stated_cluster import network_notes, stated_cluster
from meshplan.planner.answer.stated_training import (
    check_formats,
    images_of,
    refuse_large,
    training_of,
    with_trained,
)
from meshplan.planner.case.learned_file import LEARNT_RANGE, read_learned, with_learned
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.exchange_rules import check_pinned_kinds
from meshplan.planner.space.pinned_modules import check_pinned_modules
from meshplan.planner.space.pins import Pins, parse_pins


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question, what the plan file must quote of it, and how it was understood.

    cluster_name    what `load_cluster` takes to find the same cluster again
    profile         that cluster, of whose memory the question may use less
    usual_headroom  whether nobody said how much less
    cluster_sha256  the profile's hash
    notes           what was assumed, how what was stated is read, what is not priced: each a line
    """

    question: Question
    model_config: dict[str, Any]
    cluster_name: str
    profile: Cluster
    usual_headroom: bool
    cluster_sha256: str
    notes: tuple[str, ...]


def ask(
    arguments: Arguments, read: Callable[[str], tuple[dict[str, Any], Model]] = read_model
) -> Asked:
    """Look everything up; raises `BadQuestion` and the loaders' errors for unknown names.

    `read` gives the model's configuration and the model, of the name in `arguments`.
    """
    a = arguments
    refuse_large(
        gpus=a.gpus, gpus_per_node=a.gpus_per_node,
        seq_len=parse_length(a.seq_len) if a.seq_len else None, expert_imbalance=a.expert_imbalance,
    )  # fmt: skip
    config, model = read(a.model)
    images, notes = images_of(a, config, _named(model))
    cluster_name, profile = stated_cluster(a)
    notes += network_notes(a, profile)
    training, more = training_of(a, config)
    engine = _engine(a, profile)
    cluster, note = _with_headroom(a, profile, engine)
    notes += [note] if note else []
    more += _assumed(a, engine, cluster_name)
    more += _release_assumed(model, engine, cluster) + _code_assumed(a, engine)
    engine = _taught(a, engine, cluster, more)
    check_formats(training.precision, cluster, engine)
    training = with_trained(a, replace(training, images=images), model, engine, more)
    question = Question(
        model=model,
        training=training,
        gpus=a.gpus,
        cluster=cluster,
        engine=engine,
        pins=parse_pins(a.pins),
    )
    _check_pins(a, question)
    return Asked(
        question=question,
        model_config=config,
        cluster_name=cluster_name,
        profile=profile,
        usual_headroom=a.headroom is None,
        cluster_sha256=cluster_hash(profile),
        notes=(*notes, *more),
    )


def _named(model: Model) -> Model:
    try:
        checked_name(model.name)
    except ValueError as error:
        raise BadQuestion(f"the model {error}") from None
    return model


def _engine(a: Arguments, profile: Cluster) -> Engine:
    """As said, as the learnt constants are of, or the usual one of such devices."""
    usual = "native" if profile.gpu.vendor == "cpu" else "megatron-bridge"
    taught = read_learned(a.learned).engine if a.learned and not a.engine else None
    return load_engine(a.engine or taught or usual)


def _with_headroom(a: Arguments, profile: Cluster, engine: Engine) -> tuple[Cluster, str | None]:
    try:
        return with_headroom(a.headroom, profile, engine.name)
    except ValueError as error:
        raise BadQuestion(f"--headroom {error}") from None


def _taught(a: Arguments, engine: Engine, cluster: Cluster, notes: list[str]) -> Engine:
    """With the constants of `--learned`, if it is given; adds a line to `notes`."""
    if a.learned is None:
        return engine
    engine = with_learned(engine, cluster, a.learned)
    runs = counted(len(engine.learned.runs) if engine.learned else 0, "run")
    notes.append(f"note: constants learnt from {runs} of your own ({a.learned}); {LEARNT_RANGE}")
    return engine


def _check_pins(a: Arguments, question: Question) -> None:
    """Raise `BadQuestion` where a pin is of something that the model or the engine has not."""
    q = question
    _refuse_lacking(a, q.model, q.pins)
    check_pinned_kinds(q.pins, q.model, q.training, q.engine, q.cluster)
    check_pinned_modules(q.pins, q.model, q.training, q.engine, q.cluster)


def _refuse_lacking(a: Arguments, model: Model, pins: Pins) -> None:
    """Refuse what is said of experts or of multi-token prediction of a model without."""
    dispatcher, apart = (pins.axes.get(axis) for axis in ("dispatcher", "modules_apart"))
    lacking = []
    if not model.is_moe:
        imbalance = a.expert_imbalance
        lacking += [(f"--expert-imbalance {imbalance:g}", "experts")] * (imbalance != 1)
        lacking += [(f"--dispatcher {dispatcher.text}", "experts")] if dispatcher else []
    if not model.mtp_layers and apart and not apart.allows("off"):
        lacking.append((f"--modules-apart {apart.text}", "modules of multi-token prediction"))
    for option, what in lacking:
        raise BadQuestion(f"{option}: {model.name} has no {what}; leave it out")


def _assumed(a: Arguments, engine: Engine, cluster_name: str) -> list[str]:
    """What the arguments leave open, and rates that nobody measured."""
    assumed = []
    if (name := known_as(a.model)) != a.model:
        assumed.append(f"assumed: {a.model} has the sizes of {name} in the catalogue")
    if a.engine is None:
        why = f", that of {a.learned}" if a.learned else " (--engine chooses another)"
        assumed.append(f"assumed: engine {engine.name}{why}")
    if is_unmeasured(cluster_name):
        assumed.append(f"assumed: {NOT_MEASURED}")
    return assumed


def _code_assumed(a: Arguments, engine: Engine) -> list[str]:
    """That the training code builds pipelines, where nobody has said how long they are."""
    rules = engine.legality
    may_have = a.gpus > 1 and rules.zero_with_pipeline and "pipeline_parallel" not in a.pins
    if not (rules.pipeline_in_code and may_have):
        return []
    return [
        "assumed: training code that can build a pipeline, which no exported file of "
        f"{engine.name} has (`plan --pp 1` leaves it out)"
    ]


def _release_assumed(model: Model, engine: Engine, cluster: Cluster) -> list[str]:
    """Which release of PyTorch is taken to run, where others run a slower attention."""
    release, gpu = engine.kernels.kernel_order, cluster.gpu.name
    cores = [kind.attention for kind in model.kinds if kind.attention.heads]
    runs = (sdpa_kernel(release, gpu, each.head_dim, each.v_head_dim) for each in cores)
    if not release[:1].isdigit() or "cudnn" not in runs:
        return []
    return [f"assumed: PyTorch {release}, whose attention here is cuDNN's (that of 2.10 is slower)"]
