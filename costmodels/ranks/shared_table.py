"""Whether the embedding and a tied head of one rank read the same table."""

from meshplan.costmodels.elementwise import Condition
from meshplan.costmodels.layout import SCHEDULES, Layout
from meshplan.costmodels.layouts import Layouts, one_of
from meshplan.costmodels.schedule.orders import V_SHAPED
from meshplan.costmodels.setting import Setting


def shares_table(setting: Setting, layout: Layout | Layouts) -> Condition:
    """On one stage, or on one rank of a V-shaped pipeline if the engine keeps one table a rank."""
    la, one = layout, setting.engine.state.one_table_per_rank
    alone = la.pipeline_parallel == 1
    return (alone & (la.virtual_stages <= 1)) | (one & (alone | is_v_shaped(la)))


def is_v_shaped(layout: Layout | Layouts) -> Condition:
    """Whether both ends of the pipeline are on its first rank."""
    if isinstance(layout, Layouts):
        return one_of(layout.schedule, [SCHEDULES.index(name) for name in V_SHAPED])
    return layout.schedule in V_SHAPED
