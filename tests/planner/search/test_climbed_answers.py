"""Cuts of whole layers near an answer of real numbers, by hand and for any answer."""

from collections.abc import Sequence

import numpy as np
import pytest
from listed_layouts import listed_layouts

from meshplan.costmodels.layout import Stage
from meshplan.costmodels.layouts import Floats
from meshplan.planner.bounds.first_chains import first_lines
from meshplan.planner.cuts.free_cut_program import Answer, FreeCutProgram
from meshplan.planner.search.simulation import climbed_answers
from meshplan.planner.search.simulation.climbed_answers import (
    climbed,
    layers_of,
    rounded_cuts,
    those_that_fit,
)
from meshplan.planner.search.simulation.listed_layouts import ListedLayouts, plan_of
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.legal_layouts import Variant


def test_an_answer_is_rounded_where_chunks_end() -> None:
    """2.4 and 2.8 layers end at 2 and 5, so the chunks hold 2 and 3. Of the first one half
    recomputes in full, so 1; of the second one a seventh, rounded up 1. Then one more each; then
    all.
    """
    answer = np.array([[1.2, 0.0, 1.2], [2.4, 0.0, 0.4]])
    least, more, every = (each.tolist() for each in rounded_cuts(answer, (0, 1, 2)))
    assert least == [[1, 0, 1], [2, 0, 1]]
    assert more == [[0, 0, 2], [1, 0, 2]]
    assert every == [[0, 0, 2], [0, 0, 3]]


def test_rounded_cuts_hold_all_layers_and_recompute_no_smaller_part() -> None:
    """Of any answer, with two modes or three; empty chunks too."""
    draw = np.random.default_rng(5)
    for modes in ((0, 2), (0, 1, 2)) * 50:
        answer = draw.random((6, len(modes))) * (draw.random((6, 1)) > 0.2) + 1e-12
        answer *= 20 / answer.sum()
        part = answer[:, -1] / answer.sum(axis=1)
        fewer = None
        for cut in rounded_cuts(answer, modes):
            assert cut.sum() == 20
            assert (cut >= 0).all()
            assert (cut[:, -1] >= part * cut.sum(axis=1) - 1e-4).all()
            assert fewer is None or (cut[:, -1] >= fewer).all()
            fewer = cut[:, -1]


def test_layers_of_a_cut_in_each_mode() -> None:
    """Of 5 layers 1 recomputes selectively and 2 in full."""
    stages = Stage(5, 1, 2), Stage(3, 0, 3)
    assert layers_of(stages, (0, 1, 2)).tolist() == [[2, 1, 2], [0, 0, 3]]
    assert layers_of((Stage(3, 0, 1),), (0, 2)).tolist() == [[2, 1]]


def test_where_climbs_end_fits_and_takes_no_longer_than_where_they_begin() -> None:
    """Of small layouts short of memory; some get faster."""
    asked = faster = 0
    for proof, variant, rows, _ in listed_layouts("generic", range(4)):
        cuts, row = ListedLayouts(proof, rows).cuts(variant, rows[:1]), int(rows[0])
        program = FreeCutProgram(cuts, 1e3, ())
        layers, _ = climbed(proof, row, variant, program, 10**9)
        problem, _ = proof.problem(row, variant)
        answered = program.cut().sum(axis=1)
        begun = those_that_fit(problem, answered) if answered.any() else []
        assert begun or layers is None
        if layers is None or not begun:
            continue
        plan = plan_of(problem, layers)
        assert plan
        assert layers.sum() == len(problem.pattern)
        times = proof.times_of(row, variant, plan.stages)
        begun_s, step_s = (times.step_s(each.stages) for each in (begun[0], plan))
        assert step_s <= begun_s * (1 + 1e-9)
        asked, faster = asked + 1, faster + (step_s < begun_s * 0.999)
    assert min(asked, faster) > 0


class Failing(FreeCutProgram):
    """Its solver fails after so many answers, and then says that no chunk holds a layer."""

    asked, good = 0, 1

    def answer(self) -> Answer:
        """As the program's, as long as it does not fail."""
        self.asked += 1
        found = super().answer()
        return found if self.asked <= self.good else Answer(0.0, None)

    def cut(self) -> Floats:
        """Of the last answer."""
        found = super().cut()
        return found if self.asked <= self.good else np.zeros_like(found)


def failing(*, first: bool) -> tuple[Simulated, int, Variant, Failing]:
    """A layout whose program has several answers, of which the `first` or the last is not found."""
    for proof, variant, rows, _ in listed_layouts("generic", range(4)):
        cuts, row = ListedLayouts(proof, rows).cuts(variant, rows[:1]), int(rows[0])
        known = first_lines(*FreeCutProgram(cuts, 1.0, ()).shape)
        whole = FreeCutProgram(cuts, 1e3, known)
        answers = [whole.cut().sum(axis=1) for _ in whole.answers(1e3)]
        problem, _ = proof.problem(row, variant)
        if len(answers) > 2 and those_that_fit(problem, answers[-2]):
            program = Failing(cuts, 1e3, known)
            program.good = 0 if first else len(answers) - 1
            return proof, row, variant, program
    raise AssertionError


def test_where_the_solver_fails_the_answer_before_counts() -> None:
    """What it says then is no cut; with no answer before, none begins."""
    for first in (True, False):
        proof, row, variant, program = failing(first=first)
        layers, spent = climbed(proof, row, variant, program, 10**9)
        assert (layers is None) == first
        assert layers is None or layers.sum() == proof.space.model.num_layers
        assert spent >= (program.good + 1) * program.round_work


def test_a_program_without_an_answer_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Below a limit at which ranks can hold no layer; OR-Tools wrote a line for each chunk."""
    proof, variant, rows, _ = next(listed_layouts("generic", range(4)))
    cuts, row = ListedLayouts(proof, rows).cuts(variant, rows[:1]), int(rows[0])
    program = FreeCutProgram(cuts, 1e-9, first_lines(*FreeCutProgram(cuts, 1.0, ()).shape))
    layers, _ = climbed(proof, row, variant, program, 10**9)
    assert layers is None
    assert not program.cut().any()
    assert capfd.readouterr().err == ""


def test_a_budget_ends_rounds_and_climbs() -> None:
    """After the first round."""
    proof, row, variant, program = failing(first=False)
    climbed(proof, row, variant, program, 1)
    assert program.asked == 1


@pytest.mark.parametrize("steps_s", [(1.0, 2.0), (2.0, 1.0)])
def test_of_two_climbs_the_faster_one_is_taken(
    steps_s: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends where it begins, in a given step."""
    for proof, variant, rows, _ in listed_layouts("generic", range(8)):
        cuts, row = ListedLayouts(proof, rows).cuts(variant, rows[:1]), int(rows[0])
        program, left = FreeCutProgram(cuts, 1e3, ()), iter(steps_s)
        monkeypatch.setattr(
            climbed_answers.MovedLayers, "best",
            lambda climb, stages, step_s, left=left: (stages, next(left)),
        )  # fmt: skip
        found, _ = climbed(proof, row, variant, program, 10**9)
        problem, _ = proof.problem(row, variant)
        answered = program.cut().sum(axis=1)
        if answered.any() and len(begun := those_that_fit(problem, answered)) > 1:
            fastest = begun[steps_s.index(1.0)].stages
            assert found is not None
            assert found.tolist() == layers_of(fastest, tuple(problem.modes)).tolist()
            return
    pytest.fail("no answer has two roundings that fit")
