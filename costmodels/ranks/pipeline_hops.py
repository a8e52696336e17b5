"""Transfers between neighbouring pipeline ranks, of a layout or of each layout of a grid."""

from functools import cached_property

import numpy as np

from meshplan.costmodels.elementwise import Condition, Number, maximum, where
from meshplan.costmodels.layout import Layout
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.ranks.shared_table import is_v_shaped
from meshplan.costmodels.seconds.collectives import send_s
from meshplan.costmodels.seconds.pods import uplink_cards
from meshplan.costmodels.seconds.process_groups import Group, axis_group
from meshplan.costmodels.setting import Setting
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True)
class Hops:
    """The ways between the ranks of a pipeline; `sent_bytes` is a micro-batch's activation."""

    setting: Setting
    layout: Layout | Layouts
    sent_bytes: Number

    @cached_property
    def group(self) -> Group:
        """The pipeline's ranks, and on how many nodes they are."""
        order = self.setting.engine.legality.rank_order
        return axis_group(self.layout, "pp", order, self.setting.cluster.gpus_per_node)

    @cached_property
    def crosses_nodes(self) -> Number:
        """1 where the pipeline leaves a node, be it between some of its neighbours only; else 0."""
        return ((self.layout.pipeline_parallel > 1) & (self.group.nodes > 1)) * 1.0

    @property
    def share_across(self) -> Number:
        """Of the hops, the share that leaves a node. Interleaved chunks go round a ring, in which
        the last rank hands to the first: on the last and the first node, where there are several.
        """
        nodes, size = self.group.nodes, self.group.size
        chain = (nodes - 1) / maximum(size - 1, 1.0)
        ring = where(nodes > 1, nodes / maximum(size, 1.0), 0.0)
        return where(self._goes_round, ring, chain)

    @property
    def _goes_round(self) -> Condition:
        """Whether there are several chunks a rank, and the next of one is on the first rank."""
        return (self.layout.virtual_stages > 1) & ~np.asarray(is_v_shaped(self.layout))

    @cached_property
    def hop_s(self) -> Number:
        """Seconds to hand a micro-batch's activation to the next pipeline rank: the mean of the
        pipeline's hops. Left out: the rank at a node's edge waits for the slow one each time.
        """
        inside, across = (self._sent_s(across=across) for across in (False, True))
        sent = inside + self.share_across * (across - inside)
        return where(self.layout.pipeline_parallel > 1, sent, 0.0)

    def _sent_s(self, *, across: bool) -> Number:
        """The same between two ranks of one node, or of two."""
        cluster, scale = self.setting.cluster, self.setting.tuning.collective_scale
        cards = uplink_cards(cluster.pod, self.group)
        return send_s(cluster, self.sent_bytes, across_nodes=across, cards=cards) * scale

    @property
    def blocking_s(self) -> Number:
        """Seconds of each crossing for which a rank does nothing else: of every forward but the
        last stage's and every backward but the first one's, which hand nothing on.

        What comes in costs no seconds of its own: 1F1B sends an activation and gets a gradient in
        one exchange, and the other way round (NVIDIA/Megatron-LM
        megatron/core/pipeline_parallel/p2p_communication.py, `send_forward_recv_backward`; torch
        2.13 distributed/pipelining/schedules.py, `Schedule1F1B`), and a link carries both ways at
        once. So a rank between two others waits for two exchanges a micro-batch, one at an end of
        the pipeline for one. Left out: DeepSpeed's engine sends and receives one after the other,
        four and two; and two chunks that follow each other on one rank.
        """
        shown = 1.0 - self.setting.engine.overlap.pipeline
        return where(self.layout.pipeline_parallel > 1, shown * self.hop_s, 0.0)

    @property
    def module_outputs_s(self) -> Number:
        """Seconds for which a rank waits where prediction modules are apart from the loss: what
        each put out crosses beside what the last layer did, and its gradient back.
        """
        return self.setting.model.mtp_layers * self.blocking_s
