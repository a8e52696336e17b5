"""Recompute by operation: what each module replays and frees, and which sets a search chooses from.

The layers worked by hand hold 1,024 tokens of 16 bits on one rank; h 1,024, so that a tensor of
the residual stream is 2 MiB; 8 heads of 128; latents of 512 and 256, keys of 192; a dense
feed-forward of 4,096; 8 experts of 512, two for each token, and shared ones of 512.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, RecomputeModule, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.operations.replayed import replayed_of, without_unread
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.ranks.recompute_sets import _Point, _Priced, _worth_having, recompute_sets
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import MIB
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config

HEADS = Attention(heads=8, kv_heads=8, head_dim=128, v_head_dim=128)
LATENT = Attention(
    heads=8, kv_heads=8, head_dim=192, v_head_dim=128, q_lora_rank=512, kv_lora_rank=256,
    rope_head_dim=64,
)  # fmt: skip
EXPERTS = Experts(experts=8, top_k=2, ffn=512, shared_ffn=512)
DENSE, MOE = Layer(attention=HEADS, ffn=4096), Layer(attention=LATENT, experts=EXPERTS)
MODEL = Model(name="both", hidden=1024, vocab=32_000, kinds=(DENSE, MOE), pattern=(0, 1, 1, 1))
SMALL = 1 / 32  # MiB: 4 bytes for each token and head, or for each token and expert


def rank_of(engine: str, **degrees: int) -> Rank:
    """A rank that has `MODEL`, in the words of an engine."""
    setting = Setting.fitted(
        MODEL, Training(seq_len=1024, global_batch_size=64), load_cluster("dgx-h100"),
        load_engine(engine),
    )  # fmt: skip
    return Rank(setting, Layout(stages=even_stages(4, 1), **degrees))


@pytest.mark.parametrize(("kind", "module", "freed_mib"), [
    pytest.param(0, "layernorm", 0, id="dense: norms are part of the products behind them"),
    pytest.param(1, "layernorm", 2 + 2, id="before latent attention and before experts"),
    pytest.param(0, "mlp", 2 + 16 + 8, id="its norm 2 h, gate and up 2 x 2 x 4096, activation"),
    pytest.param(1, "mlp", 0, id="mlp: no experts, not the shared ones either"),
    pytest.param(1, "moe_act", 2, id="two rows of 512 for each token"),
    pytest.param(0, "moe_act", 0, id="moe_act: no dense activation"),
    pytest.param(1, "shared_experts", 2 + 1, id="gate and up 2 x 2 x 512, activation"),
    pytest.param(1, "mla_up_proj", 2 + 6 + 1.5, id="values 1024, q and k 3072, norms 768"),
    pytest.param(1, "core_attention", SMALL, id="one fp32 for each token and head"),
    pytest.param(1, "experts", 4 + 2, id="two rows: gate and up 2 x 2 x 512, activation 2 x 512"),
    pytest.param(0, "experts", 0, id="experts: none in a dense layer"),
    pytest.param(0, "pointwise", 2 + 2 + 8, id="norms, activation; q and k stay, not yet rotated"),
    pytest.param(0, "attention", 4 * 2 + SMALL, id="q, k, v, output of 1024, log-sum-exp"),
    pytest.param(
        1, "attention", 9.5 + (512 + 256 + 64) / 512 + 2 + SMALL,
        id="up projections, latents of 512 and 256 with the key 64, output 1024, log-sum-exp",
    ),
    pytest.param(1, "moe", SMALL + 4 + 4 + 2 + 4 + 3,
                 id="scores, rows, gate and up, activation, weighted rows, shared"),
])  # fmt: skip
def test_what_a_module_frees_by_hand(kind: int, module: RecomputeModule, freed_mib: float) -> None:
    """Under Megatron-Core with Transformer Engine's products."""
    rank = rank_of("megatron")
    assert float(rank.replay_bytes(kind, (module,))) / MIB == pytest.approx(freed_mib)


def test_gated_shared_experts_by_hand() -> None:
    """One product of 1,024 by 1 for each token more, and the gated output of 2 MiB, which are
    replayed with the shared experts.
    """
    rank = rank_of("megatron")
    gated = replace(MOE, experts=replace(EXPERTS, shared_gate=True))
    setting = replace(rank.setting, model=replace(MODEL, kinds=(DENSE, gated)))
    with_gate = Rank(setting, rank.layout)
    plain, more = ({op.name: op for op in each.operations(1)} for each in (rank, with_gate))
    assert set(more) - set(plain) == {"shared_gate", "gated_shared"}
    added = float(with_gate.plain_cost(1, "none").saved_bytes)
    assert added - float(rank.plain_cost(1, "none").saved_bytes) == pytest.approx(2 * MIB)
    again = {op.name for op in replayed_of(with_gate.operations(1), ("shared_experts",))}
    assert {"shared_gate", "gated_shared"} <= again


@pytest.mark.parametrize(("engine", "kind", "module", "expected"), [
    ("megatron", 0, "mlp", "feed_forward_norm feed_forward_input up activation down "
                           "feed_forward_output"),
    ("native", 0, "mlp", "feed_forward_input up activation down feed_forward_output"),
    ("megatron", 1, "layernorm", "attention_norm feed_forward_norm"),
    ("megatron", 1, "moe_act", "activation"),
    ("megatron", 1, "mla_up_proj", "q_up latent_norm kv_up rotary"),
    ("megatron", 1, "shared_experts", "shared_input up activation down shared_output"),
])  # fmt: skip
def test_what_a_module_replays(
    engine: str, kind: int, module: RecomputeModule, expected: str
) -> None:
    """The operations by name, in forward order."""
    again = replayed_of(rank_of(engine).operations(kind), (module,))
    assert " ".join(op.name for op in again) == expected


@pytest.mark.parametrize(("kind", "dropped"), [
    (0, ["down", "feed_forward_output", "feed_forward_residual"]),
    (1, ["feed_forward_residual"]),
])  # fmt: skip
def test_what_no_backward_reads(kind: int, dropped: list[str]) -> None:
    """Of a layer that is replayed whole the product into the residual sum, but not the experts',
    which the router's weights multiply.
    """
    listed = rank_of("generic").operations(kind)
    left = {id(op) for op in without_unread(listed)}
    assert [op.name for op in listed if id(op) not in left] == dropped


def test_a_replay_without_what_no_backward_reads_by_hand() -> None:
    """1,024 tokens times 4,096 x 1,024 weights are 2 x 2^32 FLOPs less; the bytes kept stay."""
    setting = rank_of("generic").setting
    kernels = setting.engine.kernels.model_copy(update={"drops_unread_replay": True})
    engine = setting.engine.model_copy(update={"kernels": kernels})
    layout = Layout(stages=even_stages(4, 1))
    usual, less = (
        Rank(each, layout).plain_cost(0, "full")
        for each in (setting, replace(setting, engine=engine))
    )
    assert float(usual.replay_flops - less.replay_flops) == 2 * 2**32
    assert float(usual.saved_bytes) == float(less.saved_bytes)
    assert float(less.replay.matmul_s) < float(usual.replay.matmul_s)


POLICY = ("norm", "pointwise", "linear_half")


@pytest.mark.parametrize("experts_on", [1, 8])
def test_torchtitans_list_keeps_no_product_of_routed_experts(experts_on: int) -> None:
    """Kept: every second mm, attention, what an exchange brought; replayed: the router, grouped
    products, and copies of rows.
    """
    rank = rank_of("torchtitan", data_parallel=8, expert_parallel=experts_on)
    operations = rank.operations(1)
    again = {op.name for op in replayed_of(operations, POLICY)}
    assert {"router", "experts_up", "experts_down", "sort_by_expert", "unpermute"} <= again
    assert not {"dispatch", "combine"} & again
    both = 2 * (2 + 2)  # two rows of 2 MiB to the experts, and two back
    kept = sum(float(op.saved_bytes) for op in operations if op.name in ("dispatch", "combine"))
    assert kept / MIB == (both if experts_on > 1 else 0)
    freed = {each: float(rank.replay_bytes(1, (each,))) / MIB for each in ("moe", "pointwise")}
    alone = rank_of("torchtitan", data_parallel=8)
    more = float(alone.replay_bytes(1, ("pointwise",))) / MIB - freed["pointwise"]
    assert more == pytest.approx(kept / MIB)
    assert freed["moe"] == pytest.approx(float(alone.replay_bytes(1, ("moe",))) / MIB)


def test_moe_holds_all_behind_its_norm() -> None:
    """Of the feed-forward half all but the norm before it and the residual behind it."""
    operations = rank_of("megatron").operations(1)
    names = [op.name for op in operations]
    half = operations[names.index("feed_forward_norm") + 1 : -1]
    assert replayed_of(operations, ("moe",)) == list(half)


NOT_LISTED = [each for each in get_args(RecomputeModule) if each != "linear_half"]
SETS = st.tuples(
    st.lists(st.sampled_from(NOT_LISTED), unique=True).map(tuple), st.sampled_from([(), POLICY])
).map(lambda both: (*both[0], *both[1]))
"""A list that names operators goes with norms and pointwise kernels: it keeps outputs that nothing
keeps otherwise.
"""


@settings(max_examples=80, deadline=None)
@given(data=st.data(), one=SETS, more=SETS)
def test_more_modules_never_keep_more_and_never_take_less(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject, one, more
) -> None:
    """Of any layer of any layout, all of it at most: what full recompute replays and frees."""
    case = data.draw(cases())
    rank = Rank(case.setting, case.layout)
    for kind in range(len(case.setting.model.kinds)):
        of_one, of_both = rank.plain_cost(kind, one), rank.plain_cost(kind, (*one, *more))
        assert float(of_both.saved_bytes) <= float(of_one.saved_bytes) * (1 + 1e-12)
        assert float(of_both.total_s) >= float(of_one.total_s) * (1 - 1e-12)
        everything = rank.plain_cost(kind, "full")
        assert float(of_both.replay.total_s) <= float(everything.replay.total_s) * (1 + 1e-12)


@pytest.mark.parametrize("engine", ["megatron", "native"])
def test_no_set_of_modules_lies_below_the_corners(engine: str) -> None:
    """Every set of the engine's modules, against layers that mix two neighbouring corners: none
    frees as much in less time, to a hundredth of a full replay.
    """
    setting = rank_of(engine).setting
    allowed, priced = setting.engine.legality.recompute_modules, _Priced(setting)
    corners = priced.corners(list(priced.way(allowed)))
    line = [priced.point(()), *corners, priced.of_all]
    compared = 0
    for count in range(1, len(allowed) + 1):
        for modules in combinations(allowed, count):
            seconds, freed, _ = priced.point(modules)
            for a, b in pairwise(line):
                if a.freed_bytes <= freed <= b.freed_bytes:
                    share = (freed - a.freed_bytes) / (b.freed_bytes - a.freed_bytes)
                    mixed = a.seconds + share * (b.seconds - a.seconds)
                    assert seconds >= mixed - 0.01 * priced.of_all.seconds, modules
                    compared += 1
    assert compared >= 2 ** len(allowed) - 1


def _points(*seconds_and_bytes: tuple[float, float]) -> list[_Point]:
    return [_Point(*each, ()) for each in seconds_and_bytes]


def test_corners_by_hand() -> None:
    """Seconds for each byte from one corner to the next: 2.5 / 4, 1.5 / 2, 6 / 3. Above that line
    lie the first and the third; the last frees less than the one before it.
    """
    priced = _Priced(rank_of("generic").setting)
    priced.of_all = _Point(10.0, 9.0, ())
    way = _points((2, 2), (2.5, 4), (10, 5), (4, 6), (9, 5))
    assert priced.corners(way) == [way[1], way[3]]


@pytest.mark.parametrize(("between", "kept"), [
    pytest.param([(1, 4), (1.9, 5)], [0, 1], id="4/5 1.9 - 1 = 0.52, 1 + 1/6 9 - 1.9 = 0.6 of 10"),
    pytest.param([(1, 4), (1.2, 4.4)], [1], id="4/4.4 1.2 - 1 = 0.09, 1 + 0.4/6 9 - 1.2 = 0.4"),
    pytest.param([(1, 4), (2.2, 5)], [0], id="1 + 1/6 9 - 2.2 = 0.3 is the least"),
    pytest.param([(4.9, 5)], [0], id="the only one, though it saves 0.1"),
])  # fmt: skip
def test_corners_that_save_too_little_by_hand(
    between: list[tuple[float, float]], kept: list[int]
) -> None:
    """Less than a twentieth of a full replay of 10 s against layers that mix their neighbours."""
    line = _points((0, 0), *between, (10, 10))
    assert _worth_having(line) == [line[1 + at] for at in kept]


def test_sets_of_a_model_with_all_modules() -> None:
    """DeepSeek-V3 under Megatron-Core: what costs least for each byte first; each set frees more
    than the one before, at a higher price for each byte.
    """
    model = model_from_config(load_model_config("deepseek-v3"), "deepseek-v3")
    training = Training(seq_len=4096, global_batch_size=64)
    setting = replace(rank_of("megatron").setting, model=model, training=training)
    sets, priced = recompute_sets(setting), _Priced(setting)
    assert set(sets[0]) == {"layernorm", "moe_act", "mla_up_proj"}
    line = [priced.point(modules) for modules in ((), *sets)] + [priced.of_all]
    prices = [(b.seconds - a.seconds) / (b.freed_bytes - a.freed_bytes) for a, b in pairwise(line)]
    assert prices == sorted(prices)


@pytest.mark.parametrize(("engine", "expected"), [
    pytest.param("generic", (("core_attention",),), id="an engine that says nothing"),
    pytest.param("torchtitan", (("norm", "pointwise", "linear_half"),), id="one policy"),
])  # fmt: skip
def test_engines_without_a_choice(engine: str, expected) -> None:
    """One set, whatever the model."""
    assert recompute_sets(rank_of(engine).setting) == expected


def test_tensor_parallel_exchanges_are_replayed_with_the_mlp() -> None:
    """A replayed feed-forward gathers and scatters again: its replay waits for both."""
    rank = rank_of("megatron", tensor_parallel=2)
    rank = Rank(rank.setting, replace(rank.layout, sequence_parallel=True))
    replay, whole = rank.plain_cost(0, ("mlp",)).replay, rank.plain_cost(0, "full").replay
    assert float(replay.tensor_s) > 0
    assert float(replay.tensor_s) < float(whole.tensor_s)
