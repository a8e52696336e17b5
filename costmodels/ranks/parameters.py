"""The parameters of a rank: of a layer of each kind and of both ends, adapters among them.

Operations are given by a function, because most engines and trainings need none of them here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.model.parameters import (
    RankParameters,
    embedding_parameters_per_rank,
    final_norm_parameters,
    head_parameters_per_rank,
    layer_parameters_per_rank,
    mtp_parameters_per_rank,
)
from meshplan.costmodels.model.transformer import Layer
from meshplan.costmodels.operations import adapters
from meshplan.costmodels.operations.kinds import Operation, matrices
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.ranks.first_stage import tower_parameters_per_rank
from meshplan.costmodels.ranks.shared_table import shares_table
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Lora

Listed = Callable[[], Sequence[Operation]]


def parameters_of_layer(
    setting: Setting, layout: Layout | Layouts, layer: Layer, listed: Listed
) -> RankParameters:
    """Of one `layer`, which runs the operations `listed`."""
    whole = layer_parameters_per_rank(setting.model, layer, *_degrees(layout))
    recipe = RECIPES[setting.training.precision]
    if recipe.in_8_bits and not layer.in_16_bit:
        dense = 0.0 if recipe.experts_alone else whole.dense
        whole = replace(whole, eight_bit=dense, eight_bit_expert=whole.expert)
    if setting.engine.state.gather_bucket:
        whole = replace(whole, matrices=matrices(listed()))
    return _beside_adapters(whole, setting.training.lora, listed)


def parameters_of_ends(
    setting: Setting, layout: Layout | Layouts, listed: Sequence[Listed]
) -> tuple[RankParameters, RankParameters, RankParameters]:
    """Of the embedding (and of the tower), of the head and of multi-token prediction, which run
    the operations `listed`.
    """
    model, (tp, ep, etp) = setting.model, _degrees(layout)
    head, norm = head_parameters_per_rank(model, tp), final_norm_parameters(model)
    if model.tied:
        head = where(shares_table(setting, layout), norm * 1.0, head)
    embedding = RankParameters(dense=embedding_parameters_per_rank(model, tp))
    lora = setting.training.lora
    return (
        _beside_adapters(embedding, lora, listed[0]) + tower_parameters_per_rank(setting, tp),
        _beside_adapters(RankParameters(dense=head), lora, listed[1]),
        _beside_adapters(mtp_parameters_per_rank(model, tp, ep, etp), lora, listed[2]),
    )


def _beside_adapters(
    parameters: RankParameters, lora: Lora | None, listed: Listed
) -> RankParameters:
    """The weights of these operations, frozen beside adapters where those alone are trained."""
    if lora is None:
        return parameters
    operations = listed()
    trained, weights = adapters.adapter_parameters, adapters.adapter_weights
    quantised = adapters.quantised_parameters(operations, lora)
    return parameters.beside(trained(operations, lora), weights(operations, lora), quantised)


def _degrees(layout: Layout | Layouts) -> tuple[Number, Number, Number]:
    """Of tensor, expert and expert-tensor parallelism."""
    la = layout
    degrees = (la.tensor_parallel, la.expert_parallel, la.expert_tensor_parallel)
    tp, ep, etp = (degree * 1.0 for degree in degrees)
    return tp, ep, etp
