"""What selective checkpointing by operator keeps, worked by hand for layers of 1,024 tokens.

h 1,024; 8 query heads of 128 over 2 key heads; a feed-forward of 4,096. MiB of 16 bits: a tensor of
the hidden size 2, keys or values 0.5, gate 8. The log-sum-exp of attention, 4 bytes for each token
and head, is 1/32.
"""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.operations.by_operator import Listing, products_of
from meshplan.costmodels.operations.kinds import Communication, Matmul
from meshplan.costmodels.operations.replayed import kept_and_replayed, replayed_of
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import MIB
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster

POLICY = ("norm", "pointwise", "linear_half")
GROUPED = Attention(heads=8, kv_heads=2, head_dim=128, v_head_dim=128)
LATENT = Attention(
    heads=8, kv_heads=8, head_dim=192, v_head_dim=128, kv_lora_rank=256, rope_head_dim=64,
)  # fmt: skip
DENSE = Layer(attention=GROUPED, ffn=4096)
MIXED = Layer(attention=LATENT, experts=Experts(experts=8, top_k=2, ffn=512, shared_ffn=512))
LSE = 1 / 32


def rank_of(kind: Layer, **degrees: int) -> Rank:
    """A rank of torchtitan's that has layers of `kind`."""
    model = Model(name="one", hidden=1024, vocab=32_000, kinds=(kind,), pattern=(0,) * 4)
    setting = Setting.fitted(
        model, Training(seq_len=1024, global_batch_size=64), load_cluster("dgx-h100"),
        load_engine("torchtitan"),
    )  # fmt: skip
    return Rank(setting, Layout(stages=even_stages(4, 1), **degrees))


def kept_mib(rank: Rank, listing: Listing) -> float:
    """Of the one kind of layers."""
    kept, _ = kept_and_replayed(rank.operations(0), POLICY, listing)
    return sum(float(op.saved_bytes) for op in kept) / MIB


@pytest.mark.parametrize(("kind", "listing", "mib"), [
    pytest.param(DENSE, Listing(), 2 + 2 + 0.5 + 2 + 8 + LSE, id="input, q, v, output, gate"),
    pytest.param(DENSE, Listing(keeps_unread=True), 2 + 2 + 0.5 + 2 + 8 + 2 + LSE,
                 id="and the last product, without a compiler"),
    pytest.param(DENSE, Listing(names_products=False), 2 + 2 + LSE, id="input, output: no product"),
    pytest.param(replace(DENSE, attention=replace(GROUPED, qkv_bias=True, out_bias=True)),
                 Listing(), 2 + 3 + 2 + 2 + 8 + LSE,
                 id="biased: q, k, v and the output's product, then gate"),
    pytest.param(MIXED, Listing(), 2 + 3 + 4 + 2 + 1 + 2 + LSE,
                 id="input, q 1536, up-projected keys and values 2048, output, shared gate 512 and"
                    " down; of routed experts nothing"),
])  # fmt: skip
def test_what_a_layer_keeps(kind: Layer, listing: Listing, mib: float) -> None:
    """Products in turn, the first is kept; what runs again keeps nothing."""
    assert kept_mib(rank_of(kind), listing) == pytest.approx(mib)


def test_products_that_run_again() -> None:
    """Keys, the output's product and up, as large as they are alone."""
    rank = rank_of(DENSE)
    again = [op for op in replayed_of(rank.operations(0), POLICY) if isinstance(op, Matmul)]
    assert [(op.name, float(op.n)) for op in again] == [
        ("qkv", 256), ("attention_out", 1024), ("up", 4096),
    ]  # fmt: skip
    joined = sum(float(op.n * op.k) for op in rank.operations(0) if isinstance(op, Matmul))
    parts = [
        part for op in rank.operations(0) if isinstance(op, Matmul) for part in products_of(op)
    ]
    assert len(parts) == 7
    assert sum(float(part.n * part.k) for part in parts) == joined


def test_a_router_and_routed_products_do_not_count() -> None:
    """They all run again; the products beside them are taken in turn without them."""
    again = replayed_of(rank_of(MIXED).operations(0), POLICY)
    names = [op.name for op in again if isinstance(op, Matmul)]
    assert names == ["kv_down", "attention_out", "router", "experts_up", "experts_down", "up"]


def test_shared_experts_stay_on_the_list_where_the_rest_of_a_mixture_runs_again() -> None:
    """A list knows operators, not modules: torchtitan's blocks of DeepSeek-V3 (@f738a03b) keep the
    first and the last product of their shared experts, 512 and 1,024 numbers a token, under torch
    2.13 too, while exchanges were on no list.
    """
    rank = rank_of(MIXED, expert_parallel=2, data_parallel=2)
    kept, _ = kept_and_replayed(rank.operations(0), (*POLICY, "moe"), Listing())
    mib = sum(float(op.saved_bytes) for op in kept) / MIB
    assert mib == pytest.approx(2 + 3 + 4 + 2 + 1 + 2 + LSE)
    assert kept_mib(rank, Listing()) > mib + 1  # with the exchange on the list


def test_over_tensor_ranks_gathers_run_again_and_reduce_scatters_do_not() -> None:
    """Of two ranks: half of the products' outputs, and of the input and the scattered sum."""
    rank = rank_of(DENSE, tensor_parallel=2, sequence_parallel=True)
    assert kept_mib(rank, Listing()) == pytest.approx(1 + (2 + 0.5 + 2 + 8 + LSE) / 2 + 1)
    sent = [op for op in rank.operations(0) if isinstance(op, Communication)]
    again = [op for op in replayed_of(sent, POLICY) if isinstance(op, Communication)]
    assert {op.kind for op in again} == {"all_gather"}
    assert len(again) == 2


def test_formats_that_lists_name() -> None:
    """NVFP4's products are on none; a layer that stays in 16 bits is."""
    assert [name for name, each in RECIPES.items() if not each.listed] == ["nvfp4"]
    operations = rank_of(DENSE).operations(0)
    wide = [replace(op, in_16_bit=True) if isinstance(op, Matmul) else op for op in operations]
    unlisted = Listing(names_products=False)
    names = [op.name for op in replayed_of(wide, POLICY, unlisted) if isinstance(op, Matmul)]
    assert names == ["qkv", "attention_out", "up"]


def test_8_bit_layers_keep_their_inputs_in_16_bits() -> None:
    """Under torchtitan, whose casts are made again; elsewhere they are kept instead."""
    model = Model(name="one", hidden=1024, vocab=32_000, kinds=(DENSE,), pattern=(0,) * 4)
    training = Training(seq_len=1024, global_batch_size=64, precision="fp8")
    kept = {}
    for engine in ("torchtitan", "generic"):
        setting = Setting.fitted(model, training, load_cluster("dgx-h100"), load_engine(engine))
        rank = Rank(setting, Layout(stages=even_stages(4, 1)))
        kept[engine] = float(rank.layer_saved_bytes(0, "none")) / MIB
    assert kept["torchtitan"] - kept["generic"] == pytest.approx((2 + 2 + 8) / 2)  # norms, SwiGLU
