"""Numbers, loss and recompute of NeMo AutoModel's files.

    optimizer._target_, model.torch_dtype           optimizer: AdamW on weights of 16 bit
    fp8, model.backend.te_fp8                       precision
    loss_fn                                         the engine: masked cross entropy casts logits to
                                                    32 bits unless fp32_upcast is false
    distributed.activation_checkpointing            recompute full, where whole layers recompute
    distributed.defer_fsdp_grad_sync (true)         gradients add up whole, in the format of their
                                                    reduction, and are reduced after the last of
                                                    several micro-batches

Source: NVIDIA-NeMo/Automodel@36044ad `nemo_automodel/components/loss`,
`components/quantization/fp8.py`, `components/distributed/parallelizer.py`,
`distributed/activation_checkpointing.py` (apply_submodule_checkpointing),
`distributed/utils.py` (get_sync_ctx: set_requires_gradient_sync alone), `components/moe/
parallelizer.py` (apply_ac), `components/moe/fsdp_mixin.py`; the format of the sums: pytorch
v2.9.0 `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (to_accumulated_grad_if_needed).
"""

from collections.abc import Mapping

from meshplan.costmodels.training import Precision
from meshplan.executor.frameworks.documents.values import Values, optimizer, shown
from meshplan.executor.frameworks.hugging_face.trainer_models import has_experts
from meshplan.planner.case.reading import Fact, IllegalConfig, Recompute

ENGINE, UPCAST_ENGINE = "automodel", "automodel-fp32-loss"
OPTIMIZERS = {"torch.optim.Adam": "adamw", "torch.optim.AdamW": "adamw", "torch.optim.SGD": "sgd"}
_LOSS = "nemo_automodel.components.loss."
_MASKED = _LOSS + "masked_ce.MaskedCrossEntropy"
_SMALLER = (_LOSS + "linear_ce.FusedLinearCrossEntropy", _LOSS + "chunked_ce.ChunkedCrossEntropy",
            _LOSS + "te_parallel_ce.TEParallelCrossEntropy")  # fmt: skip
_DTYPES = ("bf16", "bfloat16", "torch.bfloat16")
_FP8_SCALES = ("tensorwise",)
_TE_SCALES: dict[str, Precision] = {"current": "fp8", "mxfp8": "mxfp8"}
_SWITCH = {"true": "full", "on": "full", "full": "full", "enabled": "full", "yes": "full",
           "false": "none", "off": "none", "disabled": "none", "no": "none",
           "selective": "selective"}  # fmt: skip
_OWN_LAYERS = ("baichuan", "llama", "ministral3", "qwen2", "qwen3", "qwen3_5", "qwen3_5_text")
"""Dense families whose layers are AutoModel's own classes, not transformers'."""


def read_numbers(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds optimizer and formats; what of them is not understood."""
    unread = optimizer(values, facts, "optimizer._target_", OPTIMIZERS)
    why = "weights in this format, and the optimizer's states beside them, are not modelled"
    unread += values.besides(_DTYPES, "model.torch_dtype", why)
    return [*unread, *_reduced(values), *_read_fp8(values, facts)]


def _reduced(values: Values) -> list[Fact]:
    """FSDP2's formats, where they are not its default: 16 bits, reduced in 32. A section that does
    not say in what it reduces does so in the weights' format.
    """
    if not values.has("distributed.mp_policy"):
        return []
    where = "distributed.mp_policy."
    values.get(where + "_target_")
    why = "weights of 16 bits and gradients reduced in 32 are modelled"
    wide = ("float32", "torch.float32", "fp32")
    reduced = values.get(where + "reduce_dtype")
    line = values.found.get("distributed.mp_policy", Fact(None, 1)).line
    return [
        *([] if reduced else [Fact(f"{where}reduce_dtype not stated ({why})", line)]),
        *values.besides(_DTYPES, where + "param_dtype", why),
        *values.besides(wide, where + "reduce_dtype", why),
        *values.besides(_DTYPES, where + "output_dtype", why),
    ]


def _read_fp8(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds the format of linear layers: torchao's, or Transformer Engine's."""
    why = "these scales of 8 bits are not modelled"
    if values.on("fp8.enabled"):
        facts["precision"] = Fact("fp8", values.found["fp8.enabled"].line)
        return values.besides(_FP8_SCALES, "fp8.recipe_name", why)
    if not values.has("model.backend.te_fp8"):
        return []
    values.get("model.backend.te_fp8._target_")
    recipe = values.get("model.backend.te_fp8.recipe") or Fact("current", 1)
    if str(recipe.value) in _TE_SCALES:
        facts["precision"] = Fact(_TE_SCALES[str(recipe.value)], recipe.line)
        why = "linear layers of torch stay in 16 bits; not modelled beside experts of 8"
        return values.besides(("te",), "model.backend.linear", why)
    return [Fact(f"model.backend.te_fp8.recipe {shown(recipe.value)} ({why})", recipe.line)]


def engine_of(values: Values) -> tuple[str, list[str], list[Fact]]:
    """The engine by what its loss keeps; notes, and a loss that is not understood."""
    loss = values.get("loss_fn._target_")
    upcast = values.flag("loss_fn.fp32_upcast") or Fact(True, 1)
    if loss is None or loss.value == _MASKED:
        return UPCAST_ENGINE if upcast.value else ENGINE, [], []
    if loss.value in _SMALLER:
        name = str(loss.value).rpartition(".")[2]
        return ENGINE, [f"line {loss.line}: {name} keeps less of the logits than is priced"], []
    why = "another loss than masked cross entropy is not modelled"
    return ENGINE, [], [Fact(f"loss_fn {shown(loss.value)} ({why})", loss.line)]


def read_recompute(
    values: Values, facts: Mapping[str, Fact], config: Mapping[str, object] | None
) -> tuple[Recompute, list[Fact]]:
    """Which layers recompute; and where it is not whole layers.

    Whole layers are those of an expert-parallel model and transformers' own; in AutoModel's own
    attention, feed-forward and norms each keep their input.
    """
    stated = values.get("distributed.activation_checkpointing")
    if stated is None:
        return Recompute(), []
    mode = _SWITCH.get(str(stated.value).lower())
    if mode is None:
        known = "true, false, full, selective"
        raise IllegalConfig(f"activation_checkpointing is {shown(stated.value)}; known are {known}",
                            stated.line)  # fmt: skip
    if mode == "selective":
        why = "operations that recompute are not modelled"
        return Recompute(), [Fact(f"activation_checkpointing selective ({why})", stated.line)]
    if mode == "none" or _recomputes_layers(values, facts, config):
        return Recompute("full" if mode == "full" else "none"), []
    why = "attention, feed-forward and norms each keep their input without expert parallelism; not "
    return Recompute("full"), [Fact(f"activation_checkpointing ({why}modelled)", stated.line)]


def _recomputes_layers(
    values: Values, facts: Mapping[str, Fact], config: Mapping[str, object] | None
) -> bool:
    """Whether whole layers recompute; of a family that is not known, or has a tower, it is not."""
    if facts["expert_parallel"].value > 1:
        return True
    plain = (
        config is not None and "text_config" not in config
        and not has_experts(config) and config.get("model_type") not in _OWN_LAYERS
    )  # fmt: skip
    compiled = values.on("distributed.enable_compile")
    return (plain or values.on("model.force_hf")) and not compiled


def defers_sums(values: Values, facts: Mapping[str, Fact]) -> bool:
    """Whether gradients of several micro-batches add up whole, and are reduced after the last: the
    weights are sharded again after each all the same. Adapters' are small.
    """
    stated = values.flag("distributed.defer_fsdp_grad_sync") or Fact(True, 1)
    return bool(stated.value) and "lora" not in facts


def kept_whole(values: Values) -> tuple[Fact, ...]:
    """What is not modelled of several micro-batches: gathered weights of a model of experts that
    wait for the last one.
    """
    name = "model.backend.enable_fsdp_optimizations"
    if not values.on(name):
        return ()
    why = "weights that stay gathered until the last of several micro-batches are not modelled; "
    how = "false, or a local_batch_size that takes a replica's share at once, is"
    return (Fact(f"{name} true ({why}{how})", values.found[name].line),)
