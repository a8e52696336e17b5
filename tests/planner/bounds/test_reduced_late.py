"""A bound with what the first rank reduces late counts its replays once."""

import json
from dataclasses import replace
from pathlib import Path

from meshplan.costmodels.layout import Stage
from meshplan.planner.answer.answer import case_at, simulated_s, solve
from meshplan.planner.answer.question import Arguments, ask

TWO_LAYERS = {
    "model_type": "gemma3_text", "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "vocab_size": 262208, "tie_word_embeddings": True, "sliding_window": 4096,
    "layer_types": ["sliding_attention"] * 2, "max_position_embeddings": 131072,
}  # fmt: skip


def test_a_replay_that_hides_more_of_a_reduction_is_counted_once(tmp_path: Path) -> None:
    """On a slow network, with one micro-batch: the layer that replays only its feed-forward is
    faster by 2.3 % than two that replay all, though what either replays hides some of the rest.
    """
    (tmp_path / "config.json").write_text(json.dumps(TWO_LAYERS))
    pins = {"tensor_parallel": "4", "zero_stage": "1", "pipeline_parallel": "1"}
    question = ask(Arguments(
        model=str(tmp_path / "config.json"), gpus=12, gpu="mi250x", gpus_per_node=3,
        network="10Gb/s", seq_len="4096", global_batch=12, engine="native", headroom="90%",
        pins=pins | {"micro_batch_size": "4", "context_parallel": "1"},
    )).question  # fmt: skip
    found = solve(question, 1)
    layout = replace(found.solutions[0].layout, selective_modules=("mlp",))
    mixed = replace(layout, stages=(Stage(2, selective_layers=1, full_layers=1),))
    full = replace(layout, stages=(Stage(2, full_layers=2),))
    mixed_s, full_s = (simulated_s(case_at(question, each)) for each in (mixed, full))
    assert mixed_s < 0.98 * full_s
    assert found.bound_s <= found.solutions[0].step_time_s <= mixed_s
