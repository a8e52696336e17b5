"""The layout in Megatron's names, which Megatron-LM (flags) and Megatron-Bridge (fields) share.

A flag `--tensor-model-parallel-size` is here `tensor_model_parallel_size`, as the dataclasses have
it. The data-parallel degree is not a setting: it is what is left of the world.

Sources: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py` (network size, distributed and
validate_args), `megatron/core/transformer/transformer_config.py` (recompute, fp8). Which layers a
stage holds is in `megatron.pipeline_layout`.
"""

from meshplan.costmodels.layout import Layout, RecomputeModule
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Optimizer, Precision, Training
from meshplan.executor.frameworks.documents.values import Values, optimizer, put, shown
from meshplan.executor.frameworks.export_notes import (
    Answer,
    modules_unsaid,
    nearest_recompute,
    training_unsaid,
    uniform_recompute,
    unless,
)
from meshplan.executor.frameworks.megatron.exchanges import exchange_facts, exchange_settings
from meshplan.executor.frameworks.megatron.offload import offload_facts, offload_settings
from meshplan.executor.frameworks.megatron.pipeline_layout import stage_placement, stage_settings
from meshplan.planner.case.reading import (
    CannotSay,
    Fact,
    IllegalConfig,
    Placement,
    Recompute,
    UnreadableConfig,
)
from meshplan.planner.case.resolve import engine_named

COUNTS = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
    "expert_tensor_parallel": "expert_tensor_parallel_size",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "seq_len": "seq_length",
}
OLDER = {
    "tensor_parallel": "model_parallel_size",  # Megatron-LM v1.0, v2.0
    "expert_parallel": "moe_expert_parallel_size",  # Megatron-DeepSpeed
    "micro_batch_size": "batch_size",  # Megatron-LM v1.0
}
"""Names that older releases and forks have for the same counts."""
MODULES: dict[str, RecomputeModule] = {
    "core_attn": "core_attention",
    "layernorm": "layernorm",
    "mlp": "mlp",
    "moe_act": "moe_act",
    "mla_up_proj": "mla_up_proj",
    "shared_experts": "shared_experts",
    "moe": "moe",
}
_NOT_PRICED = ("gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
"""Megatron's other modules (transformer_config.py): legal, and not modelled alone."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
OPTIMIZERS: dict[str, Optimizer] = {
    "adam": "adamw",
    "sgd": "sgd",
    "muon": "muon",
    "dist_muon": "muon",
}
FORKS_OPTIMIZERS: dict[str, Optimizer] = {**OPTIMIZERS, "adamw-bnb-8bit": "adamw8bit"}
"""With those of forks, which are read and not written: bitsandbytes' AdamW in 8 bits, beside fp32
master weights (inclusionAI/Ling-V2, its Megatron examples)."""
FP32_BYTES = 4.0
PRECISIONS: dict[Precision, dict[str, object]] = {
    "fp32": {},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}


def layout_settings(answer: Answer) -> tuple[dict[str, object], list[CannotSay]]:
    """Megatron's settings for the layout and the batch of `answer`, and what they leave out."""
    la, training = answer.layout, answer.training
    settings: dict[str, object] = {
        "tensor_model_parallel_size": la.tensor_parallel,
        "pipeline_model_parallel_size": la.pipeline_parallel,
        "context_parallel_size": la.context_parallel,
        "micro_batch_size": la.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_length": training.seq_len,
    }
    if la.tensor_parallel > 1 and la.sequence_parallel:
        settings["sequence_parallel"] = True
    if answer.model.is_moe:
        settings["expert_model_parallel_size"] = la.expert_parallel
        settings["expert_tensor_parallel_size"] = la.expert_tensor_parallel
    settings |= stage_settings(la, answer.model)
    sharding, unsaid = _sharding_settings(answer)
    recompute, more = _recompute_settings(la, answer.model)
    offload, also = offload_settings(la, answer.model)
    return settings | sharding | recompute | offload | exchange_settings(answer), [
        *unsaid,
        *more,
        *also,
        *_unsaid(la),
        *training_unsaid(training),
    ]


def _unsaid(la: Layout) -> list[CannotSay]:
    schedule = "interleaved_1f1b" if la.virtual_stages > 1 else "1f1b"
    unsaid = unless(la, "Megatron runs 1F1B, interleaved when there are chunks", schedule=schedule)
    if la.tensor_parallel == 1:
        unsaid += unless(la, "it splits along the tensor group of one", sequence_parallel=False)
    return unsaid


def _sharding_settings(answer: Answer) -> tuple[dict[str, object], list[CannotSay]]:
    la = answer.layout
    if la.zero_stage == 0:
        return {}, unless(la, "nothing is sharded at zero_stage 0", shard_group=0)
    settings: dict[str, object] = {"use_distributed_optimizer": True}
    if la.zero_stage > 1:
        name = next(name for name, stage in SHARDING.items() if stage == la.zero_stage)
        settings |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": name}
    if la.shard_group:
        copies, rest = divmod(answer.sharding_ranks, la.shard_group)
        if rest or copies == 1:
            why = "a group that leaves several whole copies is what Megatron can say"
            return settings, [CannotSay("layout.shard_group", la.shard_group, why)]
        settings["num_distributed_optimizer_instances"] = copies
    return settings, []


def _recompute_settings(la: Layout, model: Model) -> tuple[dict[str, object], list[CannotSay]]:
    """All layers in full are `block` where there are modules of multi-token prediction, which that
    does not replay and `uniform` does (`megatron/core/transformer/multi_token_prediction.py`).
    """
    rule, unsaid = nearest_recompute(la.stages), []
    if uniform_recompute(la.stages) is None:
        written = rule.mode if rule.first is None else f"the first {rule.first} of each stage"
        why = f"one rule holds for all stages: {written} is written, which keeps no more on any"
        unsaid.append(CannotSay("layout.stages.recompute", la.recompute, why))
        unsaid += modules_unsaid(la, why) if rule.mode == "full" else []
    if rule.mode == "none":
        return {}, unsaid
    if rule.mode == "selective":
        theirs = {ours: name for name, ours in MODULES.items()}
        known = [module for module in la.selective_modules if module in theirs]
        if other := [module for module in la.selective_modules if module not in theirs]:
            why = f"Megatron's modules are {', '.join(MODULES)}"
            unsaid.append(CannotSay("layout.selective_modules", ", ".join(other), why))
        modules = [theirs[module] for module in known] or ["core_attn"]
        return {"recompute_granularity": "selective", "recompute_modules": modules}, unsaid
    most = max(stage.layers for stage in la.stages) if model.mtp_layers else None
    first = rule.first or most
    method, count = ("uniform", 1) if first is None else ("block", first)
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": count,
    }, unsaid


def layout_facts(
    values: Values, *, offload_fraction: float = 1.0
) -> tuple[dict[str, Fact], Placement, Recompute, list[str]]:
    """Our facts from Megatron's settings; notes for what a layout cannot hold.

    offload_fraction  of the optimizer that `optimizer_cpu_offload` moves unless it is stated
    """
    facts: dict[str, Fact] = {}
    counts = {
        ours: values.count(name, *([OLDER[ours]] if ours in OLDER else []))
        for ours, name in COUNTS.items()
    }
    put(facts, **counts)
    sequence = values.flag("sequence_parallel")
    if sequence and facts.get("tensor_parallel", Fact(1, 1)).value == 1:
        sequence = Fact(False, sequence.line)  # validate_args switches it off
    put(facts, sequence_parallel=sequence)
    offloads = offload_facts(values, facts, offload_fraction)
    _sharding_facts(values, facts)
    placement = stage_placement(values, facts)
    chunks = facts.get("virtual_stages")
    interleaved = (chunks.value > 1) if chunks else placement.layers_per_stage is not None
    if not interleaved and placement.layers_per_stage is None:
        put(facts, schedule=Fact("1f1b", placement.line))
    elif chunks:
        put(facts, schedule=Fact("interleaved_1f1b", chunks.line))
    recompute, notes = _recompute(values, facts)
    exchanges = exchange_facts(values, facts)
    return facts, placement, recompute, [*notes, *offloads, *exchanges]


def _sharding_facts(values: Values, facts: dict[str, Fact]) -> None:
    fsdp = values.flag("use_megatron_fsdp", "use_custom_fsdp")
    distributed, torch_fsdp = (
        values.flag(name) for name in ("use_distributed_optimizer", "use_torch_fsdp2")
    )
    if torch_fsdp and torch_fsdp.value:
        reshards = values.flag("torch_fsdp2_reshard_after_forward") or torch_fsdp
        keeps = values.on("torch_fsdp2_no_reshard_after_forward")
        stage = 3 if reshards.value and not keeps else 2
        put(facts, zero_stage=Fact(stage, torch_fsdp.line))
        _refuse_beside_fsdp2(values, facts, torch_fsdp.line)
    elif fsdp and fsdp.value:
        strategy = values.word(SHARDING, "data_parallel_sharding_strategy")
        put(facts, zero_stage=strategy or Fact(3, fsdp.line))
    elif distributed:
        put(facts, zero_stage=Fact(int(distributed.value), distributed.line))
    put(facts, shard_replicas=values.count("num_distributed_optimizer_instances"))


def _refuse_beside_fsdp2(values: Values, facts: dict[str, Fact], line: int) -> None:
    """Raise `IllegalConfig` for what Megatron does not start beside PyTorch's FSDP.

    Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py`, validate_args.
    """
    degrees = ("pipeline_parallel", "expert_parallel")
    refused = [name for name in degrees if facts.get(name, Fact(1, 1)).value > 1]
    refused += [name for name in ("use_distributed_optimizer", "fp16") if values.on(name)]
    if refused:
        raise IllegalConfig(f"use_torch_fsdp2 does not run with {refused[0]}", line)


def _recompute(values: Values, facts: dict[str, Fact]) -> tuple[Recompute, list[str]]:
    modes = {"full": "full", "selective": "selective"}
    mode = values.word(modes, "recompute_granularity")
    if values.on("recompute_activations"):
        mode = Fact("selective", values.found["recompute_activations"].line)
    methods = {"uniform": "uniform", "block": "block"}
    method = values.word(methods, "recompute_method", "activations_checkpoint_method")
    count = values.count(
        *("recompute_num_layers", "activations_checkpoint_num_layers", "checkpoint_num_layers"),
        least=0,
    )
    older = values.flag("checkpoint_activations")  # until Megatron-LM v2.5, and Megatron-DeepSpeed
    if mode is None and older and older.value:
        mode = Fact("full", older.line)
    elif mode is None and (before := values.get("activations_checkpoint_method")) is not None:
        mode = Fact("full", before.line)  # Megatron-LM v2.6 had no granularity: always full
    named = values.get("recompute_modules")
    if mode is None:
        return Recompute(), []
    if mode.value == "selective":
        return Recompute("selective"), _modules(named, facts) if named else []
    if method and method.value == "block":
        return Recompute("full", first=count.value if count else 1), []
    notes = []
    if count and count.value > 1:
        notes.append(f"line {count.line}: units of {count.value} recomputed layers, priced as of 1")
    return Recompute("full"), notes


def _modules(named: Fact, facts: dict[str, Fact]) -> list[str]:
    words = named.value if isinstance(named.value, list) else str(named.value).split()
    known = [MODULES[word] for word in map(str, words) if word in MODULES]
    unknown = [str(word) for word in words if str(word) not in MODULES]
    if not known and set(unknown) <= set(_NOT_PRICED):
        raise UnreadableConfig(f"recompute_modules {shown(unknown)}: not modelled", named.line)
    if not known:
        raise IllegalConfig(
            f"recompute_modules {shown(unknown)}; known are {', '.join(MODULES)}", named.line
        )
    put(facts, selective_modules=Fact(tuple(known), named.line))
    return [f"line {named.line}: recompute of {shown(word)} is not priced" for word in unknown]


def training_facts(values: Values) -> dict[str, Fact]:
    """Precision and optimizer; absent ones are Megatron's defaults (fp32, Adam). An optimizer of
    another name is left out: `optimizer_unread`.
    """
    facts: dict[str, Fact] = {}
    fp4, fp8 = values.get("fp4", "fp4_format"), values.get("fp8", "fp8_format")
    recipe = values.get("fp8_recipe")
    narrow = [name for name in ("bf16", "fp16") if values.on(name)]
    if len(narrow) == 2:  # validate_args
        line = values.found["fp16"].line
        raise IllegalConfig("bf16 and fp16 are both on: Megatron takes one", line)
    older = [values.flag(name) for name in ("fp8_hybrid", "fp8_e4m3")]  # Megatron-LM v3
    fp8 = fp8 or next((fact for fact in older if fact and fact.value), None)
    if fp4 and not _off(fp4):
        put(facts, precision=Fact("nvfp4", fp4.line))
    elif fp8 and not _off(fp8):
        kind = "mxfp8" if recipe and recipe.value == "mxfp8" else "fp8"
        put(facts, precision=Fact(kind, fp8.line))
    else:
        for name in narrow:
            put(facts, precision=Fact(name, values.found[name].line))
    optimizer(values, facts, "optimizer", FORKS_OPTIMIZERS)
    return facts


def optimizer_unread(values: Values, written: str) -> list[Fact]:
    """The optimizer that a fork or a later release adds; `written`: the name in its file."""
    found = optimizer(values, {}, "optimizer", FORKS_OPTIMIZERS)
    return [Fact(str(fact.value).replace("optimizer", written, 1), fact.line) for fact in found]


def _off(fact: Fact) -> bool:
    """`fp8: false` switches it off, as `null` does."""
    return str(fact.value).lower() in ("false", "none", "0")


ZERO_STAGES = {"0": 0, "1": 1, "2": 2, "3": 3}


def narrow_gradients(engine: str) -> bool:
    """Whether the engine that a plan was priced for keeps gradients in 16 bit."""
    return engine_named(engine).state.gradient_bytes < FP32_BYTES


def training_settings(training: Training) -> tuple[dict[str, object], list[CannotSay]]:
    """Precision and optimizer in Megatron's words."""
    unsaid = []
    if training.precision not in PRECISIONS:
        why = f"Megatron has {', '.join(PRECISIONS)}"
        unsaid.append(CannotSay("training.precision", training.precision, why))
    settings = dict(PRECISIONS.get(training.precision, PRECISIONS["bf16"]))
    theirs = {ours: name for name, ours in reversed(OPTIMIZERS.items())}
    if training.optimizer not in theirs:
        why = f"Megatron has {', '.join(OPTIMIZERS)}"
        return settings, [*unsaid, CannotSay("training.optimizer", training.optimizer, why)]
    return settings | {"optimizer": theirs[training.optimizer]}, unsaid
