"""Megatron's offload to the host: of the optimizer, and of what layers save.

    ours                theirs
    optimizer_offload   optimizer_cpu_offload, use_precision_aware_optimizer,
                        optimizer_offload_fraction 1
    activation_offload  cpu_offloading_num_layers, at most all layers but one; without a pipeline
                        and without recompute

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py` (the fraction is 1 unless
stated), `megatron/core/optimizer/optimizer_config.py` (there it is 0, as in Megatron-Bridge),
`megatron/core/transformer/transformer_config.py` (cpu_offloading).
"""

from costmodels.layout import Layout
from costmodels.model import Model
from executor.frameworks.saying import unless
from executor.frameworks.values import Values, put
from planner.reading import CannotSay, Fact


def offload_settings(la: Layout, model: Model) -> tuple[dict[str, object], list[CannotSay]]:
    """Megatron's settings for what the host keeps, and what they leave out."""
    settings: dict[str, object] = {}
    if la.optimizer_offload:
        settings |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
        settings["optimizer_offload_fraction"] = 1.0
    if not la.activation_offload:
        return settings, []
    if la.pipeline_parallel > 1 or la.recompute != "none" or model.num_layers == 1:
        why = "cpu_offloading needs one pipeline rank, several layers and no recompute"
        return settings, unless(la, why, activation_offload=False)
    moved = {"cpu_offloading": True, "cpu_offloading_num_layers": model.num_layers - 1}
    return settings | moved, []


def offload_facts(values: Values, facts: dict[str, Fact], fraction: float) -> list[str]:
    """Adds what the host keeps to `facts`; notes for what is priced as more or less than stated."""
    optimizer, layers = (
        values.flag("optimizer_cpu_offload"),
        values.num("cpu_offloading_num_layers"),
    )
    part = values.num("optimizer_offload_fraction")
    moved = part.value if part else fraction
    notes = []
    if optimizer is not None:
        put(facts, optimizer_offload=Fact(bool(optimizer.value and moved), optimizer.line))
        if part and optimizer.value and 0 < moved < 1:
            notes.append(f"line {part.line}: {moved:g} of the optimizer offloaded, priced as all")
    if layers is not None and layers.value > 0:
        put(facts, activation_offload=Fact(True, layers.line))
        known = values.num("num_layers")
        if known and layers.value < known.value - 1:
            what = f"activations of {layers.value:g} layers of {known.value:g} offloaded"
            notes.append(f"line {layers.line}: {what}, priced as all")
    for name in ("cpu_offloading_weights", "fine_grained_activation_offloading"):
        if values.on(name):
            notes.append(f"line {values.found[name].line}: {name} is not priced")
    return notes
