"""Layouts that laboratories really ran: legal, fitting and near their published times."""

import pytest

from benchmarks.search.lab_layouts import LABS, Lab, own_layout
from meshplan.costmodels.layout import Layout
from meshplan.planner.answer.answer import case_at, solve
from meshplan.planner.answer.explain import lacking_bytes
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.resolve import check_case

NAMES = [lab.name for lab in LABS]
WORST_ERROR = 0.2


@pytest.fixture(scope="module")
def layouts() -> dict[str, Layout]:
    """The layout of each laboratory, what it did not publish made best."""
    return {lab.name: own_layout(lab).layout for lab in LABS}


@pytest.mark.few(3)
@pytest.mark.parametrize("lab", LABS, ids=NAMES)
def test_the_layout_is_legal_and_fits(lab: Lab, layouts: dict[str, Layout]) -> None:
    """What ran on the real machines obeys every rule of its engine and fits in our account."""
    case = case_at(lab.question(pinned=True), layouts[lab.name])
    check_case(case)
    assert case.layout.world_size == lab.gpus
    assert lacking_bytes(predicted(case)) <= 0


@pytest.mark.parametrize("lab", LABS, ids=NAMES)
def test_step_times_are_near(lab: Lab, layouts: dict[str, Layout]) -> None:
    """The published step times, none of them fitted, are met to 20 %."""
    ours = predicted(case_at(lab.question(pinned=True), layouts[lab.name])).step_time_s
    error = ours / lab.measured_s - 1
    print(f"{lab.name}: {ours:.2f} s, published {lab.measured_s} s, {error:+.0%}")
    assert abs(error) < WORST_ERROR


@pytest.mark.parametrize(
    "lab", [lab for lab in LABS if "Meta" in lab.name], ids=lambda lab: lab.name
)
def test_meta_recomputed_nothing(lab: Lab, layouts: dict[str, Layout]) -> None:
    """As its paper says, in eight chunks of a layer each on a rank."""
    layout = layouts[lab.name]
    assert layout.recompute == "none"
    assert (layout.virtual_stages, max(stage.layers for stage in layout.stages)) == (8, 1)


def test_exact_mixes_prove_nemotron_4() -> None:
    """One cut must recompute in several chunks: means of chains leave 0.06 % of it open."""
    lab = next(lab for lab in LABS if "Nemotron-4" in lab.name)
    assert solve(lab.question(pinned=True), 1).status == "OPTIMAL"
