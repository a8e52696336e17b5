"""The command line end to end: what is printed where, what is written, and the exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from called import run
from typer.testing import CliRunner

import meshplan.planner.cli.progress
import meshplan.planner.search.progress
from meshplan.planner.case.plan_file import Plan, read_plan
from meshplan.planner.cli.main import EXIT_CODES, app, exit_code

TINY = ("plan", "tiny-llama", "--gpus", "2", "--cluster", "local-cpu", "--global-batch", "16")
SMALL = ("plan", "llama-3.1-8b", "--gpus", "16", "--cluster", "dgx-h100", "--global-batch", "64")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the tiny model on this machine."""
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    result = run(*TINY, "--top", "2", "-o", str(path))
    assert result.exit_code == 0, result.output
    return path


def test_plan_prints_three_steps(plan_file: Path) -> None:
    """For people the answer comes in the three steps of the procedure, with its proof."""
    text = run(*SMALL, "--top", "2").stdout
    positions = [text.index(word) for word in ("1  Fit", "2  Hit", "3  Maximise", "OPTIMAL")]
    assert positions == sorted(positions)


def test_json_is_one_document_and_equals_the_file(tmp_path: Path) -> None:
    """`--json` prints exactly one document: the plan that `-o` writes, search report included."""
    path = tmp_path / "plan.yaml"
    result = run(*SMALL, "--top", "1", "--json", "-o", str(path))
    document = json.loads(result.stdout)
    assert document == yaml.safe_load(path.read_text())
    report = document["search"]
    keys = {"status", "bound_s", "gap", "candidates", "priced", "cpsat_solves", "wall_s"}
    assert keys <= set(report)
    assert report["status"] == "OPTIMAL"
    assert report["gap"] == 0
    text = " ".join(run(*SMALL, "--top", "1").stdout.split())
    assert any(note.startswith("assumed: engine") for note in document["notes"])
    assert all(note in text for note in document["notes"]), "the same as for people"


def test_plan_file_round_trips(plan_file: Path) -> None:
    """A plan read from its file and written again is the same plan."""
    plan = read_plan(plan_file)
    assert Plan.from_yaml(plan.to_yaml()) == plan


def test_same_question_same_plan() -> None:
    """The same question twice gives the same layout, runners-up and reasons."""
    first, second = (json.loads(run(*TINY, "--json").stdout) for _ in range(2))
    for key in ("layout", "runners_up", "reasons"):
        assert first[key] == second[key]


def test_parts_add_up(plan_file: Path) -> None:
    """The parts of the time add up to the step, and a runner-up's losses to its distance."""
    plan = read_plan(plan_file)
    found = plan.prediction
    assert found is not None
    parts = found.compute_s + found.exposed_comm_s + found.bubble_s + found.optimizer_s
    assert parts == pytest.approx(found.step_time_s)
    for other in plan.runners_up:
        lost = sum(other.lost_by.values())
        assert lost == pytest.approx(other.step_time_s - found.step_time_s, abs=1e-6)


def test_a_pin_holds_and_costs() -> None:
    """A pinned axis has the pinned value, and no plan under a pin is faster than the free one."""
    free = json.loads(run(*SMALL, "--top", "1", "--json").stdout)
    pinned = json.loads(run(*SMALL, "--top", "1", "--tp", "8", "--pp", "1..2", "--json").stdout)
    assert pinned["layout"]["tensor_parallel"] == 8
    assert pinned["layout"]["pipeline_parallel"] in (1, 2)
    assert pinned["prediction"]["step_time_s"] >= free["prediction"]["step_time_s"] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("batch", "sequences"),
    [
        pytest.param(("--global-batch", "64"), 64, id="sequences as they are"),
        pytest.param(("--global-batch-tokens", "1M"), 128, id="1M / 8192 = 2**20 / 2**13 = 128"),
        pytest.param(("--global-batch-tokens", "32x8192"), 32, id="32 sequences of 8192"),
    ],
)
def test_batches(batch: tuple[str, str], sequences: int) -> None:
    """A batch is sequences or tokens, and M counts 2**20 of them."""
    result = run("plan", "llama-3.1-8b", "--gpus", "16", "--cluster", "dgx-h100",
                 "--seq-len", "8192", *batch, "--tp", "2", "--json", "--top", "1")  # fmt: skip
    assert json.loads(result.stdout)["training"]["global_batch_size"] == sequences


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*TINY, "--tp", "x"), "tensor_parallel 'x' is not a whole number"),
        ((*TINY, "--zero", "3..1"), "write the smaller number first"),
        ((*TINY, "--tp", "0"), "tensor_parallel '0' does not exist; it is at least 1"),
        ((*TINY, "--zero", "4"), "it is from 0 to 3"),
        ((*TINY, "--seq-len", "32q"), "write 8192, 32k or 1m"),
        ((*TINY[:4], "--cluster", "dgx-h100", "--global-batch", "8", "--precision", "nvfp4"),
         "has no such matrix units"),
        ((*TINY[:4], "--cluster", "dgx-h100", "--global-batch", "8", "--precision", "mxfp8"),
         "it can do fp32, bf16, fp16, fp8\n"),
        ((*TINY, "--schedule", "2f2b"), "it is one of gpipe"),
        ((*TINY, "--precision", "bf17"), "it is one of fp32, bf16"),
        ((*TINY, "--precision", "fp8"), "has no such matrix units"),
        (("plan", "llama-3.1-8b", "--gpus", "8", "--cluster", "dgx-b200", "--engine", "torchtitan",
          "--global-batch", "8", "--precision", "mxfp8_experts"), "has no routed experts, whose"),
        ((*TINY, "--engine", "megatrom"), "did you mean megatron"),
        ((*TINY, "--global-batch-tokens", "4M"), "say the batch of one step once"),
        ((*TINY[:-2],), "say the batch of one step once"),
        ((*TINY[:-2], "--global-batch-tokens", "many"), "write 4M, 1024x4096 or 4194304"),
        ((*TINY[:-2], "--global-batch-tokens", "1000"), "write --global-batch 1"),
        (
            (*TINY[:-2], "--seq-len", "4096", "--global-batch-tokens", "4194303"),
            "4194303 is 1023 sequences of 4096 and 4095 tokens, not a whole number",
        ),
        ((*TINY, "--gpu", "h100-sxm"), "--cluster already says"),
        ((*TINY[:4], "--global-batch", "8"), "say what to train on"),
        ((*TINY[:4], "--gpu", "h100-sxm", "--network", "fast", "--global-batch", "8"),
         "is not a bandwidth"),
        ((*TINY[:4], "--cluster", "dgx-h101", "--global-batch", "8"), "did you mean dgx-h100"),
        (("plan", "lama", *TINY[2:]), "no model 'lama'"),
        ((*TINY, "--engine", "megatron,torchtitan"), "`meshplan sweep` plans each of them"),
        (("plan", TINY[1], "--gpus", "8,16", *TINY[4:]), "`meshplan sweep` plans each of them"),
        ((*TINY, "--compare", "absent.toml"), "--compare absent.toml: cannot be read"),
        (("explain", "absent.yaml"), "absent.yaml: cannot be read"),
        ((*TINY, "--top", "1", "-o", "absent/plan.yaml"), "cannot write absent/plan.yaml"),
        (("models", "gpt5"), "no model 'gpt5'"),
        ((*TINY, "--top", "0"), "--top 0: Input should be greater than or equal to 1"),
        ((*TINY, "--top=x"), "--top x: "),
        (("plan",), "Missing argument 'model'"),
        (("execute", "plan.yaml", "--launcher", "lsf"), "--launcher lsf: 'lsf' is not one of"),
        ((*TINY[:4], "--cluster", "A" * 5000, "--global-batch", "8"), "profiles` lists all)"),
    ],
)  # fmt: skip
def test_user_errors(arguments: tuple[str, ...], words: str) -> None:
    """What the user can mend is one line on stderr that says how, with exit code 2."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 1000


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(("engine:", "motor: native\nengine:"), "motor", id="unknown key"),
        pytest.param(("layout:", "layuot:"), "layuot: no such field", id="misspelt key"),
        pytest.param(("meshplan: 1", "meshplan: 2"), "version 2", id="wrong version"),
        pytest.param(("seq_len: 1024", "seq_len: -1"), "training.seq_len", id="negative"),
        pytest.param(
            ("tensor_parallel: 1", "tensor_parallel: 3"),
            "the layout takes 6",
            id="impossible shape",
        ),
        pytest.param(("hidden_size: 256", "hidden_size: 512"), "sha256", id="edited model"),
        pytest.param(("hidden_size: 256", "hidden_size: 2001-01-01"), "not JSON", id="a date"),
        pytest.param(("hidden_size: 256", "hidden_size: !!set {a, b}"), "not JSON", id="a set"),
        pytest.param(("meshplan: 1", "plan: 1"), "not a plan file", id="another file"),
        pytest.param(("meshplan: 1", "meshplan: [1"), "not YAML", id="not YAML"),
    ],
)
def test_broken_plan_files(
    plan_file: Path, tmp_path: Path, edit: tuple[str, str], words: str
) -> None:
    """A plan file that cannot be used is refused in one line that names the place."""
    text = plan_file.read_text()
    assert edit[0] in text
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace(*edit, 1))
    result = run("explain", str(broken))
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 400, "the place, not the whole document"


@pytest.mark.parametrize(
    ("network", "said"),
    [
        pytest.param("400Gb/s", "400 Gb/s of each GPU, 3200 Gb/s of a node", id="of each GPU"),
        pytest.param("8x400Gb/s", "400 Gb/s of each GPU, 3200 Gb/s of a node", id="of a node"),
        pytest.param("4x100Gb/s", "50 Gb/s of each GPU, 400 Gb/s of a node", id="shared by two"),
    ],
)
def test_the_network_is_restated(network: str, said: str) -> None:
    """As it was understood, per GPU and per node."""
    result = run("plan", "tiny-llama", "--gpus", "8", "--gpu", "h100-sxm", "--network", network,
                 "--global-batch", "8", "--seq-len", "1k")  # fmt: skip
    assert said in " ".join(result.stdout.split())
    assert "8 sequences of 1,024" in result.stdout


def test_ctrl_c_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted search answers with the best plan so far and its honest distance."""

    class Interrupting(meshplan.planner.cli.progress.SearchLine):
        def __call__(self, progress: meshplan.planner.search.progress.Progress) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(meshplan.planner.search.progress, "PROGRESS_S", 0.0)
    monkeypatch.setattr("meshplan.planner.cli.planned.SearchLine", Interrupting)
    result = run("plan", "llama-3.1-70b", "--gpus", "64", "--cluster", "dgx-h100",
                 "--global-batch", "512", "--json")  # fmt: skip
    report = json.loads(result.stdout)["search"]
    assert result.exit_code == 0
    assert report["status"] == "FEASIBLE"
    assert 0 < report["gap"] < 1


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("validate", "--json", "out.json"), id="validate"),
        pytest.param(("what-if", "plan.yaml", "--json", "-"), id="what-if"),
        pytest.param(("sweep", "llama-3.1-8b", "--gpus", "8", "--json", "a.json"), id="sweep"),
    ],
)
def test_json_takes_no_file(arguments: tuple[str, ...]) -> None:
    """What `--json FILE` once did is one line: `--json > FILE`."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --json {arguments[-1]}: --json takes no file")
    assert f"`meshplan {arguments[0]} ... --json > FILE`" in result.stderr


def test_every_named_error_exists() -> None:
    """The table of exit codes names errors that exist, and gives their code and no other's."""
    for name, code in EXIT_CODES.items():
        module, _, attribute = name.rpartition(".")
        error = getattr(__import__(module, fromlist=[attribute]), attribute)
        assert issubclass(error, Exception)
        assert exit_code(error.__new__(error)) == code
    assert exit_code(RuntimeError("ours")) is None


@pytest.mark.parametrize("text", ["", "x" * 10_000, "\x00", "../../etc", "[bold]", "日本"])
def test_odd_model_names(text: str) -> None:
    """Any text for a model is refused in a short line, whatever it holds."""
    result = run("plan", text, *TINY[2:])
    assert result.exit_code == 2
    assert len(result.stderr) < 400


def test_compare_sets_a_config_beside_the_plan() -> None:
    """`--compare` shows what runs now beside the best of its question, on its own engine."""
    config = Path(__file__).parents[2] / "data/framework_configs/torchtitan/llama3_70b.toml"
    result = run("plan", "llama-3.1-70b", "--gpus", "256", "--cluster", "dgx-h100", "--seq-len",
                 "8192", "--global-batch", "256", "--tp", "8", "--pp", "1", "--top", "1",
                 "--compare", str(config), "--price-per-gpu-hour", "2")  # fmt: skip
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())  # where lines break depends on the length of the path
    assert "beside the best layout" in said
    assert "cost of 1T tokens" in said
    assert "assumed where the config is silent: 256 GPUs" in said
    assert "engine torchtitan-eager, that of" in said  # silent on compile: off
    assert "".join(str(config).split()) in "".join(said.split())
    assert "at 2 per GPU-hour" in result.stdout


def test_arithmetic_has_one_thread_and_leaves_no_trace() -> None:
    """What a command starts later has the threads that the user gave it."""
    program = (
        "import os; from meshplan.planner.cli.start_up import ONE_THREAD, import_numpy;"
        "import_numpy();"
        "print(len(os.listdir('/proc/self/task')), ONE_THREAD in os.environ)"
    )
    given = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == ["1", "False"]


def test_models_lists_and_shows() -> None:
    """`models` lists the catalogue and shows the parameters of one, in JSON too."""
    listed = json.loads(run("models", "--json").stdout)["models"]
    assert {"llama-3.1-70b", "deepseek-v3"} <= {row["name"] for row in listed}
    shown = json.loads(run("models", "llama-3.1-8b", "--json").stdout)
    assert shown["parameters"] == 8_030_261_248  # the model card's 8.03B, exact count on HF
    assert "8,030,261,248" in run("models", "llama-3.1-8b").stdout


def test_a_file_is_planned_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `models FILE` proposes names the file, for its model is in no catalogue."""
    monkeypatch.chdir(tmp_path)
    config = json.loads(run("models", "llama-3.1-8b", "--json").stdout)["config"]
    Path("c.json").write_text(json.dumps(config))
    assert "meshplan plan c.json --gpus" in run("models", "c.json").stdout


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    """NaN is refused by its field, wherever it stands; infinity is written as transformers 5 does,
    and a plan of such a file can be read again.
    """
    config = json.loads(run("models", "tiny-llama", "--json").stdout)["config"]
    path, plan = tmp_path / "c.json", tmp_path / "plan.yaml"
    path.write_text(json.dumps({**config, "more": {"attention_dropout": [0.0, float("nan")]}}))
    refused = run("models", str(path), "--json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the field 'more.attention_dropout' is NaN" in refused.stderr
    path.write_text(json.dumps({**config, "time_step_limit": [0.0, float("inf")]}))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    shown = json.loads(run("models", str(path), "--json").stdout, parse_constant=refuse)
    assert shown["config"]["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    question = ("plan", str(path), *TINY[2:], "-o", str(plan))
    assert run(*question).exit_code == 0
    assert run("check", str(plan)).exit_code in (0, 1)


def test_headroom_is_left_free() -> None:
    """No rank of a plan holds more than the device less the headroom; the plan is of the same
    cluster, and says how probable it is that it fits, the more so the more is left.
    """
    found = [
        json.loads(run(*SMALL, "--top", "1", "--headroom", text, "--json").stdout)
        for text in ("4%", "40GiB")
    ]
    loose, tight = (each["prediction"] for each in found)
    device = loose["gpu_memory_bytes"]
    assert loose["plan_memory_bytes"] == pytest.approx(0.96 * device)
    assert tight["gpu_memory_bytes"] == device
    assert tight["plan_memory_bytes"] == pytest.approx(device - 40 * 2**30)
    needed = [rank["allocated"] + rank["slack"] + rank["context"] for rank in tight["memory"]]
    assert max(needed) <= tight["plan_memory_bytes"] * 1.000001
    assert 0 < loose["fits_probability"] <= tight["fits_probability"] <= 1
    assert found[0]["cluster"] == found[1]["cluster"]
    assert "--headroom 'lots'" in run(*SMALL, "--headroom", "lots").output


def test_the_space_and_the_price_are_said() -> None:
    """The proof names the price that it holds for, and the cuts that were listed."""
    text = " ".join(run(*SMALL, "--engine", "torchtitan").stdout.split())
    assert "under the event simulation" in text
    assert "runners-up and what more memory buys come from a list of splits" in text
    report = json.loads(run(*SMALL, "--top", "1", "--json").stdout)["search"]
    assert report["price"] == "event simulation"
    assert any(line.startswith("layers per stage: ") for line in report["space"])


def test_a_plan_without_a_pipeline_speaks_of_none() -> None:
    """One rank is not the fullest of its pipeline, and no schedule orders its stages."""
    told = run("plan", "tiny-llama", "--gpus", "1", *TINY[4:])
    assert "largest part is" in told.stdout
    assert not re.search("pipeline rank 0 is|1f1b|by stage", told.stdout)
