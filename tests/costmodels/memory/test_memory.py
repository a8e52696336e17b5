"""Memory of a rank: totals of a paper, recompute and schedules by hand, what is held at most."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.memory.states import (
    activation_peak,
)
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.ranks.memory import gathered_bytes as rank_gathered_bytes
from meshplan.costmodels.schedule.in_flight import in_flight
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning


@pytest.mark.parametrize(
    ("engine", "precision", "pipeline", "zero", "gradients", "optimizer"),
    [
        pytest.param("megatron-deepspeed", "bf16", 1, 0, 2 + 4, 12 / 4, id="fp32 sums, and / dp 4"),
        pytest.param("bigscience", "bf16", 2, 1, 2 + 4, 12 / 4, id="the same in stage 1"),
        pytest.param("megatron-deepspeed", "fp16", 1, 0, 2, 12, id="fp16: another optimizer"),
        pytest.param("deepspeed", "bf16", 2, 0, 2 + 2, 12 / 4, id="a pipeline: 16-bit sums"),
        pytest.param("deepspeed", "bf16", 1, 0, 2, 12, id="no pipeline: nothing is sharded"),
        pytest.param("deepspeed", "bf16", 2, 1, 2, 12 / 4, id="ZeRO's own optimizer"),
    ],
)  # fmt: skip
def test_bf16_sums_of_deepspeed(
    engine: str, precision: str, pipeline: int, zero: int, gradients: float, optimizer: float
):
    """Bytes of a parameter on a rank of four replicas, from 2 bytes of its weight."""
    la = Layout(data_parallel=4, pipeline_parallel=pipeline, zero_stage=zero,
                stages=even_stages(4, pipeline))  # fmt: skip
    training = Training(seq_len=2048, global_batch_size=8, precision=precision)  # type: ignore[arg-type]
    setting = Setting(
        gpt(16, 1024, 4), training, load_cluster("dgx-a100"), load_engine(engine), Tuning()
    )
    memory = StepModel(setting, la).memory()[0]
    parameters = float(memory.weights) / 2
    assert float(memory.gradients) / parameters == pytest.approx(gradients)
    assert float(memory.optimizer) / parameters == pytest.approx(optimizer)


@pytest.mark.parametrize(
    ("engine", "embedding"),
    [
        pytest.param("torchtitan", 0, id="a unit of its own: given back"),
        pytest.param("accelerate", 2, id="in one unit with the head: 2 V h"),
    ],
)
@pytest.mark.parametrize("pipeline", [1, 2])
def test_what_zero_3_holds_of_the_ends_at_the_loss(engine: str, embedding: int, pipeline: int):
    """The head, 2 bytes of a number and 4 of its gradient, and of the embedding on its rank at most
    its weights.
    """
    model = replace(gpt(16, 1024, 4), tied=False)
    training = Training(seq_len=2048, global_batch_size=8)
    la = Layout(data_parallel=4, pipeline_parallel=pipeline, zero_stage=3,
                stages=even_stages(4, pipeline))  # fmt: skip
    engines = load_engine(engine)
    bare = engines.kernels.model_copy(update={"counts_gradients": False})  # layers need less
    plain = engines.model_copy(update={"kernels": bare})
    setting = Setting(model, training, load_cluster("dgx-a100"), plain, Tuning())
    layers = [replace(model, vocab=vocab) for vocab in (model.vocab, 128)]
    big, small = (
        StepModel(replace(setting, model=each), la).memory()[-1].transient for each in layers
    )
    numbers = (model.vocab - 128) * model.hidden
    kernels = setting.engine.kernels
    logits = (model.vocab - 128) * 2048 / kernels.loss_chunks * kernels.logits_bytes
    held = 2 + min(setting.engine.state.gradient_bytes, 4.0)
    expected = (held + embedding * (pipeline == 1)) * numbers + logits
    assert big - small == pytest.approx(expected)


def test_fp32_is_gathered_and_reduced_as_it_is_kept():
    """4 + 4 bytes of a number whole where 16 bits have 2 + 2, and twice the seconds of either."""
    la = Layout(data_parallel=4, zero_stage=3, stages=even_stages(4, 1))
    billion, found = RankParameters(dense=1e9), []
    for precision in ("fp32", "bf16"):
        training = Training(seq_len=2048, global_batch_size=8, precision=precision)  # type: ignore[arg-type]
        setting = Setting(
            gpt(16, 1024, 4), training, load_cluster("dgx-a100"), load_engine("deepspeed"), Tuning()
        )
        model = StepModel(setting, la)
        seconds = model.traffic.forward_s(billion), model.traffic.backward_s(billion, again=False)
        found.append((rank_gathered_bytes(model, billion), *map(float, seconds)))
    assert [found[0][0], found[1][0]] == [8e9, 4e9]
    for wide, narrow in zip(found[0][1:], found[1][1:], strict=True):
        assert wide / narrow == pytest.approx(2.0, rel=1e-2)


def test_fullest_moment_by_hand():
    """Two chunks of 10 and 30 bytes: (3, 1) holds 60, (2, 2) holds 80."""
    assert activation_peak([(3, 1), (2, 2)], [10.0, 30.0]) == 80.0


def gpt(heads: int, hidden: int, layers: int) -> Model:
    width = hidden // heads
    attention = Attention(heads=heads, kv_heads=heads, head_dim=width, v_head_dim=width)
    return Model(
        name="gpt", hidden=hidden, vocab=51200, kinds=(Layer(attention=attention, ffn=4 * hidden),),
        pattern=(0,) * layers, gated=False, norm="layernorm", bias=True,
    )  # fmt: skip


def paper_rank_0(model: Model, b: int, p: int, batch: int, *, full: bool) -> float:
    """Activations of the first rank, tensor and sequence parallel 8, 1F1B, as the paper counts."""
    engine = load_engine("megatron")
    kernels = engine.kernels.model_copy(
        update={
            "flash_attention": False, "dropout": True, "logits_bytes": 4.0, "keeps_buffers": False,
        }
    )  # fmt: skip
    layout = Layout(
        tensor_parallel=8, sequence_parallel=True, pipeline_parallel=p, micro_batch_size=b,
        stages=even_stages(model.num_layers, p, "full" if full else "none"),
    )  # fmt: skip
    setting = Setting(
        model, Training(seq_len=2048, global_batch_size=batch), load_cluster("dgx-a100"),
        engine.model_copy(update={"kernels": kernels}), Tuning(),
    )  # fmt: skip
    memory = StepModel(setting, layout).memory()[0]
    return float(memory.activations + (0.0 if full else memory.transient))


PAPER = [  # table 3 of arXiv 2205.05198: heads a, hidden h, layers L, micro-batch b, p, batch
    pytest.param(64, 6144, 48, 4, 1, 4, id="22B: p 1, so head and logits too"),
    pytest.param(96, 12288, 96, 1, 8, 64, id="175B: p 8"),
    pytest.param(128, 20480, 105, 1, 35, 280, id="530B: p 35"),
    pytest.param(160, 25600, 128, 1, 64, 512, id="1T: p 64"),
]


@pytest.mark.parametrize(("a", "h", "layers", "b", "p", "batch"), PAPER)
def test_first_rank_holds_equation_5(a: int, h: int, layers: int, b: int, p: int, batch: int):
    """s b h / t (L (34 + 5 a s / h) + p), and 4 (1 + v / h) where the last stage is the first."""
    s, t, v = 2048, 8, 51200
    ends = p + (4 * (1 + v / h) if p == 1 else 0)
    expected = s * b * h / t * (layers * (34 + 5 * a * s / h) + ends)
    activations = paper_rank_0(gpt(a, h, layers), b, p, batch, full=False)
    assert activations == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("a", "h", "layers", "b", "p", "batch"), PAPER[1:])
def test_full_recompute_keeps_inputs(a: int, h: int, layers: int, b: int, p: int, batch: int):
    """2 s b h / t for each layer in flight, p dropout masks, beside the one that is replayed."""
    expected = 2048 * b * h / 8 * (2 * layers + p)
    activations = paper_rank_0(gpt(a, h, layers), b, p, batch, full=True)
    assert activations == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "m", "expected"),
    [
        pytest.param("gpipe", 4, 1, 16, [16, 16, 16, 16], id="gpipe: all m"),
        pytest.param("1f1b", 4, 1, 16, [4, 3, 2, 1], id="1f1b: p - s"),
        pytest.param("1f1b", 4, 1, 2, [2, 2, 2, 1], id="1f1b: no more than m"),
        pytest.param("zb_h1", 4, 1, 16, [4, 4, 4, 4], id="zb_h1: p everywhere"),
        pytest.param("interleaved_1f1b", 4, 3, 16, [15, 13, 11, 9], id="vp + p - 1 - 2 s chunks"),
        pytest.param("zb_v", 4, 2, 16, [8, 8, 8, 8], id="zb_v: 2 p chunks"),
        pytest.param("dualpipe_v", 4, 2, 16, [9, 9, 9, 9], id="dualpipe_v: 2 p + 1 chunks"),
    ],
)
def test_micro_batches_in_flight(schedule, pp: int, vpp: int, m: int, expected: list[int]):
    """The most chunk-activations that each rank holds at once."""
    assert [max(map(sum, rank)) for rank in in_flight(schedule, pp, vpp, m)] == expected


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 3), (16, 4)])
def test_interleaving_holds_the_papers_factor_more(p: int, v: int):
    """The first rank holds 1 + (p - 1) / (p v) of what 1F1B holds (2205.05198, section 4.2.3)."""
    chunks = max(map(sum, in_flight("interleaved_1f1b", p, v, 8 * p)[0]))
    assert chunks / (p * v) == pytest.approx(1 + (p - 1) / (p * v))


@settings(max_examples=30)
@given(data=st.data())
def test_recompute_never_keeps_more(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """None keeps at least what selective keeps, and that at least what full keeps."""
    case = data.draw(cases(pipelined=False, uniform=True))
    layers = case.setting.model.num_layers
    kept = [
        float(
            StepModel(
                case.setting, replace(case.layout, stages=even_stages(layers, 1, mode))
            ).stage_costs[0].saved_bytes
        )
        for mode in ("none", "selective", "full")
    ]  # fmt: skip
    assert kept[0] >= kept[1] >= kept[2] > 0


@settings(max_examples=30)
@given(data=st.data())
def test_categories_add_up(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """Allocated is the sum of the five categories, none of them negative."""
    for memory in data.draw(cases()).step.memory():
        parts = (
            memory.weights, memory.gradients, memory.optimizer, memory.activations,
            memory.transient,
        )  # fmt: skip
        assert min(map(float, parts)) >= 0
        assert float(memory.allocated) == pytest.approx(sum(map(float, parts)))


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_gradients_of_a_layer_are_counted_at_their_most(zero_stage: int):
    """t = 2,048 tokens, h = 1,024, f = 4 h of a GPT: the gradient of the layer's output, 2 t h, and
    that of the down projection's input, 2 t f; weights' gradients are counted elsewhere.
    """
    model = replace(gpt(4, 1024, 8), vocab=256)
    la = Layout(data_parallel=4, zero_stage=zero_stage, stages=even_stages(4, 1, "full"))
    engine = load_engine("torchtitan")
    needs = []
    for counted in (False, True):
        kernels = engine.kernels.model_copy(update={"counts_gradients": counted})
        training = Training(seq_len=2048, global_batch_size=4)
        own = engine.model_copy(update={"kernels": kernels})
        setting = Setting(model, training, load_cluster("dgx-a100"), own, Tuning())
        needs.append(float(StepModel(setting, la).memory()[0].transient))
    by_hand = 2 * 2048 * (1024 + 4096)
    assert needs[1] - needs[0] == by_hand
