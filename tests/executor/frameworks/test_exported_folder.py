"""`check` of the folder that `export` wrote, without an option: the plan's step and memory, or each
difference by name."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from random_plans import missing_facts, plan_of
from typer.testing import CliRunner

from meshplan.costmodels.layout import InvalidLayout, Layout, even_stages
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.training import Lora, Training
from meshplan.executor.frameworks import exporter_named, read_config
from meshplan.executor.frameworks.beside_export import MARK, settings_text
from meshplan.planner.answer.answer import plan_of as answered
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.plan_file import Plan, PlanModel, write_plan
from meshplan.planner.case.reading import CannotSay, Reading
from meshplan.planner.case.resolve import Case, resolve
from meshplan.planner.case.settings import Settings, settings_near
from meshplan.planner.case.unsaid import comment_of, unsaid_in
from meshplan.planner.check.check import check_paths
from meshplan.planner.check.verdicts import Finding
from meshplan.planner.cli.check import tools
from meshplan.planner.cli.main import app
from meshplan.planner.report.plan import read_beside
from meshplan.planner.search.result import NoLayoutFits

QUESTIONS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b", "gpus": 32},
    "MoE": {"model": "qwen3-30b-a3b", "gpus": 32},
    "MTP": {"model": "glm-4.5-air", "gpus": 64},
    "LoRA": {"model": "llama-3.1-8b", "gpus": 8, "lora_rank": 16},
    "CP": {"model": "llama-3.1-8b", "gpus": 32, "pins": {"context_parallel": "4"}},
}
ENGINES = {
    "megatron": "megatron", "megatron-bridge": "bridge", "nemo": "bridge", "nanotron": "nanotron",
    "torchtitan": "torchtitan", "torchtitan-0.2": "torchtitan-0.2", "deepspeed": "deepspeed",
    "accelerate": "accelerate", "transformers": "transformers",
}  # fmt: skip
EVERY_CHANGE = {
    ("dense", "nemo"), ("MoE", "transformers"), ("MoE", "nanotron"), ("MTP", "accelerate"),
    ("LoRA", "torchtitan"), ("CP", "accelerate"),
}  # fmt: skip
EXPORTS = [
    pytest.param(kind, engine, marks=[] if (kind, engine) in EVERY_CHANGE else pytest.mark.nightly)
    for kind in QUESTIONS
    for engine in ENGINES
]


def _exported(plan: Plan, to: str, folder: Path) -> Path:
    write_plan(plan, folder / "plan.yaml")
    words = ["export", str(folder / "plan.yaml"), "--to", to, "-o", str(folder / "run")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return folder / "run"


def _findings(folder: Path, given: Settings | None = None) -> list[Finding]:
    found = check_paths([folder], tools(), given)
    return [each for each in found if each.verdict != "skipped"]


def _differing(case: Case, plan: Plan) -> set[str]:
    """The fields of layout and training in which a case is not as the plan."""
    pairs = (("layout", case.layout, plan.layout), ("training", case.training, plan.training))
    return {
        f"{part}.{field.name}"
        for part, here, there in pairs
        for field in fields(here)
        if getattr(here, field.name) != getattr(there, field.name)
    }


@pytest.mark.parametrize(("kind", "engine"), EXPORTS)
def test_the_folder_is_the_plan_or_says_why_not(kind: str, engine: str, tmp_path: Path) -> None:
    """No option is given: what the files leave open stands in the settings file beside them."""
    asked = {"seq_len": "4096", "global_batch": 128, "cluster": "dgx-h100", **QUESTIONS[kind]}
    try:
        question = ask(Arguments(engine=engine, **asked))
        plan = answered(question, solve(question.question, 1))
        exporter_named(ENGINES[engine])(plan, 8)
    except (InvalidLayout, NoLayoutFits, UnsupportedModel) as error:
        pytest.skip(f"no such plan, or no file of it: {error}")
    folder = _exported(plan, ENGINES[engine], tmp_path)
    (planned,) = _findings(tmp_path / "plan.yaml")
    found = _findings(folder)
    assert found
    for each in found:
        _check_told(each, planned, plan)


def _check_told(found: Finding, planned: Finding, plan: Plan) -> None:
    """A finding that fits states the plan's figures, unless a note names what differs."""
    told = " ".join((found.text, *found.notes))
    if found.verdict != "fits":
        assert found.verdict == "incomplete", told
        assert "its plan has" in told
        return
    file = Path(found.path)
    reading = read_config(file.read_text(), found.path)
    case = resolve(reading, Settings(), settings_near(file))
    for name in _differing(case, plan):
        assert name in told
    if "unlike its plan" not in told:
        assert found.step_time_s == pytest.approx(planned.step_time_s, rel=1e-9)
        assert found.peak_bytes == pytest.approx(planned.peak_bytes, rel=1e-9)


def _dense(**layout: Any) -> Plan:
    degrees = {"zero_stage": 1, "stages": even_stages(32, 1), **layout}
    training = Training(seq_len=4096, global_batch_size=64)
    return plan_of("llama-3.1-8b", Layout(**degrees), training)


def test_adapters_wait_until_the_comment_is_gone(tmp_path: Path) -> None:
    """torchtitan's file of a LoRA plan is not priced as full training, until its reader says so."""
    plan = _dense(data_parallel=8)
    training = Training(seq_len=4096, global_batch_size=64, lora=Lora(rank=16))
    folder = _exported(
        plan.model_copy(update={"training": training}), "torchtitan-0.2", tmp_path
    )  # fmt: skip
    (found,) = _findings(folder)
    assert found.verdict == "incomplete"
    assert "training.lora = rank 16" in found.text
    assert f"delete the comment of line {found.line}" in found.text
    file = folder / "torchtitan.toml"
    beside = read_beside(file)
    assert isinstance(beside, Reading)
    assert "exported from a plan with training.lora = rank 16" in " ".join(beside.notes)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: found.line - 1] + lines[found.line :]))
    assert _findings(folder)[0].verdict != "incomplete"


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_a_loss_in_pieces_waits_until_somebody_says_it(framework: str, tmp_path: Path) -> None:
    """Neither the file nor train.py has it: no price with all logits, until the settings decide."""
    engine = f"{framework}-chunked-loss"
    plan = _dense(data_parallel=8, zero_stage=3).model_copy(update={"engine": engine})
    folder = _exported(plan, framework, tmp_path)
    (found,) = _findings(folder)
    assert found.verdict == "incomplete"
    assert f"engine = {engine}" in found.text
    peaks = []
    for stated in (engine, framework):
        (priced,) = _findings(folder, Settings(engine=stated))
        assert priced.verdict == "fits"
        peaks.append(priced.peak_bytes)
    (planned,) = _findings(tmp_path / "plan.yaml")
    assert peaks[0] == pytest.approx(planned.peak_bytes, rel=1e-9)
    assert peaks[0] < peaks[1]


def test_a_pipeline_of_deepspeed_s_code(tmp_path: Path) -> None:
    """8 replicas on 32 GPUs: 4 stages, which the export's folder says, and a stranger's has to."""
    plan = _dense(data_parallel=8, pipeline_parallel=4, stages=even_stages(32, 4))
    folder = _exported(plan, "deepspeed", tmp_path)
    file = folder / "ds_config.json"
    case = resolve(read_config(file.read_text(), file.name), Settings(), settings_near(file))
    assert (case.layout.data_parallel, case.layout.pipeline_parallel) == (8, 4)
    assert _findings(folder)[0].verdict in ("fits", "does not fit")
    plain = {k: v for k, v in json.loads(file.read_text()).items() if not k.startswith("_")}
    other = tmp_path / "other"
    other.mkdir()
    (other / "ds.json").write_text(json.dumps(plain))
    given = Settings(cluster="dgx-h100", gpus=32, model="llama-3.1-8b", seq_len=4096)
    (found,) = _findings(other, given)
    assert found.verdict == "incomplete"
    assert found.text.startswith("missing: pipeline_parallel; give --pp 4")
    (found,) = _findings(other, given.model_copy(update={"pipeline_parallel": 4}))
    assert found.verdict in ("fits", "does not fit")
    (found,) = _findings(other, given.model_copy(update={"gpus": 36}))
    assert found.verdict == "illegal"  # 36 is no multiple of 8


def test_an_option_decides_what_the_code_says(tmp_path: Path) -> None:
    """Of the training code's arguments an option may state others than the plan had; a file that
    left its settings behind is not priced without its pipeline.
    """
    folder = _exported(_dense(data_parallel=8, zero_stage=3), "accelerate", tmp_path)
    (found,) = _findings(folder, Settings(seq_len=2048))
    assert found.verdict == "fits"
    staged = _dense(data_parallel=8, pipeline_parallel=4, stages=even_stages(32, 4))
    text = exporter_named("deepspeed")(staged, 8).files["ds_config.json"]
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "ds.json").write_text(text)
    (found,) = _findings(moved, Settings(cluster="dgx-h100", model="llama-3.1-8b", seq_len=4096))
    assert found.verdict == "incomplete"
    assert "layout.pipeline_parallel = 4" in found.text


def test_both_files_of_overrides_state_the_same(tmp_path: Path) -> None:
    """The words are handed to the program without their comments."""
    plan = plan_of(
        "olmo-2-7b",
        Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1)),
        Training(seq_len=4096, global_batch_size=64),
    )
    exported = exporter_named("bridge")(plan, 8)
    given = missing_facts(plan, exported)
    words, text = exported.files["overrides.txt"], exported.files["overrides.yaml"]
    assert unsaid_in(words)
    assert [each.name for each in unsaid_in(words)] == [each.name for each in exported.cannot_say]
    assert "$(grep -v '^#' overrides.txt)" in exported.launch
    cases = [resolve(read_config(each, name), given, Settings())
             for name, each in (("a.txt", words), ("a.yaml", text))]  # fmt: skip
    assert cases[0].layout == cases[1].layout


@pytest.mark.parametrize("sign", ["# ", '    "'])
def test_a_comment_comes_back(sign: str) -> None:
    """Of YAML and of JSON's list, on one line whatever the value holds."""
    unsaid = CannotSay("training.lora", 'a "b"\nc', "not written: all weights train", left=True)
    (back,) = unsaid_in(f"x: 1\n{sign}{comment_of(unsaid)}" + ('",' if '"' in sign else ""))
    assert (back.name, back.line, back.left) == ("training.lora", 2, True)
    assert back.value.split() == ["a", "b", "c"]
    assert back.why == "not written: all weights train"


def test_a_settings_file_of_somebody_s_own_is_kept(tmp_path: Path) -> None:
    """An export replaces its own settings file alone."""
    folder = _exported(_dense(data_parallel=8), "accelerate", tmp_path)
    assert (folder / "meshplan.toml").read_text().startswith(MARK)
    assert "gpus = 8" in (folder / "meshplan.toml").read_text()
    _exported(_dense(data_parallel=16), "accelerate", tmp_path)
    assert "gpus = 16" in (folder / "meshplan.toml").read_text()
    (folder / "meshplan.toml").write_text('cluster = "dgx-h100"\n')
    _exported(_dense(data_parallel=8), "accelerate", tmp_path)
    assert (folder / "meshplan.toml").read_text() == 'cluster = "dgx-h100"\n'


def _said(plan: Plan, to: str, folder: Path) -> str:
    """What `export` to `folder` says on both streams."""
    write_plan(plan, folder.parent / "plan.yaml")
    words = ["export", str(folder.parent / "plan.yaml"), "--to", to, "-o", str(folder)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_export_says_which_settings_it_hides(tmp_path: Path) -> None:
    """The nearest file counts, whole; a second export into the folder hides the same one."""
    plan = _dense(data_parallel=8)
    assert "hides" not in _said(plan, "accelerate", tmp_path / "run")
    (tmp_path / "pyproject.toml").write_text("[tool.meshplan]\ngpu_hour_price = 2.0\n")
    for _ in range(2):
        said = _said(plan, "accelerate", tmp_path / "run")
        assert f"hides {tmp_path / 'pyproject.toml'}" in " ".join(said.split())


def test_a_model_s_file_of_somebody_s_own_is_kept(tmp_path: Path) -> None:
    """A model that the catalogue lacks is written under a name that no hub uses, and read."""
    plan = _dense(data_parallel=8)
    config = {**plan.model.config, "num_hidden_layers": 32, "vocab_size": 1024}
    model = PlanModel.of("mine", config)
    (tmp_path / "config.json").write_text("{}")
    _said(plan.model_copy(update={"model": model}), "megatron", tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
    read = settings_near(tmp_path / "train.sh").model
    assert read
    assert json.loads(Path(read).read_text()) == config


def test_a_profile_of_one_s_own_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan names it from the working folder, the settings from their own."""
    (tmp_path / "mine.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    plan = _dense(data_parallel=8)
    cluster = plan.cluster.model_copy(update={"name": "mine.toml"})
    exported = exporter_named("megatron")(plan, 8)
    text = settings_text(plan.model_copy(update={"cluster": cluster}), exported, "", Path("run"))
    assert 'cluster = "../mine.toml"' in text


def test_each_case_of_a_file_is_held_against_its_comments(tmp_path: Path) -> None:
    """A script in a loop over two degrees is two cases, both of a plan with adapters."""
    text = exporter_named("megatron")(_dense(data_parallel=8), 8).files["train.sh"]
    words = comment_of(CannotSay("training.lora", "rank 16", "not written", left=True))
    looped = text.replace("--micro-batch-size 1", "--micro-batch-size $MBS")
    assert looped != text
    file = tmp_path / "train.sh"
    file.write_text(f"# {words}\nfor MBS in 1 2; do\n{looped}\ndone\n")
    given = Settings(cluster="dgx-h100", gpus=8, model="llama-3.1-8b")
    assert [each.verdict for each in _findings(file, given)] == ["incomplete"] * 2


@pytest.mark.parametrize(
    ("replicas", "group", "zero_stage", "written", "said"),
    [
        pytest.param(8, 4, 3, (2, 4), True, id="two copies of four shards"),
        pytest.param(8, 2, 3, (4, 2), True, id="four of two"),
        pytest.param(8, 0, 3, (1, 8), True, id="over all"),
        pytest.param(8, 8, 3, (1, 8), False, id="one copy is none"),
        pytest.param(8, 4, 1, (1, 8), False, id="ZeRO-1 has no copies there"),
    ],
)
def test_copies_of_shards_in_accelerates_words(
    replicas: int, group: int, zero_stage: int, written: tuple[int, int], *, said: bool
) -> None:
    """Copies and shards, both more than one; what it cannot say is named."""
    layout = Layout(
        data_parallel=replicas, zero_stage=zero_stage, shard_group=group, stages=even_stages(32, 1)
    )
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=4096, global_batch_size=64))
    exported = exporter_named("accelerate")(plan, 8)
    text = "\n".join(exported.files.values())
    for name, size in zip(("replicate", "shard"), written, strict=True):
        assert f"parallelism_config_dp_{name}_size: {size}\n" in text
    assert ("layout.shard_group" in [each.name for each in exported.cannot_say]) != said
