"""Models of layouts that differ in their stages alone share a rank, and price nothing otherwise."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.costmodels.layout import Layout, Stage, stages_with
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.step.step_models import StepModels
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning


def cuts(layout: Layout) -> list[Layout]:
    """The layout, and others of the same counts and of one layer moved, with each recomputation."""
    counts = [stage.layers for stage in layout.stages]
    moved = [counts[0] + 1, *counts[1:-1], counts[-1] - 1] if counts[-1] > 1 else counts
    ways = product((counts, moved[: len(counts)]), ("full", "none", "selective"))
    return [layout, *(replace(layout, stages=stages_with(*way)) for way in ways), layout]


@settings(max_examples=30)
@given(data=st.data())
def test_a_shared_rank_prices_as_one_of_its_own(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
) -> None:
    """Seconds and memory of every cut and mix of a row, to the last digit, in any order."""
    case = data.draw(cases())
    models = StepModels(case.setting)
    layouts = cuts(case.layout) if len(case.layout.stages) > 1 else [case.layout] * 2
    for layout in layouts:
        shared, alone = models.of(layout), StepModel(case.setting, layout)
        assert shared.memory() == alone.memory()
        assert shared.time() == alone.time()


def test_the_ranks_last_asked_for_are_kept(models: dict[str, Model]) -> None:
    """One whose `most` followers were asked for since is made anew; a row with another degree, or
    another set of modules to recompute, is another rank.
    """
    setting = Setting(
        models["dense"], Training(seq_len=512, global_batch_size=8), load_cluster("dgx-h100"),
        load_engine("megatron"), Tuning(),
    )  # fmt: skip
    known = StepModels(setting, most=2)
    one, two = Layout(stages=(Stage(8),)), Layout(data_parallel=2, stages=(Stage(8),))
    of_mlp = replace(one, selective_modules=("mlp",))
    first = known.of(one).site
    assert known.of(replace(one, stages=(Stage(8, 0, 8),))).site is first
    assert known.of(two).site is not first
    assert known.of(one).site is first
    assert known.of(of_mlp).site is not first
    known.of(two)
    assert known.of(one).site is not first
