"""The layouts of `benchmarks.engine.one_rank`: twelve of two small models, and six of other sizes
and models, by which nothing was chosen.
"""

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model

ATTENTION = Attention(heads=4, kv_heads=2, head_dim=64, v_head_dim=64)
LATENT = Attention(
    heads=4, kv_heads=4, head_dim=96, v_head_dim=64, q_lora_rank=128, kv_lora_rank=128,
    rope_head_dim=32,
)  # fmt: skip
DENSE = Model(
    name="dense", hidden=256, vocab=2048, pattern=(0,) * 4,
    kinds=(Layer(attention=ATTENTION, ffn=768),),
)  # fmt: skip
SPARSE = Model(
    name="sparse", hidden=256, vocab=2048, pattern=(0,) * 4,
    kinds=(Layer(attention=ATTENTION, experts=Experts(experts=8, top_k=2, ffn=384)),),
)  # fmt: skip
WIDE = Model(
    name="wide", hidden=512, vocab=8192, pattern=(0,) * 2,
    kinds=(
        Layer(attention=Attention(heads=8, kv_heads=8, head_dim=64, v_head_dim=64), ffn=2048),
    ),
)  # fmt: skip
COMPRESSED = Model(
    name="compressed", hidden=320, vocab=4096, pattern=(0,) * 6,
    kinds=(Layer(attention=LATENT, ffn=640),),
)  # fmt: skip
MANY = Model(
    name="many", hidden=384, vocab=4096, pattern=(0,) * 3,
    kinds=(
        Layer(
            attention=Attention(heads=6, kv_heads=2, head_dim=64, v_head_dim=64),
            experts=Experts(experts=16, top_k=4, ffn=256),
        ),
    ),
)  # fmt: skip
ONE, TWO, FOUR = even_stages(4, 1), even_stages(4, 2), even_stages(4, 4)
LAYOUTS: dict[str, tuple[Model, Layout]] = {
    "dp2 ZeRO-0": (DENSE, Layout(data_parallel=2, stages=ONE)),
    "dp2 ZeRO-1": (DENSE, Layout(data_parallel=2, zero_stage=1, stages=ONE)),
    "dp2 ZeRO-2": (DENSE, Layout(data_parallel=2, zero_stage=2, stages=ONE)),
    "dp2 ZeRO-3": (DENSE, Layout(data_parallel=2, zero_stage=3, stages=ONE)),
    "tp2": (DENSE, Layout(tensor_parallel=2, sequence_parallel=True, stages=ONE)),
    "cp2 ZeRO-1": (DENSE, Layout(context_parallel=2, zero_stage=1, stages=ONE)),
    "ep2 ZeRO-1": (
        SPARSE, Layout(data_parallel=2, expert_parallel=2, zero_stage=1, stages=ONE)
    ),
    "tp2 ep2": (
        SPARSE,
        Layout(tensor_parallel=2, sequence_parallel=True, expert_parallel=2, stages=ONE),
    ),
    "pp2 1f1b": (DENSE, Layout(pipeline_parallel=2, stages=TWO)),
    "pp2 interleaved, 2 chunks": (
        DENSE,
        Layout(
            pipeline_parallel=2, virtual_stages=2, schedule="interleaved_1f1b", stages=FOUR
        ),
    ),
    "pp2 zb_h1": (DENSE, Layout(pipeline_parallel=2, schedule="zb_h1", stages=TWO)),
    "pp2 zb_v": (
        DENSE, Layout(pipeline_parallel=2, virtual_stages=2, schedule="zb_v", stages=FOUR)
    ),
}  # fmt: skip
OTHERS: dict[str, tuple[Model, Layout]] = {
    "wide tp2": (WIDE, Layout(tensor_parallel=2, sequence_parallel=True, stages=even_stages(2, 1))),
    "wide cp2 ZeRO-3": (
        WIDE, Layout(context_parallel=2, zero_stage=3, stages=even_stages(2, 1))
    ),
    "compressed tp2": (
        COMPRESSED, Layout(tensor_parallel=2, sequence_parallel=True, stages=even_stages(6, 1))
    ),
    "compressed dp2 ZeRO-2": (
        COMPRESSED, Layout(data_parallel=2, zero_stage=2, stages=even_stages(6, 1))
    ),
    "many ep2 ZeRO-2": (
        MANY,
        Layout(data_parallel=2, expert_parallel=2, zero_stage=2, stages=even_stages(3, 1)),
    ),
    "wide pp2 1f1b": (WIDE, Layout(pipeline_parallel=2, stages=even_stages(2, 2))),
}  # fmt: skip
EVERY = LAYOUTS | OTHERS
