"""How long ranks that meet within a layer wait for the slowest."""

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.seconds.collectives import waits_s
from meshplan.costmodels.seconds.cost import Cost
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import CurveFit
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning


def test_ranks_that_meet_within_a_layer_wait_for_the_slowest(models) -> None:
    """By a profile that says 5 % of a pair, one pass of a layer under tensor parallelism of 2 takes
    longer by 5 % of what it computes, in messages of that axis; under data parallelism as much as
    before.
    """
    engine, training = load_engine("native"), Training(seq_len=512, global_batch_size=4)
    cluster = load_cluster("local-cpu:2")
    fit = CurveFit(
        kind="all_gather", ranks_per_node=2, nodes=1, latency_s=(1e-3,),
        bandwidth_bytes_per_s=(1e9,), residual=0.0,
    )  # fmt: skip
    tensor = Layout(tensor_parallel=2, sequence_parallel=True, stages=even_stages(8, 1))
    data = Layout(data_parallel=2, stages=even_stages(8, 1))
    for layout, fraction in ((tensor, 0.05), (data, 0.0)):
        before, after = (
            _first_rank(
                Setting(models["dense"], training, _measured(cluster, each), engine, Tuning()),
                layout,
            )
            for each in (fit, fit.model_copy(update={"apart": 0.05}))
        )
        for name in ("forward", "input_grad", "weight_grad"):
            was, now = getattr(before, name), getattr(after, name)
            computed_s = was.matmul_s + was.attention_s + was.pointwise_s
            assert now.tensor_s - was.tensor_s == pytest.approx(fraction * computed_s)
            assert now.total_s - was.total_s == pytest.approx(fraction * computed_s)


def test_on_two_axes_the_longer_wait_counts() -> None:
    """3 % over one axis and 5 % over another, of 10 s of computing: 0.3 s and the 0.2 s more."""
    fits = tuple(
        CurveFit(kind="all_gather", ranks_per_node=ranks, nodes=1, latency_s=(1e-3,),
                 bandwidth_bytes_per_s=(1e9,), residual=0.0, apart=fraction)
        for ranks, fraction in ((2, 0.03), (4, 0.05))
    )  # fmt: skip
    cluster = _measured(load_cluster("local-cpu:8"), *fits)
    assert waits_s(
        cluster, {"tp": Group(2.0, 2.0), "cp": Group(4.0, 4.0), "ep": Group(1.0, 1.0)}, 10.0
    ) == pytest.approx({"tp": 0.3, "cp": 0.2})


def _first_rank(setting: Setting, layout: Layout) -> Cost:
    return StepModel(setting, layout).rank_costs[0]


def _measured(cluster: Cluster, *fits: CurveFit) -> Cluster:
    """The cluster with curves of its own."""
    return cluster.model_copy(update={"collective_fits": fits, "conditions": {"kind": "measured"}})
