"""GPT-NeoX's YAML: Megatron's tensor parallelism below DeepSpeed's pipeline and ZeRO.

    ours                     theirs (a key may be written with dashes)
    pipeline_parallel        pipe_parallel_size; 0 is one stage without the pipeline engine
    tensor_parallel          model_parallel_size; 0 is 1
    zero_stage               zero_optimization.stage
    micro_batch_size         train_micro_batch_size_per_gpu
    num_micro_batches        gradient_accumulation_steps, or 1
    precision                precision, fp16.enabled, bf16.enabled; before 2023 fp16.type
    recompute                checkpoint_activations, one layer at a time
    gpus                     global_num_gpus, or num_nodes x num_gpus

GPT-NeoX merges the files that it is started with, stops at a key that two of them state, and knows
no default for the shape and the batch: a file without them is a part of a configuration, which is
said instead of priced, unless the start names the others. Layers with an
attention of their own (sparse, local, gMLP, Mamba, RWKV) and experts are named, not priced.

Source: EleutherAI/gpt-neox@ea7aefd8 `megatron/neox_arguments` (arguments.py calculate_derived),
`megatron/model/gpt2_model.py`, and @0d4bdb96^ for what changed in 2024-09 (`mlp_type`).
"""

import re
from collections.abc import Mapping
from pathlib import Path

from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values, put, shown, top_level
from meshplan.executor.frameworks.keys.lists import flags_in, judged, switched_off
from meshplan.executor.frameworks.neox.model import model_config, model_unread
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import (
    Fact,
    IllegalConfig,
    Reading,
    Recompute,
    Start,
    UnreadableConfig,
)

_KEY = r"^[ \t]*[\"']?{}[\"']?[ \t]*:"
_WHOLE = re.compile(_KEY.format("pipe[-_]parallel[-_]size"), re.M)
_PART = tuple(
    re.compile(_KEY.format(name), re.M)
    for name in ("train_micro_batch_size_per_gpu", "lr[-_]decay[-_]style")
)
_KEYS = ("neox_keys.toml",)
_STAGES = {"0": 0, "1": 1, "2": 2, "3": 3}
_PRECISIONS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
_ADAM = ("adam", "adamw")
_BY_LAYERS = ("type:transformer|mlp", "type:transformer")
_SHAPE = (
    *("num_layers", "hidden_size", "num_attention_heads", "seq_length"),
    "max_position_embeddings",
)
_BATCH = ("train_micro_batch_size_per_gpu", "train_batch_size")
_SECTIONS = ("zero_optimization", "activation_checkpointing", "deepspeed_extra_args")
_HOST = "what is kept on the host is not modelled"
_ON_HOST = ("cpu_offload", "cpu_offload_params", "offload_optimizer", "offload_param")


def claims(name: str, text: str) -> bool:
    """Whether a YAML file states what GPT-NeoX alone has: one key, or two together."""
    marked = _WHOLE.search(text) or all(mark.search(text) for mark in _PART)
    return name.endswith((".yml", ".yaml")) and bool(marked)


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """A GPT-NeoX configuration; raises `UnreadableConfig` and `IllegalConfig`.

    `start`: the files that it is joined with.
    """
    found = _underscored(read_yaml(text))
    for other in start.joined_with if start else ():
        found |= _other(other, found)
    values = Values(found)
    try:
        return _reading(values, path)
    except IllegalConfig as error:
        raise _of_a_fork(values, error) or error from None


def _other(path: str, found: Mapping[str, Fact]) -> dict[str, Fact]:
    """What another file adds to the facts `found`, without the lines, which are not this file's."""
    try:
        added = _underscored(read_yaml(text_of(Path(path))))
    except UnreadableConfig as error:
        raise UnreadableConfig(f"--joined-with {path}: {error}") from None
    keys = {name.partition(".")[0] for name in found}
    if twice := sorted(keys & {name.partition(".")[0] for name in added}):
        raise IllegalConfig(f"{shown(twice[0])} is in {path} too: GPT-NeoX stops")
    return {name: Fact(fact.value, 1) for name, fact in added.items()}


def _of_a_fork(values: Values, error: IllegalConfig) -> UnreadableConfig | None:
    """What to say of a file with a key of no release: its fork may take what GPT-NeoX refuses."""
    known = flags_in(*_KEYS).classes
    for name, fact in values.found.items():
        if "." not in name and name not in known and fact.value is not None:
            said = (
                f"{shown(name)} is no key of GPT-NeoX but a fork's, which may allow this: {error}"
            )
            return UnreadableConfig(said, fact.line)
    return None


def _reading(values: Values, path: str) -> Reading:
    facts: dict[str, Fact] = {"virtual_stages": Fact(1, 1), "context_parallel": Fact(1, 1),
                              "expert_parallel": Fact(1, 1)}  # fmt: skip
    unread = _part_of_several(values)
    _batch(values, facts)
    unread += _degrees(values, facts) + _precision(values, facts)
    unread += _optimizer(values, facts) + _zero(values, facts)
    recompute, more = _recompute(values)
    unread += more
    flash, more = _attention(values)
    unread += more + model_unread(values, flash=flash)
    engine = "gpt-neox" if flash else "gpt-neox-unfused"
    config = model_config(values)
    _check(values)
    not_understood, noted = judged(_unjudged(values), _KEYS, "{}")
    return Reading(
        framework="gpt-neox", engine=engine, path=path, facts=facts, model_config=config,
        recompute=recompute, ignored=values.ignored(), notes=tuple(noted),
        unread=(*unread, *values.nested(), *not_understood),
    )  # fmt: skip


def _underscored(found: Mapping[str, Fact]) -> dict[str, Fact]:
    """The facts with dashes in the file's own keys written as GPT-NeoX takes them.

    Raises `UnreadableConfig` for a key that is written both ways: which one counts depends on their
    order.
    """
    written: dict[str, str] = {}
    facts: dict[str, Fact] = {}
    for name, fact in found.items():
        key, dot, rest = name.partition(".")
        plain = key.replace("-", "_")
        if written.setdefault(plain, key) != key:
            raise UnreadableConfig(f"{shown(plain)} is stated with dashes and without", fact.line)
        facts[plain + dot + rest] = fact
    return facts


def _part_of_several(values: Values) -> list[Fact]:
    """Names what another file must state: without it the degrees here need not be the last word."""
    missing = [name for name in _SHAPE if values.get(name) is None]
    if not any([values.get(name) is not None for name in _BATCH]):
        missing.append(_BATCH[0])
    if not missing:
        return []
    why = "GPT-NeoX merges several files: name the others by --joined-with FILE"
    return [Fact(f"no {', '.join(missing)} ({why})", 1)]


def _degrees(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds the degrees and the GPUs; stages of unequal length are not understood."""
    pipe = values.count("pipe_parallel_size", least=0) or Fact(0, 1)
    tensor = values.count("model_parallel_size", least=0) or Fact(1, 1)
    put(
        facts,
        pipeline_parallel=Fact(max(1, pipe.value), pipe.line),
        tensor_parallel=Fact(max(1, tensor.value), tensor.line),
        sequence_parallel=values.flag("sequence_parallel"),
        seq_len=values.count("seq_length"),
        gpus=_gpus(values),
    )
    why = "stages that are not cut by the number of layers are not modelled"
    otherwise = values.besides(_BY_LAYERS, "pipe_partition_method", why)
    layers = values.count("num_layers")
    if pipe.value <= 1:
        return []
    if otherwise or layers is None or layers.value % pipe.value == 0:
        return otherwise
    why = f"{layers.value} layers do not divide, and DeepSpeed's releases cut them differently"
    return [Fact(f"pipe_parallel_size {pipe.value} ({why})", pipe.line)]


def _gpus(values: Values) -> Fact | None:
    total = values.count("global_num_gpus")
    nodes, each = (values.count(name, least=-1) for name in ("num_nodes", "num_gpus"))
    if total is not None or nodes is None or each is None or min(nodes.value, each.value) < 1:
        return total
    return Fact(nodes.value * each.value, each.line)


def _batch(values: Values, facts: dict[str, Fact]) -> None:
    """Adds what is stated; one accumulation step where two are not."""
    put(
        facts,
        micro_batch_size=values.count("train_micro_batch_size_per_gpu"),
        global_batch_size=values.count("train_batch_size"),
        num_micro_batches=values.count("gradient_accumulation_steps", "gas"),
    )
    if len({"micro_batch_size", "global_batch_size"} & facts.keys()) == 1:
        facts.setdefault("num_micro_batches", Fact(1, 1))


def _precision(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds the precision; gradients of more bits than the weights are not understood.

    Raises `IllegalConfig` where two keys state two precisions.
    """
    stated = values.word(_PRECISIONS, "precision")
    for section, name in (("fp16", "fp16"), ("bf16", "bf16")):
        enabled = values.flag(f"{section}.enabled")
        if enabled is None or not enabled.value:
            continue
        name = "bf16" if _before_2023(values) else name
        if stated is not None and stated.value != name:
            raise IllegalConfig(
                f"{section}.enabled beside precision {stated.value}: GPT-NeoX stops", enabled.line
            )
        stated = Fact(name, enabled.line)
    facts["precision"] = stated or Fact("fp32", 1)
    why = "a second, wider copy of the gradients is not modelled"
    return values.besides(("bf16", "fp16"), "data_types.grad_accum_dtype", why)


def _before_2023(values: Values) -> bool:
    """Whether bf16 is stated as a kind of fp16: DeeperSpeed then runs it as fp16 is run."""
    kind = values.get("fp16.type")
    return kind is not None and kind.value == "bfloat16"


def _optimizer(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    kind = values.get("optimizer.type") or Fact("adam", 1)
    if str(kind.value).lower() not in _ADAM:
        why = "the bytes of its states are not modelled"
        return [Fact(f"optimizer.type {shown(kind.value)} ({why})", kind.line)]
    facts["optimizer"] = Fact("adamw8bit" if values.on("use_bnb_optimizer") else "adamw", kind.line)
    return []


def _zero(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds the ZeRO stage; raises `IllegalConfig` where DeepSpeed stops."""
    stage = values.word(_STAGES, "zero_optimization.stage")
    if stage is None and any(name.startswith("zero_optimization.") for name in values.found):
        line = values.found["zero_optimization"].line
        raise IllegalConfig("zero_optimization without a stage: GPT-NeoX stops; state one", line)
    facts["zero_stage"] = stage = stage or Fact(0, 1)
    pipe = values.count("pipe_parallel_size", least=0)
    if stage.value > 1 and pipe is not None and pipe.value >= 1:
        raise IllegalConfig(
            f"zero_optimization.stage {stage.value} with pipe_parallel_size {pipe.value}: "
            "DeepSpeed's pipeline engine takes stages 0 and 1; 0 switches the engine off",
            stage.line,
        )
    unread = []
    if stage.value == 0 and facts["precision"].value == "bf16" and not _before_2023(values):
        why = "DeepSpeed then shards the states and sums gradients in fp32, which is not modelled"
        unread.append(Fact(f"zero_optimization.stage 0 with bf16 ({why})", stage.line))
    return unread + _on_host(values)


def _on_host(values: Values) -> list[Fact]:
    """What ZeRO keeps on the host."""
    unread = []
    for name in _ON_HOST:
        where = f"zero_optimization.{name}"
        stated = values.get(f"{where}.device", where)
        values.asked.discard(where)
        values.asked |= {each for each in values.found if each.startswith(f"{where}.")}
        if stated is not None and str(stated.value).lower() not in ("false", "none"):
            unread.append(Fact(f"{where} ({_HOST})", stated.line))
    return unread


def _recompute(values: Values) -> tuple[Recompute, list[Fact]]:
    """Layer by layer if at all; other ways of keeping their inputs are not modelled."""
    on, count = values.flag("checkpoint_activations"), values.count("checkpoint_num_layers")
    why = "inputs of layers kept in parts are not modelled"
    divided = values.switched_on("partition_activations", why)
    host = values.switched_on("checkpoint_in_cpu", _HOST)
    if on is None or not on.value:
        return Recompute("none"), []
    tensor = values.count("model_parallel_size", least=0)
    unread = [*(divided if tensor is not None and tensor.value > 1 else []), *host]
    if count is not None and count.value > 1:
        why = "several layers recomputed as one are not modelled"
        unread.append(Fact(f"checkpoint_num_layers {count.value} ({why})", count.line))
    return Recompute("full"), unread


def _attention(values: Values) -> tuple[bool, list[Fact]]:
    """Whether every layer runs FlashAttention, and what of attention_config is not understood."""
    stated, layers = values.get("attention_config"), values.count("num_layers")
    if stated is None:
        return False, []
    kinds, total = _kinds(stated)
    if layers is not None and total not in (None, layers.value):
        raise IllegalConfig(
            f"attention_config names {total} layers, but num_layers is {layers.value}", stated.line
        )
    if kinds in ({"flash"}, {"global"}):
        return kinds == {"flash"}, []
    named = shown(", ".join(sorted(kinds)))
    why = "attention other than flash or global in all layers is not modelled"
    return False, [Fact(f"attention_config {named} ({why})", stated.line)]


def _kinds(stated: Fact) -> tuple[set[str], int | None]:
    """The kinds of `[[[kind, ...], times], ...]`, and how many layers it makes, if that is said."""
    wrong = UnreadableConfig(
        'attention_config must be like [[["flash"], 24]]: kinds, and how often', stated.line
    )
    kinds: set[str] = set()
    total: int | None = 0
    for item in stated.value if isinstance(stated.value, list) else [None]:
        if isinstance(item, str):  # a plain list names each layer
            kinds, total = kinds | {item}, None if total is None else total + 1
            continue
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], list):
            raise wrong
        names, times = item
        if not names or not all(isinstance(name, str) for name in names):
            raise wrong
        kinds |= set(names)
        if times == "all":
            total = None
        elif isinstance(times, bool) or not isinstance(times, int) or times < 0:
            raise wrong
        elif total is not None:
            total += times * len(names)
    return kinds, total


def _check(values: Values) -> None:
    """Raises `IllegalConfig` where GPT-NeoX compares two keys and stops."""
    hidden, heads, kv_heads, length, positions = (
        values.count(name)
        for name in ("hidden_size", "num_attention_heads", "num_kv_heads", "seq_length",
                     "max_position_embeddings")
    )  # fmt: skip
    mamba = "mamba" in str(values.get("attention_config"))[:1000]
    if hidden and heads and hidden.value % heads.value and not mamba:
        raise IllegalConfig(
            f"hidden_size {hidden.value} does not divide by num_attention_heads {heads.value}",
            heads.line,
        )
    if heads and kv_heads and heads.value % kv_heads.value:
        raise IllegalConfig(
            f"num_attention_heads {heads.value} does not divide by num_kv_heads {kv_heads.value}",
            kv_heads.line,
        )
    if length and positions and positions.value < length.value:
        raise IllegalConfig(
            f"max_position_embeddings {positions.value} is less than seq_length {length.value}",
            positions.line,
        )


def _unjudged(values: Values) -> list[tuple[str, Fact]]:
    """The keys that nobody read: of the file's own level, and of the sections that matter.

    A section that says `enabled: false` is idle.
    """
    found = [
        (name, fact)
        for name, fact in top_level(values)
        if name not in _SECTIONS and not switched_off(values, name)
    ]
    for name, fact in values.found.items():
        section, _, rest = name.partition(".")
        below = rest and "." not in rest and section in _SECTIONS
        if below and name not in values.asked and not switched_off(values, name):
            found.append((name, Fact(True, fact.line) if fact.value is None else fact))
    return found
