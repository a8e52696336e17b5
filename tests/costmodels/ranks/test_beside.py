"""What weights send beside a micro-batch's passes, and what is left for traffic once per step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.ranks.beside import Lasting, Sent, beside
from meshplan.costmodels.seconds.cost import Pass
from meshplan.costmodels.seconds.interference import exposed_s
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning

SECONDS = st.floats(0, 100)


def backward_of(
    model: Model, computing_s: float, sent_s: float, hides: float = 1.0, copied_s: float = 0.0,
    beside_share: float = 1.0,
) -> Pass:  # fmt: skip
    """A backward that computes so long beside gathers and scatters, and copies from the host, of so
    long, of which a share runs beside it.
    """
    engine, training = load_engine("native"), Training(seq_len=4096, global_batch_size=8)
    overlap = engine.overlap.model_copy(
        update={"weight_gather": hides, "activations": beside_share}
    )
    engine = engine.model_copy(update={"overlap": overlap})
    setting = Setting(model, training, load_cluster("dgx-h100"), engine, Tuning())
    layout = Layout(data_parallel=8, zero_stage=3, shard_group=4, stages=even_stages(8, 1))
    layout = replace(layout, activation_offload=1.0)
    sent = Sent(0.0, sent_s, 0.0, 0.0, 0.0, 0.0)
    plain = Lasting(computing_s, computing_s)
    _, more = beside(setting, layout, sent, Lasting(0.0, 0.0), plain, saved_s=copied_s)
    return Pass(matmul_s=computing_s) + more


@pytest.mark.parametrize(
    ("sent_s", "copied_s", "seconds", "room_s"),
    [
        pytest.param(4.0, 0.0, 10.0, 6.0, id="hidden: 4 of 10 s are taken"),
        pytest.param(13.0, 0.0, 13.0, 0.0, id="seen for 3 s: nothing is left"),
        pytest.param(13.0, 12.0, 13.0, 0.0, id="copies hide in the 13 s, too"),
        pytest.param(13.0, 15.0, 15.0, 2.0, id="copies end 2 s later, and the network is free"),
    ],
)
def test_room_for_traffic_once_per_step_by_hand(
    models, sent_s: float, copied_s: float, seconds: float, room_s: float
) -> None:
    """Beside 10 s of computing; the links send one thing at a time, the host's are others."""
    found = backward_of(models["dense"], 10.0, sent_s, copied_s=copied_s)
    assert (found.total_s, found.room_s) == (seconds, room_s)


@pytest.mark.parametrize(
    ("share", "seconds", "room_s"),
    [
        pytest.param(1.0, 10.0, 6.0, id="another stream: hidden"),
        pytest.param(
            0.0, 13.0, 9.0, id="the computing stream: 10 + 3, the network free for 3 more"
        ),
        pytest.param(0.5, 11.5, 7.5, id="half of each"),
    ],
)
def test_copies_on_the_computing_stream_by_hand(
    models, share: float, seconds: float, room_s: float
) -> None:
    """Three seconds of copies beside 10 s of computing, 4 s of which weights send."""
    found = backward_of(models["dense"], 10.0, 4.0, copied_s=3.0, beside_share=share)
    assert (found.total_s, found.room_s) == (seconds, room_s)


@pytest.mark.parametrize(
    ("engine", "share"), [("llm-foundry", 0.0), ("torchtitan", 1.0), ("megatron", 1.0)]
)
def test_on_which_stream_an_engine_copies(engine: str, share: float) -> None:
    """torch's save_on_cpu on that which computes; others have one of their own."""
    assert load_engine(engine).overlap.activations == share


@pytest.mark.parametrize(
    ("zero", "shown"),
    [
        pytest.param(1, (0.0, 0.0), id="ZeRO-1 sends once per step"),
        pytest.param(2, (0.4, 0.8), id="ZeRO-2 hides 0.8, as gradients: 0.2 x 2, 0.2 x 4"),
        pytest.param(3, (1.0, 2.0), id="ZeRO-3 hides 0.5, as weights: 0.5 x 2, 0.5 x 4"),
    ],
)
def test_what_is_gathered_hides_otherwise_than_what_is_reduced(
    models, zero: int, shown: tuple[float, float]
) -> None:
    """Two seconds beside a forward of 10 s, four beside a backward."""
    engine, training = load_engine("native"), Training(seq_len=4096, global_batch_size=8)
    overlap = engine.overlap.model_copy(update={"weight_gather": 0.5, "data_reduce": 0.8})
    engine = engine.model_copy(update={"overlap": overlap})
    setting = Setting(models["dense"], training, load_cluster("dgx-h100"), engine, Tuning())
    layout = Layout(data_parallel=8, zero_stage=zero, stages=even_stages(8, 1))
    plain = Lasting(10.0, 10.0)
    found = beside(setting, layout, Sent(2.0, 4.0, 0.0, 0.0, 0.0, 0.0), plain, plain)
    assert tuple(float(each.data_s) for each in found) == pytest.approx(shown)


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.floats(0, 1), SECONDS, st.floats(0, 1))
def test_a_longer_backward_is_no_faster(
    models, less, more, sent_s, once_s, hides, copied_s, share
) -> None:
    """With all that it does not hide of the three: else recomputation could pay that memory does
    not ask for.
    """

    def whole_s(computing_s: float) -> float:
        each = backward_of(models["dense"], computing_s, sent_s, hides, copied_s, share)
        return float(each.total_s + exposed_s(once_s, each.room_s, hides, 0.1))

    least, most = sorted([less, more])
    assert whole_s(least) <= whole_s(most) + 1e-9
