"""Names that would run, planted links, one bad file of a folder, questions without an answer."""

import ast
import json
import os
import re
import shlex
import stat
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from random_plans import CLUSTER, plan_of
from typer.testing import CliRunner

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import FRAMEWORKS, VARIANTS, exporter_named
from meshplan.executor.launch.slurm import SlurmFailed, batch_script
from meshplan.executor.launch.torchrun import TorchrunJob
from meshplan.hardware_profiles.files.whole_file import write_whole
from meshplan.hardware_profiles.names import MAX_NAME, RULE, checked_name
from meshplan.planner.case.input_limits import MOST
from meshplan.planner.case.plan_file import Plan, UnreadablePlan, read_plan
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import DEFECT, check_paths, exit_code
from meshplan.planner.check.fixes import Quote
from meshplan.planner.check.output import as_github, as_sarif, as_table
from meshplan.planner.check.verdicts import Finding
from meshplan.planner.cli.check import tools
from meshplan.planner.cli.main import app

ROOT = Path(__file__).parents[3]
GIVEN = Settings(
    cluster=CLUSTER, gpus=8, model="llama-3.2-1b", seq_len=2048, global_batch_size=64,
    micro_batch_size=1,
)  # fmt: skip
HOSTILE = (
    "x\ntouch P\n#",
    '"""\nimport os; os.system("touch P")\n"""',
    "$(touch P)",
    "`touch P`",
    "'; touch P; '",
    "a\\",
    "<script>alert(1)</script>",
    "::error::x",
    "\x1b[2J",
    "\u202egnp",
    "-rf",
    "",
    "x" * (MAX_NAME + 1),
)
ARGS = "--tensor-model-parallel-size 1 --num-layers 16 --micro-batch-size 1 "


def _plan() -> Plan:
    layout = Layout(data_parallel=8, stages=even_stages(16, 1))
    return plan_of("llama-3.2-1b", layout, Training(seq_len=2048, global_batch_size=64))


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("field", ["model", "cluster", "engine"])
def test_a_plan_with_a_name_that_runs_is_refused(field: str, name: str) -> None:
    """A name is one line of plain characters, wherever a plan file has one."""
    document = _plan().model_dump(mode="json")
    if field == "engine":
        document["engine"] = name
    else:
        document[field]["name"] = name
    with pytest.raises(UnreadablePlan, match=re.escape(RULE[:40])):
        Plan.from_yaml(yaml.safe_dump(document))


@pytest.mark.parametrize("name", ["llama-3.1-70b", "h100-sxm:8:400Gb", "a/b c/é_1.toml", "./x@2"])
def test_names_that_people_use_are_names(name: str) -> None:
    """Catalogue names, composed clusters, paths with blanks and accents."""
    assert checked_name(name) == name
    assert "letters, digits" in RULE


@pytest.mark.parametrize("name", [each for each in HOSTILE if each], ids=ascii)
@pytest.mark.parametrize("framework", [*FRAMEWORKS, *VARIANTS])
def test_no_writer_relies_on_the_rule(framework: str, name: str, tmp_path: Path) -> None:
    """A name that slipped past the rule still runs nothing: every writer quotes it."""
    plan = _plan()
    if framework == "transformers":  # writes ZeRO-3 alone
        plan = plan.model_copy(update={"layout": replace(plan.layout, zero_stage=3)})
    model = plan.model.model_copy(update={"name": name})
    exported = exporter_named(framework)(plan.model_copy(update={"model": model}), 8)
    for file, text in exported.files.items():
        path = tmp_path / file
        path.write_text(text)
        if file.endswith(".py"):
            calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            assert not any("system" in ast.dump(call) for call in calls)
        elif file.endswith(".sh"):
            stub = "torchrun() { :; }\n"
            subprocess.run(["bash", "-c", stub + text], cwd=tmp_path, check=True)
        elif file.endswith(".yaml"):
            yaml.safe_load(text)
    assert not (tmp_path / "P").exists()
    shlex.split(exported.launch)


def test_a_slurm_script_quotes_what_it_is_given(tmp_path: Path) -> None:
    """A folder or a variable with shell characters stays one word of the sbatch script."""
    job = TorchrunJob(module="m", arguments=("$(touch P)",), nodes=1, processes_per_node=1,
              environment={"X": "`touch P`; 'touch P'"})  # fmt: skip
    script = batch_script(job, (), tmp_path / "a$(touch P)b")
    body = "\n".join(line for line in script.splitlines() if not line.startswith("#SBATCH"))
    stub = "srun() { :; }\nscontrol() { echo h; }\nSLURM_JOB_ID=1 SLURM_JOB_NODELIST=h\n"
    subprocess.run(["bash", "-c", stub + body], cwd=tmp_path, check=True)
    assert not (tmp_path / "P").exists()


def test_a_slurm_option_is_one_line(tmp_path: Path) -> None:
    """A newline in a folder's name would end the directive and start a command."""
    job = TorchrunJob(module="m", nodes=1, processes_per_node=1)
    with pytest.raises(SlurmFailed, match="one printable line"):
        batch_script(job, (), tmp_path / "a\ntouch P")


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """What lies at the names that a temporary file once had is left alone."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("train.sh.partial", "train.sh.new", "train.sh.part"):
        (tmp_path / name).symlink_to(victim)
    write_whole(tmp_path / "train.sh", "new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "train.sh").read_text() == "new"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_file_keeps_its_permissions_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    """An unpredictable name is no reason for a file that only its owner can read."""
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("x")
    old.chmod(0o750)
    mask = os.umask(0o022)
    try:
        write_whole(new, "x")
        write_whole(old, "y")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(new.stat().st_mode) == 0o644
    assert stat.S_IMODE(old.stat().st_mode) == 0o750


def test_every_file_written_whole_goes_through_the_one_function() -> None:
    """No other place in the project replaces a file or writes one under a name known beforehand."""
    rooms = ("planner", "executor", "hardware_profiles", "costmodels")
    found = [
        path.name
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\.write_text\(|\.write_bytes\(|\.partial\"\)|mkstemp", path.read_text())
    ]
    # a rank's phase is no file that anyone reads whole: it is mapped into memory and overwritten
    assert sorted(found) == ["heartbeat.py", "whole_file.py"]


def test_one_file_never_takes_the_report_of_a_folder(tmp_path: Path) -> None:
    """Numbers that were once defects are judged, and the files beside them too."""
    texts = {
        "float.sh": ARGS.replace("16", "24.0") + "--hidden-size 64 --num-attention-heads 8",
        "gres.sh": "#SBATCH --gres=gpu:1_0\n" + ARGS,
        "none.sh": "#SBATCH --gres=gpu:0\n" + ARGS,
        "product.py": "import torchtitan\ndef f() -> Trainer.Config:\n"
        f"    c.training.seq_len = {'9' * 4299} * {'9' * 4299}\n",
        "square.sh": ARGS + "--num-experts 8 --moe-layer-freq ²",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    findings = check_paths([tmp_path], tools(), GIVEN)
    assert len(findings) == len(texts)
    assert not any(DEFECT in finding.text for finding in findings)


def test_a_defect_of_ours_is_said_and_is_no_finding(tmp_path: Path) -> None:
    """When a price fails in a way nobody foresaw, the file is unreadable (2), the others stay."""

    def broken(_: object) -> Quote:
        raise ZeroDivisionError("by \x1b[31m nothing")

    for name in ("a.sh", "b.sh"):
        (tmp_path / name).write_text(ARGS + "--global-batch-size 64 --seq-length 2048")
    sound = tools()
    findings = check_paths([tmp_path], type(sound)(read=sound.read, price=broken), GIVEN)
    assert [DEFECT in finding.text for finding in findings] == [True, True]
    assert all("ZeroDivisionError" in f.text and f.text.isprintable() for f in findings)
    assert exit_code(findings) == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--gpus", "1000000000"],
        ["--gpus", "64", "--expert-imbalance", "1e9"],
        ["--gpus", "64", "--seq-len", "10000000000000"],
        ["--gpus", "64", "--global-batch", "100000000000000000000"],
    ],
    ids=" ".join,
)
def test_a_question_without_an_answer_is_refused_at_once(options: list[str]) -> None:
    """A number beyond `limits.MOST` is one line with value, rule and fix, and exit 2."""
    batch = [] if "--global-batch" in options else ["--global-batch", "512"]
    words = ["plan", "llama-3.1-8b", "--cluster", CLUSTER, *batch, *options]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert re.fullmatch(r"error: --[a-z-]+ \S+ is not between 1 and \d+; .*\n", done.output)
    if "--global-batch" in options:
        assert done.output.startswith(f"error: {' '.join(options[2:])} is not between")
    assert MOST["gpus"] >= 500_000


def test_messages_carry_no_commands() -> None:
    """A newline or an escape sequence in a text starts no workflow command and no colour."""
    text = "x\n::error::owned\r\x1b[31m%0A"
    finding = Finding(path="a\n::error::b", verdict="illegal", text=text, notes=(text,))
    lines = as_github([finding]).splitlines()
    assert [line.split()[0] for line in lines] == ["::error", "::notice", "1"]
    assert "\x1b" not in as_github([finding]) + as_table([finding])
    json.loads(as_sarif([finding]))


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.update([tag, *(name for name, _ in attrs if name.startswith("on"))])


def _page_of(reason: str, folder: Path) -> str:
    document = _plan().model_dump(mode="json") | {"reasons": [reason]}
    (folder / "plan.yaml").write_text(yaml.safe_dump(document))
    page = folder / "page.html"
    done = CliRunner().invoke(app, ["explain", str(folder / "plan.yaml"), "--html", str(page)])
    assert done.exit_code == 0, done.output
    return page.read_text()


def test_the_page_escapes_what_a_plan_says(tmp_path: Path) -> None:
    """A reason is text in the page of `explain --html`: no tag more than with a harmless one."""
    hostile = _page_of("</script><script>alert(1)</script><img src=x onerror=alert(1)>", tmp_path)
    assert _Tags(hostile).tags == _Tags(_page_of("slower", tmp_path)).tags
    assert "alert(1)" in hostile


def test_the_action_gives_its_inputs_as_words() -> None:
    """No input of the action is put into a script's text, and every one is quoted where it runs."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    scripts = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert not any("${{" in script for script in scripts)
    assert "$CHECK_PATHS " not in scripts[-1]
    assert '"${paths[@]}"' in scripts[-1]


def test_experts_that_are_not_there_have_no_degree(tmp_path: Path) -> None:
    """A dense script may state an expert tensor degree, as Megatron-LM's own tests do (tp2 etp4):
    it is not looked at; an expert-parallel degree is refused by its name.
    """
    path = tmp_path / "train.sh"
    facts = Settings(cluster=CLUSTER, gpus=8, seq_len=2048, vocab_size=32000)
    dense = ARGS.replace("size 1 ", "size 2 ", 1) + "--hidden-size 64 --num-attention-heads 8 "
    dense += "--global-batch-size 64 "
    path.write_text(dense + "--expert-tensor-parallel-size 4")
    (finding,) = check_paths([path], tools(), facts)
    assert finding.verdict == "fits", finding.text
    path.write_text(dense + "--expert-model-parallel-size 2")
    (finding,) = check_paths([path], tools(), facts)
    assert "expert_parallel must be 1, not 2" in finding.text


EDITED = {
    "stages that do not sum": ("stages", [{"layers": 3}], "add up|sum|layers"),
    "no stages": ("stages", [], "stages"),
    "more replicas than GPUs": ("data_parallel", 7, "the layout takes 7"),
    "no such ZeRO stage": ("zero_stage", 7, "zero_stage"),
    "a micro-batch larger than the batch": ("micro_batch_size", 10**9, "micro_batch_size|batch"),
}


@pytest.mark.parametrize("command", ["explain", "export", "execute", "what-if"])
@pytest.mark.parametrize("case", EDITED)
def test_a_plan_edited_into_nonsense_is_one_line(case: str, command: str, tmp_path: Path) -> None:
    """Every command that takes a plan refuses one whose layout is none of its model and GPUs."""
    field, value, said = EDITED[case]
    document = _plan().model_dump(mode="json")
    document["layout"][field] = value
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    more = {"export": ["--to", "megatron"], "execute": ["--print"]}.get(command, [])
    done = CliRunner().invoke(app, [command, str(path), *more])
    found = done.output + str(done.exception)
    assert re.search(said, found), found
    assert done.exit_code == 2 or isinstance(done.exception, UnreadablePlan)


def test_a_runner_up_edited_into_nonsense_is_one_line(tmp_path: Path) -> None:
    """`explain` prices it too: without stages it ended in a traceback."""
    other = _plan().model_dump(mode="json")["layout"] | {"stages": []}
    document = _plan().model_dump(mode="json") | {
        "runners_up": [{"layout": other, "step_time_s": 1.0, "reserved_bytes": 1.0, "lost_by": {}}]
    }
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(UnreadablePlan, match=r"runners_up\.0: .*stages"):
        read_plan(path)


@pytest.mark.parametrize(("field", "value"), [("step_time_s", -1.0), ("fits_probability", 3.0)])
def test_a_prediction_edited_into_nonsense_is_one_line(
    field: str, value: float, tmp_path: Path
) -> None:
    """`execute` told of a plan that takes -1 s, `export` took it as it was."""
    document = _plan().model_dump(mode="json")
    document["prediction"] = PREDICTION | {field: value}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(UnreadablePlan, match=field):
        read_plan(path)
    path.write_text(yaml.safe_dump(document | {"prediction": PREDICTION}))
    assert read_plan(path).prediction is not None


PREDICTION: dict[str, Any] = {
    "step_time_s": 1.0, "compute_s": 1.0, "exposed_comm_s": 0.0, "bubble_s": 0.0,
    "optimizer_s": 0.0, "error_fraction": 0.2, "tokens_per_s_per_gpu": 1.0, "mfu": None,
    "hfu": None, "memory": [], "gpu_memory_bytes": 8e10,
}  # fmt: skip
