"""Second readers of nanotron's and AutoModel's YAML, Megatron-Bridge's overrides and torchtitan's
Python: names written apart from ours, PyYAML's or OmegaConf's loader, and for Python the program
itself.

    python tests/support/second_readers.py FOLDER

compares each config of a folder with what `meshplan check` reads, and counts. A Python file is run:
only use it on files that you would run.
"""

import builtins
import collections
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import IllegalConfig, Reading, UnreadableConfig

Said = dict[str, object]
ABSENT: Said = {"tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1,
                "expert_parallel": 1, "virtual_stages": 1, "sequence_parallel": False}  # fmt: skip
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size")  # fmt: skip


def _below(data: Any, path: str) -> Any:
    for part in path.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def nanotron(text: str) -> Said:
    """What PyYAML finds under nanotron's names (src/nanotron/config)."""
    data = yaml.safe_load(text)
    degrees = {"data_parallel": "dp", "tensor_parallel": "tp", "pipeline_parallel": "pp",
               "context_parallel": "context_parallel_size",
               "expert_parallel": "expert_parallel_size"}  # fmt: skip
    tokens = {"micro_batch_size": "micro_batch_size", "seq_len": "sequence_length",
              "num_micro_batches": "batch_accumulation_per_replica"}  # fmt: skip
    formats = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    said = {ours: _below(data, f"parallelism.{name}") for ours, name in degrees.items()}
    said |= {ours: _below(data, f"tokens.{name}") for ours, name in tokens.items()}
    said |= {name: _below(data, f"model.model_config.{name}") for name in SIZES}
    said["zero_stage"] = _below(data, "optimizer.zero_stage")
    said["precision"] = formats.get(str(_below(data, "model.dtype")))
    said["recompute"] = "full" if _below(data, "parallelism.recompute_layer") else "none"
    scatters = str(_below(data, "parallelism.tp_mode")).upper() == "REDUCE_SCATTER"
    said["sequence_parallel"] = scatters and (said["tensor_parallel"] or 1) > 1
    if (said["pipeline_parallel"] or 1) > 1:
        engine = str(_below(data, "parallelism.pp_engine") or "afab")
        said["schedule"] = {"1f1b": "1f1b", "afab": "gpipe"}[engine]
    return said


def automodel(text: str) -> Said:
    """What PyYAML finds under AutoModel's names (recipes/_dist_utils.py, recipes/llm/train_ft.py),
    of layouts that it accepts.
    """
    data = yaml.safe_load(text)
    split = {name: value for name, value in (_below(data, "distributed") or {}).items()
             if value not in (None, "none", "None")}  # fmt: skip
    degrees = {"tensor_parallel": "tp_size", "pipeline_parallel": "pp_size",
               "context_parallel": "cp_size", "expert_parallel": "ep_size"}  # fmt: skip
    said: Said = {ours: split.get(name, 1) for ours, name in degrees.items()}
    tensor, ranks, experts = (split.get(f"{name}_size", 1) for name in ("tp", "pp", "ep"))
    reshards = split.get("reshard_after_forward")
    if reshards is None and experts > 1:
        reshards = bool((split.get("moe") or {}).get("reshard_after_forward"))
    if reshards is None:
        reshards = ranks == 1
    said["zero_stage"] = 3 if reshards else 2
    said["sequence_parallel"] = tensor > 1 and bool(split.get("sequence_parallel"))
    said["recompute"] = (
        "full" if split.get("activation_checkpointing") in (True, "full") else "none"
    )
    said["global_batch_size"] = _below(data, "step_scheduler.global_batch_size")
    said["micro_batch_size"] = _below(data, "step_scheduler.local_batch_size")
    if ranks > 1:
        said["micro_batch_size"] = (split["pipeline"] or {}).get("pp_microbatch_size", 1)
    packed = _below(data, "packed_sequence.packed_sequence_size")
    said["seq_len"] = (
        packed or _below(data, "dataset.seq_len") or _below(data, "dataset.seq_length")
    )
    return said


def bridge(text: str) -> Said:
    """What OmegaConf finds under Bridge's names (training/config.py, model providers)."""
    data = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    names = {"tensor_parallel": "tensor_model_parallel_size",
             "pipeline_parallel": "pipeline_model_parallel_size",
             "context_parallel": "context_parallel_size",
             "expert_parallel": "expert_model_parallel_size",
             "expert_tensor_parallel": "expert_tensor_parallel_size"}  # fmt: skip
    said = {ours: _below(data, f"model.{name}") for ours, name in names.items()}
    said["micro_batch_size"] = _below(data, "train.micro_batch_size")
    said["global_batch_size"] = _below(data, "train.global_batch_size")
    lengths = [_below(data, "model.seq_length"), _below(data, "dataset.seq_length"),
               _below(data, "dataset.sequence_length")]  # fmt: skip
    said["seq_len"] = next((length for length in lengths if length), None)
    said["sequence_parallel"] = bool(
        _below(data, "model.sequence_parallel") and (said["tensor_parallel"] or 1) > 1
    )
    said["recompute"] = _below(data, "model.recompute_granularity") or "none"
    return said


class _Stub:
    """Whatever a configuration imports: called, it keeps its keyword arguments as attributes."""

    def __init__(self, *_: object, **given: object) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Stub()
        self.__dict__[name] = made
        return made

    def __call__(self, *_: object, **given: object) -> "_Stub":
        return _Stub(**given)

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, _: object) -> "_Stub":
        return _Stub()

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def _with(self, _: object) -> "_Stub":
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __or__ = __floordiv__ = __truediv__ = _with


def _imported(name: str, *_: object) -> types.ModuleType:
    """A module of stubs by any name, but for what copies a configuration."""
    module = _StubModule(name.partition(".")[0])
    if name == "dataclasses":
        vars(module).update(replace=_replaced, dataclass=lambda *_, **__: lambda made: made)
    if name in ("copy", "functools"):
        return builtins.__import__(name)
    return module


def _is_a(value: object, kind: Any) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return isinstance(value, tuple(each for each in kinds if isinstance(each, type)))


def _replaced(section: _Stub, **given: object) -> _Stub:
    return _Stub(**{**vars(section), **given})


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Stub()
        self.__dict__[name] = made
        return made


def torchtitan(text: str, wanted: str) -> Said:
    """What the function `wanted` of the file returns, all that it imports being stubs."""
    scope: dict[str, Any] = {"__name__": "registry", "__file__": "registry.py"}
    scope["__builtins__"] = {**vars(builtins), "__import__": _imported, "isinstance": _is_a}
    exec(compile(text, "registry.py", "exec"), scope)
    config = scope[wanted]()
    degrees = {"tensor_parallel": "tensor_parallel_degree",
               "pipeline_parallel": "pipeline_parallel_degree",
               "context_parallel": "context_parallel_degree",
               "expert_parallel": "expert_parallel_degree"}  # fmt: skip
    said = {ours: _stated(config.parallelism, name) for ours, name in degrees.items()}
    said["seq_len"] = _stated(config.training, "seq_len")
    said["global_batch_size"] = _stated(config.training, "global_batch_size")
    said["micro_batch_size"] = _stated(config.training, "local_batch_size")
    if (said["pipeline_parallel"] or 1) > 1:  # it is split further
        said["micro_batch_size"] = _stated(config.parallelism, "pipeline_parallel_microbatch_size")
    if said["global_batch_size"] == -1:
        said["global_batch_size"] = None
    return said


def _stated(section: Any, name: str) -> Any:
    value = vars(section).get(name)
    return None if isinstance(value, _Stub) else value


def different(reading: Reading, said: Said) -> list[str]:
    """What the second reader found that the reading does not have, one line each."""
    found: dict[str, object] = {**ABSENT, "recompute": reading.recompute.mode}
    found |= {name: fact.value for name, fact in reading.facts.items()}
    if reading.model_config is not None:
        found |= {name: reading.model_config.get(name) for name in SIZES}
    return [f"{name}: {value} was read as {found.get(name)}" for name, value in said.items()
            if value is not None and found.get(name) != value
            and (name not in SIZES or reading.model_config is not None)]  # fmt: skip


def compared(path: Path) -> list[tuple[str, str]]:
    """Per case of a file: what came out (`same`, `named`, `refused`, `WRONG`) and why."""
    text = path.read_text(encoding="utf-8")
    found = recognise(path.name, text)
    readers: dict[str, Callable[[str], Said]] = {"nanotron": nanotron, "bridge": bridge,
                                                 "automodel": automodel}  # fmt: skip
    if found is None or not (found.name in readers or path.suffix == ".py"):
        return []
    try:
        reading = read_config(text, str(path))
    except (UnreadableConfig, IllegalConfig) as error:
        return [("refused", str(error))]
    cases = [reading, *reading.others]
    if path.suffix == ".py":
        second = [torchtitan(text, function_of(case, text)) for case in cases]
    else:
        second = [readers[found.name](text)]
    return [_judged(case, different(case, said)) for case, said in zip(cases, second, strict=True)]


def function_of(case: Reading, text: str) -> str:
    """The function of a case: its first note names it, where a file has several."""
    named = re.match(r"the configuration '(\w+)'", case.notes[0] if case.notes else "")
    only = re.search(r"^def (\w+)\(", text, re.M)
    assert named or only
    return (named or only)[1]  # type: ignore[index]


def _judged(reading: Reading, wrong: list[str]) -> tuple[str, str]:
    named = "; ".join(str(fact.value) for fact in reading.unread)
    if wrong:
        return ("named" if named else "WRONG"), "; ".join(wrong)
    return ("same, named" if named else "same"), named


if __name__ == "__main__":
    counts: collections.Counter[str] = collections.Counter()
    for file in sorted(Path(sys.argv[1]).rglob("*")):
        if file.suffix not in (".py", ".yaml", ".yml") or not file.is_file():
            continue
        try:
            cases = compared(file)
        except Exception as error:
            cases = [("cannot be compared", repr(error))]
        for verdict, why in cases:
            counts[verdict] += 1
            if verdict != "same":
                print(f"{verdict}: {file}: {why[:300]}")
    print(dict(counts))
