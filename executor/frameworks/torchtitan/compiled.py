"""What of a torchtitan run is compiled, and what is replayed as a CUDA graph."""

from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.executor.frameworks.torchtitan.function_facts import WHOLE_LOSS
from meshplan.executor.frameworks.torchtitan.names import UNCOMPILED
from meshplan.planner.case.reading import Fact


def engine_of(values: Values, *, python: bool) -> str:
    """The one without a compiler, which is torchtitan's default; `compile` stood in [training]
    until 2025. A function of Python that starts from a shipped one and leaves it out is taken to
    have none either, as Llama 3's of 8B and 70B (pytorch/torchtitan@00d1c0e4
    torchtitan/models/llama3/config_registry.py; that of 405B compiles). Files of Python are of
    releases that have their loss in chunks and FlexAttention. Components without the model leave it
    uncompiled (torchtitan/models/llama3/infra/parallelize.py, model_compile_enabled). A function
    whose loss has all logits at once is priced as 0.2.
    """
    chunked = python and values.get(WHOLE_LOSS) is None
    compiled = values.on("compile.enable") and _without_the_model(values) is None
    if compiled or values.on("training.compile"):
        return "torchtitan" if chunked else "torchtitan-0.2"
    return UNCOMPILED["0.3" if chunked else "0.2"]


def whole_loss(values: Values) -> list[str]:
    """A note of a loss that a function of Python has at once."""
    stated = values.get(WHOLE_LOSS)
    if stated is None:
        return []
    who = "CrossEntropyLoss has" if stated.value else "no loss is stated, which before May 2026 had"
    said = "all logits of a micro-batch at once: priced as torchtitan 0.2, with its attention"
    return [f"line {stated.line}: {who} {said}"]


def _without_the_model(values: Values) -> Fact | None:
    """The components that the compiler is given without the model."""
    stated = values.found.get("compile.components")
    if stated is None or not isinstance(stated.value, list | tuple) or "model" in stated.value:
        return None
    return values.get("compile.components")


def loss_alone(values: Values) -> list[str]:
    """A note where the compiler is given the loss and not the model."""
    stated = _without_the_model(values) if values.on("compile.enable") else None
    if stated is None:
        return []
    why = "has no model: priced as not compiled, the loss too"
    return [f"line {stated.line}: compile.components {shown(stated.value)} {why}"]


def graphed(values: Values, facts: Mapping[str, Fact]) -> list[str]:
    """torchtitan captures a step's passes from 0.3 on, not those of a pipeline nor of most
    dispatchers (pytorch/torchtitan@b5bcd76 torchtitan/config/configs.py, `disable_cuda_graphs`).
    """
    parted = any(
        facts.get(axis, Fact(1, 1)).value > 1 for axis in ("pipeline_parallel", "expert_parallel")
    )
    loss = values.get(WHOLE_LOSS)
    older = loss is not None and not loss.value  # a release before there were any
    if parted or older or values.on("training.disable_cuda_graphs"):
        return []
    said = "torchtitan 0.3 replays forward and backward as a CUDA graph unless"
    return [f"{said} training.disable_cuda_graphs is set: priced as launched by the host"]
