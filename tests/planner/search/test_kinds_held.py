"""What of a model of several kinds of layers fits beyond its priced memory, and its budget."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshplan.costmodels.layout import Layout, Stage
from meshplan.planner.answer.answer import case_at, simulated_s, solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.case.predict import stage_memory, step_model_of
from meshplan.planner.cuts.budget import Tally
from meshplan.planner.cuts.simulated_cuts import Cut
from meshplan.planner.search import best_simulated
from meshplan.planner.search.faster import faster_than
from meshplan.planner.search.held_memory import kinds_held
from meshplan.planner.search.held_memory.kinds_held import KindsHeld
from meshplan.planner.search.result import NoLayoutFits


@pytest.mark.parametrize(
    ("bound_s", "left", "more", "expected"),
    [
        pytest.param(0.96, -200_000, 5_000_000, 800_000, id="0.96 < 0.97: -0.2 + 1 million"),
        pytest.param(0.96, -2_300_000, 5_000_000, 700_000, id="-2.3 + 3 x 1 million"),
        pytest.param(0.96, 400_000, 5_000_000, 1_400_000, id="0.4 million may end amid a layout"),
        pytest.param(0.96, 600_000, 5_000_000, 600_000, id="0.6 million are enough to begin"),
        pytest.param(0.98, -200_000, 5_000_000, -200_000, id="0.98 > 0.97: the gap is not wide"),
        pytest.param(0.96, -2_300_000, 1_000_000, -1_300_000, id="no more than 1 million left"),
    ],
)
def test_a_wide_gap_has_more_of_the_budget(
    bound_s: float, left: int, more: int, expected: int
) -> None:
    """A million at a time, as long as a bound is below 0.97 of the best step."""
    held = KindsHeld.__new__(KindsHeld)
    held.__dict__ |= {
        "proof": SimpleNamespace(best_s=1.0),
        "tally": Tally(left=left),
        "_more": more,
    }
    held._widen(bound_s)
    assert held.tally.left == expected
    assert held._more == more - (expected - left)


@pytest.mark.parametrize(("first", "pays", "simulated"), [
    pytest.param(True, {0}, 3, id="longer passes may hide more of a reduction"),
    pytest.param(True, set(), 1, id="else the fewest first layers take least"),
    pytest.param(False, {0}, 1, id="ranks that recompute apart have one mix"),
])  # fmt: skip
def test_which_mixes_of_a_cut_are_simulated(
    first: bool, pays: set[int], simulated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that fit only where more recomputation than memory asks for may pay."""
    monkeypatch.setattr(kinds_held, "ranks_it_pays", lambda *_: frozenset(pays))
    held, bare = KindsHeld.__new__(KindsHeld), (Stage(2), Stage(2))
    held._limit = lambda: 1.0
    ranks = SimpleNamespace(
        problem=SimpleNamespace(first=first, modes=(0, 2)), fastest_of_cut=lambda _: bare,
        mixes_that_fit=lambda _: iter([bare] * 3),
    )  # fmt: skip
    mixes = held._mixes(cast(Any, ranks), Cut(0.0, bare, tuple), cast(Any, None))
    assert mixes == [bare] * simulated


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "gpus", "cluster", "seq_len", "batch", "engine", "headroom", "gain"),
    [
        pytest.param(
            "deepseek-v2-lite", 8, "l40s-8", 2048, 64, "nemo", "20%", 0.035,
            id="the first layer dense: 3.9 % faster",
        ),
        pytest.param(
            "qwen3.5-27b", 16, "dgx-h100", 16384, 16, "mlperf", "40%", 0.01,
            id="linear and full attention: 1 % faster",
        ),
    ],
)  # fmt: skip
def test_what_fits_beyond_the_priced_memory_is_planned(
    monkeypatch: pytest.MonkeyPatch, model: str, gpus: int, cluster: str, seq_len: int, batch: int,
    engine: str, headroom: str, gain: float,
) -> None:  # fmt: skip
    """Faster than the best that fits by the bound, and it fits by the memory of `check`."""
    question = ask(Arguments(
        model=model, gpus=gpus, cluster=cluster, seq_len=str(seq_len), global_batch=batch,
        engine=engine, headroom=headroom, pins={"pipeline_parallel": "4", "virtual_stages": "1"},
    )).question  # fmt: skip
    found = solve(question, 1)
    monkeypatch.setattr(best_simulated, "look_beyond_priced", lambda proof: None)
    priced = solve(question, 1)
    best = found.solutions[0]
    assert best.step_time_s < (1 - gain) * priced.solutions[0].step_time_s
    assert found.status == "OPTIMAL"
    model_of = step_model_of(case_at(question, best.layout))
    needed = max(float(stage.reserved) for stage in stage_memory(model_of))
    assert needed <= question.cluster.fillable_bytes


def test_what_needs_no_less_than_is_priced_is_not_asked_again() -> None:
    """Granite's ranks need less only where layers are replayed. None of the layouts that may be
    faster replays any, so asking ranks of those took the budget for nothing: a gap of 1.8 %.
    """
    found = solve(ask(Arguments(
        model="granite-4.0-h-small", gpus=12288, cluster="dgx-h100", global_batch=16384,
        engine="internevo",
    )).question, 1)  # fmt: skip
    assert found.status == "OPTIMAL"


@pytest.mark.parametrize(("spare_bytes", "fits"), [(2**20, True), (-(2**20), False)])
def test_a_stage_without_layers_has_no_buffers_of_theirs(spare_bytes: int, fits: bool) -> None:
    """Three layers on three ranks, whose last has the head alone and the most memory: what `check`
    says that fits is no refusal, though the priced memory has each rank keep stand-in gradients.
    """
    pins = {"pipeline_parallel": "3", "recompute": "full", "tensor_parallel": "1"}
    question = ask(Arguments(
        model="llama-3.1-8b", gpus=3, cluster="mi300x-8", seq_len="65536", global_batch=6,
        engine="megatron", pins=pins | {"context_parallel": "1"},
    )).question  # fmt: skip
    model = replace(question.model, pattern=question.model.pattern[:3])
    question = replace(question, model=model)
    stages = Stage(1, full_layers=1), Stage(2, full_layers=2), Stage(0)
    memory = stage_memory(
        step_model_of(case_at(question, Layout(pipeline_parallel=3, stages=stages)))
    )
    assert max(range(3), key=lambda rank: memory[rank].needed) == 2
    usable = with_usable(question.cluster, memory[2].needed + spare_bytes)
    question = replace(question, cluster=usable)
    if fits:
        assert solve(question, 1).solutions[0].layout.stages[2] == Stage(0)
    else:
        with pytest.raises(NoLayoutFits):
            solve(question, 1)


@pytest.mark.parametrize(("spare_bytes", "fits"), [(0, True), (-1, False)])
@pytest.mark.parametrize("model", ["llama-3.2-3b", "gemma-3-4b"])
def test_memory_filled_to_the_byte_by_the_first_layers_replay(
    model: str, spare_bytes: int, fits: bool
) -> None:
    """One sequence on one GPU, all layers recomputed: no gradient is there at the loss, and most is
    held when all but the first layer's and the embedding's are. No layout needs less.
    """
    question = ask(Arguments(
        model=model, gpus=1, cluster="dgx-h100", seq_len="16384", global_batch=1,
        engine="accelerate-chunked-loss", optimizer_states="bf16", pins={"recompute": "full"},
    )).question  # fmt: skip
    layers = len(question.model.pattern)
    layout = Layout(zero_stage=2, stages=(Stage(layers, full_layers=layers),))
    memory = stage_memory(step_model_of(case_at(question, layout)))[0]
    assert min(memory.gradients, memory.activations) > 0
    usable = with_usable(question.cluster, memory.needed + spare_bytes)
    question = replace(question, cluster=usable)
    if fits:
        assert solve(question, 1).solutions[0].layout.stages == layout.stages
    else:
        with pytest.raises(NoLayoutFits):
            solve(question, 1)


def test_nothing_is_faster_than_a_millionth_of_a_second() -> None:
    """No row of two kinds of layers has a bound below it, so none is asked for its memory."""
    question = ask(Arguments(
        model="gemma-2-9b", gpus=8, cluster="dgx-h100", seq_len="2048", global_batch=8,
        engine="automodel", pins={},
    )).question  # fmt: skip
    assert question.setting.has_several_kinds
    found = faster_than(
        question, lambda layout: simulated_s(case_at(question, layout)), 1e-6, 1_000_000
    )
    assert found.layout is None
    assert found.bound_s == 1e-6
