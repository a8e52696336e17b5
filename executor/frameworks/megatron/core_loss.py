"""Which of Megatron-Core's losses settings ask for, and what asks for a plan's.

`cross_entropy_loss_fusion` is off in Megatron-Core and on in Megatron-Bridge's models
(NVIDIA-NeMo/Megatron-Bridge@067f987 src/megatron/bridge/models/gpt_provider.py), and
`cross_entropy_fusion_impl` native in both; recipes set either.
"""

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.core_loss import loss_word
from meshplan.planner.case.reading import CannotSay
from meshplan.planner.case.resolve import engine_named

_FUSION, _KIND = "cross_entropy_loss_fusion", "cross_entropy_fusion_impl"


def loss_of(values: Values, *, whole: bool) -> str:
    """The word of `CORE_LOSSES`, "" where a recipe that is not read decides; `whole`: none does,
    and what is not stated is as Megatron-Bridge's models have it.
    """
    fusion = values.flag(_FUSION)
    if fusion is not None and not fusion.value:
        return "unfused"
    kind = values.word({word: word for word in ("te", "native")}, _KIND)
    if kind is None:
        return "native" if whole else ""
    return str(kind.value)


def loss_of_flags(values: Values) -> str:
    """The same of Megatron-LM's command, whose flags are off and native unless they are there."""
    if not values.on(_FUSION):
        return "unfused"
    return loss_of(values, whole=True)


def loss_unsaid(engine: str) -> list[CannotSay]:
    """A plan's loss that Megatron-LM's own program refuses (--cross-entropy-fusion-impl te, since
    June 2026: NVIDIA/Megatron-LM@168cb15d megatron/training/arguments.py, validate_args).
    """
    if loss_word(engine_named(engine)) != "te":
        return []
    why = "pretrain_gpt.py refuses cross_entropy_fusion_impl te; its own loss needs more memory"
    return [CannotSay("loss", "te", why)]


def loss_flags(engine: str) -> dict[str, object]:
    """What gives Megatron-LM's command the loss of a plan for `engine`, where it can have it."""
    return {_FUSION: True} if loss_word(engine_named(engine)) == "native" else {}


def loss_settings(engine: str) -> dict[str, object]:
    """What gives a recipe the loss that a plan for `engine` was priced with."""
    word = loss_word(engine_named(engine))
    return {_FUSION: False} if word == "unfused" else {_FUSION: True, _KIND: word}
