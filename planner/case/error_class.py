"""What the error of a prediction is known to depend on, of a question or of a measured run."""

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.seconds.process_groups import exchanges_between_nodes
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.errors.asked import Asked, asked_of


def error_depends_on(setting: Setting, layout: Layout) -> Asked:
    """Engine, GPU family, scale, number format, kind of model, and where its experts' tokens go."""
    cluster, dispatch = setting.cluster, setting.engine.kernels.dispatch
    return asked_of(
        setting.engine.name, cluster.gpu.name, gpus=layout.world_size,
        precision=setting.training.precision, model=setting.model.kind,
        between_nodes=exchanges_between_nodes(layout, dispatch, cluster.gpus_per_node),
    )  # fmt: skip
