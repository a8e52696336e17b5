"""What ms-swift's `--fsdp` stands for: `fsdp2`, a file of JSON, or JSON itself.

    fsdp         words, `full_shard auto_wrap` where it has none
    fsdp_config  the section

Nothing else in it counts. Words of FSDP themselves are version 3's, and stay.

Source: modelscope/ms-swift@3602360a swift/arguments/sft_args.py (_init_fsdp),
swift/config/fsdp2.json.
"""

from collections.abc import Mapping
from typing import Any

from meshplan.executor.frameworks.documents.parse import read_json
from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.hugging_face.nearby import Nearby
from meshplan.planner.case.reading import Fact

_WORDS = "full_shard auto_wrap"
_FSDP2: Mapping[str, Any] = {
    "fsdp": _WORDS,
    "fsdp_config.reshard_after_forward": True,
    "fsdp_config.activation_checkpointing": True,
}


def fsdp_of(stated: Fact, near: Nearby) -> tuple[dict[str, Fact], list[Fact]]:
    """The keys of transformers that `stated` stands for, and the file where it is not there."""
    said = str(stated.value).strip()
    if said == "fsdp2":
        return _at(stated, _FSDP2), []
    if "$" in said or not (said.startswith("{") or said.endswith(".json")):
        return {}, []
    text = said if said.startswith("{") else near.text(said) or near.moved(said)
    if text is None:
        why = "what is sharded is in that file, which is not below this one or a folder above it"
        return _at(stated, {"fsdp": _WORDS}), [Fact(f"fsdp {shown(said)} ({why})", stated.line)]
    inner = {name: fact.value for name, fact in read_json(text).items()}
    section = {name: value for name, value in inner.items() if name.startswith("fsdp_config.")}
    return _at(stated, {"fsdp": inner.get("fsdp", _WORDS), **section}), []


def _at(stated: Fact, values: Mapping[str, Any]) -> dict[str, Fact]:
    return {name: Fact(value, stated.line) for name, value in values.items()}
