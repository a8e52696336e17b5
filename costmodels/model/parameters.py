"""Parameters of a model, of one layer, and of the share of a layer that one rank holds.

    attention     q: h a d, k: h g d, v: h g e, out: a e h      (+ biases)
    latent        q: h r_q + r_q a d  (or h a d),  kv: h (r_kv + d_rope) + r_kv a (d_nope + e),
                  out: a e h                                    [1] section 2.1
    feed-forward  3 h f gated, 2 h f otherwise                  (+ biases)
                  with convolutions of k tokens + k g (d + e), with biases by distance + h a r + r e
    gate          h a (one for each head) or h a e
                  with a query of low rank alone q as above, out: a e r_o + g_o r_o h in g_o groups
    indexer       (r_q or h) a_i d_i + h (d_i + a_i) + 2 d_i     [4]
                  with gates of pooled blocks of b keys + h d_i + b d_i
    recurrent     h p + r (s + c) + r h, p columns of the projections, r inner numbers, s and c what
                  each selects and is widened from; + (width + bias) per convolved channel   [5]
    routed        experts x feed-forward;   router: h experts (+ 2 h l to a latent width l and back)
    norms         h each (RMSNorm), 2 h (LayerNorm)
    mtp           one layer + 2 h h + 3 norms per module        [2] section 2.2
    compressors, hyper-connections   see `compression`; an indexer of compressed keys has one too
    traced        as the trace says, routed experts apart

    h hidden, a heads, g kv_heads, d head_dim, e v_head_dim, f ffn, r_q/r_kv the latent ranks,
    a_i, d_i heads and head_dim of the indexer

On a rank matrices are cut over tp, key/value projections over min(tp, kv_heads), routed experts
over ep x etp. Norms, the router, the latent down-projections and the biases that are added after a
reduction are whole on each rank [3], and so are indexers, compressors, hyper-connections and the
narrow side of low ranks.

[1] DeepSeek-V2, arXiv 2405.04434. [2] DeepSeek-V3, arXiv 2412.19437. [3] Megatron-Core:
`multi_latent_attention.py` (down-projections with parallel_mode="duplicated"), `RowParallelLinear`.
[4] transformers 5.23 `modeling_deepseek_v32.py`. [5] Mamba-2, arXiv 2405.21060, and the modelling
files of the families in `recurrent_kinds`.
Leaves out: the embedding and head that a multi-token-prediction module shares with the model.
"""

from collections.abc import Callable
from dataclasses import replace

from meshplan.costmodels.elementwise import Adds, Number, ceil, minimum
from meshplan.costmodels.model.parameter_count import ParameterCount
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.traced_model import TracedLayer

Degree = Number


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters(Adds):
    """Parameters that one rank holds, apart by the data-parallel group that they are reduced over.

    dense   trained: gradients reduced over dp x cp
    expert  trained routed experts: reduced over dp x cp x tp / (ep x etp)
    frozen, frozen_expert  the same of weights that are not trained
    quantised              of `frozen`, those kept in fewer bits
    eight_bit, eight_bit_expert  of `dense` and of `expert`, those of layers that compute in 8 bits
    matrices               how many weights they are, where an engine sends each of them alone
    adapters               of `dense`, how many weights of adapters
    """

    dense: Number
    expert: Number = 0.0
    frozen: Number = 0.0
    frozen_expert: Number = 0.0
    quantised: Number = 0.0
    eight_bit: Number = 0.0
    eight_bit_expert: Number = 0.0
    matrices: Number = 0.0
    adapters: Number = 0.0

    def beside(self, trained: Number, adapters: Number, quantised: Number) -> "RankParameters":
        """These weights frozen beside `trained` numbers of `adapters`; `quantised` of the dense."""
        return RankParameters(
            dense=trained, frozen=self.dense, frozen_expert=self.expert, quantised=quantised,
            matrices=self.matrices, adapters=adapters,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Number of some weights, apart by the degree that cuts them.

    whole     on every rank
    over_tp   cut over the tensor-parallel ranks
    over_kv   cut over them too, but a key/value head is never cut
    over_ep   routed experts: cut over ep only (biases added after the etp reduction)
    over_etp  routed experts: cut over ep x etp
    """

    whole: int = 0
    over_tp: int = 0
    over_kv: int = 0
    over_ep: int = 0
    over_etp: int = 0

    @property
    def total(self) -> int:
        return self.whole + self.over_tp + self.over_kv + self.over_ep + self.over_etp


def layer_parameters(model: Model, kind: Layer) -> ParameterCount:
    """Parameters of one layer of this kind."""
    if kind.traced:
        routed = kind.traced.routed_parameters
        return ParameterCount(routed_experts=routed, traced=kind.traced.parameters - routed)
    return ParameterCount(**{name: part.total for name, part in _parts(model, kind).items()})


def _parts(model: Model, kind: Layer) -> dict[str, _Weights]:
    """The weights of a layer, by the fields of `ParameterCount`."""
    parts = {
        "embedding": _ngrams(model, kind),
        "attention": _attention(model, kind.attention),
        "recurrent": _recurrent(model, kind),
        "dense_ffn": _dense_ffn(model, kind),
        "norms": _norms(model, kind),
    }
    if kind.experts:
        parts["shared_experts"] = _shared(model, kind.experts)
        parts["router"] = _router(model, kind.experts)
        parts["routed_experts"] = _routed(model, kind.experts)
    return parts


def model_parameters(model: Model) -> ParameterCount:
    """Parameters of the whole model, the vocabulary not padded, a tied head counted once."""
    return _model_total(model, layer_parameters)


def active_parameters(model: Model) -> ParameterCount:
    """Parameters that one token uses: `top_k` of the routed experts, everything else.

    The embedding is counted whole although a token reads one row of it: papers differ, so subtract
    it where they leave it out (gpt-oss) and keep it where they do not (DeepSeek-V3). Of a table of
    n-grams only the rows that a token reads are.
    """
    return _model_total(model, _active_layer)


def _active_layer(model: Model, kind: Layer) -> ParameterCount:
    experts = kind.experts and replace(kind.experts, of_images=0)  # it is a token of text
    count = layer_parameters(model, replace(kind, experts=experts))
    if kind.ngrams:
        unread = kind.ngrams.table - kind.ngrams.width
        count = replace(count, embedding=count.embedding - unread)
    if experts is None:
        return count
    return replace(count, routed_experts=count.routed_experts // experts.experts * experts.top_k)


def layer_parameters_per_rank(
    model: Model, kind: Layer, tp: Degree, ep: Degree = 1, etp: Degree = 1
) -> RankParameters:
    """Parameters of one layer of this kind on one rank; a degree may be an array over layouts."""
    if kind.traced:
        return _traced_per_rank(kind.traced, tp, ep * etp)
    dense = _parts(model, kind)
    routed = dense.pop("routed_experts", _Weights())
    kv_cut = minimum(tp, max(kind.attention.kv_heads, 1))
    return RankParameters(
        dense=sum(
            part.whole + part.over_tp / tp + part.over_kv / kv_cut for part in dense.values()
        ),
        expert=routed.over_ep / ep + routed.over_etp / (ep * etp),
    )


def _traced_per_rank(layer: TracedLayer, tp: Degree, expert_ranks: Degree) -> RankParameters:
    whole = layer.parameters - layer.cut_parameters - layer.routed_parameters
    return RankParameters(
        dense=whole + layer.cut_parameters / tp, expert=layer.routed_parameters / expert_ranks
    )


def embedding_parameters_per_rank(model: Model, tp: Degree) -> Number:
    """Parameters of the embedding (positions and its norm too) on a rank of the first stage."""
    vocab = padded_vocab(model.vocab, tp)
    rest = model.learned_positions * model.hidden + model.embedding_norm * _norm(model)
    rest += model.other_parameters + _stream_end(model)
    return (vocab * model.hidden + _layer_input_table(model)) / tp + rest


def head_parameters_per_rank(model: Model, tp: Degree) -> Number:
    """Parameters of the head and the final norm on a rank of the last stage.

    A tied head is counted too: the last stage of a pipeline holds its own copy. Without a pipeline
    there is no copy, and only `final_norm_parameters` is left.
    """
    vocab = padded_vocab(model.vocab, tp)
    return vocab * (model.hidden + model.head_bias) / tp + final_norm_parameters(model)


def final_norm_parameters(model: Model) -> int:
    """Parameters of the norm before the head and of what it reads of several streams, whole on each
    rank.
    """
    return model.final_norm * _norm(model) + _stream_head(model) + _stream_end(model)


def _stream_head(model: Model) -> int:
    return model.streams.head_parameters(model.hidden) if model.streams else 0


def _stream_end(model: Model) -> int:
    return model.alternating.end_parameters(model.hidden) if model.alternating else 0


def mtp_parameters_per_rank(
    model: Model, tp: Degree, ep: Degree = 1, etp: Degree = 1
) -> RankParameters:
    """Parameters of all multi-token-prediction modules on a rank of the last stage.

    The 2h x h projection is cut over tp, as Megatron-Core's `multi_token_prediction.py` does
    (column parallel, its output gathered).
    """
    model, modules = model.of_modules, model.mtp_layers
    layer = layer_parameters_per_rank(model, model.module_layer, tp, ep, etp)
    projection = _mtp_projection(model) / tp + _module_norms(model) + _stream_head(model)
    return RankParameters(dense=modules * (layer.dense + projection), expert=modules * layer.expert)


def padded_vocab(vocab: int, tp: Degree) -> Number:
    """The vocabulary filled up to a multiple of tp: equal rows for each rank.

    Leaves out that Megatron-LM fills it up to a multiple of 128 x tp unless told otherwise
    (`_vocab_size_with_padding`, --make-vocab-size-divisible-by).
    """
    return ceil(vocab / tp) * tp


def _model_total(
    model: Model, of_layer: Callable[[Model, Layer], ParameterCount]
) -> ParameterCount:
    """The model whose layers have the parameters that `of_layer` says."""
    vocab = model.vocab * model.hidden
    one = model.of_modules
    module = of_layer(one, one.module_layer).total if model.mtp_layers else 0
    module += _mtp_projection(one) + _module_norms(one) + _stream_head(one)
    ends = ParameterCount(
        embedding=vocab
        + model.learned_positions * model.hidden
        + _layer_input_table(model)
        + _stream_end(model),
        head=(0 if model.tied else vocab) + model.head_bias * model.vocab,
        norms=model.embedding_norm * _norm(model) + final_norm_parameters(model),
        traced=model.other_parameters,
        mtp=model.mtp_layers * module,
    )
    layers = [of_layer(model, kind) for kind in model.kinds]
    return sum((layers[kind] * length for kind, length in model.runs), start=ends)


def _layer_input_table(model: Model) -> int:
    """The rows of the layers' own inputs, and the projection of the first embedding beside them."""
    width = model.num_layers * model.layer_inputs
    return width * (model.layer_input_vocab + model.hidden) + model.layer_inputs


def _mtp_projection(model: Model) -> int:
    """Hidden state and token embedding side by side, back to the hidden width."""
    return 2 * model.hidden * model.hidden


def _module_norms(model: Model) -> int:
    """Of the embedding, of the hidden state, and before the head; of gated streams each has a norm
    of its own, and the head's is theirs.
    """
    gated = model.streams is not None and model.streams.rank > 0
    return (1 + model.stream_width // model.hidden if gated else 3) * _norm(model)


def _attention(model: Model, attention: Attention) -> _Weights:
    at, h = attention, model.hidden
    width, v_width = at.heads * at.head_dim, at.heads * at.v_head_dim
    out_bias, sinks = at.out_bias * h, at.sinks * at.heads
    gate = {"none": 0, "head": at.heads, "full": v_width}[at.gate]
    gate *= at.query_rank if at.latent_gate else h
    if not at.heads:
        return _Weights()
    if at.is_mla:
        nope = at.head_dim - at.rope_head_dim
        down = h * (at.q_lora_rank + at.kv_lora_rank + at.rope_head_dim)
        query = (at.query_rank or h) * width
        key_value = at.kv_lora_rank * at.heads * (nope + at.v_head_dim)
        cut = query + key_value + v_width * h + gate + sinks
        return _Weights(whole=down + out_bias + _indexer(model, at), over_tp=cut)
    rows = h + at.qkv_bias
    own = at.own_keys * (at.head_dim + at.own_values * at.v_head_dim)
    compressor = at.compression.parameters(h, at.head_dim) if at.compression else 0
    query = (at.q_lora_rank or rows) * width
    out = v_width * at.out_rank + at.out_width * h
    return _Weights(
        whole=out_bias
        + _indexer(model, at)
        + compressor
        + h * at.q_lora_rank
        + at.relative_rank * at.relative_extent,
        over_tp=query + out + sinks + gate + h * at.heads * at.relative_rank,
        over_kv=(rows + at.convolution) * at.kv_heads * own
        + at.key_steps * at.kv_heads**2 * at.v_head_dim,
    )


def _indexer(model: Model, attention: Attention) -> int:
    """Query, key and head-weight projections, and the layer norm of the key; or its compressor."""
    index = attention.indexer
    if index is None:
        return 0
    query = (attention.q_lora_rank or model.hidden) * index.heads * index.head_dim
    if attention.compression:
        keys = attention.compression.parameters(model.hidden, index.head_dim)
        return query + model.hidden * index.heads + keys
    beside = 2 * index.head_dim + index.pooled * index.block * index.head_dim
    return query + model.hidden * (index.key_columns + index.weights) + beside


def _ngrams(model: Model, kind: Layer) -> _Weights:
    """The table is cut by its columns; what gates its rows is whole."""
    table = kind.ngrams
    if table is None:
        return _Weights()
    streams = model.stream_width // model.hidden
    return _Weights(whole=table.beside_table(model.hidden, streams), over_tp=table.table)


def _recurrent(model: Model, kind: Layer) -> _Weights:
    mixer, h = kind.recurrent, model.hidden
    if mixer is None:
        return _Weights()
    convolution = mixer.convolved * (mixer.convolution + mixer.convolution_bias)
    widened = sum(rank * columns for rank, columns in mixer.low_rank)
    cut = (h + mixer.bias) * mixer.projections + h * mixer.inner + convolution
    cut += mixer.inner * (mixer.selection + mixer.step_rank) + widened + mixer.numbers
    return _Weights(whole=h * sum(rank for rank, _ in mixer.low_rank) + mixer.bias * h, over_tp=cut)


def _feed_forward(model: Model, ffn: int, bias: bool, width: int = 0) -> tuple[int, int]:
    """Number that tensor parallelism cuts, and those that stay whole: the bias of the output.

    width  of its input and output, 0: the hidden size
    """
    up_matrices, width = 2 if model.gated else 1, width or model.hidden
    cut = (up_matrices + 1) * width * ffn + bias * up_matrices * ffn
    return cut, bias * width


def _dense_ffn(model: Model, kind: Layer) -> _Weights:
    if not kind.ffn:
        return _Weights()
    cut, whole = _feed_forward(model, kind.ffn, model.bias)
    return _Weights(over_tp=cut, whole=whole)


def _routed(model: Model, experts: Experts) -> _Weights:
    cut, whole = _feed_forward(model, sum(experts.widths), experts.bias, experts.latent)
    whole *= len(experts.widths)
    return _Weights(over_etp=experts.experts * cut, over_ep=experts.experts * whole)


def _shared(model: Model, experts: Experts) -> _Weights:
    gate = experts.shared_gate * model.hidden
    if not experts.shared_ffn:
        return _Weights(whole=gate)
    cut, whole = _feed_forward(model, experts.shared_ffn, experts.bias)
    return _Weights(over_tp=cut, whole=whole + gate)


def _router(model: Model, experts: Experts) -> _Weights:
    scores = len(experts.widths) * experts.experts * (model.hidden + experts.router_bias)
    scores += experts.scored_shared * model.hidden
    return _Weights(whole=scores + 2 * model.hidden * experts.latent)


def _norm(model: Model) -> int:
    weights = {"rmsnorm": 1, "layernorm": 2, "layernorm_without_bias": 1, "none": 0}
    return weights[model.norm] * model.hidden


def _norms(model: Model, kind: Layer) -> _Weights:
    at, each = kind.attention, _norm(model)
    keys = at.own_keys * at.kv_heads
    heads = {
        "none": 0,
        "head": (1 + at.own_keys) * at.head_dim,
        "full": (at.heads + keys) * at.head_dim,
        "keys": at.head_dim,
    }
    weights = 0 if model.norm == "none" else 1
    halves = kind.has_mixer + kind.has_feed_forward
    hidden_wide = model.norms_per_layer * each
    if halves < 2:
        hidden_wide = hidden_wide * halves // 2
    beside = kind.further_norms * model.hidden + kind.numbers
    beside += halves * model.hidden * kind.output_convolution
    beside += 2 * model.hidden * kind.norm_gate_rank * (kind.has_mixer + bool(kind.experts))
    inputs = model.layer_inputs * 2 * model.hidden + (model.hidden if model.layer_inputs else 0)
    latent = at.q_lora_rank + at.kv_lora_rank
    streams = model.streams.layer_parameters(model.hidden, halves) if model.streams else 0
    beside += streams + inputs
    beside += model.alternating.layer_parameters(model.hidden) if model.alternating else 0
    return _Weights(whole=hidden_wide + weights * heads[at.qk_norm] + latent + beside)
