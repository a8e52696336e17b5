"""Which layers each stage of the pipeline holds, in Megatron's names: the layout string, or counts.

Sources: NVIDIA/Megatron-LM@d98e8a64 `megatron/core/transformer/transformer_config.py` (pipeline
layout, layers of the first and the last stage; `microbatch_group_size_per_vp_stage`),
`megatron/core/transformer/pipeline_parallel_layer_layout.py` (the layout string).
"""

import re
from collections.abc import Mapping

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.model.transformer import Model
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.planner.case.input_limits import MAX_EXPRESSION
from meshplan.planner.case.reading import Fact, IllegalConfig, Placement, UnreadableConfig


def stage_settings(la: Layout, model: Model) -> dict[str, object]:
    """Megatron's settings for the layers of each stage; none where all hold as many."""
    counts = [stage.layers for stage in la.stages]
    if len(set(counts)) == 1 and not model.mtp_layers:
        return {"virtual_pipeline": la.virtual_stages} if la.virtual_stages > 1 else {}
    if len(counts) == 1:
        return {}
    parts = ["t" * count for count in counts]
    parts[0] = "E" + parts[0]
    parts[-2 if la.modules_apart else -1] += "m" * model.mtp_layers
    parts[-1] += "L"
    return {"pipeline_model_parallel_layout": "|".join(_short(part) for part in parts)}


def _short(part: str) -> str:
    return re.sub(r"(t{2,}|m{2,})", lambda run: f"{run[0][0]}*{len(run[0])}", part)


_PARTITIONS = {
    "type:transformer": 0, "type:transformer|embedding": 1, "type:embedding|transformer": 1,
}  # fmt: skip
"""DeepSpeed's words, and whether the ends count as a layer each."""


def stage_placement(values: Values, facts: dict[str, Fact]) -> Placement:
    """The layers of each stage as Megatron's settings say; adds the chunks, and where modules of
    multi-token prediction are, to `facts`. Raises `UnreadableConfig` and `IllegalConfig`.
    """
    layout = values.get("pipeline_model_parallel_layout")
    if layout is not None:
        placement = _layout_placement(layout, facts)
        stated = values.found.get("virtual_pipeline_model_parallel_size")
        if stated is not None and str(stated.value) == str(facts["virtual_stages"].value):
            values.asked.add("virtual_pipeline_model_parallel_size")  # it says the same
        return placement
    ends = _partition(values, facts)
    per_stage = values.count("num_layers_per_virtual_pipeline_stage")
    first = values.count("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage")
    last = values.count("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage")
    chunks = values.count(
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"
    )
    put(facts, virtual_stages=chunks)
    pipeline = facts.get("pipeline_parallel", Fact(1, 1))
    return Placement(
        rule="ends",
        first=first.value if first else None,
        last=last.value if last else None,
        embedding=ends or int(values.on("account_for_embedding_in_pipeline_split")),
        head=ends or int(values.on("account_for_loss_in_pipeline_split")),
        layers_per_stage=per_stage.value if per_stage else None,
        line=(per_stage or first or last or pipeline).line,
    )


def _partition(values: Values, facts: dict[str, Fact]) -> int:
    """Layers that the embedding and the head count as each, by Megatron-DeepSpeed's
    `--pp-partition-method`, which DeepSpeed matches with the names of classes; raises
    `UnreadableConfig` where its cut is not known.

    Source: bigscience-workshop/Megatron-DeepSpeed@8387ae1 `megatron/model/gpt_model.py`
    (GPTModelPipe), deepspeedai/DeepSpeed `deepspeed/runtime/pipe/module.py` (_partition_layers).
    """
    stated = values.get("pp_partition_method")
    if stated is None:
        return 0
    ends = _PARTITIONS.get(str(stated.value).strip().lower())
    if ends is None:
        raise UnreadableConfig(
            f"pp_partition_method {shown(stated.value)} cuts by another rule than is read; read "
            f"are {', '.join(_PARTITIONS)}: choose one, or check a plan of the same stages",
            stated.line,
        )
    layers, pp = values.count("num_layers"), facts.get("pipeline_parallel", Fact(1, 1)).value
    if layers is not None and (parts := layers.value + 2 * ends) % pp:
        counted = " and embeddings" * ends
        raise UnreadableConfig(
            f"{parts} layers{counted} on {pp} stages: where DeepSpeed puts the longer stages is "
            "not modelled; choose a number of layers that divides",
            stated.line,
        )
    return ends


def _layout_placement(layout: Fact, facts: dict[str, Fact]) -> Placement:
    """The stages of a layout string such as `Et*3|(tt|)*29,mL`, or of Bridge's list of lists."""
    if isinstance(layout.value, list):
        try:
            stages = ["".join(map(_letter, stage)) for stage in layout.value]
        except TypeError:
            raise UnreadableConfig("pipeline layout must be a list of lists", layout.line) from None
    else:
        stages = _unrolled(layout).split("|")
    counts = tuple(stage.count("t") for stage in stages)
    pp = facts.get("pipeline_parallel", Fact(1, 1)).value
    if len(counts) % pp:
        raise IllegalConfig(
            f"the pipeline layout has {len(counts)} stages, no multiple of pipeline_parallel {pp}",
            layout.line,
        )
    put(facts, virtual_stages=Fact(len(counts) // pp, layout.line))
    _place_modules(stages, layout, facts)
    return Placement(rule="given", layers=counts, line=layout.line)


def _letter(part: object) -> str:
    """The letter of a part that a list names."""
    return {"decoder": "t", "mtp": "m", "t": "t", "m": "m"}.get(str(part).strip().lower(), "")


def _place_modules(stages: list[str], layout: Fact, facts: dict[str, Fact]) -> None:
    """Where the modules of multi-token prediction are: with the loss, or on the stage before it."""
    holders = [index for index, stage in enumerate(stages) if "m" in stage]
    if not holders or holders == [len(stages) - 1]:
        return
    if len(holders) > 1:
        raise UnreadableConfig(
            f"the pipeline layout has modules (m) on {len(holders)} stages, which is not modelled: "
            "put all on one",
            layout.line,
        )
    if holders != [len(stages) - 2] or "t" in stages[-1]:
        raise IllegalConfig(
            f"the pipeline layout has modules (m) on stage {holders[0]} of {len(stages)}; they "
            "are behind all layers, on the last stage or the one before it",
            layout.line,
        )
    put(facts, modules_apart=Fact(True, layout.line))


def _unrolled(layout: Fact) -> str:
    text = str(layout.value).replace(",", "")
    if len(text) > MAX_EXPRESSION:
        raise IllegalConfig(
            f"the pipeline layout has {len(text)} characters; at most {MAX_EXPRESSION} are read: "
            "write repeats as t*4",
            layout.line,
        )
    for pattern in (r"\(([^()]+)\)\*(\d{1,4})", r"([A-Za-z|])\*(\d{1,4})"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
        if len(text) > 100_000:
            raise IllegalConfig("the pipeline layout describes over 100,000 layers", layout.line)
    if unknown := re.search(r"[^ELtm|]", text):
        raise IllegalConfig(
            f"the pipeline layout has {shown(unknown[0])}; it is made of E, t, m, L and |",
            layout.line,
        )
    return text


_GROUPS = (
    "microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage",
)  # fmt: skip


def groups_unread(values: Values, facts: Mapping[str, Fact]) -> list[Fact]:
    """How many micro-batches a chunk computes before the next one begins, where that is not the
    default, one for each stage: a warm-up keeps as many for each chunk but one, and any number of
    them may be left over that is 0 or at least the stages
    (`megatron/core/pipeline_parallel/schedules.py`, forward_backward_pipelining_with_interleaving).
    """
    stated = values.count(*_GROUPS)
    plain = facts.get("schedule", Fact("", 1)).value == "1f1b"  # without chunks it says nothing
    if stated is None or plain or stated.value == facts.get("pipeline_parallel", Fact(1, 1)).value:
        return []
    why = "other groups than of one micro-batch for each stage are not modelled"
    return [Fact(f"{_GROUPS[1]} {stated.value} ({why})", stated.line)]
