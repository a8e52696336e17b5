"""The operations of a vision or audio tower on one rank of the first pipeline stage.

    t   encoder tokens of a micro-batch     micro_batch * tokens of images (clips) * merged
    s   of them, those of one image         they attend to each other, without a causal mask

Its layers are the language model's operations on these tokens. Tensor parallelism cuts them as it
cuts those, with all-reduces for sequence parallelism is off in it, where the engine does so; where
it does not, each rank computes the whole tower. Each context-parallel rank computes the whole too
[1]: all of them need the tokens.

[1] Megatron-LM `pretrain_vlm.py`: `context_parallel_size = 1`, `sequence_parallel = False` for the
vision transformer, which is on the first pipeline stage.
Leaves out: recomputation in the tower, images that fall unevenly on data-parallel ranks, a tower on
ranks of its own, and the gradient of its first product's input, which is counted though not needed.
"""

from collections.abc import Iterator
from dataclasses import replace

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.transformer import Product, Tower
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import Communication, Matmul, Operation, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.training import Images
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerWork:
    """What the tower computes, apart by what is trained: `own` and, of the joiner, `joiner`."""

    own: tuple[Operation, ...]
    joiner: tuple[Operation, ...]


def tower_work(site: Site, tower: Tower, images: Images, *, cut: bool) -> TowerWork:
    """The tower's operations; `site` is the language model's, `cut`: tensor parallelism cuts it."""
    tokens = site.shard.cp * site.shard.tokens / site.shard.seq_len * images.tokens * tower.merged
    each = max(round(images.tokens * tower.merged / images.number_of(tower.tokens_each)), 1)
    shard = replace(
        site.shard, seq_len=each, document_len=each, tokens=tokens, tokens_outside=tokens,
        tp=site.shard.tp if cut else 1.0, cp=1.0, ep=1.0, etp=1.0,
        sequence_parallel=0.0 * site.shard.sequence_parallel,
    )  # fmt: skip
    own = [
        op
        for each in tower.products
        if not each.joins
        for op in _product(site, each, shard.tp, tokens)
    ]
    if tower.layers:
        of_layers = replace(site, model=tower.layers, shard=shard)
        known = [tuple(layer_operations(of_layers, kind)) for kind in tower.layers.kinds]
        own += [op for kind in tower.layers.pattern for op in known[kind]]
    joins = [each for each in tower.products if each.joins]
    joiner = [op for each in joins for op in _product(site, each, shard.tp, tokens)]
    if joins:
        joiner.insert(0, _entering(site, joins[0], tokens))
    own = [op for op in own if not isinstance(op, Communication) or (cut and op.axis == "tp")]
    return TowerWork(own=tuple(own), joiner=tuple(joiner))


def _product(site: Site, product: Product, tp: Number, tokens: Number) -> Iterator[Operation]:
    rows = tokens / product.merged
    n = product.n / tp if product.cut == "columns" else product.n
    k = product.k / tp if product.cut == "rows" else product.k
    size = site.itemsize * rows * n
    kept = size if product.activated else 0.0
    yield Matmul(name=product.name, m=rows, n=n, k=k, recipe=False, saved_bytes=kept)
    if product.activated:
        yield Pointwise(
            name=f"{product.name}_activation", forward_bytes=2 * size, backward_bytes=3 * size,
            saved_bytes=size,
        )  # fmt: skip


def _entering(site: Site, first: Product, tokens: Number) -> Pointwise:
    """What the joiner reads is kept for it, whether the tower is trained or not."""
    return Pointwise(
        name="tower_output", forward_bytes=0.0, backward_bytes=0.0, kernels=0,
        saved_bytes=site.itemsize * tokens / first.merged * first.k, modules=("linear",),
    )  # fmt: skip
