"""Model files of a trace: parameters, FLOPs, bytes and what they refuse, worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import left_out, model_from_config
from meshplan.costmodels.model.parameters import (
    active_parameters,
    layer_parameters_per_rank,
    model_parameters,
)
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import (
    AttentionCore,
    Communication,
    Matmul,
    Operation,
    Pointwise,
    Scan,
)
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.costmodels.seconds.operation import forward_flops_of
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.space.legal_layouts import enumerate_space
from meshplan.planner.space.pins import Pins

H, F, V, SEQ = 64, 128, 1000, 32
PRODUCTS = [
    {"name": "q", "n": 64, "k": H, "split": "column"},
    {"name": "kv", "n": 64, "k": H, "split": "column"},
    {"name": "o", "n": H, "k": 64, "split": "row"},
    {"name": "router", "n": 4, "k": H, "split": "own"},
    {"name": "up", "n": 2 * F, "k": H, "split": "expert_in", "groups": 4, "rows": 2},
    {"name": "down", "n": H, "k": F, "split": "expert_out", "groups": 4, "rows": 2},
]
CUT, ROUTED, WHOLE = 64 * (64 + 64 + 64), 4 * 3 * H * F, 4 * H + 2 * H
LAYER: dict[str, Any] = {
    "name": "Block", "layers": 2, "parameters": CUT + ROUTED + WHOLE, "cut_parameters": CUT,
    "routed_parameters": ROUTED, "products": PRODUCTS,
    "attention": [{"heads": 4, "kv_heads": 2, "head_dim": 16, "v_head_dim": 16, "window": 8}],
    "experts": {"experts": 4, "top_k": 2, "ffn": F, "outer": H}, "entries": 1,
    "state_flops": 100.0, "state_flops_per_key": 2.0,
    "saved": {"stream": 8.0, "whole": 4.0, "cut": 16.0, "copies": 2.0}, "saved_per_key": 3.0,
    "fused_saved": {"stream": 4.0, "cut": 8.0}, "moved": {"stream": 100.0}, "kernels": 50,
    "fused_moved": {"stream": 10.0, "cut": 20.0}, "fused_kernels": 5,
}  # fmt: skip
FILE: dict[str, Any] = {
    "trace_version": 1, "name": "tiny", "model_type": "tiny", "source": "by hand",
    "parameters": 2 * V * H + 2 * LAYER["parameters"] + H + 7, "hidden": H, "vocab": V,
    "tied": False, "final_norm": "rmsnorm", "other_parameters": 7, "pattern": [0, 0],
    "kinds": [LAYER], "not_attributed": ["seconds of a tower"],
}  # fmt: skip
MODEL = model_from_config(FILE, "tiny")


def operations(engine: str = "generic", **shares: float) -> tuple[Operation, ...]:
    """Those of the layer on one rank, of a sequence of 32 tokens."""
    whole = {"tp": 1.0, "cp": 1.0, "ep": 1.0, "etp": 1.0, "sequence_parallel": 0.0} | shares
    shard = Shard(seq_len=SEQ, document_len=SEQ, tokens=float(SEQ), tokens_outside=float(SEQ),
                  **whole)  # type: ignore[arg-type]  # fmt: skip
    return layer_operations(Site(MODEL, shard, load_engine(engine).kernels), MODEL.kinds[0])


def test_parameters_are_the_files() -> None:
    """Two ends of 64,000, two layers, a norm of 64 and 7 more; two of four experts are active."""
    assert model_parameters(MODEL).total == FILE["parameters"]
    assert active_parameters(MODEL).total == FILE["parameters"] - ROUTED


def test_ranks_share_what_is_cut() -> None:
    """tp 2 halves columns and rows, ep 2 and etp 2 quarter the experts, the rest is whole."""
    held = layer_parameters_per_rank(MODEL, MODEL.kinds[0], 2, 2, 2)
    assert held.dense == CUT / 2 + WHOLE
    assert held.expert == ROUTED / 4


@pytest.mark.parametrize(
    ("name", "shares", "flops"),
    [
        pytest.param("q", {"tp": 2.0}, 2 * 32 * 64 * 64 / 2, id="column: 2 t h n / tp"),
        pytest.param("o", {"tp": 2.0}, 2 * 32 * 64 * 64 / 2, id="row: 2 t h k / tp"),
        pytest.param("router", {"tp": 2.0}, 2 * 32 * 64 * 4, id="own: all tokens outside"),
        pytest.param("experts up", {"tp": 2.0}, 2 * 16 * 2 * 64 * 256, id="expert: t / tp x 2"),
        pytest.param("experts down", {"ep": 4.0}, 2 * 32 * 2 * 128 * 64, id="ep evens out"),
    ],
)
def test_products_of_a_rank(name: str, shares: dict[str, float], flops: float) -> None:
    """FLOPs of each kind of split."""
    (found,) = (op for op in operations(**shares) if isinstance(op, Matmul) and op.name == name)
    assert found.forward_flops == flops


def test_attention_and_state() -> None:
    """8 keys of a window of 32; a state of (100 + 2 x 32) FLOPs for each of 32 tokens."""
    (core,) = (op for op in operations() if isinstance(op, AttentionCore))
    (state,) = (op for op in operations() if isinstance(op, Scan))
    assert core.full_forward_flops == 2 * 32 * 8 * 4 * (16 + 16)
    assert state.forward_flops == 32 * (100 + 2 * 32)


@pytest.mark.parametrize(
    ("engine", "saved_bytes", "moved_bytes"),
    [
        pytest.param("generic", 32 * (4 + 8 / 2), 32 * (10 + 20 / 2), id="fused: its ends, tp 2"),
        pytest.param("deepspeed", 32 * (8 + 4 + 16 / 2 + 2 / 2 + 3 * 32 / 2), 32 * 100,
                     id="its own kernels, and 3 bytes a pair of 32"),
    ],
)  # fmt: skip
def test_chains_are_fused_where_the_engine_fuses(
    engine: str, saved_bytes: float, moved_bytes: float
) -> None:
    """What is kept and moved between products on each of two tensor-parallel ranks."""
    listed = operations(engine, tp=2.0)
    (chains,) = (op for op in listed if isinstance(op, Pointwise) and op.name == "chains")
    assert chains.saved_bytes == saved_bytes
    assert chains.forward_bytes == moved_bytes


def test_the_stream_is_gathered_and_scattered_once_for_its_mixer() -> None:
    """One entry, one row product; experts are sent to by the exchange of tokens."""
    sent = [op for op in operations(tp=2.0) if isinstance(op, Communication)]
    assert [op.name for op in sent if op.axis == "tp"] == ["entry_0", "o"]
    assert {op.name for op in sent if op.axis == "ep"} == {"dispatch", "combine"}


def test_the_busiest_expert_rank_of_a_trace() -> None:
    """Half as many tokens again come to it: its products, what it is sent and sends back; what it
    permutes before it sends is its own tokens'.
    """
    even, most = (
        {op.name: op for op in operations("megatron", ep=2.0, imbalance=spread)}
        for spread in (1.0, 1.5)
    )
    for name in ("dispatch", "combine"):
        sent, more = even[name], most[name]
        assert isinstance(sent, Communication)
        assert isinstance(more, Communication)
        assert more.size_bytes == pytest.approx(1.5 * sent.size_bytes)
    products = [op for name, op in most.items() if name.startswith("experts ")]
    for product in products:
        assert isinstance(product, Matmul)
        assert product.forward_flops == pytest.approx(1.5 * forward_flops_of(even[product.name]))
    assert products
    assert most["permute"] == even["permute"]
    assert most["sort_by_expert"] != even["sort_by_expert"]


def test_a_llama_written_as_a_trace_costs_as_the_family() -> None:
    """The same products and attention, written by hand, have the family's FLOPs."""
    sizes = {"hidden_size": H, "intermediate_size": F, "vocab_size": V, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"model_type": "llama", **sizes, **heads}
    family = model_from_config(config, "llama")
    dense = [each for each in PRODUCTS if each["split"] in ("column", "row")]
    dense += [{"name": "up", "n": 2 * F, "k": H, "split": "column"},
              {"name": "down", "n": H, "k": F, "split": "row"}]  # fmt: skip
    kind = LAYER | {"products": dense, "experts": None, "state_flops": 0.0,
                    "state_flops_per_key": 0.0, "parameters": 34_000, "routed_parameters": 0,
                    "attention": [LAYER["attention"][0] | {"window": None}]}  # fmt: skip
    traced = model_from_config(FILE | {"kinds": [kind]}, "llama")
    shard = Shard(seq_len=SEQ, document_len=SEQ, tokens=32.0, tokens_outside=32.0, tp=2.0, cp=1.0,
                  ep=1.0, etp=1.0, sequence_parallel=0.0)  # fmt: skip
    flops = [
        sum(float(op.forward_flops)
            for op in layer_operations(Site(each, shard, load_engine("generic").kernels),
                                       each.kinds[0])
            if isinstance(op, Matmul | AttentionCore))
        for each in (family, traced)
    ]  # fmt: skip
    assert flops[0] == flops[1]


def test_what_tp_and_cp_must_divide() -> None:
    """Two key/value heads take no tp 4; a layer that a loop mixes takes no cp."""
    training = Training(seq_len=SEQ, global_batch_size=8)
    with pytest.raises(InvalidLayout, match="2 key/value heads do not divide"):
        check_layout(Layout(stages=(Stage(2),), tensor_parallel=4), MODEL, training)
    looped = model_from_config(
        FILE | {"kinds": [LAYER | {"mixed_by": ["a loop over tokens"]}]}, "tiny"
    )
    split = Layout(stages=(Stage(2),), context_parallel=2)
    check_layout(split, MODEL, training)
    with pytest.raises(InvalidLayout, match="does not say how a loop over tokens is split"):
        check_layout(split, looped, training)
    searched = [
        enumerate_space(model, training, 8, load_engine("generic"), Pins(), 8).layouts
        for model in (MODEL, looped)
    ]
    assert [int(each.context_parallel.max()) for each in searched] == [8, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(
            {"trace_version": 2}, "trace_version is 2, this release reads 1", id="version"
        ),
        pytest.param({"pattern": [0, 1]}, "does not name each of 1 kinds", id="pattern"),
        pytest.param({"pattern": [0, 0, 0]}, "says 2 layers, its pattern 3", id="layers"),
        pytest.param({"hidden": -1}, "hidden: Input should be greater", id="negative"),
        pytest.param(
            {"kinds": [LAYER | {"cut_parameters": 10**9}]}, "fewer parameters", id="parts"
        ),
        pytest.param({"kinds": [LAYER | {"state_flops": float("nan")}]}, "finite", id="NaN"),
        pytest.param({"unknown": 1}, "unknown: Extra inputs", id="unknown field"),
        pytest.param({"kinds": []}, "kinds: ", id="no kinds"),
    ],
)
def test_a_file_that_contradicts_itself_is_one_line(changes: dict[str, Any], said: str) -> None:
    """What a hand may have changed is refused by name."""
    with pytest.raises(UnsupportedModel, match=said) as caught:
        model_from_config(FILE | changes, "tiny")
    assert "\n" not in str(caught.value)


def test_what_is_not_attributed_is_a_warning() -> None:
    """The file's own list is what `plan` says is not priced."""
    assert left_out(FILE) == ("seconds of a tower",)
    assert "layers known by a trace alone" in rare_parts(MODEL)
    assert replace(MODEL, name="x").mixed_by == ()
