"""Plans of `native` that fit by every moment: what they are against all mixes, and pins."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nightly import later
from simulated_oracle import recomputed

from meshplan.costmodels.layout import Schedule
from meshplan.planner.answer.answer import case_at, simulated_s, solve
from meshplan.planner.answer.question import Arguments, ask


@later(held_by="test_pins_of_the_answer_give_the_answer")
def test_a_plan_that_recomputes_nothing_is_looked_at_where_ranks_have_many_mixes() -> None:
    """A pin of what the answer recomputes finds no faster one (by 0.08 % where such mixes are not
    looked at).
    """
    asked: dict[str, Any] = {
        "model": "qwen3-32b", "gpus": 32, "cluster": "dgx-h100", "seq_len": "2048",
        "global_batch": 2048, "engine": "native", "headroom": "6GiB",
    }  # fmt: skip
    best, pinned = (
        solve(ask(Arguments(**asked, pins=pins)).question, 1).solutions[0]
        for pins in ({}, {"recompute": "none"})
    )
    assert {stage.full_layers + stage.selective_layers for stage in pinned.layout.stages} == {0}
    assert best.step_time_s <= pinned.step_time_s * (1 + 1e-6)


CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 768, "intermediate_size": 11008,
    "num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 1,
    "vocab_size": 50257, "head_dim": 128, "num_experts": 12, "num_experts_per_tok": 4,
    "moe_intermediate_size": 768, "decoder_sparse_step": 1, "norm_topk_prob": True,
    "mlp_only_layers": [0, 1], "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "headroom"), [("4", "75%"), ("1", "60%"), ("2", "70%")])
def test_with_one_chunk_per_rank_what_fits_by_every_moment_is_found(
    tmp_path: Path, ranks: str, headroom: str
) -> None:
    """Against every mix and schedule of 4 layers on 4 GPUs; on 4 ranks by 8 % the faster one."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    q = ask(Arguments(
        model=str(tmp_path), gpus=4, gpu="rtx-4090", gpus_per_node=4, network="10Gb/s",
        seq_len="16384", global_batch=4 // int(ranks), engine="native", headroom=headroom,
        pins={"context_parallel": "1", "tensor_parallel": "1", "pipeline_parallel": ranks,
              "expert_parallel": "1", "virtual_stages": "1", "zero_stage": "0"},
    )).question  # fmt: skip
    found = solve(q, 1).solutions[0]
    schedules: tuple[Schedule, ...] = ("1f1b", "gpipe", "zb_h1")
    for schedule in schedules[: 3 if int(ranks) > 1 else 1]:
        counts = tuple(stage.layers for stage in found.layout.stages)
        for stages in recomputed(counts, (0, 1, 2), "any"):
            layout = replace(found.layout, schedule=schedule, stages=stages)
            assert found.step_time_s <= simulated_s(case_at(q, layout)) * (1 + 1e-6)


def test_a_rank_of_32_layers_may_mix_all_modes() -> None:
    """34 x 33 / 2 = 561 mixes, and 33 of the two modes that a pin leaves: it finds none faster."""
    asked = Arguments(
        model="mpt-7b", gpus=16, cluster="l40s-8", seq_len="16384", global_batch=32,
        engine="native", pins={"pipeline_parallel": "1", "zero_stage": "3"},
    )  # fmt: skip
    pinned = replace(asked, pins={**asked.pins, "recompute": "selective,full"})
    free, of_two = (solve(ask(each).question, 1).solutions[0] for each in (asked, pinned))
    assert free.step_time_s <= of_two.step_time_s * (1 + 1e-9)


DENSE = {"model": "qwen3-4b", "gpus": 16, "cluster": "l40s-8", "seq_len": "16384",
         "global_batch": 64}  # fmt: skip
EXPERTS = {"model": "gpt-oss-20b", "gpus": 8, "cluster": "dgx-b200", "seq_len": "131072",
           "global_batch": 12}  # fmt: skip
AXES = ("data_parallel", "pipeline_parallel", "virtual_stages")


@pytest.mark.parametrize(
    ("asked", "axes"),
    [
        pytest.param(DENSE, AXES[:1], id="dp of the answer", marks=pytest.mark.nightly),
        pytest.param(DENSE, AXES[1:], id="its pipeline", marks=pytest.mark.nightly),
        pytest.param(EXPERTS, AXES[:2], id="one rank, a mixture of experts"),
    ],
)
def test_pins_of_the_answer_give_the_answer(asked: dict[str, Any], axes: tuple[str, ...]) -> None:
    """Each of its own degrees alone: no other step than what the printed gap leaves."""
    asked = {**asked, "engine": "native"}
    free = solve(ask(Arguments(**asked, pins={})).question, 1)
    layout, best_s = free.solutions[0].layout, free.solutions[0].step_time_s
    for axis in axes:
        pins = {axis: str(getattr(layout, axis))}
        pinned = solve(ask(Arguments(**asked, pins=pins)).question, 1)
        step_s = pinned.solutions[0].step_time_s
        assert free.bound_s * (1 - 2e-6) <= step_s
        assert pinned.bound_s <= best_s * (1 + 2e-6)
        if free.status == pinned.status == "OPTIMAL":
            assert step_s == pytest.approx(best_s, rel=2e-6)
