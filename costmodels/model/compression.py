"""Indexers that choose keys, compressors of keys, several streams of hidden states: their sizes.

    compressor     2 c h d + r c d + d: keys and gates of each token, a bias for each place in a
                   window and number, a norm; c 2 where windows overlap, else 1
    hyper-connections, one before each half of a layer
                   p n h + p + q: weights of n streams h wide, p = 2 n (+ n n mixed), q their scales
    before the head   n n h + n + 1
    gated instead     n h + 2 n h r: a norm of each stream and the gates, of rank r; out of a half
                   n n h
    alternating updates, one around each layer
                   2 h (a scale, a norm) + h n (the router) + n n n + n n, and a low-rank residual:
                   2 h r + h; after the embedding and before the head (n - 1) h h

Source: DeepSeek-V4 in transformers 5.24 `modeling_deepseek_v4.py` (after mHC, arXiv 2512.24880),
HYV4 in `modeling_hy_v4.py`, GLM-5.3-Flash in `modeling_glm5_next.py`, Qwen4 in
`modeling_qwen4_exp.py`, Gemma 3n in `modeling_gemma3n.py` (AltUp, arXiv 2301.13310; LAuReL, arXiv
2411.07501).
"""

from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """What chooses the keys of sparse attention (DeepSeek-V3.2's lightning indexer): it scores all
    earlier tokens, or the keys that they are compressed to, and each query attends to the `top_k`
    best.

    heads, head_dim  of the scores; one key head for all of them
    by_head          each head chooses for its own group of query heads (MiniMax-M3), instead of all
                     together by a weight for each of them
    weighed          the heads of one choice are weighed by the hidden state, not just added up
    block            tokens that are chosen together, by the mean of their keys (Qwen4)
    pooled           that mean is weighed by a gate for each number of each key (GLM-5.3-Flash)
    """

    heads: int
    head_dim: int
    top_k: int
    by_head: bool = False
    weighed: bool = True
    block: int = 1
    pooled: bool = False

    @property
    def key_columns(self) -> int:
        """Numbers of a token that keys are made of, and the gates that weigh them."""
        return self.head_dim * (1 + self.pooled)

    @property
    def weights(self) -> int:
        """Numbers of a token that weigh heads."""
        return self.heads if self.weighed and not self.by_head else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Keys that stand for `ratio` tokens each, which every query may meet beside its window's.

    overlaps  each is a mean over the tokens of the window before it too
    """

    ratio: int
    overlaps: bool = False

    @property
    def series(self) -> int:
        """Keys that each token is projected to."""
        return 2 if self.overlaps else 1

    def parameters(self, hidden: int, width: int) -> int:
        """Of the compressor of keys of `width` numbers."""
        columns = self.series * width
        return 2 * hidden * columns + self.ratio * columns + width


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Hidden states of which a token has several; each half of a layer reads one weighted sum of
    them and adds its output to all, by weights of its own for each token (hyper-connections).

    mixed  the streams are mixed with each other too (DeepSeek-V4), not added to alone (HYV4)
    rank   not 0: each number of a stream's norm is weighed by a gate of its own, and the gates are
           of this rank (Qwen4); the layers have no norms beside
    ends_in_mean  the head reads their mean, without weights (GLM-5.3-Flash)
    """

    count: int
    mixed: bool
    rank: int = 0
    ends_in_mean: bool = False

    @property
    def columns(self) -> int:
        """Weights for each token: into a half, out of it, and of each stream to each."""
        return 2 * self.count + self.mixed * self.count**2

    def layer_parameters(self, hidden: int, halves: int) -> int:
        """Of the hyper-connections of a layer."""
        if self.rank:
            return halves * (self.head_parameters(hidden) + self.count**2 * hidden)
        each = self.columns * (self.count * hidden + 1) + 2 + self.mixed
        return halves * each

    def head_parameters(self, hidden: int) -> int:
        """Of the sum that the head reads."""
        if self.ends_in_mean:
            return 0
        if self.rank:
            return self.count * hidden * (1 + 2 * self.rank)
        return self.count * (self.count * hidden + 1) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternatingUpdates:
    """Hidden states of which a layer computes one alone: it predicts all of them by a mix of their
    own, and corrects them by what its one turned out to be (AltUp); beside its attention stands a
    residual of low rank (LAuReL).

    rank  of that residual
    """

    count: int
    rank: int

    def layer_parameters(self, hidden: int) -> int:
        """Of both, around one layer."""
        mixes = self.count**3 + self.count**2
        return (2 + self.count) * hidden + mixes + (2 * self.rank + 1) * hidden

    def end_parameters(self, hidden: int) -> int:
        """Of what makes the other streams of the embedding; as many make one of them all again."""
        return (self.count - 1) * hidden * hidden
