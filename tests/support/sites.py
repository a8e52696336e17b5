"""A rank on which a layer's operations are looked at: the kernels of Korthikanti et al. 2022."""

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.rank_share import shard_of
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.kernel_habits import KernelHabits

S, V = 2048, 51200  # sequence length and vocabulary of the paper's section 6
PAPER_KERNELS = KernelHabits(
    flash_attention=False, fused_norm=True, fused_gated=True, fused_rope=True,
    fused_cross_entropy=True, chunked_loss=False, dropout=True, logits_bytes=4.0,
)  # fmt: skip


def site(model: Model, b: int, t: int, *, sequence_parallel: bool) -> Site:
    """One rank of `t` tensor-parallel ones, with `b` sequences of `S` tokens."""
    layout = Layout(
        tensor_parallel=t, micro_batch_size=b, sequence_parallel=sequence_parallel,
        stages=even_stages(model.num_layers, 1),
    )  # fmt: skip
    return Site(model, shard_of(layout, Training(seq_len=S, global_batch_size=b)), PAPER_KERNELS)
