"""A module of transformers on the meta device, from a configuration alone.

No code but transformers' own is run: a configuration that names its own (`auto_map`) is built by
the family's class or not at all, and kernels that it asks for by name are not loaded.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from meshplan.costmodels.model.config_fields import MAX_COUNT, MAX_LAYERS
from meshplan.executor.trace.missing import CannotTrace
from meshplan.executor.trace.recorder import Recorder, attention_of

ATTENTION = "meshplan_trace"
NOT_READ = frozenset((
    *("auto_map", "architectures", "transformers_version", "quantization_config", "device_map"),
    *("attn_implementation", "experts_implementation", "dtype", "torch_dtype"),
))  # fmt: skip
MOST_DEPTH = 8


def built(config: Mapping[str, object], name: str, recorder: Recorder) -> nn.Module:
    """The module of a configuration, without numbers, whose attention tells `recorder`.

    Raises `CannotTrace` where transformers knows no such model, or builds none.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CannotTrace(
            f"{name}: the field 'model_type' is missing; it says which family this is"
        )
    _check_sizes(config, name)
    transformers = import_module("transformers")
    transformers.AttentionInterface.register(ATTENTION, attention_of(recorder))
    fields = {key: value for key, value in _without_kernels(config).items() if key != "model_type"}
    with quiet(), _as_one_line(name, "transformers builds no module"):
        read = transformers.AutoConfig.for_model(model_type, **fields)
        if read.is_encoder_decoder:
            raise CannotTrace(f"{name}: an encoder-decoder; decoder-only models are traced")
        module = _from_config(_class_for(transformers, read), read)
    return module.eval()


def _from_config(family: Any, config: Any) -> nn.Module:
    """The module on the meta device; its attention written out where it takes no other."""
    for attention in (ATTENTION, "eager"):
        try:
            with torch.device("meta"):
                module: nn.Module = family.from_config(
                    config, dtype=torch.bfloat16, attn_implementation=attention
                )
        except KeyError as error:  # an older family looks its own classes up by this name
            if attention not in str(error):
                raise
            continue
        if module._can_set_experts_implementation():  # type: ignore[operator]
            module.set_experts_implementation("grouped_mm")  # type: ignore[operator]
        return module
    raise CannotTrace(f"{type(config).__name__}: its attention cannot be chosen")


def _class_for(transformers: Any, config: Any) -> Any:
    """The class of causal language models, or of those that read images too."""
    auto = import_module("transformers.models.auto.modeling_auto")
    masked = type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING
    if masked and not getattr(config, "is_decoder", False):
        raise CannotTrace(f"{type(config).__name__}: an encoder; decoder-only models are traced")
    if type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    if type(config) in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText
    raise CannotTrace(f"transformers has no language model for {type(config).__name__}")


def _without_kernels(config: Mapping[str, object]) -> dict[str, Any]:
    """The fields that say how large a model is, in nested configurations too."""
    return {key: _plain(value) for key, value in config.items()
            if not key.startswith("_") and key not in NOT_READ}  # fmt: skip


def _plain(value: object) -> object:
    """A field's value; transformers writes what JSON has no number for as `{"__float__": ...}`."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"__float__"}:
        return float(value["__float__"])
    return _without_kernels(value)


def _check_sizes(config: Mapping[str, object], name: str, depth: int = 0) -> None:
    """Refuse numbers that no model has, before anything is built of them."""
    if depth > MOST_DEPTH:
        raise CannotTrace(f"{name}: its fields nest more than {MOST_DEPTH} deep; no config does")
    for key, value in config.items():
        if isinstance(value, dict):
            _check_sizes(value, name, depth + 1)
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            raise CannotTrace(f"{name}: {key[:40]} is {str(value)[:20]}, beyond {MAX_COUNT}")
        many = key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if many and isinstance(value, int) and value > MAX_LAYERS:
            raise CannotTrace(f"{name}: {key} is {value}, more than {MAX_LAYERS}")


def run(module: nn.Module, tokens: int, name: str, recorder: Recorder) -> None:
    """One forward pass of one sequence; raises `CannotTrace` where the numbers decide what runs.

    A mask is given as attention adds it; to a module that cannot read that one, as ones and
    zeros for each token, or none.
    """
    with torch.device("meta"):
        ids, positions = torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens)[None]
        masks = (
            torch.zeros(1, 1, tokens, tokens, dtype=torch.bfloat16),
            torch.ones(1, tokens),
            None,
        )
    taken = signature(module.forward).parameters
    said = {"position_ids": positions} if "position_ids" in taken else {}
    failed: Exception | None = None
    for mask in masks:
        saved = torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda tensor: tensor)
        try:
            with quiet(), recorder, saved:
                module(input_ids=ids, attention_mask=mask, use_cache=False, **said)
        except CannotTrace:
            raise
        except Exception as error:  # whatever another project's code raises is shown
            failed = failed or error
            recorder.record = None
            continue
        return
    assert failed is not None
    raise CannotTrace(f"{name}: its module does not run without numbers ({_words(failed)})")


def layers_of(module: nn.Module, name: str) -> tuple[str, nn.ModuleList]:
    """The list of modules that holds most of the parameters: the layers."""
    lists = [
        (path, each) for path, each in module.named_modules() if isinstance(each, nn.ModuleList)
    ]
    if not lists:
        raise CannotTrace(f"{name}: its module has no list of layers")
    return max(lists, key=lambda each: sum(p.numel() for p in each[1].parameters()))


def kinds_of(layers: nn.ModuleList) -> list[int]:
    """For each layer the index of its kind: alike are layers of one class whose parameters have
    one shape and whose modules hold the same plain settings, their own number apart.
    """
    known: dict[object, int] = {}
    return [known.setdefault(_signature(layer), len(known)) for layer in layers]


def _signature(layer: nn.Module) -> object:
    shapes = tuple((key, tuple(each.shape)) for key, each in layer.named_parameters())
    settings = Counter(
        (path, key, repr(value))
        for path, each in layer.named_modules()
        for key, value in vars(each).items()
        if isinstance(value, int | float | str | bool | None)
        and key not in ("layer_idx", "layer_id")
    )
    return type(layer), shapes, frozenset(settings.items())


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's advice on training and loading from the answer."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


@contextmanager
def _as_one_line(name: str, what: str) -> Iterator[None]:
    """Whatever another project's code raises becomes one line that shows it."""
    try:
        yield
    except CannotTrace:
        raise
    except Exception as error:
        raise CannotTrace(f"{name}: {what} ({_words(error)})") from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def stream_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """What a layer was given as hidden states."""
    given = kwargs.get("hidden_states", args[0] if args else None)
    return given if isinstance(given, Tensor) else None


def output_of(output: Any) -> Tensor | None:
    """The hidden states that a layer gives back, alone or first of several."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, Tensor) else None
