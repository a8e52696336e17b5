"""Device memory outside the allocator, and what the allocator gives back."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.runs.memory import holds


@pytest.fixture(scope="module")
def setting(models) -> Setting:
    """The dense model under nanotron on a cluster that says what a communicator takes."""
    training = Training(seq_len=4096, global_batch_size=256)
    cluster = load_cluster("aws-p5").model_copy(update={"communicator_bytes": 3e9})
    return Setting(models["dense"], training, cluster, load_engine("nanotron"), Tuning())


@pytest.mark.parametrize(
    ("dp", "tp", "pp", "leaving"),
    [
        pytest.param(8, 1, 1, 0, id="one node"),
        pytest.param(16, 1, 1, 1, id="data parallel over two"),
        pytest.param(2, 8, 1, 1, id="tensor parallel inside, data parallel between"),
        pytest.param(2, 16, 1, 2, id="both"),
        pytest.param(4, 2, 4, 0, id="a stage on each node: messages alone leave"),
        pytest.param(8, 2, 4, 1, id="a stage on two"),
    ],
)
def test_a_communicator_for_each_group_that_leaves_a_node(
    setting: Setting, dp: int, tp: int, pp: int, leaving: int
) -> None:
    """3e9 bytes each beside the context of 1.5 GiB."""
    layout = Layout(
        data_parallel=dp, tensor_parallel=tp, pipeline_parallel=pp, stages=even_stages(8, pp)
    )
    assert StepModel(setting, layout).context_bytes == 1.5 * 2**30 + leaving * 3e9


def test_a_process_without_a_gpu_has_no_context_of_one(setting: Setting) -> None:
    """0.3 GiB where nothing was measured; a profile says its own."""
    cluster = load_cluster("local-cpu")
    layout = Layout(stages=even_stages(8, 1))
    step = StepModel(replace(setting, cluster=cluster), layout)
    assert step.context_bytes == 0.3 * 2**30
    assert cluster.kernels is not None
    kernels = cluster.kernels.model_copy(update={"context_bytes": 2e9})
    profiled = replace(setting, cluster=cluster.model_copy(update={"kernels": kernels}))
    assert StepModel(profiled, layout).context_bytes == 2e9


def test_what_is_held_beside_a_pipeline_comes_back_slowly(setting: Setting) -> None:
    """A layout that fits without what is held beside its pipeline and not with it runs, stopping
    for each micro-batch; before nanotron's fix it does not.
    """
    layout = Layout(
        tensor_parallel=8, pipeline_parallel=4, sequence_parallel=True, stages=even_stages(8, 4)
    )
    held = Tuning(held_gathers_pipelined=1e4, pressed_s=0.5)
    plain = StepModel(setting, layout)
    step = StepModel(replace(setting, tuning=held), layout)
    old = StepModel(replace(setting, engine=load_engine("nanotron-2024"), tuning=held), layout)
    capacity = setting.cluster.capacity_bytes
    for rank in step.memory():
        assert plain.slack_bytes(rank) < capacity < step.slack_bytes(rank)
    assert (holds(plain), holds(step), holds(old)) == (True, True, False)
    stalls_s = step.time().step_time_s - plain.time().step_time_s
    assert stalls_s == pytest.approx(0.5 * layout.num_micro_batches(setting.training))
