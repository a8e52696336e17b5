"""How many layers each stage of a measured run had, where its row leaves the cut to the engine."""

from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.stage_split import split_blocks, split_by_cost, split_evenly
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.planner.runs.rows import Row, SkippedRow

BLOCKS_BESIDE_LAYERS = 5
"""What nanotron cuts by cost beside layers: embedding, final norm, head, cast and loss
(huggingface/nanotron src/nanotron/models/llama.py, its `PipelineBlock`s).
"""


def stage_counts(row: Row, model: Model, num_stages: int, engine: Engine) -> tuple[int, ...]:
    """Layers of each stage; raises `SkippedRow` for more stages than the engine can fill."""
    by_cost, ends = engine.legality.uneven_stages == "cost", ends_count(row, engine)
    if num_stages > model.num_layers + (BLOCKS_BESIDE_LAYERS if by_cost else 2 * ends):
        raise SkippedRow(f"{num_stages} stages for {model.num_layers} layers")
    if by_cost:
        return split_by_cost(model, num_stages)
    if engine.legality.blocks_at_ends:
        return split_blocks(model.num_layers, num_stages, engine.legality.blocks_at_ends)
    return split_evenly(model.num_layers, num_stages, ends_count=ends, mtp_layers=model.mtp_layers)


def ends_count(row: Row, engine: Engine) -> bool:
    """Whether the embedding and the head take the place of a layer each."""
    return engine.legality.layers_count_ends or row.facts.ends_are_layers
