"""What `check` is given: settings, folders, files that cannot be read, unknown names."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hand_priced import GIVEN, LAYOUT, SCRIPT, TOOLS, a_plan, check_plan, check_text
from random_plans import CLUSTER

from meshplan.costmodels.layout import Stage
from meshplan.planner.case.settings import Settings, UnreadableSettings, settings_near
from meshplan.planner.check.check import check_paths, exit_code
from meshplan.planner.check.output import MACHINE, as_table, summary
from meshplan.planner.check.verdicts import Finding
from meshplan.planner.cli.progress import FilesLine


def test_missing_facts_are_all_named_with_their_flags(tmp_path: Path) -> None:
    """One line says every missing fact, and how to give it."""
    text = '{"zero_optimization": {"stage": 3}, "train_batch_size": 16}'
    finding = check_text(tmp_path / "ds.json", text, Settings())
    assert finding.verdict == "incomplete"
    for name in ("model", "cluster", "gpus", "seq_len"):
        assert name in finding.text
    assert "--gpus" in finding.text
    assert "\n" not in finding.text


@pytest.mark.parametrize("name", ["meshplan.toml", "pyproject.toml"])
def test_settings_fill_in_and_the_nearest_file_counts(tmp_path: Path, name: str) -> None:
    """Facts come from the nearest settings file above the config; flags win over the config."""
    table = f'cluster = "{CLUSTER}"\ngpus = 8\nmodel = "llama-3.2-1b"\nseq_len = 2048\n'
    (tmp_path / "meshplan.toml").write_text("gpus = 7\n")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    header = "" if name == "meshplan.toml" else "[tool.meshplan]\n"
    (tmp_path / "a" / name).write_text(header + table)
    config = folder / "ds.json"
    text = '{"zero_optimization": {"stage": 3}, "train_batch_size": 16}'
    assert check_text(config, text, Settings()).label == "dp8 zero3 mbs2"
    assert check_text(config, text, Settings(gpus=4)).label == "dp4 zero3 mbs4"


def test_a_name_is_a_path_only_where_a_file_is(tmp_path: Path) -> None:
    """A folder of a model's owner without a model's file leaves the catalogue's name; a name that
    is too long for a file is an unknown one.
    """
    (tmp_path / "meta-llama" / "Llama-3.2-1B").mkdir(parents=True)
    (tmp_path / "meshplan.toml").write_text('model = "meta-llama/Llama-3.2-1B"\n')
    assert settings_near(tmp_path).model == "meta-llama/Llama-3.2-1B"
    other = tmp_path / "other"
    other.mkdir()
    (other / "meshplan.toml").write_text(f'model = "./{"x" * 300}.json"\n')
    assert settings_near(other).model == f"./{'x' * 300}.json"


@pytest.mark.parametrize("option", [False, True])
def test_a_pipeline_in_code_is_no_other_file_s(tmp_path: Path, option: bool) -> None:
    """DeepSpeed's JSON leaves it to code; a script without Megatron's flag has one stage."""
    pp = {"pipeline_parallel": 2}
    given = GIVEN.model_copy(update=pp if option else {})
    alone = check_text(tmp_path / "train.sh", SCRIPT, GIVEN)
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "meshplan.toml").write_text("" if option else "pipeline_parallel = 2\n")
    found = check_text(folder / "train.sh", SCRIPT, given)
    assert (found.label, found.verdict) == (alone.label, alone.verdict)
    assert any("--pp 2 is not taken" in note for note in found.notes) == option


def test_an_option_that_replaces_what_a_config_states_is_named(tmp_path: Path) -> None:
    """Flags win over the config, and it is said which of its facts they replaced."""
    plain = check_text(tmp_path / "train.sh", SCRIPT, GIVEN)
    asked = check_text(tmp_path / "train.sh", SCRIPT, GIVEN.model_copy(update={"seq_len": 1024}))
    assert not any("instead of" in note for note in plain.notes)
    assert any("--seq-len 1024 instead of the 2048 of line 3" in note for note in asked.notes)


def test_an_option_of_the_batch_decides_the_micro_batches(tmp_path: Path) -> None:
    """2 x 16 on 8 GPUs are 16 x 16 = 256; of 512 sequences each GPU adds up 32 micro-batches, of
    one sequence each 64: the file's 16 follow, as its batch does, and are no contradiction.
    """
    text = '{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2, '
    text += '"gradient_accumulation_steps": 16}'
    given = Settings(cluster=CLUSTER, gpus=8, model="llama-3.2-1b", seq_len=2048)
    for options, count in (({}, None), ({"global_batch_size": 512}, 32)):
        finding = check_text(tmp_path / "ds.json", text, given.model_copy(update=options))
        said = f"the options make {count} micro-batches instead of the 16 of the file"
        assert finding.label == "dp8 zero1 mbs2", finding.text
        assert (said in finding.notes) == (count is not None)
    more = {"global_batch_size": 512, "micro_batch_size": 1}
    finding = check_text(tmp_path / "ds.json", text, given.model_copy(update=more))
    assert "the options make 64 micro-batches instead of the 16 of the file" in finding.notes


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--bf16 --fp16", "bf16 and fp16"),
        ("--use-torch-fsdp2 --pipeline-model-parallel-size 2", "pipeline_parallel"),
        ("--use-torch-fsdp2 --use-distributed-optimizer", "use_distributed_optimizer"),
        ("--use-torch-fsdp2", None),
    ],
)
def test_what_megatron_does_not_start_is_illegal(
    flags: str, words: str | None, tmp_path: Path
) -> None:
    """Its own `validate_args` stops these before the first step."""
    script = SCRIPT.replace(" --use-distributed-optimizer", f" {flags}")
    finding = check_text(tmp_path / "train.sh", script)
    if words:
        assert finding.verdict == "illegal"
        assert words in finding.text
    else:
        assert finding.label == "dp4 tp2 zero3 mbs4"


def test_groups_that_zero_shards_over_are_in_the_label(tmp_path: Path) -> None:
    """32 ranks in shards of 8 are another layout than in shards of 32."""
    accelerate = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 32\n"
    accelerate += "num_machines: 4\nfsdp_config:\n"
    accelerate += "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_sharding_strategy: "
    given = GIVEN.model_copy(
        update={"model": "llama-3.2-1b", "seq_len": 2048, "micro_batch_size": 1,
                "global_batch_size": 64}
    )  # fmt: skip
    for strategy, label in (
        ("FULL_SHARD", "dp32 zero3 mbs1"),
        ("HYBRID_SHARD", "zero3 mbs1 shard8"),
    ):
        finding = check_text(tmp_path / "a.yaml", accelerate + strategy + "\n", given)
        assert finding.label is not None
        assert finding.label.endswith(label)


def test_a_bad_settings_file_is_one_line(tmp_path: Path) -> None:
    """An unknown key of a settings file is named, with the keys that exist; a bad value without
    them.
    """
    (tmp_path / "meshplan.toml").write_text("gpu = 8\n")
    finding = check_text(tmp_path / "train.sh", SCRIPT, Settings())
    assert finding.verdict == "unreadable"
    assert "meshplan.toml: gpu: no such field (got 8) (known keys: cluster, gpus," in finding.text
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "meshplan.toml").write_text("gpus = '4k'\n")
    finding = check_text(elsewhere / "train.sh", SCRIPT, Settings())
    assert "meshplan.toml: gpus: Input should be a valid integer" in finding.text
    assert finding.text.endswith("(got '4k')")


@pytest.mark.parametrize("name", ["seq_len", "packed_mean_length"])
def test_lengths_of_a_settings_file_are_written_as_the_options(tmp_path: Path, name: str) -> None:
    """4k is 4 x 1024 there too; 4x is refused with what may be written."""
    (tmp_path / "meshplan.toml").write_text(f'{name} = "4k"\n')
    assert getattr(settings_near(tmp_path), name) == 4096
    other = tmp_path / "other"
    other.mkdir()
    (other / "meshplan.toml").write_text(f'{name} = "4x"\n')
    with pytest.raises(UnreadableSettings, match=f"{name}: '4x' .* write 8192, 32k or 1m"):
        settings_near(other)


def test_a_path_is_not_folded_where_the_rest_has_room(tmp_path: Path) -> None:
    """Of 80 columns a path of 17 characters is whole, to be copied; one of 60 is folded."""
    given = Settings(model="llama-3.1-8b", seq_len=8192, gpus=8, cluster="dgx-h100")
    text = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}'
    finding = check_text(tmp_path / "ds.json", text, given)
    for name, whole in (("megatron/train.sh", True), ("b" * 30, False), ("a" * 60, False)):
        lines = as_table([replace(finding, path=name)], width=80).splitlines()
        assert any(line.startswith(f"{name} ") for line in lines) == whole


def test_where_nothing_is_piped_no_pipeline_rank_is_named(tmp_path: Path) -> None:
    """Sixteen sequences at once are too many for each of eight GPUs alike."""
    given = Settings(model="llama-3.1-8b", seq_len=8192, gpus=8, cluster="dgx-h100")
    text = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 16}'
    finding = check_text(tmp_path / "ds.json", text, given)
    assert finding.verdict == "does not fit"
    assert finding.text.startswith("a rank needs ")


def test_a_folder_is_walked_once_through_every_loop(tmp_path: Path) -> None:
    """Links that loop end the walk, hidden and foreign files are skipped with a reason."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.sh").write_text(SCRIPT)
    (tmp_path / "configs" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.yaml").symlink_to(tmp_path / "self.yaml")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "train.sh").write_text(SCRIPT)
    findings = check_paths([tmp_path], TOOLS, GIVEN)
    verdicts = {Path(finding.path).name: finding.verdict for finding in findings}
    assert verdicts["train.sh"] == "fits"
    assert verdicts["self.yaml"] == "unreadable"
    assert {verdicts[name] for name in ("picture.png", "list.yaml", "loop")} == {"skipped"}
    assert [finding.verdict for finding in findings].count("fits") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\x00\x01", "binary", id="binary"),
        pytest.param(b"a: \xff\xfe", "not UTF-8", id="not text"),
        pytest.param("a: 1".encode("utf-16"), "UTF-16 text", id="what PowerShell writes"),
        pytest.param(b"#" * (2 * 2**20 + 1), "larger than 2 MiB", id="huge"),
        pytest.param(b"hello: world\n", "no config format recognised", id="something else"),
        pytest.param(b"meshplan: 1\nmodel: [", "not YAML", id="a truncated plan"),
        pytest.param(b"meshplan: 9\n", "plan version 9", id="a plan of the future"),
        pytest.param(b"meshplan: 1\nlayout: 3\n", "model", id="a plan without its parts"),
        pytest.param(b"meshplan: 1\nx: 2001-99-99\n", "not YAML", id="a date that is none"),
        pytest.param(b"meshplan: 1\nx: " + b"[" * 5000, "more than 50 deep", id="a plan 5000 deep"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    """A named file that cannot be used is one clear line and exit code 2."""
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    findings = check_paths([path], TOOLS, GIVEN)
    assert [finding.verdict for finding in findings] == ["unreadable"]
    assert words in findings[0].text
    assert "\n" not in findings[0].text
    assert exit_code(findings) == 2


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    """A missing file, a loop of links, a pipe and a name that no system allows are all told
    apart.
    """
    loop, pipe = tmp_path / "loop", tmp_path / "pipe"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    paths = [tmp_path / "none.yaml", loop, pipe, Path("a\0b"), Path("x" * 5000)]
    findings = check_paths(paths, TOOLS, GIVEN)
    assert [finding.verdict for finding in findings] == ["unreadable"] * 5
    assert "No such file" in findings[0].text
    assert "not a file" in findings[2].text


def test_a_file_without_permission_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system does not let us open is unreadable, with the system's reason."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "train.sh").write_text(SCRIPT)
    monkeypatch.setattr(os, "open", refused)
    (finding,) = check_paths([tmp_path / "train.sh"], TOOLS, GIVEN)
    assert (finding.verdict, finding.text) == ("unreadable", "cannot be read: Permission denied")


def test_an_unknown_name_is_told(tmp_path: Path) -> None:
    """Unknown clusters and models are usage errors, not tracebacks."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    for given, name in (
        (Settings(cluster="nowhere"), "nowhere"),
        (Settings(cluster=CLUSTER, model="no-model"), "no-model"),
    ):
        (finding,) = check_paths([path], TOOLS, given)
        assert finding.verdict == "unreadable"
        assert name in finding.text
        assert "\n" not in finding.text


def test_a_format_the_gpu_lacks_is_illegal(tmp_path: Path) -> None:
    """An H100 has no fp4 matmuls: nvfp4 is refused with what it has."""
    text = SCRIPT.replace("--bf16", "--bf16 --fp4-format e2m1")
    finding = check_text(tmp_path / "train.sh", text)
    assert finding.verdict == "illegal"
    assert "has no nvfp4" in finding.text


def test_exit_codes() -> None:
    """0 all good, 1 findings, 2 as soon as one file cannot be judged."""
    fits, big, bad, skipped = (
        Finding(path="x", verdict=verdict, text="")
        for verdict in ("fits", "does not fit", "unreadable", "skipped")
    )
    assert exit_code([]) == 0
    assert exit_code([fits, skipped]) == 0
    assert exit_code([fits, big]) == 1
    assert exit_code([big, bad]) == 2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param((), "no file there is a plan or a config", id="an empty folder"),
        pytest.param(("a.png", "b.yaml"), "none of 2 files is a plan", id="nothing that is read"),
    ],
)
def test_a_folder_without_any_config_does_not_pass(
    tmp_path: Path, files: tuple[str, ...], words: str
) -> None:
    """A gate that reads nothing says so and ends with 2, in every format of the output."""
    for name in files:
        (tmp_path / name).write_text("- 1\n")
    *skipped, last = findings = check_paths([tmp_path], TOOLS, GIVEN)
    assert {finding.verdict for finding in skipped} <= {"skipped"}
    assert (last.verdict, last.path) == ("empty", str(tmp_path))
    assert words in last.text
    assert exit_code(findings) == 2
    assert summary(findings).startswith("0 configs checked")
    for said in (as_table(findings), *(write(findings) for write in MACHINE.values())):
        assert "nothing was checked below" in said
    assert "<error" in MACHINE["junit"](findings)


def test_a_folder_with_one_config_is_checked_whatever_lies_beside_it(tmp_path: Path) -> None:
    """What is skipped beside a config, or in another folder, is no finding."""
    (tmp_path / "full").mkdir()
    (tmp_path / "none").mkdir()
    (tmp_path / "full" / "train.sh").write_text(SCRIPT)
    (tmp_path / "none" / "list.yaml").write_text("- 1\n")
    findings = check_paths([tmp_path / "none", tmp_path / "full"], TOOLS, GIVEN)
    assert [finding.verdict for finding in findings] == ["skipped", "fits"]


def test_a_plan_whose_world_does_not_add_up(tmp_path: Path) -> None:
    """cluster.gpus must be dp x cp x tp x pp."""
    plan = a_plan()
    wrong = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"gpus": 63})})
    finding = check_plan(tmp_path / "plan.yaml", wrong)
    assert finding.verdict == "illegal"
    assert "63" in finding.text


def test_stages_are_not_lost(tmp_path: Path) -> None:
    """A plan whose stages miss a layer is illegal: 40 + 39 are not 80."""
    layout = replace(LAYOUT, stages=(Stage(40), Stage(39)))
    assert check_plan(tmp_path / "plan.yaml", a_plan(layout=layout)).verdict == "illegal"


def test_a_launcher_that_names_another_file_is_skipped_in_a_folder(tmp_path: Path) -> None:
    """Accelerate's file for a DeepSpeed job says nothing itself: no finding unless it is named."""
    launcher = tmp_path / "accelerate.yaml"
    launcher.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\n"
        "deepspeed_config:\n  deepspeed_config_file: ds_config.json\n"
    )
    for path, verdict in ((tmp_path, "skipped"), (launcher, "unreadable")):
        finding, *_ = check_paths([path], TOOLS, GIVEN)
        assert finding.verdict == verdict
        assert "check 'ds_config.json' instead" in finding.text


def test_a_settings_file_does_not_deny_what_a_config_accumulates(tmp_path: Path) -> None:
    """Eight micro-batches of a config and one sequence each of the settings file are a batch of 64
    on 8 GPUs, whatever global batch the settings file says for the others."""
    table = 'model = "llama-3.2-1b"\nseq_len = 2048\ngpus = 8\n'
    table += "micro_batch_size = 1\nglobal_batch_size = 512\n"
    (tmp_path / "meshplan.toml").write_text(table)
    text = '{"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 8}'
    finding = check_text(tmp_path / "ds.json", text, GIVEN)
    assert finding.verdict in ("fits", "does not fit"), finding.text
    assert finding.label == "dp8 zero1 mbs1"


@pytest.mark.parametrize(
    ("degrees", "line"),
    [
        pytest.param("cp_size: 4\n  tp_size: 3", 3, id="3 does not divide 8"),
        pytest.param("tp_size: 2\n  cp_size: 3", 3, id="nor here"),
        pytest.param("tp_size: 8\n  cp_size: 4", 2, id="each does: the largest"),
    ],
)
def test_degrees_that_do_not_divide_the_gpus_are_pointed_at(
    tmp_path: Path, degrees: str, line: int
) -> None:
    """The line to change, in a file that states 1 for what it leaves out."""
    text = (
        f"distributed:\n  {degrees}\n  strategy: fsdp2\n"
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
        "step_scheduler: {global_batch_size: 64, local_batch_size: 1}\n"
        "optimizer: {_target_: torch.optim.AdamW}\n"
    )
    given = Settings(cluster=CLUSTER, gpus=8, model="llama-3.2-1b", seq_len=2048)
    finding = check_text(tmp_path / "a.yaml", text, given)
    assert (finding.verdict, finding.line) == ("illegal", line), finding.text


def test_a_long_walk_says_where_it_is() -> None:
    """Nothing for a second, then how many files and which folder, without control characters."""
    stream = io.StringIO()
    line = FilesLine(stream)
    line._started -= 2  # a slow start
    line(Path("a/b.yaml"))
    assert not stream.getvalue()
    line._started -= 2
    line(Path("a/\x1b[31m/c.yaml"))
    assert "2 files looked at, now in a/?[31m;" in stream.getvalue()
