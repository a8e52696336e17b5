"""A step whose allocator has too little room stops for each micro-batch."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.hardware_profiles.tunings import Tuning


def test_a_pressed_allocator_stops_each_micro_batch(setting: Setting) -> None:
    """Held gathers that do not fit beside what is in use cost a stall for each micro-batch; ones
    that fit do not.
    """
    layout = Layout(tensor_parallel=2, sequence_parallel=True, stages=even_stages(8, 1))
    micro_batches = layout.num_micro_batches(setting.training)
    for pairs, stalls in ((1, 0), (1e6, micro_batches)):
        tuning = Tuning(held_gathers=pairs, pressed_s=0.5)
        plain = StepModel(replace(setting, tuning=Tuning(held_gathers=pairs)), layout)
        step = StepModel(replace(setting, tuning=tuning), layout)
        expected_s = plain.time().step_time_s + 0.5 * stalls
        assert step.time().step_time_s == pytest.approx(expected_s)


def test_a_layout_that_does_not_fit_is_pressed_too(setting: Setting) -> None:
    """With nothing held back, a step that leaves 2 % of the memory, less than is kept free, stops
    for each micro-batch; one that leaves half of it does not.
    """
    layout = Layout(stages=even_stages(8, 1))
    (memory,) = StepModel(setting, layout).memory()
    used = float(memory.allocated) + StepModel(setting, layout).context_bytes
    micro_batches = layout.num_micro_batches(setting.training)
    for filled, stalls in ((0.5, 0), (0.98, micro_batches)):
        gpu = setting.cluster.gpu.model_copy(update={"memory_bytes": int(used / filled)})
        cluster = setting.cluster.model_copy(update={"gpu": gpu})
        plain, step = (
            StepModel(replace(setting, cluster=cluster, tuning=tuning), layout)
            for tuning in (
                Tuning(state_slack_fraction=0, activation_slack_fraction=0, pressed_s=stall_s)
                for stall_s in (0.0, 0.5)
            )
        )
        expected_s = plain.time().step_time_s + 0.5 * stalls
        assert step.time().step_time_s == pytest.approx(expected_s)
