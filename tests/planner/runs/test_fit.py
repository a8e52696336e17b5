"""What measured runs teach: fits of pools, what they may have seen, and a user's own runs."""

import csv
import operator
from dataclasses import replace

import numpy as np
import pytest
from rows import ROW
from typer.testing import CliRunner

from meshplan.hardware_profiles import tunings
from meshplan.hardware_profiles.tunings import Fit, Tuning
from meshplan.planner.cli.main import app
from meshplan.planner.runs.accuracy import spread, step_errors
from meshplan.planner.runs.fit import (
    Pool,
    Rivals,
    fit_pool,
    problem_of,
    rivals_of,
    stands_still,
    wider,
)
from meshplan.planner.runs.learning import Indices, Problem
from meshplan.planner.runs.runs import BUILT_IN, Run, read_runs, run_of
from meshplan.planner.runs.validate import predict_rows, predict_run, step_model

LORA = BUILT_IN.parent / "lora.csv"
PLAIN = Rivals(lambda _: Tuning(), lambda _, __: Tuning())


def runs_at(factors: dict[str, float]) -> tuple[Run, ...]:
    """Llama of so many layers, each with a measured time of so many times the prediction."""
    rows = []
    for layers, factor in factors.items():
        row = ROW | {"id": layers, "model": layers, "layers": layers}
        step_s = step_model(run_of(row), Tuning()).time().step_time_s * factor
        rows.append(row | {"step_time_s": repr(step_s)})
    return tuple(run_of(row) for row in rows)


def test_what_is_left_out_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is predicted once by what the others taught, then all of them teach."""
    taught: list[int] = []
    solve = Problem.solve

    def recorded(problem: Problem, rows: Indices) -> Tuning:
        taught.append(len(rows))
        return solve(problem, rows)

    monkeypatch.setattr(Problem, "solve", recorded)
    left_out: list[frozenset[str]] = []

    def start(ids: frozenset[str]) -> Tuning:
        left_out.append(ids)
        return Tuning()

    factors = dict.fromkeys(("16", "24", "32", "40", "48", "64"), 1.5)
    pool = Pool("megatron-bridge", "any", runs_at(factors))
    assert fit_pool(pool, Rivals(start, PLAIN.without), "test", "2026-01-01") is not None
    assert taught == [4, 4, 4, 6]
    assert frozenset().union(*left_out) == set(factors)
    assert [len(ids) for ids in left_out] == [2, 2, 2, 0]


def test_doubt_that_runs_leave() -> None:
    """One run, predicted 0.3 off, that takes 1 % longer where the first constant is 1 % larger. The
    least loss leaves 0.3 - 0.2^2 / 0.2 = 0.1 of it, which squares weigh as 1 / (0.1 x 0.2) would.
    """
    problem = object.__new__(Problem)
    problem.deviation, problem.weights = np.array([0.2, 0.2]), np.array([1.0])
    problem.start, problem.jacobian = np.array([-0.3]), np.array([[1.0, 0.0]])
    problem.centre = np.zeros(2)
    left = problem.doubt(np.array([0]))
    told = 1 / (0.1 * 0.2)
    assert left[0] == pytest.approx((told + 0.2**-2) ** -0.5 / 0.2, rel=1e-3)
    assert left[1] == 1
    assert list(problem.told(np.array([0]))) == [True, False]


def test_a_table_says_what_is_no_finding() -> None:
    """What runs do not tell is loaded from under `prior`, and written there."""
    tuning = Tuning(matmul_scale=1.1, launch_s=5e-5)
    fit = Fit(tuning=tuning, prior=("launch_s",), date="", rows=6, groups=3, error_fraction=0.1,
              source="test")  # fmt: skip
    assert fit.table()["tuning"] == {"matmul_scale": 1.1}
    assert fit.table()["prior"] == {"launch_s": 5e-5}
    assert Fit.model_validate(fit.table()) == fit


def test_the_wider_pool_forgets_what_a_family_leaves_out() -> None:
    """An engine's constants on all GPUs, learnt from fast runs and slow ones: without the slow ones
    they are those of the fast.
    """
    exact = runs_at(dict.fromkeys(("16", "24", "32", "40"), 1.0))
    slow = runs_at(dict.fromkeys(("48", "56", "64", "72", "80", "88"), 1.8))
    wide = Pool("megatron-bridge", "any", exact + slow)
    family = Pool("megatron-bridge", "hopper", slow)
    seen = Fit(tuning=Tuning(matmul_scale=1.5), date="", rows=10, groups=10, error_fraction=0.1,
               source="test")  # fmt: skip
    rivals = rivals_of({"megatron-bridge": {"any": seen}}, family, [wide, family])
    assert rivals.start(frozenset()).matmul_scale == 1.5
    forgotten = rivals.start(frozenset(run.id for run in slow))
    assert rivals.without("hopper", frozenset(run.id for run in slow)) == forgotten
    errors = [predict_run(run, forgotten).step_error for run in exact]
    assert max(abs(error) for error in errors if error is not None) < 0.02


def test_an_engine_starts_where_its_runs_have_taught_nothing() -> None:
    """Not at its own constants, which have seen what is left out, but at those of all engines."""
    runs = runs_at({"8": 1.0, "16": 1.0})
    own, wide = (
        Fit(
            tuning=Tuning(matmul_scale=scale), date="", rows=2, groups=2, error_fraction=0.1,
            source="test",
        )
        for scale in (1.5, 1.2)
    )  # fmt: skip
    pool = Pool("megatron-bridge", "any", runs)
    rivals = rivals_of({"megatron-bridge": {"any": own}, "generic": {"any": wide}}, pool, [pool])
    nobody: frozenset[str] = frozenset()
    assert rivals.start(nobody) == rivals.without("hopper", nobody) == wide.tuning


def test_a_fit_finds_a_slow_machine():
    """Runs that all take 1.5 times the prediction are fitted, and left-out models too."""
    rows = []
    for layers, name in (("16", "4B"), ("32", "8B"), ("64", "16B")):
        for micro, sequence in (("1", "2048"), ("2", "4096"), ("1", "8192"), ("2", "8192")):
            row = ROW | {"model": name, "layers": layers, "micro_batch": micro, "seq_len": sequence}
            (found,) = predict_rows([row])
            slow_s = str(found.time.step_time_s * 1.5)
            rows.append(row | {"id": f"{name}-{sequence}-{micro}", "step_time_s": slow_s})
    pool = Pool("megatron-bridge", "hopper", tuple(run_of(row) for row in rows))
    fit = fit_pool(pool, PLAIN, "test", "2026-01-01")
    assert fit is not None
    assert fit.groups == 6  # 3 models x micro-batches of 1 and 2
    assert fit.error_fraction < 0.1


def test_runs_that_need_no_correction_teach_nothing():
    """Where the wider pool predicts left-out runs exactly, there is no fit to keep."""
    exact = dict.fromkeys(("16", "24", "32", "40", "48", "64"), 1.0)
    pool = Pool("megatron-bridge", "hopper", runs_at(exact))
    assert fit_pool(pool, PLAIN, "test", "2026-01-01") is None
    asked: list[str] = []

    def slow(family: str, left_out: frozenset[str]) -> Tuning:
        asked.append(family)
        return Tuning(matmul_scale=2.0)

    kept = fit_pool(pool, Rivals(PLAIN.start, slow), "test", "2026-01-01")
    assert kept is not None, "better than what a plan would load without it"
    assert kept.error_fraction < 0.01
    assert asked == ["hopper"] * 6


def test_without_a_fit_a_family_has_its_own_wider_pool():
    """What is loaded in place of an engine's constants: those of all engines on the same family."""

    def fit(scale: float) -> Fit:
        tuning = Tuning(matmul_scale=scale)
        return Fit(tuning=tuning, date="", rows=6, groups=3, error_fraction=0.1, source="test")

    wide = {"any": fit(1.0), "blackwell": fit(2.0)}
    pool = Pool("megatron-bridge", "any", ())
    own = {"generic": wide, "megatron-bridge": {"any": fit(3.0)}}
    families = ("any", "hopper", "blackwell")
    found = [
        wider(fits, pool, family).matmul_scale
        for fits in ({"generic": wide}, own) for family in families
    ]  # fmt: skip
    assert found == [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_a_users_own_runs_correct_the_shipped_constants(tmp_path, monkeypatch):
    """`validate RUNS --fit FOLDER`, then the folder first: runs of a cluster that takes half as
    long again are predicted better, and engines without runs as before.
    """
    published = [row for row in read_runs(LORA) if row["gpu"] == "h100-sxm"]
    rows = [row | {"step_time_s": str(1.5 * float(row["step_time_s"]))} for row in published]
    runs, fits = tmp_path / "runs.csv", tmp_path / "fits"
    with runs.open("w", newline="") as file:
        written = csv.DictWriter(file, rows[0].keys())
        written.writeheader()
        written.writerows(rows)
    before = spread(step_errors(list(predict_rows(rows)))).median
    other = tunings.load_fit("nemo", "h100-sxm")
    result = CliRunner().invoke(app, ["validate", str(runs), "--fit", str(fits)])
    assert result.exit_code == 0, result.output
    monkeypatch.setattr(tunings, "FOLDERS", (fits, tunings.SHIPPED))
    tunings.load_fit.cache_clear()
    try:
        after = spread(step_errors(list(predict_rows(rows)))).median
        assert after < 0.6 * before
        assert tunings.load_fit("nemo", "h100-sxm") == other
    finally:
        tunings.load_fit.cache_clear()


NANOTRON = {"framework": "nanotron", "gpus": "16", "dp": "1", "tp": "4", "pp": "4", "zero": "0"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("said", "waits"),
    [
        pytest.param({}, True, id="4 x 4 ranks on two nodes: tensor parallel waits"),
        pytest.param({"tp": "1", "pp": "16"}, False, id="nobody to wait for: tp 1"),
        pytest.param({"tp": "1", "pp": "16", "stalling_p2p": "1"}, True, id="before its fix"),
        pytest.param({"gpus": "8", "tp": "2"}, False, id="2 x 4 ranks on one node"),
        pytest.param({"framework": "megatron-core"}, False, id="an engine that does not"),
    ],
)
def test_runs_that_stand_still_teach_other_frameworks_nothing(
    said: dict[str, str], waits: bool
) -> None:
    """Ten times as slow as they compute, they move what a pool of all engines learns only where
    nothing holds them up that this engine alone has.
    """
    odd = ROW | NANOTRON | {"id": "odd", "layers": "32", "step_time_s": "200"} | said
    usual = runs_at({"24": 1.2, "32": 1.2, "40": 1.2})
    runs = (*usual, run_of(odd))
    assert stands_still(runs[-1]) == waits
    pool = Pool("generic", "any", runs)
    problem = problem_of(pool, runs, Tuning())
    alone, together = (problem.solve(np.arange(n)) for n in (len(usual), len(runs)))
    assert (alone == together) == waits
    own = Pool("nanotron", "any", runs)
    assert all(own.hears(run) for run in runs)


@pytest.mark.parametrize("kernel", ["flash attention v1", "FA3", "no flash attention"])
def test_a_frameworks_attention_kernel_is_its_own(kernel: str) -> None:
    """Runs as long as an unknown framework would take with that kernel teach nothing of others."""
    said = ROW | {"framework": "unheard of", "note": kernel, "seq_len": "8192"}
    rows = [said | {"layers": layers, "id": layers} for layers in ("16", "24", "32")]
    same = [run_of(row | {"step_time_s": repr(_as_predicted(row))}) for row in rows]
    pool = Pool("generic", "any", tuple(same))
    problem = problem_of(pool, same, Tuning())
    assert np.abs(problem.start).max() < 1e-3
    assert problem.solve(np.arange(3)).attention_scale == 1.0


def test_all_engines_together_learn_one_scale_of_kernels_and_an_engine_each_its_own() -> None:
    """What attention alone is slower for cannot be told from a few frameworks' steps."""
    runs = runs_at({"16": 1.4, "24": 1.4, "32": 1.4, "40": 1.4, "48": 1.4, "56": 1.4})
    every = np.arange(len(runs))
    kernels = operator.attrgetter("matmul_scale", "attention_scale", "pointwise_scale")
    wide, own = (
        kernels(problem_of(Pool(engine, "any", runs), runs, Tuning()).solve(every))
        for engine in ("generic", "megatron-bridge")
    )
    assert wide[0] > 1.2
    assert len(set(wide)) == 1
    assert len(set(own)) > 1


def _as_predicted(row: dict[str, str]) -> float:
    wide = Tuning(launch_s=3e-5, routing_s=5e-4, micro_batch_s=1e-3, step_s=2e-2)
    return step_model(run_of(row), wide).time().step_time_s


@pytest.mark.parametrize(
    ("engine", "boundary_s", "rank_s", "waits"),
    [
        pytest.param({}, 1e-3, 0.0, True, id="at boundaries"),
        pytest.param(
            {"waits_at_boundaries": False}, 1e-3, 0.0, False, id="an engine that does not"
        ),
        pytest.param({}, 0.0, 0.0, False, id="waits of no length"),
        pytest.param({"waits_at_boundaries": False}, 0.0, 1e-3, True, id="in tensor parallel"),
    ],
)
def test_what_stands_still_is_what_its_constants_say(
    monkeypatch, engine: dict[str, bool], boundary_s: float, rank_s: float, waits: bool
) -> None:
    """Of one run of 4 x 4 ranks on two nodes."""
    tuning = Tuning(boundary_s=boundary_s, pipelined_rank_s=rank_s)
    shipped = Fit(tuning=tuning, date="", rows=6, groups=3, error_fraction=0.1, source="test")
    monkeypatch.setattr("meshplan.planner.runs.fit.load_fit", lambda *_: shipped)
    run = run_of(ROW | NANOTRON | {"id": "x", "layers": "32", "stalling_p2p": "1"})
    overlap = run.engine.overlap.model_copy(update=engine)
    run = replace(run, engine=run.engine.model_copy(update={"overlap": overlap}))
    assert stands_still(run) == waits
