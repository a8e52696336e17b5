"""Recurrent mixers as the families' configurations state them: each function reads one kind.

Field names and what an absent one means: huggingface/transformers 5.24
`models/<family>/configuration_<family>.py`; the sizes that follow: `modeling_<family>.py`.
"""

from dataclasses import replace

from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.recurrent import Recurrent

DELTA_CHUNK = 64
"""Tokens of a chunk in flash-linear-attention's kernels, where no field says so."""


def mamba2(f: Fields) -> Recurrent:
    """State-space duality (2405.21060): one step per head, B and C shared by groups of heads."""
    heads = f.count("mamba_n_heads", "mamba_num_heads", "mamba_mamba_num_heads", "num_heads",
                    "n_mamba_heads")  # fmt: skip
    own = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
    width = f.count(*own) if f.present(*own) else f.count("head_dim")
    groups = f.count("mamba_n_groups", "n_groups", "mamba_ngroups", default=1)
    state = f.count("mamba_d_state", "ssm_state_size", "state_size")
    inner = f.count("mamba_d_ssm", default=heads * width)
    convolved = inner + 2 * groups * state
    norm = inner if f.flag("mamba_rms_norm", True) else 0
    return Recurrent(
        kind="Mamba-2", heads=heads, key_dim=state, value_dim=inner // heads, groups=groups,
        chunk=f.count("mamba_chunk_size", "chunk_size", default=256), inner=inner,
        projections=inner + convolved + heads,
        convolution=f.count("mamba_d_conv", "conv_kernel", default=4), convolved=convolved,
        convolution_bias=f.either("mamba_conv_bias", "use_conv_bias", default=True),
        bias=f.either("mamba_proj_bias", "use_bias", default=False), numbers=3 * heads + norm,
    )  # fmt: skip


def mamba(f: Fields) -> Recurrent:
    """Selective state spaces (2312.00752): each inner number has a step and a state of its own."""
    expand = f.count("mamba_expand", "expand", default=2)
    inner = f.count("intermediate_size", default=expand * f.hidden)
    state = f.count("mamba_d_state", "state_size", default=16)
    rank = f.count("mamba_dt_rank", "time_step_rank", default=-(-f.hidden // 16))
    return Recurrent(
        kind="Mamba", heads=inner, key_dim=state, value_dim=1, groups=1, chunk=1, inner=inner,
        projections=2 * inner, selection=rank + 2 * state, step_rank=rank,
        convolution=f.count("mamba_d_conv", "conv_kernel", default=4), convolved=inner,
        convolution_bias=f.either("mamba_conv_bias", "use_conv_bias", default=True),
        bias=f.either("mamba_proj_bias", "use_bias", default=False),
        numbers=inner * (state + 2),
    )  # fmt: skip


def normed_mamba(f: Fields) -> Recurrent:
    """Jamba's: norms over the step, B and C; its `intermediate_size` is the feed-forward's."""
    plain = mamba(f.changed({"intermediate_size": None}))
    return replace(plain, numbers=plain.numbers + plain.selection)


def gated_deltanet(f: Fields) -> Recurrent:
    """Gated DeltaNet (2412.06464): a decay and a step per value head, a gate on the output."""
    keys, values = f.count("linear_num_key_heads"), f.count("linear_num_value_heads")
    key_dim, value_dim = f.count("linear_key_head_dim"), f.count("linear_value_head_dim")
    inner, convolved = values * value_dim, 2 * keys * key_dim + values * value_dim
    return Recurrent(
        kind="gated DeltaNet", heads=values, key_dim=key_dim, value_dim=value_dim, groups=values,
        chunk=DELTA_CHUNK, delta_rule=True, inner=inner, projections=convolved + inner + 2 * values,
        convolution=f.count("linear_conv_kernel_dim", default=4), convolved=convolved,
        numbers=2 * values + value_dim,
    )  # fmt: skip


IN_A_SECTION = {
    "num_heads": "linear_num_heads", "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}  # fmt: skip
"""Names in `linear_attn_config`, which wins over the same outside it: transformers writes both
(5.24 `configuration_glm5_next.py`)."""


def kimi_delta(f: Fields, heads: int | None = None) -> Recurrent:
    """Kimi Delta Attention (2510.26692): a decay for each key number, through a narrow middle, and
    a gate, through one too unless `use_full_rank_gate` (Kimi K3); `heads` where the file does not
    say it.
    """
    nested = f.section("linear_attn_config")
    source = f.changed(nested.renamed(IN_A_SECTION).config) if nested else f
    heads = source.count("linear_num_heads", "num_heads", default=heads)
    width = source.count("linear_head_dim")
    kernel = source.count("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    inner = heads * width
    wide = source.flag("use_full_rank_gate", False)
    return Recurrent(
        kind="Kimi Delta Attention", heads=heads, key_dim=width, value_dim=width, groups=heads,
        chunk=DELTA_CHUNK, delta_rule=True, inner=inner, projections=(3 + wide) * inner + heads,
        low_rank=((width, inner),) * (2 - wide), convolution=kernel, convolved=3 * inner,
        numbers=heads + inner + width,
    )  # fmt: skip


def wide_kimi_delta(f: Fields) -> Recurrent:
    """Bailing's: decay and gate are projected without a narrow middle, as many heads as queries.

    `head_dim` is their width, unless a file that transformers has written says `linear_head_dim`
    too: there `head_dim` is that of rotary positions.
    """
    width = f.count("head_dim", default=128)
    plain = kimi_delta(f.changed({"linear_head_dim": f.count("linear_head_dim", default=width)}),
                       f.heads)  # fmt: skip
    return replace(plain, low_rank=(), projections=plain.projections + 2 * plain.inner)


def lightning(f: Fields) -> Recurrent:
    """Lightning attention (2401.04658): a fixed decay per head, a gate and a norm on the output."""
    heads = f.heads
    width = f.count("head_dim", default=f.hidden // heads)
    inner = heads * width
    return Recurrent(
        kind="lightning attention", heads=heads, key_dim=width, value_dim=width, groups=heads,
        chunk=f.count("block_size", default=256), inner=inner, projections=4 * inner, numbers=inner,
    )  # fmt: skip


def bailing_lightning(f: Fields) -> Recurrent:
    """Ring-linear's, with norms of queries and keys: BailingMoELinearAttention, vllm-project/vllm
    vllm/model_executor/models/bailing_moe_linear.py.
    """
    plain = lightning(f)
    norms = 2 * plain.key_dim if f.flag("use_qk_norm", False) else 0
    return replace(plain, numbers=plain.numbers + norms)


def short_convolution(f: Fields) -> Recurrent:
    """LFM2's: a gated causal convolution, with no state beyond its window."""
    h = f.hidden
    bias = f.flag("conv_bias", False)
    return Recurrent(
        kind="short convolution", heads=h, key_dim=0, value_dim=1, groups=1, chunk=1, inner=h,
        projections=3 * h, convolution=f.count("conv_L_cache", default=3), convolved=h,
        convolution_bias=bias, bias=bias,
    )  # fmt: skip


def gated_linear_recurrence(f: Fields) -> Recurrent:
    """Griffin's RG-LRU (2402.19427): one decayed number each, gates in blocks of a head's width."""
    width = f.count("lru_width", default=f.hidden)
    block = f.divide(width, f.heads, "lru_width over heads")
    return Recurrent(
        kind="RG-LRU", heads=f.heads, key_dim=1, value_dim=block, groups=f.heads, chunk=1,
        inner=width, projections=2 * width, selection=2 * block,
        selection_blocks=f.heads, convolution=f.count("conv1d_width", default=4), convolved=width,
        convolution_bias=True, bias=True, numbers=3 * width,
    )  # fmt: skip


def matrix_lstm(f: Fields) -> Recurrent:
    """xLSTM's mLSTM (2405.04517): scalar input and forget gates, a normed and gated output."""
    heads, h = f.count("num_heads"), f.hidden
    keys = round(h * (f.number("qk_dim_factor") or 0.5))
    values = round(h * (f.number("v_dim_factor") or 1.0))
    f.divide(keys, heads, "width of all keys over num_heads")
    f.divide(values, heads, "width of all values over num_heads")
    return Recurrent(
        kind="mLSTM", heads=heads, key_dim=keys // heads, value_dim=values // heads, groups=heads,
        chunk=f.count("chunk_size", default=64), inner=values,
        projections=2 * keys + 2 * values + 2 * heads, numbers=2 * heads + values,
    )  # fmt: skip


def time_mix(f: Fields) -> Recurrent:
    """RWKV-4 (2305.13048): a decayed mean of values for each channel; the receptance of its channel
    mix, a projection of the input too, is counted here.
    """
    h = f.hidden
    width = f.count("attention_hidden_size", default=h)
    return Recurrent(
        kind="RWKV", heads=width, key_dim=1, value_dim=1, groups=width, chunk=1, inner=width,
        projections=3 * width + h, numbers=2 * width + 5 * h,
    )  # fmt: skip


def delta_mix(f: Fields) -> Recurrent:
    """RWKV-7 (2503.14456): the delta rule with decay, gate, step and mixed values of low rank, a
    norm over each head; the six shares of the token before, and that of its channel mix, are
    counted here.
    """
    width = f.count("head_dim", default=64)
    heads, h = f.divide(f.hidden, width, "hidden size over head_dim"), f.hidden
    if f.count("value_dim", default=h) != h:
        raise f.refuse("value_dim other than the hidden size is not priced")
    f.asked.add("num_heads")  # its code takes head_dim where both are there
    ranks = (f.count(f"{name}_low_rank_dim") for name in ("decay", "a", "v", "gate"))
    return Recurrent(
        kind="RWKV-7", heads=heads, key_dim=width, value_dim=width, groups=heads, chunk=16,
        delta_rule=True, inner=h, projections=3 * h,
        low_rank=tuple((rank, h) for rank in ranks), numbers=15 * h,
    )  # fmt: skip


def plain_mamba2(f: Fields) -> Recurrent:
    """Falcon-H1's: no norm over its output unless told, and a bias in one projection alone."""
    if f.flag("mamba_proj_bias", False) != f.flag("projectors_bias", False):
        raise f.refuse("mamba_proj_bias and projectors_bias differ, which is not priced")
    return mamba2(f if f.present("mamba_rms_norm") else f.changed({"mamba_rms_norm": False}))


def unbiased_mamba2(f: Fields) -> Recurrent:
    """Nemotron-H's: `use_bias` alone says whether its projections have one."""
    if f.flag("mamba_proj_bias", False):
        raise f.refuse("mamba_proj_bias is true, which Nemotron-H leaves unread; use_bias is read")
    return mamba2(f.changed({"mamba_proj_bias": None}))
