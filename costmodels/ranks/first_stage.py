"""What a vision or audio tower adds to the first pipeline stage: its cost and its parameters.

A frozen tower runs forward alone, and keeps nothing; beside adapters (LoRA) its joiner is frozen
too. A trained one costs what its operations cost, as layers do.

Leaves out: that under ZeRO-3 a trained tower is gathered for its backward once more, as the
embedding's table beside it is not.
"""

from dataclasses import replace

from meshplan.costmodels.elementwise import Number
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.model.towers.parameters import (
    joiner_parameters_per_rank,
    own_parameters_per_rank,
)
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.tower import tower_work
from meshplan.costmodels.seconds.cost import NOTHING, Cost, Pass
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.setting import Setting

NO_PARAMETERS = RankParameters(dense=0.0)


def tower_cost(site: Site, pricer: Pricer, setting: Setting) -> Cost:
    """Of one micro-batch on a rank of the first stage; nothing where no images are."""
    training, tower = setting.training, setting.model.tower
    images = training.images
    if tower is None or images is None:
        return NOTHING
    cut = setting.engine.legality.vision_tower == "cut"
    work, plain = tower_work(site, tower, images, cut=cut), replace(pricer, lora=None)
    own, joiner = plain.cost(work.own), plain.cost(work.joiner)
    if images.frozen or training.lora:
        own = _forward_only(own)
    whole = own + (_forward_only(joiner) if training.lora else joiner)
    return _counted_once(whole, site.shard.cp * (1.0 if cut else site.shard.tp))


def tower_parameters_per_rank(setting: Setting, tp: Number) -> RankParameters:
    """Of the tower and its joiner on a rank of the first stage, trained and frozen apart."""
    training, tower = setting.training, setting.model.tower
    images = training.images
    if tower is None or images is None:
        return NO_PARAMETERS
    degree = tp if setting.engine.legality.vision_tower == "cut" else 1.0
    own = own_parameters_per_rank(tower, degree)
    joiner = joiner_parameters_per_rank(tower, degree)
    if training.lora:
        return RankParameters(dense=0.0, frozen=own + joiner)
    if images.frozen:
        return RankParameters(dense=joiner, frozen=own)
    return RankParameters(dense=own + joiner)


def _counted_once(cost: Cost, ranks: Number) -> Cost:
    """Of `ranks` that all compute it, the model's FLOPs are those of one; the others' are executed
    on top.
    """
    return replace(
        cost, model_flops=cost.model_flops / ranks, full_model_flops=cost.full_model_flops / ranks,
        replay_flops=cost.model_flops * (1 - 1 / ranks),
    )  # fmt: skip


def _forward_only(cost: Cost) -> Cost:
    """Of frozen operations that nothing trained comes before: a third of the FLOPs."""
    return replace(
        cost, input_grad=Pass(), weight_grad=Pass(), saved_bytes=0.0,
        model_flops=cost.model_flops / 3, full_model_flops=cost.full_model_flops / 3,
    )  # fmt: skip
