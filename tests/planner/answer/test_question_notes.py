"""What a question's notes say of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.answer.question import Arguments, BadQuestion, ask
from meshplan.planner.report.layout_words import batch_words


@pytest.mark.parametrize(
    ("seq_len", "said"),
    [
        ("2048", False),
        pytest.param("8k", True, id="a table of 2,048 positions"),
    ],
)
def test_sequences_that_the_model_is_not_made_for_are_said(seq_len: str, said: bool) -> None:
    """GPT-3's configuration has 2,048 learned positions; longer ones are planned, and named."""
    asked = ask(
        Arguments(model="gpt3-125m", gpus=8, cluster="dgx-h100", global_batch=64, seq_len=seq_len)
    )
    words = "8,192 tokens, beyond the 2,048 of the model's configuration (n_positions)"
    assert any(words in note for note in asked.notes) is said


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("llama-3.1-8b", {"expert_imbalance": 1.5}, "--expert-imbalance 1.5: llama-3.1-8b has no"),
        (
            "llama-3.1-8b",
            {"pins": {"dispatcher": "deepep"}},
            "--dispatcher deepep: llama-3.1-8b has",
        ),
        (
            "llama-3.1-8b",
            {"pins": {"modules_apart": "on"}},
            "--modules-apart on: llama-3.1-8b has no",
        ),
        ("llama-3.1-8b", {"pins": {"modules_apart": "on,off"}}, None),
        ("llama-3.1-8b", {"expert_imbalance": 1.0}, None),
        ("mixtral-8x7b", {"expert_imbalance": 1.5, "pins": {"dispatcher": "deepep"}}, None),
        ("deepseek-v3", {"pins": {"modules_apart": "on"}}, None),
    ],
)
def test_what_the_model_does_not_have_is_not_passed_over(
    model: str, more: dict[str, Any], said: str | None
) -> None:
    """Options of experts and of multi-token prediction, of a model without."""
    arguments = Arguments(model=model, gpus=8, cluster="dgx-h100", global_batch=64, **more)
    if said is None:
        ask(arguments)
        return
    with pytest.raises(BadQuestion, match=said):
        ask(arguments)


def test_one_replica_is_not_several() -> None:
    """64 sequences one by one; then 2 x 4 x 8 = 64."""
    training = Training(seq_len=128, global_batch_size=64)
    alone = Layout(stages=even_stages(2, 1))
    assert batch_words(alone, training) == "1 replica x 1 sequence x 64 micro-batches = 64, exactly"
    several = replace(alone, data_parallel=2, micro_batch_size=4)
    said = "2 replicas x 4 sequences x 8 micro-batches = 64, exactly"
    assert batch_words(several, training) == said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"gpu": "rtx-4090"}, "assumed: nodes of 4 GPUs and the network of workstation-4x4090"),
        ({"gpu": "h100"}, "assumed: nodes of 8 GPUs and the network of dgx-h100"),
        (
            {"gpu": "h100", "network": "8x400Gb/s"},
            "as stated: network 400 Gb/s of each GPU, 3200 Gb/s of a node",
        ),
        (
            {"gpu": "h100", "network": "3.2Tb/s"},
            "no card of one GPU that we know has more than 800 Gb/s: for 3200 Gb/s of a node write "
            "8x400Gb/s",
        ),
        ({"cluster": "dgx-h100"}, None),
    ],
)
def test_nodes_and_network_are_said_where_nobody_named_them(
    more: dict[str, str], said: str | None
) -> None:
    """A GPU's name alone stands for the machine it is usual in, whose network is a choice."""
    notes = ask(Arguments(model="llama-3.1-8b", gpus=16, global_batch=64, **more)).notes
    assert any("network" in note for note in notes) is (said is not None)
    assert said is None or any(said in note for note in notes)


def test_one_gpu_has_no_network_to_assume() -> None:
    """Nothing is said of nodes where one GPU is asked for by its name."""
    notes = ask(Arguments(model="qwen2.5-0.5b", gpus=1, global_batch=8, gpu="rtx-4090")).notes
    assert not any("network" in note for note in notes)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (12, ["assumed: 12 GPUs are 1 whole node of 8 and 4 GPUs of another one"]),
        (25, ["assumed: 25 GPUs are 3 whole nodes of 8 and 1 GPU of another one"]),
        (16, []),
        pytest.param(4, [], id="fewer than a node has"),
    ],
)
def test_a_node_that_is_not_whole_is_said(gpus: int, said: list[str]) -> None:
    """A plan of 12 GPUs is one of two machines, whose second has four idle GPUs."""
    asked = ask(Arguments(model="llama-3.1-8b", gpus=gpus, global_batch=300, cluster="dgx-h100"))
    assert [note for note in asked.notes if "whole node" in note] == said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "all weights are trained, from 16 bits"),
        ({"lora_rank": 16}, "in bf16 (--base-precision nf4 or int8 is QLoRA)"),
        ({"lora_rank": 16, "base_precision": "nf4"}, "the frozen weights are priced in nf4"),
    ],
)
def test_how_a_quantised_checkpoint_is_priced_is_said(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """What it is stored in is not what it is trained in, nor what is frozen beside adapters."""
    config = load_model_config("llama-3.1-8b") | {"quantization_config": {"quant_method": "fp8"}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    asked = ask(Arguments(
        model=str(path), gpus=8, cluster="dgx-h100", global_batch=64, engine="accelerate", **more,
    ))  # fmt: skip
    (note,) = (note for note in asked.notes if "quantization of the checkpoint (fp8)" in note)
    assert note.endswith(said)


@pytest.mark.parametrize(("model", "cluster", "engine", "said"), [
    ("gpt3-125m", "dgx-h200", "accelerate", True), ("gpt3-125m", "dgx-h200", "generic", True),
    ("gpt3-125m", "dgx-h200", "megatron-bridge", False),
    ("gpt3-125m", "dgx-a100", "accelerate", False),
    pytest.param("gpt3-125m", "dgx-h200", "hai-llm", False, id="a kernel of its own"),
    pytest.param("gpt3-125m", "dgx-h200", "verl-fsdp", False, id="the flash-attn package"),
    pytest.param("gemma-3-4b", "dgx-h200", "generic", True, id="heads of 256 on Hopper"),
    pytest.param("gemma-2-9b", "dgx-b200", "generic", False, id="heads of 256 on Blackwell"),
])  # fmt: skip
def test_the_release_of_pytorch_that_chooses_the_attention_is_said(
    model: str, cluster: str, engine: str, said: bool
) -> None:
    """Where a release before it runs another kernel; on an A100 all run FlashAttention-2, and heads
    of 256 (Gemma's) on Blackwell, too.
    """
    asked = ask(Arguments(model=model, gpus=8, cluster=cluster, engine=engine, global_batch=64))
    assert any(note.startswith("assumed: PyTorch 2.13, ") for note in asked.notes) is said
