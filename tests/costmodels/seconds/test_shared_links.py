"""What a layer's own communication leaves to the traffic of its weights on the links they share."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.seconds.interference import exposed_s
from meshplan.costmodels.seconds.process_groups import place
from meshplan.costmodels.seconds.shared_links import Traffic, more_room_s
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning

COMPUTING_S = 10.0
GROUPS = {"tp": place(4.0, 1.0, 8), "cp": place(4.0, 4.0, 8)}  # in one node, on two nodes
SECONDS = st.floats(0, 100)
FRACTION = st.floats(0, 1)


@pytest.mark.parametrize(
    ("leave", "hidden_s", "expected"),
    [
        pytest.param(1.0, 4.0, 2.0 - 4.0, id="on the network: 2 s of NVLink, less 4 s of it"),
        pytest.param(
            0.0, 4.0, 3.0 - 1.0, id="inside nodes: 3 s of the network, less 1 s of NVLink"
        ),
        pytest.param(1.0, 12.0, 2.0 - 10.0, id="no more than all computing is taken"),
    ],
)
def test_room_by_hand(leave: float, hidden_s: float, expected: float) -> None:
    """Beside 10 s of computing: tensor parallelism inside a node is seen for 2 s and hidden for 1,
    context parallelism over two nodes is seen for 3 s and hidden for `hidden_s`.
    """
    traffic = [Traffic("tp", 2.0, 1.0), Traffic("cp", 3.0, hidden_s)]
    exposed = {each.axis: each.exposed_s for each in traffic}
    assert more_room_s(exposed, traffic, GROUPS, leave, COMPUTING_S) == expected
    column = more_room_s(exposed, traffic, GROUPS, np.array([leave, leave]), COMPUTING_S)
    assert list(column) == [expected] * 2


def _pass_s(other_s: float, weights_s: float, share: float, leave: float) -> float:
    """A pass of 10 s beside which context parallelism between nodes sends for `other_s`, and the
    weights for `weights_s`; of each `share` may be hidden.
    """
    seen = exposed_s(other_s, COMPUTING_S, share, 0.1)
    traffic = [Traffic("cp", seen, other_s - seen)]
    more = more_room_s({"cp": seen}, traffic, GROUPS, leave, COMPUTING_S)
    shown = exposed_s(weights_s, COMPUTING_S + more, share, 0.1)
    return float(COMPUTING_S + seen + shown)


@given(SECONDS, SECONDS, SECONDS, FRACTION, st.sampled_from([0.0, 1.0]))
def test_more_traffic_never_makes_a_pass_faster(less, more, weights_s, share, leave) -> None:
    """Of the other axis, on the weights' links or not; and links send one thing at a time."""
    least, most = sorted([less, more])
    assert _pass_s(least, weights_s, share, leave) <= _pass_s(most, weights_s, share, leave) + 1e-9
    shared_s = _pass_s(most, weights_s, share, 1.0)
    assert shared_s >= most + weights_s - 1e-9
    assert shared_s >= _pass_s(most, weights_s, share, 0.0) - 1e-9


@pytest.mark.parametrize(
    ("tensor_parallel", "shares"),
    [
        pytest.param(8, False, id="inside a node, and weights between nodes"),
        pytest.param(16, True, id="both between nodes"),
    ],
)
def test_a_layer_whose_tensor_parallelism_leaves_the_node(
    models, tensor_parallel: int, *, shares: bool
) -> None:
    """There what nanotron hides of it takes the network, so a backward has less room for gradients;
    inside a node it takes none, and what is seen of it is room.
    """
    layout = Layout(
        data_parallel=4, tensor_parallel=tensor_parallel, sequence_parallel=True,
        stages=even_stages(8, 1),
    )  # fmt: skip
    engine, training = load_engine("nanotron"), Training(seq_len=4096, global_batch_size=8)
    setting = Setting(models["dense"], training, load_cluster("dgx-h100"), engine, Tuning())
    model = StepModel(setting, layout)
    found = model.plain_cost(0, "none").input_grad
    nothing = engine.overlap.model_copy(update={"tensor": 0.0})
    open_engine = engine.model_copy(update={"overlap": nothing})
    shown = StepModel(replace(setting, engine=open_engine), layout).plain_cost(0, "none").input_grad
    hidden_s = shown.tensor_s - found.tensor_s
    assert hidden_s > 0
    assert found.more_room_s == pytest.approx(-hidden_s if shares else found.tensor_s)
