"""Every reader of files against hostile text: one line, at most two seconds and 500 MB each.

`MESHPLAN_FUZZ_INPUTS` is the number of inputs for each reader: 100 unless said (3,000 in all),
10,000 under `HYPOTHESIS_PROFILE=nightly`.
"""

import gc
import os
import random
import resource
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import cases
from random_plans import CLUSTER, plan_of
from trainer_texts import AUTOMODEL, FOUNDRY, NEOX

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.hardware_profiles.load_models import MODELS, UnknownModel, load_model_config
from meshplan.planner.case.learned_file import UnreadableLearned, read_learned
from meshplan.planner.case.settings import (
    FILE,
    Settings,
    UnreadableSettings,
    settings_near,
)
from meshplan.planner.check.check import DEFECT, check_paths
from meshplan.planner.cli.check import tools
from meshplan.planner.logs.console import READERS
from meshplan.planner.logs.read import Batch, UnreadableLog, read_log
from meshplan.planner.logs.steady import steady
from meshplan.planner.logs.tuning_console import read_automodel, read_torchtune
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import read_runs, run_of

INPUTS = int(os.environ.get("MESHPLAN_FUZZ_INPUTS") or cases(15, nightly=10_000))
MOST_S, MOST_BYTES = 2.0, 500e6
CONFIGS = Path(__file__).parents[2] / "data" / "framework_configs"
GIVEN = Settings(
    cluster=CLUSTER, gpus=8, model="llama-3.2-1b", seq_len=2048, global_batch_size=64,
    micro_batch_size=1,
)  # fmt: skip
FUZZ = settings(
    max_examples=INPUTS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PIECES = (
    *("[", "]", "{", "}", "(", ")", '"', "'", '"""', "$((", "))", "${", "${A:-", "$(", "*a", "&a ",
      "- ", ": ", "\n", "\\", "#", "<<EOF\n", "if ", "fi", "done", "A+=(x)\n", 'A="$A$A"\n', "A=1 ",
      "--num-layers ", "a.", ".a", "=", ",", "9" * 40, "9" * 4300, "1e400", "nan", "24.0", "1_0",
      "-1", "0", "²", "٣", "\x1b[31m", "\u202e", "é", "true", "null", "lambda: ", "-", "!!int x",
      "2001-99-99", "\t", "'''", "\ufeff", "<<: *a", "[[", "]]", "\r\n"),
)  # fmt: skip


def _seeds(*patterns: str) -> list[str]:
    return [path.read_text() for each in patterns for path in sorted(CONFIGS.glob(each))]


def damaged(seeds: list[str]) -> st.SearchStrategy[str]:
    """A real file with pieces that languages care about put in, some of them thousands of times.

    Hypothesis draws one number, of which the text follows: drawing every piece would cost more than
    reading the file does. A failure names the number.
    """
    return st.integers(0, 2**62).map(lambda number: _damaged(random.Random(number), seeds))


def _damaged(rng: random.Random, seeds: list[str]) -> str:
    text = rng.choice(seeds)
    for _ in range(rng.randint(1, 3)):
        at, cut = rng.randint(0, len(text)), rng.randint(0, 30)
        any_text = "".join(rng.choices(string.printable, k=rng.randint(0, 8)))
        piece = rng.choice((rng.choice(PIECES), any_text))
        times = rng.choice((1, 1, 1, 1, 1, 2, 2, 60, 3000, 30_000))
        text = text[:at] + (piece * times)[:300_000] + text[at + cut :]
    return text


def timed(read: Callable[[], None]) -> None:
    """`read` takes at most two seconds of processor time and grows memory by at most 500 MB.

    The collector rests meanwhile: what earlier inputs left behind is not this one's to clear.
    """
    gc.disable()
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read()
        took_s = time.process_time() - start
    finally:
        gc.enable()
    assert took_s < MOST_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES


@contextmanager
def refused_in_a_line(*kinds: type[Exception]) -> Iterator[None]:
    """What is inside is done, or ends in one printable line."""
    refused = ""
    try:
        yield
    except kinds as error:
        refused = str(error)
    assert refused.isprintable()


def _plans() -> list[str]:
    plan = plan_of(
        "llama-3.2-1b",
        Layout(data_parallel=8, stages=even_stages(16, 1)),
        Training(seq_len=2048, global_batch_size=64),
    )
    return [plan.to_yaml()]


TRAINERS = [
    "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 2\n"
    "gradient_accumulation_steps: 4\noptimizer: adamw_torch\nbf16: auto\ndatasets: []\n",
    "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 1\nbf16: true\noutput_dir: out\n",
    "model_name_or_path: meta-llama/Llama-3.2-1B\nper_device_train_batch_size: 4\n"
    "fsdp: full_shard auto_wrap\noutput_dir: out\nparallelism_config: {tp_size: 2}\n",
]
FORMATS = {
    "megatron": (".sh", _seeds("megatron/*.sh")),
    "bridge": (".yaml", _seeds("bridge/*.yaml", "bridge/*.yml")),
    "torchtitan": (".toml", _seeds("torchtitan/*.toml")),
    "torchtitan-0.3": (".py", _seeds("torchtitan/*.py")),
    "nanotron": (".yaml", _seeds("nanotron/*.yaml")),
    "deepspeed": (".json", _seeds("deepspeed/*.json")),
    "accelerate": (".yaml", _seeds("accelerate/*.yaml")),
    "axolotl": (".yml", TRAINERS[:1]),
    "llama-factory": (".yaml", TRAINERS[1:2]),
    "hf-trainer": (".yaml", TRAINERS[2:]),
    "gpt-neox": (".yml", [NEOX]),
    "llm-foundry": (".yaml", [FOUNDRY]),
    "automodel": (".yaml", [AUTOMODEL]),
    None: (".yaml", _plans()),
}


@pytest.mark.parametrize("framework", FORMATS, ids=lambda name: name or "plan")
@FUZZ
@given(data=st.data())
def test_a_damaged_config_is_one_line(
    tmp_path: Path, framework: str | None, data: st.DataObject
) -> None:
    """Whatever a config or a plan holds, its finding is one printable line, and no defect."""
    suffix, seeds = FORMATS[framework]
    path = tmp_path / f"config{suffix}"
    path.write_text(data.draw(damaged(seeds)), encoding="utf-8")

    def read() -> None:
        found = check_paths([path], tools(), GIVEN, framework=framework)
        assert found  # one, or one for each launch of a script
        for finding in found:
            assert finding.text.isprintable()
            assert DEFECT not in finding.text, finding.text

    timed(read)


@FUZZ
@given(text=damaged(['[tool.meshplan]\ngpus = 8\ncluster = "dgx-h100"\n', "gpus = 8\n"]))
def test_damaged_settings(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """meshplan.toml is read, or refused in one line."""
    folder = tmp_path_factory.mktemp("settings")
    (folder / FILE).write_text(text, encoding="utf-8")

    def read() -> None:
        with refused_in_a_line(UnreadableSettings):
            settings_near(folder / "config.sh")

    timed(read)


@FUZZ
@given(text=damaged([(MODELS / f"{n}.json").read_text() for n in ("deepseek-v3", "gemma-2-9b")]))
def test_a_damaged_config_json(tmp_path: Path, text: str) -> None:
    """A model's config.json is read, or refused by name."""
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")

    def read() -> None:
        with refused_in_a_line(UnknownModel, UnsupportedModel):
            model_from_config(load_model_config(path), "model")

    timed(read)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a whole profile file."""
    path = tmp_path_factory.mktemp("profile") / "cluster.toml"
    save_cluster(load_cluster(CLUSTER), path)
    return path.read_text()


@FUZZ
@given(data=st.data())
def test_a_damaged_profile(tmp_path: Path, profile: str, data: st.DataObject) -> None:
    """A cluster profile is read, or refused by name."""
    path = tmp_path / "cluster.toml"
    path.write_text(data.draw(damaged([profile])), encoding="utf-8")

    def read() -> None:
        with refused_in_a_line(UnknownProfile):
            load_cluster(path)

    timed(read)


LOGS = (
    "step:  4  loss:  7.6  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 5\n",
    " iteration  2/ 100 | elapsed time per iteration (ms): 5630.1 | lm loss: 1.0E+00 |\n",
    "[Rank 1] (after 1 iterations) memory (MB) | max allocated: 1.0 | max reserved: 2.0\n",
    "iteration: 1 / 15 | elapsed_time_per_iteration_ms: 4.71K | lm_loss: 1.5 |\n",
    "step 9 | epoch 0 | loss 0.6 | lr 1.0e-05 | mem 24.9 GiB | tps 11278.5(1409.8/gpu) | x 2\n",
    "Step 3 | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:123.4 peak_memory_alloc:9.8 \n",
)


LEARNED = """meshplan_learned: 1
engine: megatron
gpu: h100-sxm
cluster: dgx-h100
date: '2026-11-23'
source: meshplan learn
prior: published
residual: 0.1
factor: 1.2
constants:
- {name: matmul_scale, before: 1.0, after: 1.1, deviation: 0.1, kept: 0.9}
runs:
- {log: a, config: b, layout: c, gpus: 8, precision: bf16, model: dense, measured_s: 1.0,
   before_s: 1.0, after_s: 1.0}
"""


PRINTED = {**READERS, "automodel": read_automodel, "torchtune": read_torchtune}


@pytest.mark.parametrize("engine", PRINTED)
@FUZZ
@given(text=damaged(["".join(LOGS * 3)]))
def test_a_damaged_log(engine: str, text: str) -> None:
    """A training log gives the steps that it says, never an error."""
    timed(lambda: void(PRINTED[engine](text, 1024.0)))


EXPORTS = {
    "train.log": "".join(LOGS) + "epoch=0/micro_step=4/global_step=1, RunningAvgSamplesPerSec=2.0, "
    "CurrSamplesPerSec=2.5, MemAllocated=4.3GB, MaxMemAllocated=38.4GB\n",
    "wandb.csv": 'Step,"run - throughput(tps)"\n1,4096\n2,8192\n',
    "history.jsonl": '{"_step": 1, "_runtime": 5}\n{"_step": 4, "_runtime": 9}\n',
    "trainer_state.json": '{"log_history": [{"step": 9, "train_runtime": 5.0}], "global_step": 9}',
    "result.json": '{"meshplan_run": 1, "step_times_s": [1.0, 2.0], "losses": [1], "ranks": []}',
    "run-tag-iteration-time.json": "[[1.0, 1, 2.0], [2.0, 2, 3.0]]",
}


@pytest.mark.parametrize("name", EXPORTS)
@FUZZ
@given(data=st.data())
def test_a_damaged_export(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """A log of any format has steady steps, or is refused in one line."""
    path = tmp_path / name
    path.write_text(data.draw(damaged([EXPORTS[name] * 2, EXPORTS[name]])), encoding="utf-8")

    def read() -> None:
        with refused_in_a_line(UnreadableLog):
            found = read_log(path, Batch(sequences=8, tokens_per_gpu=1024.0, gpus=8))
            assert steady(found.log, name).step_time_s > 0

    timed(read)


@FUZZ
@given(text=damaged([LEARNED]))
def test_a_damaged_file_of_learnt_constants(tmp_path: Path, text: str) -> None:
    """What `meshplan learn` wrote is read, or refused in one line."""
    path = tmp_path / "learned.yaml"
    path.write_text(text, encoding="utf-8")

    def read() -> None:
        with refused_in_a_line(UnreadableLearned):
            read_learned(path)

    timed(read)


def void(_: object) -> None:
    """Drop a value."""


@FUZZ
@given(text=damaged([
    "id,suite,grade,framework,model,gpu,gpus,seq,gbs,mbs,tp,pp,dp,step_s\n"
    "a,own,A,megatron,llama-3.1-8b,h100-sxm,8,2048,64,1,1,1,8,1.0\n"
]))  # fmt: skip
def test_damaged_runs(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """A row of a CSV of runs is a run, or skipped with a reason."""
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    path.write_text(text, encoding="utf-8")

    def read() -> None:
        rows: list[dict[str, str]] = []
        with refused_in_a_line(ValueError):
            rows = list(read_runs(path))
        for row in rows[:200]:
            with refused_in_a_line(SkippedRow):
                run_of(row)

    timed(read)
