"""Configurations of the trainers that people fine-tune with: read, not written.

    axolotl          YAML; a closed list of its keys (axolotl-ai-cloud/axolotl@067b021c
                     src/axolotl/utils/schemas)
    llama-factory    YAML; hiyouga/LLaMA-Factory@ff6d4d12 src/llamafactory/hparams, and the fields
                     of transformers' `TrainingArguments`
    trl              YAML of `trl sft` and of scripts with its arguments (huggingface/trl@f2cd5771)
    hf-trainer       JSON or YAML of `TrainingArguments` (transformers 5.23, training_args.py)

All run Hugging Face's Trainer, by DeepSpeed's JSON or by FSDP, which are priced as the
engines `deepspeed` and `accelerate`: PyTorch's kernels, and all logits at once. Where the loss is
made in pieces (`_IN_PIECES`) they are `deepspeed-chunked-loss` and `accelerate-chunked-loss`, whose
kernels are torchtitan's, fused as Liger's are. A key that is in no list, and one that changes
memory or time in a way that is not modelled (adapters other than LoRA, other optimizers), makes the
verdict incomplete and is named. Samples are taken to be packed to the sequence length.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshplan.executor.frameworks.adapters import (
    of_axolotl,
    of_factory,
    of_others,
    of_swift,
    of_trl,
)
from meshplan.executor.frameworks.documents.parse import read_json, read_yaml
from meshplan.executor.frameworks.documents.values import Values, optimizer, put, shown, top_level
from meshplan.executor.frameworks.hugging_face.deepspeed import bf16_without_zero
from meshplan.executor.frameworks.hugging_face.nearby import Nearby
from meshplan.executor.frameworks.hugging_face.script import WITH_PIECES
from meshplan.executor.frameworks.hugging_face.shipped import SHIPPED
from meshplan.executor.frameworks.hugging_face.trainer_batches import batches_by_loader
from meshplan.executor.frameworks.hugging_face.trainer_models import (
    beside_experts,
    check_trains,
    other_plugins,
    packed_experts,
    packed_weights,
    same_shape,
    scores_kept,
    short_samples,
    without_towers,
)
from meshplan.executor.frameworks.hugging_face.trainer_names import (
    LENGTHS,
    TRAINERS,
    Trainer,
    claims_of,
)
from meshplan.executor.frameworks.hugging_face.trainer_precision import (
    left_open,
    pure_beside_deepspeed,
    stated_precision,
    wide_products,
)
from meshplan.executor.frameworks.hugging_face.trainer_sharding import (
    DEEPSPEED_ENGINE,
    FSDP_ENGINE,
    Sharding,
    axes_of,
    launched_by,
    on_host,
    sharding_of,
)
from meshplan.executor.frameworks.keys.lists import judged
from meshplan.hardware_profiles.load_models import in_catalogue
from meshplan.planner.case.reading import Fact, Reading, Recompute, Saving, Start

OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw": "adamw",
    "adamw_bnb_8bit": "adamw8bit", "adamw_torch_8bit": "adamw8bit", "adamw_8bit": "adamw8bit",
    "paged_adamw_8bit": "adamw8bit", "paged_adamw": "adamw", "paged_adamw_32bit": "adamw",
    "sgd": "sgd", "muon": "muon",
}  # fmt: skip
_SMALLER_STATES = frozenset(
    (
        *(
            "adafactor",
            "adagrad",
            "adamw_torch_4bit",
            "ao_adamw_4bit",
            "ao_adamw_8bit",
            "ao_adamw_fp8",
        ),
        *("lion", "lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit"),
        *("optimi_adamw", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    )
)
"""Optimizers that keep at most AdamW's two numbers of 32 bits: of adapters alone, which are few,
they are priced as it.
"""
_WIDE_STATES = ("paged_adamw", "paged_adamw_32bit")
"""Keep 32 bits beside weights of 16 (bitsandbytes' optimizers)."""
_IN_PIECES = (
    *("use_liger_kernel", "use_liger", "enable_liger_kernel", "liger_fused_linear_cross_entropy"),
    *("cut_cross_entropy", "chunked_cross_entropy"),
)
"""Switches with which no more than a part of the logits is there at once: Liger's product with its
loss (of transformers, TRL and LLaMA-Factory a switch, axolotl's own a second one), Apple's cut
cross entropy, and axolotl's chunks.
"""
_OWN_LOSS = ("use_dft_loss", "use_eaft_loss", "enable_dft_loss", "enable_channel_loss")
"""Losses of a trainer's own, made of the logits: LLaMA-Factory's (hiyouga/LLaMA-Factory@ff6d4d12
src/llamafactory/train/sft/trainer.py, compute_loss_func) and ms-swift's
(modelscope/ms-swift@3602360a swift/trainers/seq2seq_trainer.py, compute_loss). The labels are kept
for them, and without labels Liger's forward makes all logits.
"""
_CUT = "axolotl.integrations.cut_cross_entropy."
"""The plugin is on where it is named (axolotl-ai-cloud/axolotl@067b021c, its args.py)."""
_AT_ONCE = "transformers' own loss has all logits at once, Liger's has them in pieces"
_OLDER_TRL = ("torch_dtype", "max_seq_length")
"""Names that TRL took until 0.26 and 0.19 (huggingface/trl bfd25d1d, e102ac8d); its loss is in
chunks by default since 1.7 (b58947c7).
"""
_CHUNKS = (
    "loss_type is not stated: chunked_nll, TRL's default since 1.7; `loss_type: nll` has all "
    "logits at once, as before"
)


def read(trainer: Trainer, text: str, path: str, start: Start | None = None) -> Reading:
    """A trainer's configuration; raises `UnreadableConfig` and `IllegalConfig`.

    `start`: what launches it, where the file leaves its sharding to that.
    """
    found = read_json(text) if path.endswith(".json") else read_yaml(text)
    launcher = start.launched_by if start else ""
    return read_values(trainer, Values(found), Nearby(Path(path)), launcher)


def read_values(trainer: Trainer, values: Values, near: Nearby, launcher: str) -> Reading:
    """The same of what a file, or a command line, states."""
    notes: list[str] = []
    if trainer.name == "llama-factory":  # of the others a dump says false where a program trains
        check_trains(values)
    facts = _sizes(trainer, values)
    unknown = model_of_repository(values, trainer.model, facts)
    unread = _optimizer(values, facts, trainer.optimizer, notes) + other_plugins(values)
    sharding = _sharding(trainer, values, near, launcher)
    facts |= {name: fact for name, fact in sharding.facts.items() if name not in facts}
    notes += on_host(sharding, facts) if sharding.engine == DEEPSPEED_ENGINE else []
    lora, of_adapters = LORA.get(trainer.name, of_others)(values)
    put(facts, lora=lora)
    if "precision" not in facts:
        freezes = lora is not None and sharding.engine != DEEPSPEED_ENGINE
        facts["precision"], said = left_open(trainer.name, values, freezes=freezes)
        notes.append(said)
    unread += [*sharding.unread, *_kind(values), *batches_by_loader(values, near)]
    engine = _engine_of(trainer, values, sharding, notes)
    unread += _weights_as_loaded(trainer, values, facts, sharding, notes)
    more, noted_axes = axes_of(values, facts)
    notes += [*sharding.notes, *noted_axes, *_assumed(trainer, engine)]
    notes += short_samples(trainer.name, values, facts)
    adapters = lora.value if lora else None
    same_shape(values, trainer.model)
    without_towers(values, facts)
    unread += [*more, *of_adapters, *wide_products(facts), *scores_kept(values, facts)]
    unread += packed_weights(values, trainer.model, adapters) + packed_experts(facts, adapters)
    notes += beside_experts(facts, adapters)
    full, more = _checkpoints(trainer, values, notes)
    not_understood, noted = judged(top_level(values), trainer.lists, "{}")
    return Reading(
        framework=trainer.name, engine=engine, path=str(near.path), facts=facts,
        unknown_model=unknown,
        recompute=Recompute("full" if full or sharding.recompute else "none"),
        exposed=sharding.exposed,
        ignored=values.ignored(), notes=(*notes, *noted), saving=_saving(trainer, values, engine),
        unread=(*unread, *more, *not_understood),
    )  # fmt: skip


def _sizes(trainer: Trainer, values: Values) -> dict[str, Fact]:
    """The batch, the sequence and the precision, where they are stated."""
    facts: dict[str, Fact] = {}
    put(
        facts,
        micro_batch_size=values.count(trainer.micro_batch),
        num_micro_batches=values.count("gradient_accumulation_steps") or Fact(1, 1),
        seq_len=values.count(trainer.seq_len, *LENGTHS),
        precision=stated_precision(values),
    )
    return facts


def _sharding(trainer: Trainer, values: Values, near: Nearby, launcher: str) -> Sharding:
    """How states are sharded: by the file, by what it names, or by what launches it."""
    own = trainer.states_sharding
    shipped = replace(near, shipped=SHIPPED.get(trainer.name, {}))
    return launched_by(values) or sharding_of(
        values, shipped, config_suffices=own, stated=own, launcher=launcher
    )


def _engine_of(trainer: Trainer, values: Values, sharding: Sharding, notes: list[str]) -> str:
    """The engine that prices it, by where the loss is made; notes one that has all logits."""
    if _loss_in_pieces(trainer, values):
        notes += [_CHUNKS] if _in_chunks_unsaid(trainer, values) else []
        return WITH_PIECES[sharding.engine]
    older = [name for name in _OLDER_TRL if trainer.name == "trl" and name in values.found]
    notes.append(f"{older[0]} is a name of a TRL without chunks: {_AT_ONCE}" if older else _AT_ONCE)
    return sharding.engine


def _saving(trainer: Trainer, values: Values, engine: str) -> Saving | None:
    """Liger's loss, where all logits are there at once and no own loss needs them."""
    if engine not in WITH_PIECES or any(values.on(name) for name in _OWN_LOSS):
        return None
    switch = f"{trainer.liger} true (the loss in pieces)"
    return Saving(text=switch, engine=WITH_PIECES[engine])


def _weights_as_loaded(
    trainer: Trainer,
    values: Values,
    facts: dict[str, Fact],
    sharding: Sharding,
    notes: list[str],
) -> list[Fact]:
    """Adds the optimizer's states as the format of the weights has them; what is not modelled."""
    if sharding.engine == DEEPSPEED_ENGINE:
        _loaded(trainer, values, facts)  # counts as read
        notes += [note for note in bf16_without_zero(facts) if note not in sharding.notes]
        return pure_beside_deepspeed(values, facts)
    if sharding.engine != FSDP_ENGINE:
        return []
    states = _states(trainer, values, facts)
    put(facts, optimizer_states=states)
    return _wide_states(values, trainer.optimizer, states)


def _assumed(trainer: Trainer, engine: str) -> list[str]:
    """What no key of the file says."""
    assumed = [f"priced as the engine {engine} runs a whole model: assumed of {trainer.name}"]
    if trainer.name == "trl":
        said = "trained by next tokens, as `trl sft` does: assumed, where nothing says else"
        assumed.append(said)
    return assumed


def _loss_in_pieces(trainer: Trainer, values: Values) -> bool:
    """Whether not all logits are there at once: TRL's default (`chunked_nll` of
    huggingface/trl@f2cd5771 trl/trainer/sft_config.py), or a switch.
    """
    switched = [values.on(name) for name in _IN_PIECES]  # each counts as read
    if any([values.on(name) for name in _OWN_LOSS]):
        return False
    plugins = values.get("plugins")
    named = plugins.value if plugins and isinstance(plugins.value, list) else []
    cut = any(str(name).startswith(_CUT) for name in named)
    off = values.get("cut_cross_entropy")
    loss = values.get("loss_type") if trainer.name == "trl" else None
    chunks = _in_chunks_unsaid(trainer, values) or (loss and loss.value == "chunked_nll")
    return bool(chunks) or any(switched) or (cut and off is None)


def _in_chunks_unsaid(trainer: Trainer, values: Values) -> bool:
    """Whether TRL's default decides: no other loss is stated, and no name of an older TRL."""
    stated = {"loss_type", "use_liger_kernel", "use_liger", *_OLDER_TRL} & values.found.keys()
    off = all(values.found[name].value in (None, False) for name in stated)
    return trainer.name == "trl" and (not stated or off)


def _optimizer(values: Values, facts: dict[str, Fact], name: str, notes: list[str]) -> list[Fact]:
    """Adds the optimizer; of adapters alone one with smaller states counts as AdamW."""
    stated = values.get(name)
    if stated is not None and str(stated.value).startswith("paged_"):
        notes.append(
            f"line {stated.line}: {name} {shown(stated.value)} moves states to the host where "
            "memory is short, which is not priced: less of the device is enough"
        )
    if _tunes_adapters(values) and stated is not None and str(stated.value) in _SMALLER_STATES:
        facts["optimizer"] = Fact("adamw", stated.line)
        notes.append(
            f"line {stated.line}: {name} {shown(stated.value)} is priced as AdamW, whose states "
            "are no smaller: they are the adapters' alone"
        )
        return []
    return optimizer(values, facts, name, OPTIMIZERS)


def _tunes_adapters(values: Values) -> bool:
    tunes = values.get("adapter", "finetuning_type")
    return (tunes is not None and tunes.value in ("lora", "qlora")) or values.on("use_peft")


def _wide_states(values: Values, name: str, states: Fact | None) -> list[Fact]:
    """An optimizer of 32 bits on 16-bit weights."""
    stated = values.get(name)
    if states is None or stated is None or stated.value not in _WIDE_STATES:
        return []
    why = "states of 32 bits beside weights of 16 are not modelled"
    return [Fact(f"{name} {shown(stated.value)} ({why})", stated.line)]


def model_of_repository(values: Values, key: str, facts: dict[str, Fact]) -> str:
    """Adds the model where the catalogue has it: a repository's name less what names a tuning.

    Returns what is stated where it has not, else "".
    """
    stated = values.get(key)
    if stated is None:
        return ""
    found = in_catalogue(str(stated.value))
    if found is None:
        return f"{key} {shown(stated.value)}"
    facts["model"] = Fact(found, stated.line)
    return ""


def _states(trainer: Trainer, values: Values, facts: dict[str, Fact]) -> Fact | None:
    """Weights of 16 bits alone (axolotl's `bf16: full`, without FSDP any `bf16`; LLaMA-Factory's
    `pure_bf16`), and so the optimizer's states.
    """
    whole = next((values.found[key] for key in ("bf16", "bfloat16") if key in values.found), None)
    said = {name: fact.value for name, fact in facts.items()}
    alone = said["zero_stage"] == 0 and not _tunes_adapters(values)
    loaded = trainer.bf16_weights and alone and said["precision"] == "bf16"
    if loaded and whole is None:
        whole = facts["precision"]
    dtype = _loaded(trainer, values, facts)
    if dtype is not None and str(dtype.value).removeprefix("torch.") == "bfloat16" and alone:
        whole, loaded = dtype, True
    if whole is None or not (loaded or str(whole.value).lower() == "full"):
        whole = values.get("pure_bf16") if values.on("pure_bf16") else None
    adam = facts.get("optimizer", Fact("adamw", 1)).value in ("adamw", "adamw8bit")
    return Fact("bf16", whole.line) if whole and adam else None


def _loaded(trainer: Trainer, values: Values, facts: Mapping[str, Fact]) -> Fact | None:
    """The format that a program loads its weights in. Beside a trainer of transformers it counts
    where they are autocast to the same: else it stays among the keys that are not understood.

    DeepSpeed casts the weights to its own format and keeps masters of 32 bits
    (deepspeedai/DeepSpeed@edaa722 deepspeed/runtime/engine.py, _configure_distributed_model);
    Accelerate's FSDP keeps them in 32 bits (huggingface/accelerate@16cb6eb8
    src/accelerate/accelerator.py, "upcast"): for neither it matters.
    """
    names = ("dtype", "torch_dtype")
    if trainer.name == "hf-trainer":
        stated = next((values.found[name] for name in names if name in values.found), None)
        word = str(stated.value).removeprefix("torch.") if stated else ""
        ours = {"bfloat16": "bf16", "float16": "fp16"}.get(word)
        whole = facts.get("zero_stage", Fact(0, 1)).value == 0
        if ours != facts["precision"].value or (ours == "fp16" and whole):
            return None
    return values.get(*names) if trainer.name in ("trl", "hf-trainer") else None


_CHECKPOINTS = ("gradient_checkpointing", "activation_checkpointing")


def _checkpoints(trainer: Trainer, values: Values, notes: list[str]) -> tuple[bool, list[Fact]]:
    """Whether layers recompute; what is saved on the host or on disk instead is not modelled."""
    stated = values.get(*_CHECKPOINTS)
    if trainer.name == "llama-factory":  # it checkpoints unless told not to
        return not values.on("disable_gradient_checkpointing"), []
    if trainer.checkpoints and stated is None:
        notes.append(f"gradient_checkpointing is not stated: on, the default of {trainer.name}")
        return True, []
    if stated is not None and str(stated.value) in ("offload", "offload_disk", "unsloth"):
        why = "what is kept on the host is not modelled"
        return True, [Fact(f"gradient_checkpointing {shown(stated.value)} ({why})", stated.line)]
    return values.on("gradient_checkpointing") or values.on("activation_checkpointing"), []


_KINDS = {
    "finetuning_type": ("full", "lora"), "stage": ("pt", "sft"), "adapter": ("lora", "qlora"),
    "loss_type": ("nll", "chunked_nll", "dft"),
}  # fmt: skip
"""Words that mean training one model by its next tokens: all weights, or adapters beside them."""

LORA = {"axolotl": of_axolotl, "llama-factory": of_factory, "ms-swift": of_swift, "trl": of_trl}


def _kind(values: Values) -> list[Fact]:
    """What is trained, if neither all weights of one model nor LoRA adapters."""
    why = "frozen weights, or a second model, are not modelled"
    return [fact for name, usual in _KINDS.items() for fact in values.besides(usual, name, why)]


Claims = Callable[[str, str], bool]
READERS: dict[str, tuple[Claims, Callable[[str, str, Start | None], Reading]]] = {
    trainer.name: (partial(claims_of, trainer), partial(read, trainer)) for trainer in TRAINERS
}
