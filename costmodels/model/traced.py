"""A model file (`hardware_profiles.traced_model`) as a `Model`."""

from collections.abc import Mapping

from pydantic import ValidationError

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.transformer import NO_ATTENTION, Attention, Experts, Layer, Model
from meshplan.hardware_profiles.traced_model import (
    TRACE_VERSION,
    TracedExperts,
    TracedLayer,
    TracedModel,
)

TRACE_KEY = "trace_version"
"""The field by which a model file is told from a configuration."""


def model_from_trace(config: Mapping[str, object], name: str) -> Model:
    """The model of a parsed model file; raises `UnsupportedModel` with one line."""
    read = _checked(config, name)
    return Model(
        name=name, hidden=read.hidden, vocab=read.vocab, kinds=tuple(map(_layer, read.kinds)),
        pattern=read.pattern, norm=read.final_norm, final_norm=read.final_norm != "none",
        tied=read.tied, head_bias=read.head_bias, other_parameters=read.other_parameters,
    )  # fmt: skip


def left_out_of_trace(config: Mapping[str, object]) -> tuple[str, ...]:
    """What the file says of itself that is in none of its numbers."""
    return _checked(config, "").not_attributed


def attention_of(layer: TracedLayer) -> tuple[Attention, ...]:
    """Its attention calls as the cost model has them, their projections apart."""
    return tuple(
        Attention(heads=each.heads, kv_heads=each.kv_heads, head_dim=each.head_dim,
                  v_head_dim=each.v_head_dim, window=each.window)
        for each in layer.attention
    )  # fmt: skip


def _checked(config: Mapping[str, object], name: str) -> TracedModel:
    if config.get(TRACE_KEY) != TRACE_VERSION:
        raise UnsupportedModel(
            f"{name}: {TRACE_KEY} is {str(config.get(TRACE_KEY))[:20]}, this release reads "
            f"{TRACE_VERSION}; trace the model again"
        )
    try:
        read = TracedModel.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise UnsupportedModel(f"{name}: not a model file: {place}: {first['msg'][:120]}") from None
    _check_sums(read, name)
    return read


def _check_sums(read: TracedModel, name: str) -> None:
    """Refuse a file whose parts contradict each other."""
    if set(read.pattern) != set(range(len(read.kinds))):
        raise UnsupportedModel(f"{name}: pattern does not name each of {len(read.kinds)} kinds")
    for at, kind in enumerate(read.kinds):
        if kind.cut_parameters + kind.routed_parameters > kind.parameters:
            raise UnsupportedModel(f"{name}: {kind.name} has fewer parameters than its parts")
        if kind.layers != read.pattern.count(at):
            said = f"{kind.layers} layers, its pattern {read.pattern.count(at)}"
            raise UnsupportedModel(f"{name}: {kind.name} says {said}")


def _layer(traced: TracedLayer) -> Layer:
    calls = attention_of(traced)
    return Layer(
        attention=calls[0] if calls else NO_ATTENTION,
        experts=_experts(traced.experts) if traced.experts else None,
        traced=traced,
    )


def _experts(found: TracedExperts) -> Experts:
    return Experts(experts=found.experts, top_k=found.top_k, ffn=found.ffn)
