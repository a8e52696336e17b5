"""The kind of context parallelism of a Megatron script that names none: p2p, Megatron's default."""

import re

import pytest

from meshplan.costmodels.layout import InvalidLayout
from meshplan.executor.frameworks import read_config
from meshplan.planner.case.resolve import Case, check_case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.fixes import fix_illegal

SCRIPT = (
    "torchrun pretrain_gpt.py --tensor-model-parallel-size 1 --context-parallel-size {cp} "
    "--micro-batch-size 1 --global-batch-size 8 --seq-length 8192 --bf16 "
    "--use-distributed-optimizer {more}"
)


def case_of(model: str, cp: int, more: str = "") -> Case:
    """The script for a model on one node."""
    given = Settings(cluster="dgx-h100", gpus=8, model=model)
    return resolve(read_config(SCRIPT.format(cp=cp, more=more), "train.sh"), given, Settings())


def test_windows_do_not_go_round() -> None:
    """Gemma 2 has sliding windows, which ring attention refuses, said or not."""
    for more in ("", "--cp-comm-type p2p"):
        case = case_of("gemma-2-9b", 2, more)
        with pytest.raises(InvalidLayout, match=re.escape("ring: not with sliding windows")):
            check_case(case)
        fix = fix_illegal(case)
        assert fix is not None
        assert fix.text == "context_kind all_gather"
    check_case(case_of("gemma-2-9b", 2, "--cp-comm-type all_gather"))
    check_case(case_of("gemma-2-9b", 1))


def test_other_models_and_engines() -> None:
    """Full attention goes round; Megatron-DeepSpeed has no such choice."""
    check_case(case_of("llama-3.1-8b", 2))
    assert case_of("llama-3.1-8b", 2).layout.context_kind == "ring"
    assert case_of("llama-3.1-8b", 1).layout.context_kind == ""
    assert case_of("llama-3.1-8b", 2, "--deepspeed").layout.context_kind == ""
