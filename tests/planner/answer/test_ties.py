"""Which of several layouts that measured runs do not tell apart is the plan."""

from dataclasses import replace

import pytest

from benchmarks.accuracy.figure_errors import as_csv
from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.units import GIB
from meshplan.hardware_profiles.errors.figure_errors import CONSTANTS, FILE, OVERLAPS
from meshplan.hardware_profiles.errors.layout_ratios import is_tie
from meshplan.planner.answer import ties
from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.question import Arguments, Asked, ask
from meshplan.planner.answer.ties import Worst, chosen, moved_settings, worst_losses
from meshplan.planner.report.proof import choice_line, proof_lines
from meshplan.planner.report.runners_up import slower_text
from meshplan.planner.search.result import SearchResult


@pytest.fixture(scope="module")
def asked() -> Asked:
    """A question with several layouts within a few per cent."""
    return ask(Arguments(model="llama-3.1-8b", gpus=32, cluster="dgx-h100", global_batch=256))


@pytest.fixture(scope="module")
def found(asked: Asked) -> SearchResult:
    """Its best layouts of three kinds."""
    return solve(asked.question, 3)


def test_losses_are_over_the_best_of_all(asked: Asked, found: SearchResult) -> None:
    """Unmoved figures count too, so a layout never loses less than it is slower; alone it loses
    nothing.
    """
    layouts = [solution.layout for solution in found.solutions]
    fastest_s = found.solutions[0].step_time_s
    for solution, worst in zip(found.solutions, worst_losses(asked.question, layouts), strict=True):
        assert worst.loss >= solution.step_time_s / fastest_s - 1 - 1e-9
    assert worst_losses(asked.question, layouts[:1])[0].loss == 0


def test_each_figure_is_moved_alone(asked: Asked) -> None:
    """Every constant up and down, hidden fractions less and more, and once nothing."""
    moved = list(moved_settings(asked.question))
    before = moved[0].setting
    assert len(moved) == 1 + 2 * len(CONSTANTS) + 2
    for _, setting in moved[1:]:
        changed = [
            name for name in CONSTANTS
            if getattr(setting.tuning, name) != getattr(before.tuning, name)
        ]  # fmt: skip
        assert len(changed) + (setting.engine.overlap != before.engine.overlap) == 1


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "experts"),
    [("llama-3.1-8b", 1), ("deepseek-v3", 1), ("deepseek-v3", 8), ("qwen3-vl-8b", 1)],
)
def test_a_moved_figure_is_priced_as_from_the_beginning(model: str, experts: int) -> None:
    """What is listed once for all figures is what each would list, and what stages cost under all
    constants together is what they cost under each.
    """
    asked = ask(
        Arguments(model=model, gpus=64, cluster="dgx-h100", engine="megatron", global_batch=256)
    )
    layers = asked.question.model.num_layers
    layout = Layout(
        data_parallel=8, tensor_parallel=4, pipeline_parallel=2, expert_parallel=experts,
        zero_stage=1, stages=(Stage(layers // 2, 1, 1), Stage(layers - layers // 2)),
    )  # fmt: skip
    moved = [each.setting for each in moved_settings(asked.question)]
    unmoved = StepModel(moved[0], layout)
    steps = [unmoved.with_figures(setting).time() for setting in moved]
    assert steps == [StepModel(setting, layout).time() for setting in moved]
    assert ties._steps_s(moved, unmoved) == [step.step_time_s for step in steps]
    assert len({step.step_time_s for step in steps}) > 5


@pytest.mark.parametrize(
    ("losses", "index"),
    [
        pytest.param([(0.05, 60), (0.02, 60), (0.03, 60)], 1, id="2 % at worst is the least"),
        pytest.param([(0.05, 60), (0.0201, 60), (0.0202, 50)], 2, id="alike to 0.1 %: less memory"),
        pytest.param([(0.05, 60), (0.02049, 60), (0.02051, 50)], 2, id="on both sides of 2.05 %"),
        pytest.param([(0.05, 60), (0.02, 60), (0.0211, 50)], 1, id="0.11 % more"),
        pytest.param([(0.01, 60), (0.02, 40), (0.03, 40)], 0, id="the fastest loses least"),
    ],
)
def test_choice_by_hand(
    asked: Asked, found: SearchResult, monkeypatch: pytest.MonkeyPatch,
    losses: list[tuple[float, float]], index: int,
) -> None:  # fmt: skip
    """The smallest loss is chosen, then the smallest need; what is said of the fastest is true."""
    worst = [Worst(loss, "communication 14% slower", gib * GIB) for loss, gib in losses]
    monkeypatch.setattr(ties, "worst_losses", lambda *_: worst)
    at, choice = chosen(asked.question, found.solutions, robust=True)
    assert at == index
    assert choice is not None
    assert choice.fastest == found.solutions[0].layout.label
    plan, fastest = found.solutions[at], found.solutions[0]
    assert choice.slower_fraction == pytest.approx(plan.step_time_s / fastest.step_time_s - 1)
    text = choice_line(choice)
    assert f"{losses[index][0]:.1%}" in text
    proof = proof_lines(plan_of(asked, found).search, choice)[0]  # type: ignore[arg-type]
    assert (choice.fastest in proof) == (index != 0)


@pytest.mark.parametrize(
    ("fraction", "said"),
    [
        pytest.param(2e-5, "is less than 0.1% slower", id="0.002 % is not 0.0 %"),
        pytest.param(0.012, "is 1.2% slower", id="1.2 %"),
    ],
)
def test_a_slower_plan_is_never_called_as_fast(
    asked: Asked, found: SearchResult, fraction: float, said: str
) -> None:
    """What was chosen though another one is faster is slower by something."""
    _, choice = chosen(asked.question, found.solutions, robust=True)
    assert choice is not None
    slower = choice.model_copy(update={"slower_fraction": fraction})
    search = plan_of(asked, found).search
    assert search is not None
    assert proof_lines(search, slower)[0].endswith(f"this plan {said}")


def test_without_ties_the_fastest_is_the_plan(asked: Asked, found: SearchResult) -> None:
    """Layouts that are surely slower are no ties: nothing is chosen, and nothing is said."""
    first, *others = found.solutions
    far = [replace(each, step_time_s=2 * first.step_time_s) for each in others]
    assert chosen(asked.question, [first, *far]) == (0, None)


def test_the_errors_are_those_of_the_shipped_data() -> None:
    """The file is what the constants and engine files that ship make of it."""
    assert as_csv() == FILE.read_text(encoding="utf-8")
    assert all(name in as_csv() for name in (*CONSTANTS, *OVERLAPS))


@pytest.mark.parametrize(
    ("probability", "tied"),
    [
        pytest.param(0.6998, False, id="printed as 70 of 100, which is no tie"),
        pytest.param(0.694, True, id="69 of 100"),
        pytest.param(0.306, True, id="the other one in 69 of 100"),
        pytest.param(0.301, False, id="30 of 100"),
    ],
)
def test_what_is_counted_as_a_tie_is_called_one(
    asked: Asked, found: SearchResult, monkeypatch: pytest.MonkeyPatch,
    probability: float, tied: bool,
) -> None:  # fmt: skip
    """The sentence on ties and the table of runners-up go by the same figure, as it is printed."""
    assert is_tie(probability) == tied
    monkeypatch.setattr(ties, "faster_probability", lambda *_: probability)
    _, choice = chosen(asked.question, found.solutions)
    assert (choice is not None) == tied
    other = plan_of(asked, found).runners_up[0]
    shown = slower_text(other.model_copy(update={"faster_probability": probability}), 1.0)
    assert ("a tie" in shown) == tied
