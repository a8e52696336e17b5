"""`plan --gpus auto` names the sizes that stand out; a batch that divides badly is told with its
better neighbour.
"""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from called import run

from meshplan.costmodels.prices.known_work import KnownWork
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.better_batch import LEAST_GAIN, faster, fastest, neighbours, ways
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.bounds.inner import row_bounds
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.search.footprint import minimum_gpus
from meshplan.planner.search.rows.priced_space import closed_form, price_space, space_of
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.sweep.auto import sizes_from

JOB = ("llama-3.1-8b", "--cluster", "dgx-h100", "--global-batch", "32", "--pp", "1", "--cp", "1")


@pytest.fixture(scope="module")
def auto() -> dict[str, Any]:
    """The plan of the size that was chosen, as JSON."""
    result = run("plan", *JOB, "--gpus", "auto", "--price-per-gpu-hour", "2", "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def question(gpus: int) -> Any:
    """What `JOB` asks of a size."""
    pins = {"pipeline_parallel": "1", "context_parallel": "1"}
    return ask(
        Arguments(model=JOB[0], gpus=gpus, cluster="dgx-h100", global_batch=32, pins=pins)
    ).question


def of_thirty(pins: dict[str, str]) -> Any:
    """30 sequences on 64 GPUs."""
    asked = replace(question(64), pins=parse_pins(pins))
    return replace(asked, training=replace(asked.training, global_batch_size=30))


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        pytest.param(1, 40, [1, 2, 4, 8, 16, 32], id="doubling, and not beyond the cluster"),
        pytest.param(3, 16, [3, 4, 8, 16], id="3 holds it, then powers of two"),
        pytest.param(24, 64, [24, 32, 64], id="3 nodes, then 4 and 8"),
        pytest.param(72, 64, [72], id="the fewest alone"),
    ],
)
def test_sizes_by_hand(least: int, most: int, expected: list[int]) -> None:
    """The fewest that hold it, then powers of two within a node, then of nodes."""
    assert list(sizes_from(least, 8, most)) == expected


def test_auto_plans_the_knee(auto: dict[str, Any]) -> None:
    """The fewest is the scan's; the knee has the least time x cost of the sizes tried, and is the
    plan; the cheapest has the least cost; two sizes beyond the knee were tried.
    """
    sizes, tried = auto["sizes"], auto["sizes"]["tried"]
    least = minimum_gpus(question(64))
    assert least is not None
    assert sizes["least_gpus"] == least.gpus == tried[0]["gpus"]
    by_knee = min(tried, key=lambda s: s["gpus"] * s["step_time_s"] ** 2)
    assert sizes["knee_gpus"] == by_knee["gpus"] == auto["cluster"]["gpus"]
    assert tried.index(by_knee) == len(tried) - 3
    assert auto["prediction"]["step_time_s"] == pytest.approx(by_knee["step_time_s"])
    cost = min(tried, key=lambda s: s["gpus"] * s["step_time_s"])
    assert sizes["cheapest_gpus"] == cost["gpus"]
    hours = cost["gpus"] * cost["step_time_s"] / (32 * 4096) * 1e12 / 3600
    assert cost["cost_per_trillion_tokens"] == pytest.approx(2 * hours)
    assert all(size["status"] == "OPTIMAL" for size in tried)


def test_auto_is_named_for_people() -> None:
    """The answer names the fewest and the knee; without a price no size is called cheapest."""
    text = run("plan", *JOB, "--gpus", "auto").stdout
    assert "How many GPUs" in text
    assert "fewest that hold a training step: " in text
    assert "knee (least step time x cost of these doubling sizes): " in text
    assert "cheapest" not in text


@pytest.mark.parametrize("gpus", ["0", "-1", "8.5", "many", "8..16"])
def test_no_number_of_gpus_is_one_line(gpus: str) -> None:
    """What is neither a number nor `auto` exits 2 and says so."""
    result = run("plan", *JOB, "--gpus", gpus)
    assert result.exit_code == 2
    assert "write 8, or auto" in result.stderr


def test_auto_that_cannot_be_is_one_line() -> None:
    """local-cpu has no sizes of its own to walk."""
    result = run("plan", "tiny-llama", "--gpus", "auto", "--cluster", "local-cpu",
                 "--global-batch", "8")  # fmt: skip
    assert result.exit_code == 2
    assert "--gpus auto is for clusters" in result.stderr


@pytest.mark.parametrize(
    ("batch", "gpus", "expected"),
    [
        pytest.param(500, 256, [480, 512], id="500 = 4 x 125; 480 = 32 x 15, 512 = 2 x 256"),
        pytest.param(512, 256, [], id="all divisors of 256 divide 512"),
        pytest.param(63, 64, [60, 64], id="63 = 7 x 9; 60 = 4 x 15, 64 = 64"),
        pytest.param(7, 8, [], id="8 is more than a tenth away"),
    ],
)
def test_neighbours_by_hand(batch: int, gpus: int, expected: list[int]) -> None:
    """Within a tenth, the ones below and above that most numbers of replicas divide."""
    found = list(neighbours(batch, gpus))
    assert found == expected
    assert all(ways(size, gpus) > ways(batch, gpus) for size in found)


def test_a_better_batch_is_reached() -> None:
    """30 sequences on 16 GPUs: 32 are told, and the search of 32 finds a step at most as long as
    told; the gain is per sequence.
    """
    job = ("llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "16", "--global-batch", "30")
    plan = json.loads(run("plan", *job, "--pp", "1", "--cp", "1", "--json").stdout)
    better = plan["better_batch"]
    assert better["global_batch_size"] == 32
    own = plan["prediction"]["step_time_s"] / 30
    assert better["faster_fraction"] == pytest.approx(own / (better["step_time_s"] / 32) - 1)
    assert better["faster_fraction"] >= LEAST_GAIN
    q = question(16)
    best = solve(replace(q, training=replace(q.training, global_batch_size=32)), 1).solutions[0]
    assert best.step_time_s <= better["step_time_s"] * (1 + 1e-9)
    text = " ".join(run("plan", *job, "--pp", "1", "--cp", "1").stdout.split())
    told = re.search(r"30 sequences divide badly: a batch of 32 is at least (\d+)% faster", text)
    assert told
    assert 0 <= 100 * better["faster_fraction"] - int(told[1]) < 1


def test_a_batch_that_divides_well_is_left_alone(auto: dict[str, Any]) -> None:
    """32 sequences on a power of two of GPUs: nothing is said."""
    assert auto["better_batch"] is None


def test_a_neighbour_that_gains_too_little_is_not_told() -> None:
    """The same neighbour is told beside a slow plan and not beside one 4 % slower than it, also
    where its bound promises more than 5 %, as for a pipeline of few micro-batches.
    """
    asked = of_thirty({"pipeline_parallel": "4"})
    found = faster(asked, 32, 1e9, KnownWork())
    assert found is not None
    per_sequence_s = found.step_time_s / 32
    q = replace(asked, training=replace(asked.training, global_batch_size=32))
    space = space_of(q)
    bound_s = row_bounds(space, price_space(q, space, closed_form)).min() / NS_PER_S
    assert bound_s < found.step_time_s * 1.04 / (1 + LEAST_GAIN)
    assert faster(asked, 32, per_sequence_s * 1.04, KnownWork()) is None
    told = faster(asked, 32, per_sequence_s * 1.06, KnownWork())
    assert told is not None
    assert told.faster_fraction == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        pytest.param("2", False, id="2 replicas reach 30 as well as 32"),
        pytest.param("4", True, id="4 reach 32 alone"),
    ],
)
def test_layouts_that_the_batch_has_itself_are_no_gain_of_a_neighbour(
    replicas: str, told: bool
) -> None:
    """However slow the plan: 30 sequences beside 32."""
    asked = of_thirty({"data_parallel": replicas, "context_parallel": "1"})
    assert (faster(asked, 32, 1e9, KnownWork()) is not None) == told


def test_neighbours_that_share_prices_are_what_each_of_them_is_alone() -> None:
    """28 and 32 sequences beside 30, in experts that two dispatchers may serve."""
    given = Arguments(
        model="mixtral-8x7b", gpus=32, cluster="dgx-h100", engine="megatron", global_batch=30
    )
    asked = ask(given).question
    alone = [faster(asked, size, 1e9, KnownWork()) for size in (28, 32)]
    known = KnownWork()
    assert [faster(asked, size, 1e9, known) for size in (28, 32)] == alone
    assert all(alone)
    best = max(filter(None, alone), key=lambda each: each.faster_fraction)
    assert fastest(asked, (28, 32), 1e9) == best
