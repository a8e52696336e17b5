"""No question runs away from its time limit: what takes long is cut short inside too."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer import better_batch, full_plan
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.answer.spare_memory import spare_memory
from meshplan.planner.cli.main import app
from meshplan.planner.problem.stage_problem import StageProblem
from meshplan.planner.search import least_memory
from meshplan.planner.search.footprint import nearest_miss
from meshplan.planner.search.progress import Fastest
from meshplan.planner.search.result import SearchEnded
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.search.simulation.simulated import Simulated
from meshplan.planner.space.pins import parse_pins
from meshplan.planner.stages.first_plan import first_plan


def asking(
    model: str, cluster: str, engine: str, counts: tuple[int, int, int], **pins: str
) -> Question:
    """`counts`: GPUs, sequences of a batch, tokens of a sequence."""
    gpus, batch, tokens = counts
    return Question(
        model=read_model(model)[1], training=Training(seq_len=tokens, global_batch_size=batch),
        cluster=load_cluster(cluster), engine=load_engine(engine), gpus=gpus,
        pins=parse_pins(pins),
    )  # fmt: skip


def test_a_search_keeps_its_limit_in_deep_pipelines() -> None:
    """92 layers on up to 64 ranks with 4 to 16 micro-batches: 1 s; took 13 s, and 10 after that.

    A solver had no plan after 12 s, and the beginnings of cuts were counted as if they were few.
    """
    question = asking("glm-4.6", "gh200-vista", "hai-llm", (512, 16, 4096), tensor_parallel="1")
    started = time.process_time()
    result = solve(question, 3, time_limit_s=1.0)
    assert result.wall_s > 1.0, "a question that ends before its limit says nothing of it"
    assert time.process_time() - started < 4.0


def test_a_refusal_plans_no_chunks_that_no_mix_makes_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of layouts of several chunks, each planned before it was refused, few are."""
    planned = []

    def counted(problem: StageProblem) -> Any:
        planned.append(problem)
        return first_plan(problem)

    monkeypatch.setattr(least_memory, "first_plan", counted)
    counts = 12, 12, 2**20
    question = asking("qwen2.5-14b", "alps-gh200", "torchtitan", counts, virtual_stages="2..")
    found = nearest_miss(question)
    assert found is not None
    assert found.layout.virtual_stages > 1
    assert 0 < len(planned) < 100


def test_no_plan_in_time_is_not_that_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without first plans and time nothing is known: no miss, no pin and no other size is named."""
    monkeypatch.setattr("meshplan.planner.search.search.seed_likely", lambda _: None)
    asked = ("plan", "tiny-llama", "--gpus", "2", "--cluster", "local-cpu", "--global-batch", "16")
    result = CliRunner().invoke(app, (*asked, "--time-limit", "0", "--json"))
    assert result.exit_code == 3
    assert json.loads(result.stdout) == {"status": "UNKNOWN", "gpus": 2}
    ended = "the search ended before it found a layout that fits; with more time it may find one"
    assert result.stderr == f"error: {ended}\n"


@pytest.mark.parametrize("found", [True, False])
def test_the_limit_holds_for_the_question_of_a_config_too(
    found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A config of another question is asked that one within the limit; where nothing is found by
    then this is what is said, after the plan, and not that nothing fits.
    """
    asked = ("plan", "llama-3.1-8b", "--cluster", "dgx-h100", "--global-batch", "64", "--gpus")
    yours, limits = str(tmp_path / "yours.yaml"), []
    assert CliRunner().invoke(app, (*asked, "8", "-o", yours)).exit_code == 0

    def solved(question: Question, top: int, time_limit_s: float | None) -> Any:
        limits.append(time_limit_s)
        if not found:
            raise SearchEnded("the search ended")
        return solve(question, top, time_limit_s)

    limited = ("--time-limit", "30", "--compare", yours)
    monkeypatch.setattr("meshplan.planner.cli.planned.searched", searched_first)
    monkeypatch.setattr("meshplan.planner.cli.comparing.solve", solved)
    result = CliRunner().invoke(app, (*asked, "16", *limited))
    assert limits == [30.0]
    assert result.exit_code == (0 if found else 3)
    assert "Maximise throughput" in result.stdout
    assert ("both sides: " in result.stdout) == found
    assert ("the search ended (your config runs on 8" in result.stderr) != found


def searched_first(asked: Any, top: int, time_limit_s: float | None, proved: object) -> Any:
    """The question's own search, which the limit leaves time."""
    return solve(asked.question, top, time_limit_s)


def test_what_stands_beside_a_plan_keeps_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it no neighbouring batch is begun, and what spare memory would buy is not searched: it
    may be at most what bounds of rows leave, which is not less than a search in time says.
    """
    given = Arguments(model="llama-3.1-8b", gpus=8, cluster="dgx-a100", engine="native")
    asked = ask(replace(given, seq_len="4096", global_batch=30))
    best = solve(asked.question, 1).solutions[0]
    fastest = Fastest(best.layout, best.step_time_s, True)
    assert better_batch.tries(asked.question, fastest)
    in_time, late = (spare_memory(asked, fastest, at) for at in (None, time.perf_counter()))
    assert in_time
    assert late
    assert late.one_gib is None
    assert late.one_gib_most is not None
    assert in_time.one_gib_most is not None
    assert late.one_gib_most >= in_time.one_gib_most
    begun = list[int]()
    both = full_plan.Beside(asked), full_plan.Beside(asked, time.perf_counter())
    monkeypatch.setattr(full_plan, "Begun", lambda *pieces, first: begun.append(len(pieces)))
    for beside in both:
        beside.begin(fastest)
    assert begun[0] > begun[1] == 3


def test_nothing_is_looked_for_once_the_proof_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C ended the proof alone: runners-up, what only the counted memory holds and the bound of
    every cut went on for 8 s.
    """

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    late, look = list[bool](), Simulated.find_runners_up

    def looked(proof: Simulated, k: int, deadline: float | None) -> None:
        look(proof, k, deadline)
        late.append(proof.tally.late)

    question = asking("llama-3.1-8b", "dgx-h100", "native", (8, 16, 4096))
    whole = solve(question, 3)
    monkeypatch.setattr(Simulated, "_settle_exactly", interrupted)
    monkeypatch.setattr(Simulated, "find_runners_up", looked)
    result = solve(question, 3)
    assert late == [True]
    assert result.bound_s <= whole.solutions[0].step_time_s * (1 + 1.1e-6)
