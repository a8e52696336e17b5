"""The fullest moment of a rank, where what is alive inside each pass is known."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.memory.backward_peak import most_passing_bytes
from meshplan.costmodels.prices.prices import price
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.pass_memory import Known, rank_peak
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning


@settings(max_examples=60)
@given(data=st.data())
def test_chunks_that_hold_the_same_are_looked_at_once(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
):
    """Each rank's peak is what it is where its chunks are looked at for it alone."""
    step = data.draw(cases(pipelined=True, engine="native")).step
    sharding, known, ranks = step.traffic.sharding, Known(), range(step.layout.pipeline_parallel)
    together = [rank_peak(step, rank, sharding, known) for rank in ranks]
    assert together == [rank_peak(step, rank, sharding, {}) for rank in ranks]


EXPERTS, TABLE = 16 * 3 * 1024 * 512, 32_000 * 1024  # numbers of a layer's experts, of a table
ALL = (Stage(8),)
EXACT = Tuning(activation_slack_fraction=0.0)


@pytest.mark.parametrize(
    ("traits", "expected_bytes"),
    [
        pytest.param(
            {"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 1}, 4 * EXPERTS / 2,
            id="one rank of data: only experts (25.2 M) have two ranks, 4 x 25.2 M / 2 arrive",
        ),
        pytest.param(
            {"data_parallel": 4, "zero_stage": 1, "shard_group": 4}, 4 * (TABLE + 1024) / 4,
            id="all over four ranks: the head's 32.8 M are the most, 4 x 32.8 M / 4",
        ),
        pytest.param(
            {"data_parallel": 16, "expert_parallel": 8, "zero_stage": 2},
            8 * (TABLE + 1024) + 4 * (TABLE + 1024) / 16,
            id="ZeRO-2: two gradients of 4 x 32.8 M, and a sixteenth of one",
        ),
    ],
)  # fmt: skip
def test_what_is_whole_for_a_moment_by_hand(traits, expected_bytes: float, models, case_of):
    """What reduced gradients take beside a pass, of the part that takes most."""
    training, layout = Training(seq_len=512, global_batch_size=16), Layout(**traits, stages=ALL)
    engine, cluster = load_engine("native"), load_cluster("dgx-h100")
    case = case_of(Setting(models["moe"], training, cluster, engine, EXACT), layout)
    passing = max(float(most_passing_bytes(case.step.site, kind)) for kind in models["moe"].kinds)
    found = price(case.layouts, case.setting).transient_bytes[0, 0] - passing
    assert found == pytest.approx(expected_bytes)


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_a_head_alone_holds_the_last_gradient_of_its_table(zero_stage: int, models, case_of):
    """A last stage without a layer: from the second micro-batch on 4 x 32.8 M of the one before
    are on their way beside the loss, and the half that one of two ranks receives.
    """
    engine, cluster = load_engine("native"), load_cluster("dgx-h100")
    layout = Layout(
        pipeline_parallel=2, data_parallel=2, zero_stage=zero_stage, stages=(Stage(8), Stage(0))
    )
    one, two = (
        case_of(
            Setting(models["moe"], Training(seq_len=512, global_batch_size=2 * each), cluster,
                    engine, EXACT),
            layout,
        ).step.memory()[-1]
        for each in (1, 2)
    )  # fmt: skip
    assert two.transient - one.transient == pytest.approx((4 + 4 / 2) * TABLE)
