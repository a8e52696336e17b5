"""What is trained and how, as the command line says it: lengths and batch, the format of numbers,
adapters, states of the optimizer, images and sound.

seq_len    4096 where nothing is said, or what the model reads at most if that is shorter
batch      sequences, or tokens (`planner.answer.sizes`)
"""

import sys
from dataclasses import replace
from typing import Any, get_args

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.hf_config import QUANTIZATION, left_out, why_no_tower
from meshplan.costmodels.model.transformer import Model, Sense
from meshplan.costmodels.precision import RECIPES
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
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.answer.arguments import Arguments
from meshplan.planner.answer.sizes import (
    SEQUENCES_X_LENGTH,
    BadQuestion,
    parse_length,
    sequences_of,
)
from meshplan.planner.case.input_limits import too_large
from meshplan.planner.case.trained import TARGET_WORDS
from meshplan.planner.space.engine_rules import (
    check_adapted,
    check_experts_converted,
    check_images,
    check_optimizer,
    check_packed,
    check_states,
    check_trained,
    lacking_format,
)

DEFAULT_SEQ_LEN = 4096
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def refuse_large(**asked: float | None) -> None:
    """Refuse at once what no search could answer (`planner.case.input_limits` has the numbers)."""
    for name, value in asked.items():
        if value is not None and (refusal := too_large(name, value)):
            raise BadQuestion(refusal)


def training_of(a: Arguments, config: dict[str, Any]) -> tuple[Training, list[str]]:
    """Lengths, batch, format and optimizer, and what was assumed of them."""
    notes = []
    shape = SEQUENCES_X_LENGTH.fullmatch(a.global_batch_tokens or "")
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
    refuse_large(seq_len=seq_len)
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


def with_trained(
    a: Arguments, training: Training, model: Model, engine: Engine, notes: list[str]
) -> Training:
    """With adapters, states and packed documents as stated, if the engine has them."""
    if lora := _lora(a, engine, notes):
        training = replace(training, lora=lora)
        check_adapted(training, model, engine)
    check_optimizer(training.optimizer, engine)
    training = _with_states(a, training, engine)
    check_experts_converted(training, model)
    check_images(training, model, engine)
    if a.packed_mean_length is not None:
        mean = parse_length(a.packed_mean_length, "--packed-mean-length")
        training = replace(training, packed_mean_length=mean)
        check_packed(training, engine)
    return training


def _with_states(a: Arguments, training: Training, engine: Engine) -> Training:
    """With AdamW's states as stated, if they are not what the engine keeps anyway."""
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
    refuse_large(lora_rank=a.lora_rank)
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


def images_of(
    a: Arguments, config: dict[str, Any], model: Model
) -> tuple[Images | None, list[str]]:
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
    refuse_large(image_tokens=tokens, images=a.images)
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
