"""Outputs that backward passes make again: by hand, by law, and beside Meta's published memory."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

MIB, GIB = 2**20, 2**30
CLUSTER = load_cluster("meta-h100")
META = load_engine("meta")


def step_model(engine: Engine, name: str, layout: Layout, layers: int, batch: int) -> StepModel:
    """So many layers of a model in sequences of 8,192."""
    model = model_from_config(load_model_config(name), name)
    model = replace(model, pattern=model.pattern[:layers])
    training = Training(seq_len=8192, global_batch_size=batch)
    return StepModel(Setting(model, training, CLUSTER, engine, Tuning()), layout)


def chunks_of_one(*, pp: int, vpp: int, balanced: bool) -> Layout:
    """Interleaved 1F1B of Llama 3.1 405B's dimensions over tp 8, a layer to a chunk; `balanced`:
    the embedding and the head have the first and the last chunk.
    """
    ends, inner = (Stage(0 if balanced else 1),), (Stage(1),) * (pp * vpp - 2)
    return Layout(
        tensor_parallel=8, pipeline_parallel=pp, virtual_stages=vpp, sequence_parallel=True,
        zero_stage=1, schedule="interleaved_1f1b", stages=ends + inner + ends,
    )  # fmt: skip


def remaking(engine: Engine, *, remakes: bool) -> Engine:
    """`engine`, with or without the habit."""
    kernels = engine.kernels.model_copy(update={"remakes_outputs": remakes})
    return engine.model_copy(update={"kernels": kernels})


def test_a_layer_of_405b_by_hand() -> None:
    """MiB over tp 8: the stream 32 (1,024 tokens of 16,384 numbers of 2 bytes) before each half;
    queries 32, keys and values 2 each, output 32, 4 bytes for each of 16 heads 0.5; gate and up
    104 each. Without the habit both norms' outputs (32 each) and SwiGLU's (104) too.
    """
    layout = chunks_of_one(pp=4, vpp=2, balanced=True)
    kept = 2 * 32 + 32 + 2 + 2 + 32 + 0.5 + 2 * 104
    own = step_model(META, "llama-3.1-405b", layout, 6, 8)
    plain = step_model(remaking(META, remakes=False), "llama-3.1-405b", layout, 6, 8)
    assert own.layer_saved_bytes(0, "none") == kept * MIB
    assert plain.layer_saved_bytes(0, "none") == (kept + 2 * 32 + 104) * MIB


PUBLISHED_GB = (44.4, 43.8, 43.1, 42.4, 41.8, 41.1)
"""Allocated on ranks 1 to 6 of 8, which hold four layers each (ISCA 2025, figure 10a; read from the
drawing, whose figures have one decimal)."""


def test_ranks_of_a_pipeline_differ_as_published() -> None:
    """Each rank has two chunks less in flight than the one before it: 2 x 340.5 MiB."""
    layout = chunks_of_one(pp=8, vpp=4, balanced=True)
    step = step_model(META, "llama-3.1-405b", layout, 30, 16)
    ours = [memory.allocated / GIB for memory in step.memory()[1:7]]
    beyond = [there - here for there, here in zip(PUBLISHED_GB, ours, strict=True)]
    assert max(beyond) - min(beyond) < 0.1
    assert 0 < min(beyond) < 0.12 * PUBLISHED_GB[0]


def test_what_the_unbalanced_ends_add() -> None:
    """12.5 GB more on rank 0 with a layer in the embedding's chunk (49.9 after 37.4), 15 of whose
    micro-batches are in flight.
    """
    first = [
        step_model(META, "llama-3.1-405b", layout, layers, 16).memory()[0].allocated / GIB
        for layout, layers in (
            (chunks_of_one(pp=8, vpp=4, balanced=True), 30),
            (chunks_of_one(pp=8, vpp=4, balanced=False), 32),
        )
    ]
    assert first[1] - first[0] == pytest.approx(12.5, rel=0.08)


@settings(max_examples=20)
@given(
    engine=st.sampled_from(["generic", "megatron", "deepspeed", "torchtitan"]),
    name=st.sampled_from(["llama-3.1-8b", "gpt3-1.3b", "mixtral-8x7b"]),
    tp=st.sampled_from([1, 2, 4]),
)
def test_what_is_not_kept_is_made_once(engine: str, name: str, tp: int) -> None:
    """What a layer keeps no longer is in the working set of its backward pass, which takes longer;
    FLOPs and the forward pass are the same.
    """
    layout = Layout(tensor_parallel=tp, sequence_parallel=tp > 1, zero_stage=0, stages=(Stage(2),))
    plain, own = (
        step_model(remaking(load_engine(engine), remakes=remakes), name, layout, 2, 4)
        for remakes in (False, True)
    )
    spared = plain.layer_saved_bytes(0, "none") - own.layer_saved_bytes(0, "none")
    assert spared > 0
    assert own.working_bytes(0, "none") == pytest.approx(plain.working_bytes(0, "none") + spared)
    before, after = plain.plain_cost(0, "none"), own.plain_cost(0, "none")
    assert after.input_grad.total_s > before.input_grad.total_s
    assert after.forward.total_s == before.forward.total_s
    assert after.model_flops == before.model_flops
    assert after.replay_flops == 0
    assert own.layer_saved_bytes(0, "full") == plain.layer_saved_bytes(0, "full")
