"""A model file from a configuration: its module built, one layer of each kind run and written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from torch import nn

from meshplan.executor.trace.flow import Flow
from meshplan.executor.trace.layer import Recorded, traced_layer
from meshplan.executor.trace.missing import CannotTrace
from meshplan.executor.trace.module import (
    built,
    kinds_of,
    layers_of,
    output_of,
    run,
    stream_of,
)
from meshplan.executor.trace.recorder import Record, Recorder
from meshplan.executor.trace.said import assumed, ends_of, not_attributed
from meshplan.hardware_profiles.traced_model import TracedLayer, TracedModel

LENGTHS = (256, 512)
"""Tokens of the two sequences: multiples of the chunks of linear attention and state spaces."""


@dataclass(slots=True)
class Seen:
    """What a run showed.

    records  of each kind, by tokens; `tokens` of this run
    answers  what the recorded layer of each kind gave back
    order    layers as they ran
    ran      modules beside the layers that ran, and of them those that ran after the last layer
    """

    tokens: int = 0
    records: dict[int, dict[int, Record]] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)
    ran_last: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Stack:
    """A module and its layers: where they are, and for each the index of its kind."""

    module: nn.Module
    path: str
    layers: nn.ModuleList
    pattern: list[int]

    def is_inside(self, name: str) -> bool:
        """Whether a module or parameter of this name belongs to a layer."""
        return f"{name}.".startswith(f"{self.path}.")


def trace(config: Mapping[str, object], name: str) -> TracedModel:
    """The model that a configuration's module is; raises `CannotTrace` with one line.

    Layers that are alike are run once and answer alike; where one reads what another left behind
    (shared keys), all are run.
    """
    recorder = Recorder()
    module = built(config, name, recorder)
    path, layers = layers_of(module, name)
    if len({id(each) for each in layers}) < len(layers) or _shares(layers):
        raise CannotTrace(f"{name}: several layers share weights, which is not priced")
    stack = Stack(module, path, layers, kinds_of(layers))
    try:
        seen = _seen(stack, name, recorder, alike_answer=True)
    except CannotTrace:
        seen = _seen(stack, name, recorder, alike_answer=False)
    return _model(config, name, stack, seen)


def _shares(layers: nn.ModuleList) -> bool:
    """Whether a parameter belongs to more than one layer."""
    each = sum(len(list(layer.parameters())) for layer in layers)
    return each != len(list(layers.parameters()))


def _seen(stack: Stack, name: str, recorder: Recorder, *, alike_answer: bool) -> Seen:
    seen = Seen()
    for at, layer in enumerate(stack.layers):
        kind = stack.pattern[at]
        vars(layer).pop("forward", None)
        if stack.pattern.index(kind) == at:
            layer.forward = _recording(layer, at, kind, seen, recorder)
        else:
            layer.forward = _answering(layer, at, kind, seen, alike_answer)
    hooks = [each.register_forward_pre_hook(_noting(path, seen, len(stack.layers)))
             for path, each in stack.module.named_modules()
             if path and not stack.is_inside(path)]  # fmt: skip
    hooks.append(stack.module.register_forward_pre_hook(lambda *_: seen.order.clear()))
    for seen.tokens in LENGTHS:
        recorder.record = None
        run(stack.module, seen.tokens, name, recorder)
    for hook in hooks:
        hook.remove()
    if sorted(seen.order) != list(range(len(stack.layers))):
        raise CannotTrace(
            f"{name}: {len(stack.layers)} layers run {len(seen.order)} times in a pass; weights "
            "that several share are not priced"
        )
    return seen


def _noting(path: str, seen: Seen, layers: int) -> Callable[..., None]:
    def note(*_: Any) -> None:
        seen.ran.add(path)
        if len(seen.order) == layers:
            seen.ran_last.add(path)

    return note


def _recording(
    layer: nn.Module, at: int, kind: int, seen: Seen, recorder: Recorder
) -> Callable[..., Any]:
    forward = layer.forward

    def recorded_forward(*args: Any, **kwargs: Any) -> Any:
        stream = stream_of(args, kwargs)
        if stream is None:
            raise CannotTrace(f"layer {at} takes no tensor of hidden states")
        record = recorder.start(layer, stream)
        seen.answers[kind] = forward(*args, **kwargs)
        out = output_of(seen.answers[kind])
        if out is None:
            raise CannotTrace(f"layer {at} gives back no tensor of hidden states")
        recorder.stop(out)
        seen.order.append(at)
        seen.records.setdefault(kind, {})[seen.tokens] = record
        return seen.answers[kind]

    return recorded_forward


def _answering(layer: nn.Module, at: int, kind: int, seen: Seen, alike: bool) -> Callable[..., Any]:
    forward = layer.forward

    def answer(*args: Any, **kwargs: Any) -> Any:
        seen.order.append(at)
        return seen.answers[kind] if alike else forward(*args, **kwargs)

    return answer


def _model(config: Mapping[str, object], name: str, stack: Stack, seen: Seen) -> TracedModel:
    table = stack.module.get_input_embeddings().weight  # type: ignore[operator]
    head = stack.module.get_output_embeddings()  # type: ignore[operator]
    rows, hidden = table.shape
    vocab = rows if head is None else head.weight.shape[0]
    if vocab > rows:
        raise CannotTrace(f"{name}: its head has {vocab} rows, its embedding {rows}")
    kinds = [_recorded(stack, seen, kind, hidden) for kind in sorted(set(stack.pattern))]
    layers, pattern = _merged(
        tuple(map(traced_layer, kinds)), [stack.pattern[at] for at in seen.order]
    )
    ends = ends_of(stack.module, stack.path, seen.ran, seen.ran_last)
    in_layers = sum(kind.parameters * kind.layers for kind in layers)
    tied = head is None or head.weight is table
    bias = head is not None and getattr(head, "bias", None) is not None
    norm = {hidden: "rmsnorm", 2 * hidden: "layernorm"}.get(ends.final_norm, "none")
    beside = ends.others + (rows - vocab) * hidden
    others = beside + (ends.final_norm if norm == "none" else 0)
    counted = vocab * hidden * (1 if tied else 2) + vocab * bias + in_layers + ends.final_norm
    return TracedModel(
        trace_version=1, name=name, model_type=str(config["model_type"]),
        source=f"{type(stack.module).__name__} of transformers {version('transformers')} on the "
               f"meta device of torch {version('torch')}, {LENGTHS[0]} and {LENGTHS[1]} tokens",
        parameters=counted + beside, hidden=hidden, vocab=vocab, tied=tied, head_bias=bias,
        final_norm=norm, other_parameters=others,  # type: ignore[arg-type]
        max_position_embeddings=_positions(stack.module),
        pattern=pattern, kinds=layers,
        assumed=tuple(assumed(layers)),
        not_attributed=tuple(dict.fromkeys(
            (*ends.left_out, *(words for kind in kinds for words in not_attributed(kind))))),
    )  # fmt: skip


def _merged(
    layers: tuple[TracedLayer, ...], order: list[int]
) -> tuple[tuple[TracedLayer, ...], tuple[int, ...]]:
    """Kinds that cost the same as one, and the kind of each layer in the order that they run."""
    known: dict[TracedLayer, int] = {}
    place = [known.setdefault(layer.model_copy(update={"name": "", "layers": 1}), len(known))
             for layer in layers]  # fmt: skip
    pattern = tuple(place[kind] for kind in order)
    first = [place.index(kind) for kind in range(len(known))]
    kept = tuple(layers[at].model_copy(update={"layers": pattern.count(kind)})
                 for kind, at in enumerate(first))  # fmt: skip
    return kept, pattern


def _recorded(stack: Stack, seen: Seen, kind: int, hidden: int) -> Recorded:
    at = stack.pattern.index(kind)
    sizes = {name: each.numel() for name, each in stack.layers[at].named_parameters()}
    flows = tuple(Flow(seen.records[kind][tokens], tokens, hidden) for tokens in LENGTHS)
    label = f"{type(stack.layers[at]).__name__} (layer {at})"
    return Recorded(label, stack.pattern.count(kind), sizes, flows)  # type: ignore[arg-type]


def _positions(module: nn.Module) -> int | None:
    config = module.config.get_text_config()  # type: ignore[union-attr, operator]
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None
