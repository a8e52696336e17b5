"""A.X-K2's gates on norms, and its queries and gates of two latents, worked out by hand."""

from meshplan.costmodels.model.parameters import layer_parameters
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Matmul
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.hardware_profiles.engines import load_engine

T, H = 128, 64
LATENT = Attention(
    heads=4, kv_heads=4, head_dim=16, v_head_dim=8, q_lora_rank=32, kv_lora_rank=16,
    rope_head_dim=4, gate="full", latent_gate=True,
)  # fmt: skip
ROUTED = Experts(experts=4, top_k=1, ffn=32)


def model_of(kind: Layer) -> Model:
    return Model(name="x", hidden=H, vocab=512, kinds=(kind,), pattern=(0,))


def products(kind: Layer) -> dict[str, tuple[float, float]]:
    shard = Shard(
        seq_len=T, document_len=T, tokens=T, tokens_outside=T, tp=1.0, cp=1.0, ep=1.0, etp=1.0,
        sequence_parallel=0.0,
    )  # fmt: skip
    site = Site(model_of(kind), shard, load_engine("generic").kernels)
    return {
        op.name: (float(op.k), float(op.n))
        for op in layer_operations(site, kind)
        if isinstance(op, Matmul)
    }


def test_a_layer_with_experts_has_two_gates_and_a_dense_one_has_one() -> None:
    """Each 64 x 8 and 8 x 64."""
    for plain, gates in ((Layer(attention=LATENT, ffn=96), 1),
                         (Layer(attention=LATENT, experts=ROUTED), 2)):  # fmt: skip
        gated = Layer(attention=LATENT, ffn=plain.ffn, experts=plain.experts, norm_gate_rank=8)
        counts = [layer_parameters(model_of(kind), kind).total for kind in (plain, gated)]
        assert counts[1] - counts[0] == gates * 2 * 64 * 8
        found = [sizes for name, sizes in products(gated).items() if "norm_gate" in name]
        assert found == gates * [(64, 8), (8, 64)]


def test_queries_and_the_gate_are_of_both_latents() -> None:
    """Of 2 x 32 numbers: queries of 4 x 16, a gate of 4 x 8; the rest as in other latent attention:
    64 x (32 + 16 + 4) down, keys and values 16 x 4 x (12 + 8) up, 32 x 64 out.
    """
    kind = Layer(attention=LATENT, ffn=96)
    found = products(kind)
    assert found["q_up"] == (64, 64)
    assert found["attention_gate"] == (64, 32)
    rest = 64 * (32 + 16 + 4) + 16 * 4 * (12 + 8) + 32 * 64
    assert layer_parameters(model_of(kind), kind).attention == rest + 64 * (64 + 32)
