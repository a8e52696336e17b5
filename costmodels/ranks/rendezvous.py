"""Stalls of a pipeline whose transfers are rendezvous: seconds in which all its ranks wait.

    stalls   2 (pp - 1) + 4 (m - 1); with two stages 2 (pp - 1) + 2 (m - 1)
    seconds  stalls x Tuning.boundary_s

nanotron before its point-to-point fix sent two blocking messages of metadata before each tensor
(huggingface/nanotron@3024b465 src/nanotron/parallel/pipeline_parallel/p2p.py, `_send_meta` and
`_recv_meta`): sender and receiver stand still together. The first micro-batch crosses each of the
pp - 1 boundaries forward and backward; of each further one a rank between two others makes four
transfers, a rank of two stages two. Only where the pipeline leaves a node.
"""

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.ranks.tied_table import tied_table_s
from meshplan.costmodels.seconds.process_groups import axis_group
from meshplan.costmodels.setting import Setting


def rendezvous_s(rank: Rank, micro_batches: Number) -> Number:
    """Seconds of a step in which all ranks stand still; 0 for engines that send without."""
    setting, la = rank.setting, rank.layout
    each_s = setting.tuning.boundary_s * setting.engine.overlap.waits_at_boundaries
    pp = la.pipeline_parallel
    group = axis_group(la, "pp", setting.engine.legality.rank_order, setting.cluster.gpus_per_node)
    stalls = 2.0 * (pp - 1) + where(pp > 2, 4.0, 2.0) * (micro_batches - 1)
    return where((pp > 1) & (group.nodes > 1), stalls * each_s, 0.0)


def once_s(setting: Setting, layouts: Layouts) -> NDArray[np.float64]:
    """(N,) what each row's step takes beside its passes, traffic and update."""
    micro_batches = layouts.num_micro_batches.astype(np.float64)
    rank = Rank(setting, layouts)
    waits = rendezvous_s(rank, micro_batches) + tied_table_s(rank)
    return setting.tuning.step_s + waits + np.zeros(len(layouts))
