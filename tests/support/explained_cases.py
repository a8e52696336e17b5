"""Layouts of Llama 3.1 8B on 32 H100, for what explains a step."""

import pytest

from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.planner.answer.answer import case_at
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.resolve import Case

ASKED = ask(
    Arguments(model="llama-3.1-8b", gpus=32, cluster="dgx-h100", seq_len="4096", global_batch=128)
)
EXAMPLE = {
    "tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 1, "pipeline_parallel": 4,
    "data_parallel": 4, "stages": even_stages(32, 4),
}  # fmt: skip


def case(**fields: object) -> Case:
    """A layout of llama-3.1-8b on 32 GPUs: dp4 tp2 pp4, but for `fields`."""
    return case_at(ASKED.question, Layout(**{**EXAMPLE, **fields}))  # type: ignore[arg-type]


LAYOUTS = [
    pytest.param(case(), id="1f1b"),
    pytest.param(case(stages=even_stages(32, 4, "full")), id="full recompute"),
    pytest.param(
        case(virtual_stages=2, schedule="interleaved_1f1b", stages=even_stages(32, 8)),
        id="interleaved",
    ),
    pytest.param(
        case(pipeline_parallel=1, data_parallel=16, stages=(Stage(32),)), id="no pipeline"
    ),
]
