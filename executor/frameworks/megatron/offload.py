"""Megatron's offload to the host: of the optimizer, and of what layers save.

    ours                theirs
    optimizer_offload   optimizer_cpu_offload, use_precision_aware_optimizer,
                        optimizer_offload_fraction
    activation_offload  cpu_offloading_num_layers of all, at most all but one, which is as good as
                        all; without a pipeline and without recompute

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py` (the fraction is 1 unless
stated), `megatron/core/optimizer/optimizer_config.py` (there it is 0, as in Megatron-Bridge),
`megatron/core/transformer/transformer_config.py` (cpu_offloading).
"""

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.model.transformer import Model
from meshplan.executor.frameworks.documents.values import Values, put
from meshplan.executor.frameworks.export_notes import unless
from meshplan.planner.case.reading import CannotSay, Fact


def offload_settings(la: Layout, model: Model) -> tuple[dict[str, object], list[CannotSay]]:
    """Megatron's settings for what the host keeps, and what they leave out."""
    settings: dict[str, object] = {}
    if la.optimizer_offload:
        settings |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
        settings["optimizer_offload_fraction"] = float(la.optimizer_offload)
    if not la.activation_offload:
        return settings, []
    if la.pipeline_parallel > 1 or la.recompute != "none" or model.num_layers == 1:
        why = "cpu_offloading needs one pipeline rank, several layers and no recompute"
        return settings, unless(la, why, activation_offload=False)
    layers, most = la.activation_offload * model.num_layers, model.num_layers - 1
    moved = {"cpu_offloading": True, "cpu_offloading_num_layers": min(round(layers), most)}
    whole = layers in (round(layers), model.num_layers)
    why = "cpu_offloading moves whole layers"
    return settings | moved, [] if whole else unless(la, why, activation_offload=0.0)


def offload_facts(values: Values, facts: dict[str, Fact], fraction: float) -> list[str]:
    """Adds what the host keeps to `facts`; notes for what is not priced."""
    optimizer, layers = (
        values.flag("optimizer_cpu_offload"),
        values.num("cpu_offloading_num_layers"),
    )
    part = values.num("optimizer_offload_fraction")
    moved = part.value if part else fraction
    notes = []
    if optimizer is not None:
        on_host = float(optimizer.value and moved)
        put(facts, optimizer_offload=Fact(on_host, (part or optimizer).line))
    if layers is not None and layers.value > 0:
        known = values.num("num_layers")
        if known is None:
            notes.append(f"line {layers.line}: the layers are not stated; all are priced so")
        fewer = known is not None and layers.value < known.value - 1
        moved = layers.value / known.value if known and fewer else 1.0
        put(facts, activation_offload=Fact(moved, layers.line))
    for name in ("cpu_offloading_weights", "fine_grained_activation_offloading"):
        if values.on(name):
            notes.append(f"line {values.found[name].line}: {name} is not priced")
    return notes
