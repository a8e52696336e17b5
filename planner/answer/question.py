"""What the command line says, as a question that the search can answer.

model      a name of the catalogue, a config.json, or the folder that holds one
cluster    a profile's name or file; or a GPU, GPUs per node and the network of each GPU, which
           together are named GPU:PER_NODE:NETWORK (`planner.answer.stated_cluster`)
batch      sequences, or tokens (`planner.answer.sizes`)
engine     whose rules and habits count; `native` on this machine's processors, `megatron-bridge`
           elsewhere, where nothing is said
seq_len    4096 where nothing is said, or what the model reads at most if that is shorter
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.hf_config import QUANTIZATION, left_out, why_no_tower
from meshplan.costmodels.model.transformer import Model, Sense
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.attention_kernels import sdpa_kernel
from meshplan.costmodels.training import (
    BasePrecision,
    Images,
    Lora,
    LoraTargets,
    Optimizer,
    OptimizerStates,
    Precision,
    Training,
)
from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import cluster_hash
from meshplan.hardware_profiles.load_models import known_as
from meshplan.hardware_profiles.local_cpu import LOCAL_CPU
from meshplan.hardware_profiles.names import checked_name
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.answer.arguments import Arguments as Arguments
from meshplan.planner.answer.headroom import with_headroom
from meshplan.planner.answer.models import read_model
from meshplan.planner.answer.sizes import BadQuestion as BadQuestion
from meshplan.planner.answer.sizes import parse_length, sequences_of
from meshplan.planner.answer.stated_cluster import network_notes, stated_cluster
from meshplan.planner.case.learned_file import LEARNT_RANGE, read_learned, with_learned
from meshplan.planner.case.limits import too_large
from meshplan.planner.case.trained import TARGET_WORDS
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.engine_rules import (
    check_adapted,
    check_experts_converted,
    check_images,
    check_packed,
    check_states,
    check_trained,
    lacking_format,
)
from meshplan.planner.space.exchange_rules import check_pinned_kinds
from meshplan.planner.space.pinned_modules import check_pinned_modules
from meshplan.planner.space.pins import Pins, parse_pins

DEFAULT_SEQ_LEN = 4096
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


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
    _refuse_large(
        gpus=a.gpus, gpus_per_node=a.gpus_per_node,
        seq_len=parse_length(a.seq_len) if a.seq_len else None, expert_imbalance=a.expert_imbalance,
    )  # fmt: skip
    config, model = read(a.model)
    images, notes = _images(a, config, _named(model))
    cluster_name, profile = stated_cluster(a)
    notes += network_notes(a, profile)
    training, more = _training(a, config)
    engine = _engine(a, profile)
    cluster, note = _with_headroom(a, profile, engine)
    notes += [note] if note else []
    more += _assumed(a, engine, cluster_name)
    more += _release_assumed(model, engine, cluster)
    engine = _taught(a, engine, cluster, more)
    check_formats(training.precision, cluster, engine)
    training = _trained(a, replace(training, images=images), model, engine, more)
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
    """With the learnt constants, if any are asked for; adds a line to `notes`."""
    if a.learned is None:
        return engine
    engine = with_learned(engine, cluster, a.learned)
    runs = counted(len(engine.learned.runs) if engine.learned else 0, "run")
    notes.append(f"note: constants learnt from {runs} of your own ({a.learned}); {LEARNT_RANGE}")
    return engine


def _trained(
    a: Arguments, training: Training, model: Model, engine: Engine, notes: list[str]
) -> Training:
    """With adapters, states and packed documents as asked for, where the engine has them."""
    if lora := _lora(a, engine, notes):
        training = replace(training, lora=lora)
        check_adapted(training, model, engine)
    training = _with_states(a, training, engine)
    check_experts_converted(training, model)
    check_images(training, model, engine)
    if a.packed_mean_length is not None:
        mean = parse_length(a.packed_mean_length, "--packed-mean-length")
        training = replace(training, packed_mean_length=mean)
        check_packed(training, engine)
    return training


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
    if cluster_name.partition(":")[0] == LOCAL_CPU:
        assumed.append(
            "assumed: this machine's rates, read off its processor's description and not measured: "
            "steps may be several times shorter, and the range does not hold (meshplan profile "
            "--quick)"
        )
    return assumed


def _release_assumed(model: Model, engine: Engine, cluster: Cluster) -> list[str]:
    """Which release of PyTorch is taken to run, where others run a slower attention."""
    release, gpu = engine.kernels.kernel_order, cluster.gpu.name
    cores = [kind.attention for kind in model.kinds if kind.attention.heads]
    runs = (sdpa_kernel(release, gpu, each.head_dim, each.v_head_dim) for each in cores)
    if not release[:1].isdigit() or "cudnn" not in runs:
        return []
    return [f"assumed: PyTorch {release}, whose attention here is cuDNN's (that of 2.10 is slower)"]


def _refuse_large(**asked: float | None) -> None:
    """Refuse at once what no search could answer (`planner.case.limits` has the numbers)."""
    for name, value in asked.items():
        if value is not None and (refusal := too_large(name, value)):
            raise BadQuestion(refusal)


def _training(a: Arguments, config: dict[str, Any]) -> tuple[Training, list[str]]:
    notes = []
    shape = re.fullmatch(r"([0-9]{1,18})x([0-9]{1,18})", a.global_batch_tokens or "")
    seq_len = parse_length(a.seq_len) if a.seq_len else int(shape[2]) if shape else None
    stated = next((key for key in LONGEST if isinstance(config.get(key), int)), None)
    longest: int = config[stated] if stated else sys.maxsize
    if seq_len is None:
        seq_len = min(DEFAULT_SEQ_LEN, longest or DEFAULT_SEQ_LEN)
        notes.append(f"assumed: sequences of {seq_len} tokens (--seq-len chooses another length)")
    elif seq_len > longest:
        most = f"beyond the {longest:,} of the model's configuration ({stated})"
        notes.append(f"note: sequences of {seq_len:,} tokens, {most}")
    sequences = sequences_of(a.global_batch, a.global_batch_tokens, seq_len)
    _refuse_large(seq_len=seq_len)
    if refusal := too_large("global_batch_size", sequences):
        said = f"--global-batch-tokens {a.global_batch_tokens}: " if a.global_batch_tokens else ""
        raise BadQuestion(said + refusal)
    training = Training(
        seq_len=seq_len,
        global_batch_size=sequences,
        precision=_one_of("--precision", a.precision, get_args(Precision)),
        optimizer=_one_of("--optimizer", a.optimizer, get_args(Optimizer)),
        expert_imbalance=a.expert_imbalance,
    )
    return training, notes


def _with_states(a: Arguments, training: Training, engine: Engine) -> Training:
    """With AdamW's states as asked for; what the engine does anyway is nothing special."""
    if a.optimizer_states is None:
        return training
    states = _one_of("--optimizer-states", a.optimizer_states, get_args(OptimizerStates))
    asked = replace(training, optimizer_states=states)
    check_states(asked, engine)
    return training if states == engine.legality.optimizer_states[0] else asked


def _lora(a: Arguments, engine: Engine, notes: list[str]) -> Lora | None:
    """What is trained beside frozen weights; None: all weights are."""
    if a.lora_rank is None:
        for option in ("lora_targets", "base_precision"):
            if getattr(a, option) is not None:
                flag = f"--{option.replace('_', '-')}"
                raise BadQuestion(f"{flag} needs LoRA; add --lora-rank 16")
        return None
    _refuse_large(lora_rank=a.lora_rank)
    known = engine.legality.lora_targets
    usual = known[0] if known and "all_linear" not in known else "all_linear"
    if a.lora_targets is None:
        notes.append(f"assumed: adapters on {TARGET_WORDS[usual]} (--lora-targets chooses others)")
    return Lora(
        rank=a.lora_rank,
        targets=_one_of("--lora-targets", a.lora_targets or usual, get_args(LoraTargets)),
        base_precision=_one_of(
            "--base-precision", a.base_precision or "bf16", get_args(BasePrecision)
        ),
    )


def _images(a: Arguments, config: dict[str, Any], model: Model) -> tuple[Images | None, list[str]]:
    """What of a sequence is images or sound, and what of the model is not priced, in words."""
    parts, tower = left_out(config), model.tower
    own = "--audio-tokens" if tower and tower.sense == "audio" else "--image-tokens"
    fix = f"{own} {(tower and tower.tokens_each) or 1024}"
    given = {"--image-tokens": a.image_tokens, "--audio-tokens": a.audio_tokens}
    stated = {option: text for option, text in given.items() if text is not None}
    if not stated:
        for option in ("images", "frozen"):
            if getattr(a, option) is not None:
                raise BadQuestion(f"--{option} is for a vision or audio tower; add {fix}")
        more = {tower.words: f"; {fix} prices it"} if tower else {}
        more |= {part: _of_stored(a) for part in parts if part.startswith(QUANTIZATION)}
        return None, [
            f"note: {a.model}: the {part} is not priced{more.get(part, '')}" for part in parts
        ]
    if tower is None or list(stated) != [own]:
        why = why_no_tower(config, model) or f"its tower takes {own} only"
        raise BadQuestion(f"{', '.join(stated)}: {a.model}: {why}")
    tokens, frozen = parse_length(stated[own], own), a.frozen is not None
    _refuse_large(image_tokens=tokens, images=a.images)
    if a.frozen is not None:
        _one_of("--frozen", a.frozen, get_args(Sense))
        if a.frozen != tower.sense:
            known = f"{a.model} has the {tower.words}; write --frozen {tower.sense}"
            raise BadQuestion(f"--frozen {a.frozen}: {known}")
    notes = [f"note: {a.model}: the {part} is not priced" for part in parts if part != tower.words]
    return Images(tokens=tokens, number=a.images, frozen=frozen, sense=tower.sense), notes


def _of_stored(a: Arguments) -> str:
    """Of a checkpoint that is stored quantised, how its weights are priced."""
    if a.lora_rank is None:
        return ": all weights are trained, from 16 bits"
    base = a.base_precision or "bf16"
    chosen = "" if a.base_precision else " (--base-precision nf4 or int8 is QLoRA)"
    return f": the frozen weights are priced in {base}{chosen}"


def _one_of(option: str, value: str, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise BadQuestion(f"{option} {value!r} is not known; it is one of {', '.join(known)}")
    return value


def check_formats(precision: Precision, cluster: Cluster, engine: Engine) -> None:
    """The GPU must have a rate for every format that the recipe uses, and the engine train in it.

    Raises `BadQuestion`.
    """
    _one_of("--precision", precision, get_args(Precision))
    if lacking_format(precision, cluster.gpu):
        able = [name for name in RECIPES if not lacking_format(name, cluster.gpu)]
        raise BadQuestion(
            f"--precision {precision}: {cluster.gpu.title} has no such matrix units; "
            f"it can do {', '.join(able)}"
        )
    try:
        check_trained(precision, engine)
    except InvalidLayout as error:
        raise BadQuestion(f"--{error}") from None
