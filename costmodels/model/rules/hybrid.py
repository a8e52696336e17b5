"""Rules of families with Kimi Delta Attention beside latent attention: Kimi K3 (attention
residuals, experts in a normed latent width) and GLM-5.3-Flash (indexers of blocks of keys, several
streams).

Source: Kimi K3 technical report, arXiv 2607.24653, and huggingface/transformers@aa83b548
`modular_kimi_k3.py`; transformers 5.24 `configuration_glm5_next.py` and `modeling_glm5_next.py`,
and of GLM's module of multi-token prediction (a layer with attention, an indexer of its own and
experts, and one hidden state) turboderp-org/exllamav3 `exllamav3/architecture/glm5_next_mtp.py`.
"""

from dataclasses import replace
from statistics import mean

from meshplan.costmodels.model.compression import Streams
from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.rules.family import layers_of, of_layers, shared_choice
from meshplan.costmodels.model.transformer import Layer, Model


def kimi(f: Fields, model: Model) -> Model:
    """Kimi K3: a norm in the experts' latent width; sums of earlier blocks of layers, read by a
    norm and a vector for each half and for the head.
    """
    normed = f.flag("latent_moe_use_norm", False)
    made = layers_of(model)
    if normed:
        made = [_with_normed_latent(layer) for layer in made]
    block = f.count("attn_res_block_size", default=0, least=0)
    if block:
        made = _with_sums(made, block, model.hidden)
    return of_layers(model, made)


def _with_normed_latent(layer: Layer) -> Layer:
    experts = layer.experts
    return replace(layer, numbers=layer.numbers + experts.latent) if experts else layer


def _with_sums(layers: list[Layer], block: int, hidden: int) -> list[Layer]:
    """A block's first layer ends the sum before it, the first layer the embedding. Layers that are
    alike but for their place read as many sums as these do in the mean: else each block would have
    kinds of its own (25 in Kimi K3). The last layer reads its own, and the head as many.
    """
    places = dict[Layer, list[int]]()
    for at, layer in enumerate(layers[:-1]):
        places.setdefault(layer, []).append(at)
    means = {
        layer: (mean(-(-at // block) for at in alike), mean(at // block + 1 for at in alike))
        for layer, alike in places.items()
    }
    last = len(layers) - 1
    ends = (-(-last // block), last // block + 1, last // block + 1)
    read = [(layer, means[layer]) for layer in layers[:-1]] + [(layers[-1], ends)]
    return [
        replace(layer, sums=sums, numbers=layer.numbers + 2 * hidden * len(sums))
        for layer, sums in read
    ]


def glm5_next(f: Fields, model: Model) -> Model:
    """Streams that are mixed and end in their mean; GLM-5's choice of keys, block by block."""
    if not f.count("q_lora_rank", default=0, least=0):
        raise f.refuse("q_lora_rank is missing, of which this family's indexers make their queries")
    block = f.count("index_kpool", default=16)
    f.divide(f.count("index_topk"), block, "index_topk over index_kpool")
    layers = [_pooled(layer, block) for layer in layers_of(model)]
    streams = Streams(count=f.count("hc_mult", default=4), mixed=True, ends_in_mean=True)
    made = shared_choice(f, of_layers(model, layers))
    return replace(made, streams=streams, plain_modules=True, module=_module(f, model, layers))


def _pooled(layer: Layer, block: int) -> Layer:
    index = layer.attention.indexer
    if index is None:
        return layer
    index = replace(index, block=block, pooled=True)
    return replace(layer, attention=replace(layer.attention, indexer=index))


def _module(f: Fields, model: Model, layers: list[Layer]) -> Layer | None:
    """The layer of a module: the last one that has an indexer, which is its own."""
    attending = [layer for layer in layers if layer.attention.heads]
    if model.mtp_layers and not attending:
        raise f.refuse("its module has attention, but no layer of layer_types does")
    return attending[-1] if model.mtp_layers else None
