"""Rules of GLM-5.3-Flash: Kimi Delta Attention beside latent attention whose indexer chooses blocks
of keys, and several streams.

Source: transformers 5.24 `configuration_glm5_next.py` and `modeling_glm5_next.py`; the module of
multi-token prediction (a layer with attention, an indexer of its own and experts, and one hidden
state): turboderp-org/exllamav3 `exllamav3/architecture/glm5_next_mtp.py`.
"""

from dataclasses import replace

from meshplan.costmodels.model.compression import Streams
from meshplan.costmodels.model.config_fields import Fields
from meshplan.costmodels.model.family_rules import layers_of, of_layers, shared_choice
from meshplan.costmodels.model.transformer import Layer, Model


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
