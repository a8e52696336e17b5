"""How an engine puts layers on pipeline stages when the user does not say.

    even   layers over stages as evenly as they divide; where the embedding and the head count as a
           layer each (Megatron's 126 + 2 = 16 x 8), the first and the last stage hold one less;
           with a multi-token-prediction module, it, its head and the model's count as three at the
           end, and the embedding as none (DeepSeek-V3's 61 + 3 = 16 x 4; of 32 x 2 the last stage
           has the heads alone)
    blocks embedding, layers, norm and head are blocks that count alike, and what does not divide
           goes to the first stages: 40 layers between 1 and 2 blocks are 10 11 11 8 of four stages
    cost   nanotron: blocks in model order go to a rank until its share of the cumulative cost is
           passed, with layer = 4 heads d h + 3 h f, head = V h, embedding = 0

Source: modules, NVIDIA-NeMo/Megatron-Bridge@05d003f src/megatron/bridge/recipes/deepseek
deepseek_v3.py; blocks, Aleph-Alpha/scaling@78489292 src/scaling/core/nn/parallel_module
pipeline_partitioning.py pipe_partition_uniform; cost rule, huggingface/nanotron@2411b022
src/nanotron/models/base.py and models/llama.py `get_block_compute_costs`; the playbook's stages (11
of 16, 18 of 32, 41 of 80 layers first) are the tests.
"""

from functools import cache
from itertools import pairwise

from meshplan.costmodels.layout import stages_with as stages_with
from meshplan.costmodels.model.transformer import Model

Counts = tuple[int, ...]


def split_by_cost(model: Model, num_stages: int, *, ends_at_share: bool = False) -> tuple[int, ...]:
    """Layers of each stage under nanotron's rule; `ends_at_share`: a stage that has exactly its
    share gets no more.
    """
    costs = [_layer_cost(model, kind) for kind in range(len(model.kinds))]
    head = float(model.vocab * model.hidden)
    layers = tuple(costs[kind] for kind in model.pattern)
    return _share_cost(layers, head, num_stages, ends_at_share)


@cache
def _share_cost(
    layers: tuple[float, ...], head: float, num_stages: int, ends_at_share: bool
) -> tuple[int, ...]:
    """Layers of each stage where each has a cost, the embedding none."""
    total = sum(layers) + head
    counts, rank, passed = [0] * num_stages, 0, 0.0
    for position, cost in enumerate((0.0, *layers)):
        counts[rank] += position > 0
        passed += cost
        share = total * (rank + 1) / num_stages
        if passed > share or (ends_at_share and passed == share):
            rank += 1
    return tuple(counts)


def ends_in_layers(model: Model) -> float:
    """What the head takes, and prediction modules with theirs, in mean layers by that rule."""
    costs = [_layer_cost(model, kind) for kind in range(len(model.kinds))]
    layer = sum(costs[kind] for kind in model.pattern) / model.num_layers
    head = model.vocab * model.hidden / layer
    return head + model.mtp_layers * (1 + head)


def split_evenly(
    num_layers: int, num_stages: int, *, ends_count: bool, mtp_layers: int = 0
) -> tuple[int, ...]:
    """Layers of each stage; what does not divide goes to the middle, not to embedding and head."""
    if num_stages == 1:
        return (num_layers,)
    counted = ends_count and num_layers % num_stages and num_layers + 2 >= num_stages
    first, last = (1, 1) if counted else (0, 0)
    if mtp_layers:
        first, last = 0, 2 * mtp_layers + 1
    base, longer = divmod(num_layers + first + last, num_stages)
    middle_first = sorted(range(num_stages), key=lambda s: abs(s - (num_stages - 1) / 2))
    extra = set(middle_first[:longer])
    counts = [base + (s in extra) for s in range(num_stages)]
    counts[0] -= first
    for stage in reversed(range(num_stages)):
        taken = min(last, counts[stage])
        counts[stage], last = counts[stage] - taken, last - taken
    return tuple(counts)


def split_blocks(num_layers: int, num_stages: int, blocks_at_ends: tuple[int, int]) -> Counts:
    """Layers of each stage where blocks before and behind them count as one each. Of a stage of
    blocks alone none; needs as many blocks as stages.
    """
    before, behind = blocks_at_ends
    base, longer = divmod(before + num_layers + behind, num_stages)
    ends = [base * (stage + 1) + min(stage + 1, longer) for stage in range(num_stages)]
    layers = [min(max(end - before, 0), num_layers) for end in ends]
    return tuple(end - start for start, end in pairwise((0, *layers)))


def _layer_cost(model: Model, kind: int) -> float:
    layer, h = model.kinds[kind], model.hidden
    if layer.traced:
        return float(sum(each.n * each.k * each.rows for each in layer.traced.products))
    attention = 4 * layer.attention.heads * layer.attention.head_dim * h
    if layer.recurrent:
        attention += (layer.recurrent.projections + layer.recurrent.inner) * h
    width = layer.ffn if layer.experts is None else layer.experts.ffn * layer.experts.top_k
    return float(attention + 3 * h * width)
