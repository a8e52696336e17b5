"""`learn` end to end: logs in, what they teach a plan, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import yaml
from called import answer
from random_plans import CLUSTER, plan_of
from two_layouts import LAYOUTS, PLANS, TRAINING, megatron_log, model_of

from meshplan.costmodels.layout import even_stages
from meshplan.hardware_profiles.errors.asked import asked_of
from meshplan.hardware_profiles.errors.intervals import Interval
from meshplan.hardware_profiles.learned import Learned, LearnedRun
from meshplan.planner.case.learned_file import LEARNT_RANGE, learned_interval, read_learned
from meshplan.planner.case.plan_file import Plan, write_plan
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.run_facts import facts_of
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import case_of
from meshplan.planner.cli.check import tools
from meshplan.planner.learn import teach
from meshplan.planner.learn.cases import LogSource, measured_run
from meshplan.planner.learn.learn import interval_width, learn
from meshplan.planner.learn.report import _outside


def test_learn_then_plan_and_check(logs: list[str], tmp_path: Path) -> None:
    """What is learnt goes into a file, `plan --learned` uses it, and the plan keeps it."""
    file, plan = tmp_path / "learned.yaml", tmp_path / "out.yaml"
    code, out, _ = answer("learn", *logs, "-o", str(file))
    assert (code, "predicted before" in out) == (0, True)
    learned = read_learned(file)
    assert all(abs(run.after_s / run.measured_s - 1) < 0.16 for run in learned.runs)
    question = (
        "plan", "llama-3.1-8b", "--gpus", "8", "--cluster", CLUSTER, "--seq-len", "4096",
        "--global-batch", "64", "--recompute", "full", "--engine", learned.engine,
    )  # fmt: skip
    plain, taught = (answer(*question, "--json", *more) for more in ((), ("--learned", str(file))))
    seconds = [json.loads(said[1])["prediction"]["step_time_s"] for said in (plain, taught)]
    assert seconds[1] > 1.02 * seconds[0]
    code, out, _ = answer(*question[:-2], "--learned", str(file), "-o", str(plan))
    said = f"assumed: engine {learned.engine}, that of {file}"
    assert (code, "".join(said.split()) in "".join(out.split())) == (0, True)
    kept = Plan.from_yaml(plan.read_text())
    assert kept.learned == learned
    assert case_of(kept).engine.learned == learned
    assert answer("check", str(plan))[0] == 0


def test_a_run_outside_the_range_that_it_taught_is_named(logs: list[str]) -> None:
    """One run a fifth slower than predicted and one twice as fast: no constant helps both."""
    fast = Path(logs[1])
    megatron_log(fast, 0.5 * model_of(PLANS[1]).time().step_time_s)
    code, out, _ = answer("learn", *logs)
    said = " ".join(out.split())
    assert (code, "outside it, though learnt from: " in said) == (0, True)
    assert "measured at -" in said.partition("outside it, though learnt from:")[2]


def test_what_lies_outside_the_range_by_hand() -> None:
    """Of a range of 1.2 either way: 30 % longer and half as long do, 10 % longer does not, and what
    is not believed taught nothing.
    """
    runs = [
        SimpleNamespace(log=log, measured_s=ratio, after_s=1.0, believed=log != "d")
        for log, ratio in (("a", 1.3), ("b", 1.1), ("c", 0.5), ("d", 3.0))
    ]
    said = list(_outside(cast(Learned, SimpleNamespace(runs=runs, factor=1.2))))
    assert said == [
        "a, measured at +30% of its prediction", "c, measured at -50% of its prediction",
    ]  # fmt: skip


def test_the_interval_of_what_no_run_covers_is_no_narrower(logs: list[str]) -> None:
    """Four times the GPUs: the wider of the learnt and the usual interval, and why."""
    source = LogSource(read=tools().read, given=Settings())
    learned = learn([measured_run(Path(log), None, source) for log in logs], "", lambda _: None)
    usual = Interval(1 / 3, 3.0, 5)
    near, far = (
        learned_interval(
            learned,
            asked_of("x", "h100-sxm", gpus=gpus, precision="bf16", model="dense"),
            usual,
        )
        for gpus in (16, 32)
    )
    assert (near.high, near.outside) == (learned.factor, ())
    assert (far.high, far.outside) == (3.0, ("32 GPUs",))


def test_a_range_is_wider_far_from_what_ran(logs: list[str]) -> None:
    """ln of the factor times 0.8 where one fact differs from the nearest run's, 1.5 where three and
    more do; of a file of before, which does not know its runs' facts, times one.
    """
    source = LogSource(read=tools().read, given=Settings())
    learned = learn([measured_run(Path(log), None, source) for log in logs], "", lambda _: None)
    learned = learned.model_copy(update={"factor": 1.2, "apart": {1: 0.8, 3: 1.5}})
    asked = asked_of("x", "h100-sxm", gpus=8, precision="bf16", model="dense")
    usual, own = Interval(1 / 3, 3.0, 5), learned.runs[0].facts
    for changed, power in (
        ({}, 0.8), ({"zero_stage": "3"}, 0.8), ({"zero_stage": "3", "lora": "16"}, 0.8),
        ({"zero_stage": "3", "lora": "16", "seq_len": "1"}, 1.5),
    ):  # fmt: skip
        found = learned_interval(learned, asked, usual, {**own, **changed})
        assert (1 / found.low, found.high) == pytest.approx((1.2**power, 1.2**power))
    assert interval_width(learned) == (
        "-14% to +16% where up to 1 fact of a plan differs from the nearest run's, "
        "-24% to +31% from 3 on"
    )
    before = [run.model_copy(update={"facts": {}}) for run in learned.runs]
    old = learned.model_copy(update={"runs": tuple(before)})
    assert learned_interval(old, asked, usual, own).high == 1.2


def test_a_plan_says_the_range_of_its_own_distance() -> None:
    """The plan that ran, and one of another sequence and twice the GPUs: 0.5 and 2 of ln 1.2."""
    ran = facts_of(PLANS[0].layout, TRAINING, "llama-3.1-8b")
    other = replace(LAYOUTS[0], data_parallel=16, stages=even_stages(32, 1))
    far = plan_of("llama-3.1-8b", other, replace(TRAINING, seq_len=2048))
    row = LearnedRun(
        log="a", config="b", layout="c", gpus=8, precision="bf16", model="dense", measured_s=1.0,
        before_s=1.0, after_s=1.0, facts=ran,
    )  # fmt: skip
    learned = Learned(
        engine="generic", gpu="h100-sxm", cluster="x", date="", source="", prior="", residual=0.0,
        factor=1.2, apart={1: 0.5, 2: 2.0}, constants=(), runs=(row,),
    )  # fmt: skip
    for plan, power in ((PLANS[0], 0.5), (far, 2.0)):
        case = case_of(plan)
        engine = case.engine.model_copy(update={"learned": learned, "name": "generic"})
        found = predicted(replace(case, engine=engine))
        assert found.step_time_high_s / found.step_time_s == pytest.approx(1.2**power)


def test_the_same_run_twice_is_one_run(logs: list[str], tmp_path: Path) -> None:
    """A copy of a log is counted once and said; with another run's config it is refused."""
    copy = Path(logs[0]).with_name("b.log")
    copy.write_text(Path(logs[0]).read_text())
    config = str(copy.with_name("plan.yaml"))
    code, out, _ = answer("learn", logs[0], str(copy), "--config", config, "--json")
    assert (code, len(json.loads(out)["runs"])) == (0, 1)
    out = answer("learn", logs[0], str(copy), "--config", config)[1]
    assert "one run, counted once" in " ".join(out.split())
    elsewhere = str(Path(logs[1]).with_name("plan.yaml"))
    both = ("--config", config, "--config", elsewhere)
    code, _, error = answer("learn", logs[0], str(copy), *both)
    assert (code, "the same steps as" in error, error.count("\n")) == (2, True, 1)


@pytest.mark.parametrize("command", ["diagnose", "learn"])
def test_an_option_that_a_plan_file_denies_is_said_not_to_count(
    logs: list[str], command: str
) -> None:
    """The plan of 8 GPUs and 4,096 tokens stays what it is; the same number is no word worth."""
    asked = (command, logs[0], "--gpus", "16", "--seq-len", "4096")
    text = " ".join(answer(*asked)[1].split())
    assert "--gpus 16 is for configs: this plan says 8" in text
    assert "--seq-len" not in text


def test_which_runs_to_make(tmp_path: Path) -> None:
    """Three plans: two are named, the doubt falls; two plans are no choice. With a fourth plan a
    third run is worth something.
    """
    third = replace(LAYOUTS[0], data_parallel=2, tensor_parallel=4, sequence_parallel=True)
    paths = [str(tmp_path / f"{at}.yaml") for at in range(3)]
    for path, plan in zip(paths, [*PLANS, plan_of("llama-3.1-8b", third, TRAINING)], strict=True):
        write_plan(plan, Path(path))
    code, out, _ = answer("learn", *paths, "--which", "--json")
    said = json.loads(out)
    assert (code, said["layouts"], said["further"]) == (0, 3, [])
    assert len(set(said["run"])) == len(set(said["run"]) & set(paths)) == 2
    assert 0 < said["doubt_after"] < said["doubt_before"] < 1
    assert said["run"][0] in answer("learn", *paths, "--which")[1].replace("\n", "")
    assert "--gpus 3 is for configs" in answer("learn", *paths, "--which", "--gpus", "3")[2]
    more = str(tmp_path / "more.yaml")
    write_plan(plan_of("llama-3.1-8b", replace(third, micro_batch_size=2), TRAINING), Path(more))
    four = json.loads(answer("learn", *paths, more, "--which", "--json")[1])
    (further,) = four["further"]
    assert {further["run"], *four["run"]} < {*paths, more}
    assert further["doubt_after"] < four["doubt_after"]
    text = " ".join(answer("learn", *paths, more, "--which")[1].split())
    assert f"would leave {further['doubt_after']:.1%}" in text
    code, _, error = answer("learn", *paths[:2], "--which")
    assert (code, "two are chosen of 3 or more" in error) == (2, True)


def test_what_runs_leave_of_doubt_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Four layouts that share nothing and whose steps are known to 1, 2, 3 and 4: the mean is 2.5,
    and a run leaves nothing but its noise of its own.
    """
    paths = [tmp_path / f"{at}.yaml" for at in range(4)]
    for path, micro_batch in zip(paths, (1, 2, 4, 8), strict=True):
        layout = replace(LAYOUTS[0], micro_batch_size=micro_batch)
        write_plan(plan_of("llama-3.1-8b", layout, TRAINING), path)
    monkeypatch.setattr(teach, "doubt_of", lambda *_: np.diag([1.0, 4.0, 9.0, 16.0]))
    said = json.loads(answer("learn", *map(str, paths), "--which", "--json")[1])
    assert said["run"] == [str(path) for path in paths[2:]]
    means = (said["doubt_before"], said["doubt_after"], said["further"][0]["doubt_after"])
    left = [(1 + 2 + 3 + 4) / 4, (1 + 2 + 2 * teach.NOISE) / 4, (1 + 3 * teach.NOISE) / 4]
    assert means == pytest.approx(left, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("learn", "{0}", "--config", "a", "--config", "b"), "2 --config for 1 logs"),
        (("learn", "{0}", "--gpus", "99999999"), "--gpus 99999999"),
        (("diagnose", "nowhere.log", "--config", "{1}"), "nowhere.log: cannot be read"),
        (("diagnose", "{0}", "--config", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("diagnose", "{0}", "--learned", "{1}"), "`meshplan learn` writes such files"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    logs: list[str], words: tuple[str, ...], said: str
) -> None:
    """Exit code 2, with the value and the place."""
    plan = str(Path(logs[0]).with_name("plan.yaml"))
    code, out, error = answer(*(word.format(logs[0], plan) for word in words))
    assert (code, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1


def test_an_unknown_framework_is_priced_as_the_generic_engine(
    logs: list[str], tmp_path: Path
) -> None:
    """`--engine` wins over the plan's own, the file says whose constants it holds, and the text
    that habits of one's own can be stated; of a known framework it does not.
    """
    file = tmp_path / "learned.yaml"
    code, said, _ = answer("learn", *logs, "--engine", "generic", "-o", str(file))
    assert (code, "MESHPLAN_ENGINES" in said) == (0, True)
    assert read_learned(file).engine == "generic"
    assert "MESHPLAN_ENGINES" not in answer("learn", *logs, "-o", str(file))[1]


def test_a_learned_file_of_another_gpu_is_refused(logs: list[str], tmp_path: Path) -> None:
    """Constants of one GPU say nothing of another's."""
    file = tmp_path / "learned.yaml"
    assert answer("learn", *logs, "-o", str(file))[0] == 0
    document = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**document, "gpu": "b200"}))
    code, _, error = answer("diagnose", logs[0], "--learned", str(file))
    assert (code, "learnt of gpu b200" in error) == (2, True)


def test_what_the_learnt_range_held_is_the_tables_own() -> None:
    """The words beside learnt constants are the ends of the last column of docs/learn.md."""
    text = (Path(__file__).parents[3] / "docs" / "learn.md").read_text(encoding="utf-8")
    table = text.split("<!-- learn table -->")[1].split("<!-- end learn table -->")[0]
    held = [int(line.split("|")[-2].strip(" %")) for line in table.splitlines() if "% |" in line]
    assert f"held {min(held)}% to {max(held)}%" in LEARNT_RANGE


def test_the_command_says_which_run_it_does_not_learn_from(tmp_path: Path) -> None:
    """The log that took five times as long is named, kept in the file, and covers nothing."""
    logs = []
    for name, plan, slower in zip("ab", (PLANS[0], PLANS[1]), (1.0, 5.0), strict=True):
        folder = tmp_path / name
        folder.mkdir()
        write_plan(plan, folder / "plan.yaml")
        logs.append(str(megatron_log(folder / "x.log", slower * model_of(plan).time().step_time_s)))
    file = tmp_path / "learned.yaml"
    code, out, _ = answer("learn", *logs, "-o", str(file))
    said = "".join(out.split())
    assert code == 0
    assert "".join(f"{logs[1]}: 5 x as long as predicted, more than 3 x off".split()) in said
    assert f"{logs[0]}:1x".replace(" ", "") not in said
    learned = read_learned(file)
    assert [run.believed for run in learned.runs] == [True, False]
    asked = asked_of("x", "h100-sxm", gpus=8, precision="bf16", model="dense")
    usual = Interval(1 / 3, 3.0, 5)
    assert learned_interval(learned, asked, usual).outside == ()
    none = learned.model_copy(update={"runs": learned.runs[1:]})
    assert len(learned_interval(none, asked, usual).outside) == 3
