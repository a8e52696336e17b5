"""How a run of Hugging Face's Trainer is sharded: DeepSpeed's JSON, FSDP, and the degrees.

    theirs                                       ours
    deepspeed: a file, or its content            as `deepspeed` reads it
    fsdp: words, or true; fsdp_config            zero_stage 3; shard_grad_op 2, no_shard 0
    fsdp_config.reshard_after_forward            zero_stage 3 or 2 (FSDP1: one of the words)
    fsdp_config.activation_checkpointing         recompute full
    parallelism_config.tp_size, cp_size ...      tensor_parallel, context_parallel ...

A key of `fsdp_config` may begin with `fsdp_`. Empty keys (`deepspeed:`) say nothing.

Source: transformers 5.23 `training_args.py` (_process_fsdp_args, _apply_legacy_fsdp_to_config);
axolotl 0.19 `src/axolotl/utils/trainer.py` (setup_fsdp_envs: a config without `fsdp` counts),
`src/axolotl/utils/schemas/fsdp.py`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from meshplan.executor.frameworks.documents.parse import read_json
from meshplan.executor.frameworks.documents.values import Values, below, put, shown
from meshplan.executor.frameworks.hugging_face import accelerate, deepspeed
from meshplan.executor.frameworks.hugging_face.nearby import Nearby
from meshplan.executor.frameworks.keys.lists import judged
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, Reading, UnreadableConfig

FSDP_ENGINE, DEEPSPEED_ENGINE = "accelerate", "deepspeed"
KEYS = ("hf_trainer_keys.toml",)
_STAGES = {
    "full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "hybrid_shard_zero2": 2,
}  # fmt: skip
_WORDS = {*_STAGES, "offload", "auto_wrap", "true"}
"""FSDPOption of transformers 4 and 5 (trainer_utils.py), and `fsdp: true`."""
_AXES = {
    "tp_size": "tensor_parallel", "cp_size": "context_parallel",
    "tensor_parallel_size": "tensor_parallel", "sequence_parallel_degree": "context_parallel",
    "context_parallel_size": "context_parallel",
}  # fmt: skip
_TRL_LAUNCHES = {
    "single_gpu": (FSDP_ENGINE, 0), "multi_gpu": (FSDP_ENGINE, 0),
    "fsdp1": (FSDP_ENGINE, 3), "fsdp2": (FSDP_ENGINE, 3),
    "zero1": (DEEPSPEED_ENGINE, 1), "zero2": (DEEPSPEED_ENGINE, 2), "zero3": (DEEPSPEED_ENGINE, 3),
}  # fmt: skip
"""huggingface/trl@f2cd5771 trl/accelerate_configs."""
NO_LAUNCHER = "none"
_LAUNCHED = (
    *("zero_stage", "optimizer_offload", "shard_group", "shard_replicas", "data_parallel"),
    *("tensor_parallel", "context_parallel", "context_kind", "gpus", "precision"),
)
"""What a launcher's file decides; the trainer's own precision wins (transformers 5.23,
training_args.py sets ACCELERATE_MIXED_PRECISION)."""
_KEEPS = re.compile(r'"zero_force_ds_cpu_optimizer"\s*:\s*false')
_FROM_DEEPSPEED = ("zero_stage", "optimizer_offload", "shard_group", "tensor_parallel")


@dataclass(frozen=True, slots=True)
class Sharding:
    """The engine that prices it, the facts, whether FSDP recomputes, and what is not understood.

    own_on_host  the trainer's optimizer stays where its states are on the host
    exposed      as `Reading.exposed`
    """

    engine: str
    facts: dict[str, Fact]
    recompute: bool = False
    own_on_host: bool = False
    unread: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()


def sharding_of(
    values: Values, near: Nearby, *, config_suffices: bool, stated: bool, launcher: str
) -> Sharding:
    """What the file at `near.path` says, or where it says nothing, the file `launcher`.

    config_suffices  a section `fsdp_config` shards without the key `fsdp` (axolotl)
    stated           no word of DeepSpeed or FSDP means that nothing is sharded
    """
    inline = [name for name in values.found if name.startswith("deepspeed.")]
    named = values.get("deepspeed")
    if inline:
        kept = values.found.get("deepspeed.zero_force_ds_cpu_optimizer")
        found = _of_deepspeed(
            deepspeed.reading_of(below(values, "deepspeed"), str(near.path)), None
        )
        return replace(found, own_on_host=kept is not None and kept.value is False)
    if named is not None and named.value != "":  # which the trainers take for none
        return _beside(named, near)
    inside, elsewhere = _fsdp_config(values, near)
    word = values.get("fsdp")
    if word is not None and word.value not in ("", False, []):
        found = _fsdp(word, inside)
        return replace(found, unread=(*found.unread, *elsewhere))
    if inside and config_suffices:
        return _fsdp(Fact(True, next(iter(inside.values())).line), inside)
    if launcher and word is None and named is None:
        return of_launcher(launcher, values, near)
    if stated or word is not None or named is not None:
        return Sharding(FSDP_ENGINE, {"zero_stage": Fact(0, word.line if word else 1)})
    why = (
        "neither is stated, and an Accelerate file may shard: give it, or DeepSpeed's JSON, by "
        "--launched-by FILE, or --launched-by none"
    )
    none = {"zero_stage": Fact(0, 1)}
    return Sharding(FSDP_ENGINE, none, unread=(Fact(f"deepspeed or fsdp ({why})", 1),))


def of_launcher(launcher: str, values: Values, near: Nearby) -> Sharding:
    """What the launcher's file says: Accelerate's YAML or DeepSpeed's JSON; of "none", nothing
    shards. Raises `UnreadableConfig`.
    """
    if launcher == NO_LAUNCHER:
        return Sharding(FSDP_ENGINE, {"zero_stage": Fact(0, 1)})
    try:
        own = near.here(launcher)
        text = text_of(Path(launcher)) if own is None else own
        ours = launcher.endswith(".json") and '"distributed_type"' not in text
        if not launcher.endswith(".json") and not accelerate.claims(launcher, text):
            raise UnreadableConfig("neither Accelerate's YAML nor DeepSpeed's JSON")
        inner = (deepspeed if ours else accelerate).read(text, launcher)
    except UnreadableConfig as error:
        option = "" if near.here(launcher) else "--launched-by "
        raise UnreadableConfig(f"{option}{launcher}: {error}") from None
    facts = {name: Fact(inner.facts[name].value, 1) for name in _LAUNCHED if name in inner.facts}
    own_on_host = _KEEPS.search(text) is not None
    unread = [Fact(f"{launcher}: {each.value}", 1) for each in inner.unread]
    notes = (*inner.notes, f"sharding, degrees and processes are those of {launcher}")
    return Sharding(
        DEEPSPEED_ENGINE if inner.engine == DEEPSPEED_ENGINE else FSDP_ENGINE, facts,
        recompute=inner.recompute.mode == "full", own_on_host=own_on_host,
        unread=(*unread, *_two_counts(inner, values, launcher)), notes=notes,
        exposed=inner.exposed,
    )  # fmt: skip


def _two_counts(inner: Reading, values: Values, launcher: str) -> Iterator[Fact]:
    """Accumulation that the launcher's file states otherwise: the trainer stops there."""
    own = values.count("gradient_accumulation_steps") or Fact(1, 1)
    other = inner.facts.get("num_micro_batches")
    if other is not None and other.value != own.value:
        said = f"gradient_accumulation_steps {own.value}"
        yield Fact(f"{said} ({launcher} says {other.value})", own.line)


def on_host(sharding: Sharding, facts: dict[str, Fact]) -> list[str]:
    """Puts DeepSpeed's Adam, whose states have 32 bits, in place of another optimizer whose states
    are on the host, as Accelerate does; returns a note of it.

    Source: huggingface/accelerate@16cb6eb8 src/accelerate/accelerator.py (_prepare_deepspeed),
    utils/deepspeed.py (map_pytorch_optim_to_deepspeed). Leaves out its Adagrad and Lion.
    """
    moved, stated = facts.get("optimizer_offload"), facts.get("optimizer")
    if not (moved and moved.value and stated) or sharding.own_on_host or stated.value == "adamw":
        return []
    facts["optimizer"] = Fact("adamw", stated.line)
    return [f"line {stated.line}: {stated.value} on the host is DeepSpeed's Adam, of 32 bits"]


def launched_by(values: Values) -> Sharding | None:
    """TRL's `accelerate_config`, where it names one of the files that TRL brings along."""
    stated = values.get("accelerate_config")
    if stated is None:
        return None
    found = _TRL_LAUNCHES.get(str(stated.value))
    if found is None:
        why = f"not one of {', '.join(_TRL_LAUNCHES)}: it shards, or not; check that file"
        named = Fact(f"accelerate_config {shown(stated.value)} ({why})", stated.line)
        return Sharding(FSDP_ENGINE, {"zero_stage": Fact(0, stated.line)}, unread=(named,))
    engine, stage = found
    waits = engine == DEEPSPEED_ENGINE and stage < 3  # Accelerate's own settings of DeepSpeed
    return Sharding(
        engine,
        {"zero_stage": Fact(stage, stated.line)},
        exposed=("data_reduce",) if waits else (),
    )


def _of_deepspeed(inner: Reading, at: Fact | None) -> Sharding:
    """DeepSpeed's own facts; `at`: the key that names its file."""
    facts = {
        name: Fact(inner.facts[name].value, at.line) if at else inner.facts[name]
        for name in _FROM_DEEPSPEED
        if name in inner.facts
    }
    unread = tuple(Fact(each.value, at.line) if at else each for each in inner.unread)
    return Sharding(
        DEEPSPEED_ENGINE, facts, unread=unread, notes=inner.notes, exposed=inner.exposed
    )


def _beside(stated: Fact, near: Nearby) -> Sharding:
    """DeepSpeed's JSON where the file names it: one that the script writes, or beside it, or below
    one of the folders above.
    """
    text = near.text(str(stated.value))
    if text is not None:
        found = _of_deepspeed(deepspeed.read(text, str(stated.value)), stated)
        return replace(found, own_on_host=_KEEPS.search(text) is not None)
    moved = near.moved(str(stated.value))
    own = near.of_trainer(str(stated.value)) if moved is None else moved
    if own is not None:
        found = _of_deepspeed(deepspeed.read(own, str(stated.value)), stated)
        said = f"line {stated.line}: deepspeed {shown(stated.value)} is not there: taken to be the"
        which = "trainer's own file of that name" if moved is None else "file of that name here"
        return replace(
            found, notes=(f"{said} {which}", *found.notes),
            own_on_host=_KEEPS.search(own) is not None,
        )  # fmt: skip
    why = "the ZeRO stage is in that file, which is not below this one or a folder above it"
    unfound = Fact(f"deepspeed {shown(stated.value)} ({why})", stated.line)
    return Sharding(DEEPSPEED_ENGINE, {}, unread=(unfound,))


def _fsdp_config(values: Values, near: Nearby) -> tuple[dict[str, Fact], list[Fact]]:
    """What `fsdp_config` states, by the names without `fsdp_`: a section, JSON, or a JSON file, as
    transformers takes it (training_args.py, `_process_fsdp_args`); the file's name where it is not
    there.
    """
    section, stated = dict(below(values, "fsdp_config").found), values.found.get("fsdp_config")
    if stated is not None and isinstance(stated.value, str) and stated.value:
        text = stated.value if stated.value.startswith("{") else near.text(stated.value)
        if text is None:
            why = (
                "whether layers recompute is in that file, which is not below this one or above it"
            )
            return {}, [Fact(f"fsdp_config {shown(stated.value)} ({why})", stated.line)]
        section = {name: Fact(fact.value, stated.line) for name, fact in read_json(text).items()}
    return {
        name.removeprefix("fsdp_"): fact for name, fact in section.items() if fact.value is not None
    }, []


def _fsdp(word: Fact, inside: dict[str, Fact]) -> Sharding:
    values = Values(inside)
    words = {text.lower() for text in re.findall(r"\w+", str(word.value))}
    strategy = _strategy(values, words)
    stage = Fact(_STAGES[strategy.value] if strategy else 3, strategy.line if strategy else 1)
    reshard = values.get("reshard_after_forward")
    if strategy is None and reshard is not None:
        reshard = values.flag("reshard_after_forward")
        stage = Fact(2 if reshard and not reshard.value else 3, word.line)
    unread, notes = judged(_listed(values), KEYS, "{}")
    unread += _unmodelled(values, words, word, strategy)
    full = values.on("activation_checkpointing")
    notes += _one_unit(values, words, word)
    return Sharding(
        FSDP_ENGINE, {"zero_stage": stage}, recompute=full, unread=tuple(unread), notes=tuple(notes)
    )


def _one_unit(values: Values, words: set[str], at: Fact) -> list[str]:
    """A note of FSDP's words without `auto_wrap`: before transformers 5 (training_args.py,
    `_process_fsdp_args`) Accelerate then wraps the model alone (NO_WRAP).
    """
    if not words & _STAGES.keys() or "auto_wrap" in words or "auto_wrap_policy" in values.found:
        return []
    said = f"line {at.line}: fsdp without auto_wrap is priced as transformers 5 takes it, by layers"
    return [f"{said}; transformers 4 gathers the whole model at once"]


def _strategy(values: Values, words: set[str]) -> Fact | None:
    """FSDP1's word, in `fsdp_config` or, where that has none, in `fsdp`; None where FSDP2 is told
    whether to reshard, which counts before the words that stand for that.
    """
    for name in ("reshard_after_forward", "sharding_strategy"):
        stated = values.get(name)
        if stated is not None and str(stated.value).lower() in _STAGES:
            return Fact(str(stated.value).lower(), stated.line)
    version = values.found.get("version")
    told = "reshard_after_forward" in values.found and (version is None or version.value != 1)
    words = words - ({"full_shard", "shard_grad_op"} if told else set())
    return next((Fact(word, 1) for word in sorted(words & _STAGES.keys())), None)


def _unmodelled(values: Values, words: set[str], at: Fact, strategy: Fact | None) -> Iterator[Fact]:
    """Words that FSDP has not; state on the host; copies of the shards, one in each machine."""
    for word in sorted(words - _WORDS):
        yield Fact(f"fsdp {shown(word)} (not one of {', '.join(sorted(_WORDS))})", at.line)
    if values.on("offload_params", "cpu_offload") or "offload" in words:
        yield Fact("fsdp offload (moves all sharded state to the host: not modelled)", at.line)
    if strategy is not None and strategy.value.startswith("hybrid"):
        why = "a copy in each machine, whose number is not stated here"
        yield Fact(f"{strategy.value} ({why})", strategy.line if strategy.line > 1 else at.line)


def _listed(values: Values) -> Iterator[tuple[str, Fact]]:
    asked = (
        "reshard_after_forward", "sharding_strategy", "activation_checkpointing", "offload_params",
        "cpu_offload",
    )  # fmt: skip
    values.asked |= set(asked)
    return ((f"fsdp_config.{name}", fact) for name, fact in values.unasked())


def axes_of(values: Values, facts: dict[str, Fact]) -> tuple[list[Fact], list[str]]:
    """Adds the degrees of `parallelism_config`, or of axolotl's own keys; the others are 1.

    Returns what of that section is not understood, and notes.
    """
    one = Fact(1, 1)
    for axis in ("pipeline_parallel", "virtual_stages", "expert_parallel"):
        facts[axis] = one
    for name, axis in _AXES.items():
        stated = values.count(f"parallelism_config.{name}", name)
        if stated is not None:
            facts[axis] = stated
    replicas = values.count("parallelism_config.dp_replicate_size", "dp_replicate_size")
    if replicas is not None and replicas.value > 1:
        facts["shard_replicas"] = replicas
    shards = values.count("parallelism_config.dp_shard_size", "dp_shard_size")
    if shards is not None:
        copies = replicas.value if replicas else 1
        put(facts, data_parallel=Fact(shards.value * copies, shards.line))
    left = [each for each in values.unasked() if each[0].startswith("parallelism_config.")]
    return judged(left, KEYS, "{}")
