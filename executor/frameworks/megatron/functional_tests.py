"""Megatron-LM's own test cases: YAML mappings of flags to values, started by a recipe beside them.

    tests/functional_tests/test_cases/gpt/gpt3_mcore_tp2_pp2_dgx_a100_1N8G/model_config.yaml

The file states neither program nor GPUs. The folders do, until 2025 by `1N8G`: one node of 8 GPUs,
as the recipes have it (`nodes`, `gpus` in deep-spin/Megatron-LM-pretrain's
tests/functional_tests/jet_recipes/gpt.yaml). Source: NVIDIA/Megatron-LM tests/functional_tests.
"""

import re

from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import shown
from meshplan.planner.case.reading import Fact, NothingToRead

_TEST_CASE = re.compile(r"^MODEL_ARGS(_[0-9]+)?:\s*$", re.M)
_RUN = re.compile(r"MODEL_ARGS(_[0-9]+)?")
_HYBRID = re.compile(r"^\s*--hybrid-(?:override|layer)-pattern:", re.M)
_TEST = re.compile(r"test_cases/([\w-]+)/")
"""Where Megatron-LM keeps a model's test cases (tests/functional_tests/README.md)."""
_GPUS = re.compile(r"test_cases/[\w-]+/[^/]*_([1-9]\d{0,3})N([1-9]\d?)G(?:_[^/]*)?/")
_MODE = re.compile(r"^MODE:[ \t]*[\"']?(inference|rl)\b", re.M)
_MODES = {"inference": "it trains nothing", "rl": "it trains and generates in turn"}
_ASSUMED = "the program is in the test's recipe, and taken to train a GPT: assumed"


def is_test_case(text: str) -> bool:
    """Whether a file is a test case of Megatron-LM."""
    return _TEST_CASE.search(text) is not None


def check_test(path: str, text: str, others: re.Pattern[str]) -> None:
    """Refuse a test case that does not train, by its MODE, or of another model than a GPT (`others`
    are their names), which only its folder names.
    """
    if mode := _MODE.search(text):
        raise NothingToRead(f"a test case of MODE {mode[1]}: {_MODES[mode[1]]}")
    model = _TEST.search(path)
    if model and not _HYBRID.search(text) and (other := others.search(model[1])):
        raise NothingToRead(f"a test case of {shown(model[1])} ({other[0]}): not modelled")


def gpus_of_test(path: str) -> tuple[Fact | None, tuple[str, ...]]:
    """The GPUs by the folder's name, None where it says none, and what is assumed."""
    found = _GPUS.search(path)
    if found is None:
        return None, (_ASSUMED,)
    gpus = int(found[1]) * int(found[2])
    said = f"the folder's name says {gpus} GPUs ({found[1]}N{found[2]}G)"
    return Fact(gpus, 1), (_ASSUMED, said)


def runs_of_test(text: str) -> list[dict[str, Fact]]:
    """The flags of each run."""
    runs: dict[str, dict[str, Fact]] = {}
    for name, fact in read_yaml(text).items():
        section, _, flag = name.partition(".")
        if _RUN.fullmatch(section) and flag.startswith("--") and fact.value is not False:
            name = flag[2:].replace("-", "_")
            value = fact.value if isinstance(fact.value, list | bool) else _unescaped(fact.value)
            if name == "recompute_modules" and isinstance(value, str):
                value = value.strip("[]").replace(",", " ").split()
            runs.setdefault(section, {})[name] = Fact(value, fact.line)
    return [*runs.values()] or [{}]


def _unescaped(value: object) -> str:
    """A value without the backslashes that the shell takes away which runs the test cases, before
    the signs of a layout (tests/functional_tests/shell_test_utils/_run_training.sh).
    """
    return re.sub(r"\\+([|()])", r"\1", str(value))
