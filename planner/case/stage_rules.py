"""How each framework cuts layers into pipeline stages when its config does not list them.

even      n / stages each (Megatron-LM without more)
ends      each rank holds (n + ends - first - last) / (pp - 2), or its stated number, cut into vpp
          equal chunks; the first chunk of all has `embedding` layers less, the last `head` less
weighted  n + embedding + head over the stages, the longer ones first; the ends pay for their weight
cost      nanotron's, in `costmodels.stage_split`

Sources: ends, Megatron-LM@d98e8a64 `core/transformer/transformer_block.py`
get_num_layers_to_build; weighted, torchtitan v0.2.2 `distributed/pipeline_parallel.py`
generate_llm_fqn_per_model_part.
"""

from collections.abc import Callable

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.stage_split import split_by_cost
from meshplan.planner.case.reading import Placement


def stage_layers(placement: Placement, model: Model, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of each of the pp * vpp virtual stages; raises `InvalidLayout` if the rule refuses."""
    return RULES[placement.rule](placement, model, pp, vpp)


def _given(placement: Placement, model: Model, pp: int, vpp: int) -> tuple[int, ...]:
    return placement.layers


def _ends(placement: Placement, model: Model, pp: int, vpp: int) -> tuple[int, ...]:
    place, total = placement, model.num_layers + placement.embedding + placement.head
    ranks: list[int | None] = [None] * pp
    if place.first is not None:
        ranks[0] = place.first
    if place.last is not None:
        ranks[-1] = place.last
    stated = sum(count for count in ranks if count is not None)
    open_ranks = ranks.count(None)
    share, left_over = divmod(total - stated, open_ranks) if open_ranks else (0, total - stated)
    if left_over or share < 0:
        raise InvalidLayout(
            f"{total} layers do not split evenly over pipeline_parallel {pp}; choose a divisor of "
            f"{total}, or say how many layers the first and last stage hold"
        )
    counts = [share if count is None else count for count in ranks]
    for count in counts:
        if count % vpp:
            raise InvalidLayout(
                f"{count} layers of a pipeline rank do not split into virtual_stages {vpp}"
            )
    stages = [counts[rank] // vpp for _ in range(vpp) for rank in range(pp)]
    stages[0] -= place.embedding
    stages[-1] -= place.head
    return tuple(stages)


def _weighted(placement: Placement, model: Model, pp: int, vpp: int) -> tuple[int, ...]:
    stages = pp * vpp
    if stages == 1:
        return (model.num_layers,)
    total = model.num_layers + placement.embedding + placement.head
    base, longer = divmod(total, stages)
    if base == 0 or max(placement.embedding, placement.head) > base:
        raise InvalidLayout(
            f"{model.num_layers} layers are too few for {stages} stages whose ends weigh "
            f"{placement.embedding} and {placement.head}; use fewer stages"
        )
    counts = [base + (stage < longer) for stage in range(stages)]
    counts[0] -= placement.embedding
    counts[-1] -= placement.head
    return tuple(counts)


def _cost(placement: Placement, model: Model, pp: int, vpp: int) -> tuple[int, ...]:
    return split_by_cost(model, pp)


RULES: dict[str, Callable[[Placement, Model, int, int], tuple[int, ...]]] = {
    "given": _given,
    "even": _ends,
    "ends": _ends,
    "weighted": _weighted,
    "cost": _cost,
}
