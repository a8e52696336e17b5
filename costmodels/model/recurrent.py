"""A mixer of tokens that keeps a state of fixed size."""

from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A mixer of tokens with a state of fixed size instead of keys and values: state-space models,
    linear attention, short convolutions.

    kind           in the field's word, as messages show it
    heads          each with a state of `key_dim` rows and `value_dim` columns (0 rows: no state)
    groups         of heads that share their keys (Mamba-2's B and C), or all: `heads`
    chunk          tokens that are mixed by matrix products before the state takes them up
    delta_rule     what a key already returns is subtracted before its value is added (2406.06484)
    projections    columns of the projections of the layer's input
    low_rank       (rank, columns) of projections of the input through so narrow a middle
    selection      columns that each of the inner numbers gives (Mamba's step, B and C), be it in
                   `selection_blocks` of them apart (RG-LRU's gates)
    step_rank      the width that the step is widened again from
    inner          numbers of a token that enter the output projection
    convolution    width of the causal convolution over `convolved` numbers of each token, 0: none
    bias           in both projections; `convolution_bias` in the convolution
    numbers        learnt numbers beside these: decays, steps, skips, norms over heads
    """

    kind: str
    heads: int
    key_dim: int
    value_dim: int
    groups: int
    chunk: int
    inner: int
    projections: int
    delta_rule: bool = False
    low_rank: tuple[tuple[int, int], ...] = ()
    selection: int = 0
    selection_blocks: int = 1
    step_rank: int = 0
    convolution: int = 0
    convolved: int = 0
    convolution_bias: bool = False
    bias: bool = False
    numbers: int = 0
