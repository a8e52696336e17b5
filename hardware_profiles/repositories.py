"""Repositories of Hugging Face as names of the catalogue.

A repository is known by its last part, less the words that name a tuning or a date, or as one whose
sizes are those of a model in the catalogue. What names a quantised checkpoint is no tuning. A
folder that ModelScope downloaded has `___` for each point (modelscope/modelscope
hub/utils/utils.py, get_model_masked_directory).
"""

import re
from collections.abc import Collection, Iterator, Mapping

_TUNING = re.compile(r"instruct|chat|base|hf|it|pt|bf16|thinking|v\d+(\.\d+)?|\d{4}")

SAME_SIZES: Mapping[str, str] = {
    **{f"qwen2-{size}": f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "7b", "72b")},
    **{f"qwen2.5-coder-{size}": f"qwen2.5-{size}" for size in ("7b", "32b")},
    "qwen2.5-math-7b": "qwen2.5-7b",
    **{f"deepseek-r1-distill-qwen-{size}": f"qwen2.5-{size}" for size in ("7b", "14b", "32b")},
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "qwq-32b": "qwen2.5-32b",
    **dict.fromkeys(("deepseek-r1", "deepseek-v3.1"), "deepseek-v3"),
    **dict.fromkeys(("minimax-m2.5", "minimax-m2.7"), "minimax-m2"),
    "llama-4-scout-17b-16e": "llama-4-scout", "llama-4-maverick-17b-128e": "llama-4-maverick",
    "glm-5.1": "glm-5", "kimi-k2.6": "kimi-k2.5", "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
}  # fmt: skip
"""Models whose sizes are those of one in the catalogue, each by its own config.json. The 1.5B of
DeepSeek-R1's distillates is none: its head is not tied, as that of Qwen2.5-1.5B is.
"""


OTHER_SIZES = frozenset({"mistral-7b-v0.3", "mistral-7b-instruct-v0.3"})
"""Releases whose vocabulary is not that of the model that their shorter name says (32,768)."""


def named_in(repository: str, names: Collection[str]) -> str | None:
    """Which of `names` a repository, or its address, stands for: `Qwen/Qwen3-8B` for `qwen3-8b`."""
    last = repository.rstrip("/").rpartition("/")[2].replace("___", ".")
    tail = last.lower().replace("_", "-")
    if tail in OTHER_SIZES:
        return None
    known = {**SAME_SIZES, **{name: name for name in names}}
    return next((known[name] for name in _shorter(tail) if name in known), None)


def _shorter(name: str) -> Iterator[str]:
    """A repository's name, and less one by one the last words that name a tuning; then the same
    without dates (`olmo-2-1124-7b-instruct`).
    """
    yield name
    plain = re.sub("^(meta|nvidia)-", "", name).split("-")
    for words in (plain, [word for word in plain if not re.fullmatch(r"\d{4}", word)]):
        for end in range(len(words), 0, -1):
            yield "-".join(words[:end])
            if not _TUNING.fullmatch(words[end - 1]):
                break
