"""Where nothing fits or is legal, end to end: the words, the document and the exit code."""

import json
from pathlib import Path

import pytest
from called import run


def test_a_smaller_number_that_fits_is_named() -> None:
    """Eleven ranks do not divide a tiny model and one sequence; one GPU holds it."""
    result = run("plan", "tiny-llama", "--gpus", "11", "--cluster", "dgx-h100", "--seq-len", "1k",
                 "--global-batch", "1")  # fmt: skip
    assert result.exit_code == 3
    assert "one fits on 1 GPU:" in result.stderr
    assert "micro_batch_size 1" not in result.stderr, "nobody pinned it"


def test_nothing_fits() -> None:
    """Where nothing fits: exit code 3, the nearest miss, what it lacks and what fills it, and what
    would do. Of 79.2 GiB a rank may fill all but the headroom.
    """
    result = run("plan", "llama-3.1-405b", "--gpus", "8", "--cluster", "dgx-h100",
                 "--global-batch", "64", "--headroom", "6.8GiB")  # fmt: skip
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "more than the 72.4 GiB of each GPU that a plan may fill" in result.stderr
    states = f"{405.85e9 / 8 * 12 / 2**30:.1f} GiB"  # fp32 weights and two moments, over tp8
    assert f"the largest part of its fullest rank is optimizer states, {states}" in result.stderr
    assert "the next larger size in whole nodes on which one fits:" in result.stderr


def test_the_next_larger_size_of_a_model_of_several_kinds_of_layers() -> None:
    """What fits is what ranks hold, so nothing is said of a bound."""
    result = run("plan", "gemma-3-4b", "--gpus", "1", "--cluster", "dgx-h100",
                 "--global-batch", "64", "--engine", "megatron")  # fmt: skip
    assert result.exit_code == 3
    assert "the next larger size on which one fits: 2 GPUs" in result.stderr


def test_processes_of_a_cpu_share_its_memory() -> None:
    """4,096 of them have too little each; two may fit: that no number does is not said."""
    result = run("plan", "tiny-llama", "--gpus", "4096", "--cluster", "local-cpu", "--engine",
                 "native", "--precision", "fp32", "--global-batch", "4096")  # fmt: skip
    assert result.exit_code == 3
    assert "GPU" not in result.stderr
    assert "fits on 4,096 processes" in result.stderr
    assert "fewer processes have more each" in result.stderr


def test_a_cpu_runs_processes() -> None:
    """Their throughput is of each process: a CPU's plan spoke of GPUs that it does not have."""
    result = run("plan", "tiny-llama", "--gpus", "2", "--cluster", "local-cpu", "--precision",
                 "fp32", "--global-batch", "4", "--seq-len", "512", "--top", "1")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "tokens/s per process, MFU" in result.stdout


def test_nothing_fits_in_json() -> None:
    """With `--json` the same is one document on stdout."""
    result = run("plan", "llama-3.1-70b", "--gpus", "64", "--cluster", "dgx-h100",
                 "--global-batch", "64", "--tp", "1", "--pp", "1", "--zero", "1",
                 "--json")  # fmt: skip
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert (document["status"], document["proved"]) == ("INFEASIBLE", True)
    assert document["nearest"]["lacking_bytes"] > 0
    assert any(note.startswith("assumed: engine") for note in document["notes"])
    relaxed = {"tensor_parallel 1", "pipeline_parallel 1", "zero_stage 1"}
    assert set(document["relaxations"]) == relaxed


def test_a_refusal_in_json_says_that_it_is_no_proof() -> None:
    """With activations on the host beside recomputation a bound of memory decides, so a layout may
    fit.
    """
    result = run("plan", "llama-3.1-70b", "--gpus", "2", "--cluster", "dgx-h100", "--global-batch",
                 "8", "--engine", "generic", "--offload-activations", "0,1", "--json")  # fmt: skip
    assert result.exit_code == 3
    assert json.loads(result.stdout)["proved"] is False
    assert "was found that fits" in result.stderr


def test_no_layout_is_legal() -> None:
    """Where no layout is even legal, the rule that dropped most is named, and the pin."""
    result = run("plan", "llama-3.1-70b", "--gpus", "30", "--cluster", "dgx-h100",
                 "--global-batch", "7", "--tp", "5")  # fmt: skip
    assert result.exit_code == 3
    assert "the rule that excludes most of them: " in result.stderr
    assert "without the pin tensor_parallel 5 one fits" in result.stderr


@pytest.mark.parametrize(
    ("engine", "pinned", "why"),
    [
        ("torchtitan", "2", "the engine has no pipeline of a model with tied embeddings"),
        ("transformers", "2", "the engine does not combine this ZeRO stage with a pipeline"),
    ],
)
def test_a_pin_that_the_engine_denies_is_told_why(engine: str, pinned: str, why: str) -> None:
    """Not that the pin leaves nothing, which is no news, but what forbids what it asks for."""
    result = run("plan", "qwen3-1.7b", "--gpus", "4", "--cluster", "workstation-4x4090",
                 "--engine", engine, "--global-batch", "64", "--pp", pinned)  # fmt: skip
    assert result.exit_code == 3
    assert why in " ".join(result.stderr.split())
    assert "without the pin pipeline_parallel 2 one fits (legal there: 1)" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "deepspeed"), True),
        (("--engine", "deepspeed", "--pp", "1"), False),
        (("--engine", "deepspeed", "--pp", "2"), False),
        (("--engine", "accelerate"), False),
        (("--engine", "megatron"), False),
    ],
)
def test_pipelines_of_code_alone_are_said(words: tuple[str, ...], *, said: bool) -> None:
    """No file of DeepSpeed's has a pipeline; Megatron's has, and Accelerate never."""
    result = run("plan", "llama-3.1-8b", "--gpus", "8", "--cluster", "dgx-h100", "--global-batch",
                 "16", "--top", "1", *words, "--json")  # fmt: skip
    notes = " ".join(json.loads(result.stdout)["notes"])
    assert ("training code that can build a pipeline" in notes) == said


def test_the_fewest_gpus_by_a_bound_of_memory_are_called_so() -> None:
    """With activations on the host beside recomputation fewer GPUs may hold what is priced to need
    more; Megatron-LM recomputes nothing there.
    """
    asked = ("plan", "llama-3.1-8b", "--cluster", "dgx-h100", "--global-batch", "16",
             "--gpus", "4", "--offload-activations", "on", "--tp", "1", "--top", "1")  # fmt: skip
    said = {each: run(*asked, "--engine", each).stdout for each in ("generic", "megatron")}
    assert "by an upper bound of memory" in said["generic"]
    assert "upper bound" not in said["megatron"]


@pytest.mark.parametrize(
    ("pins", "why"),
    [
        (("--tp", "8", "--dp", "3"), "tensor_parallel 8, by no value of which 12 GPUs"),
        (("--dp", "3"), "data_parallel 3, by no value of which a batch of 7 sequences"),
        (("--tp", "4", "--pp", "4..6"), "tensor_parallel 4 x pipeline_parallel 4..6 = 16 GPUs or"),
        (("--ep", "2"), "expert_parallel 2, but the model has no routed experts"),
        (("--micro-batch", "2..6"), "micro_batch_size 2..6, by no value of which a batch of 7"),
    ],
)
def test_pins_that_cannot_be_met_are_the_reason(pins: tuple[str, ...], why: str) -> None:
    """Twelve GPUs are 1, 2, 3, 4, 6 or 12 replicas of 7 sequences, a prime; the model is dense."""
    result = run("plan", "llama-3.1-70b", "--gpus", "12", "--cluster", "dgx-h100",
                 "--global-batch", "7", *pins)  # fmt: skip
    assert result.exit_code == 3
    assert f"pinned: {why}" in " ".join(result.stderr.split())


NODES = ("--cluster", "dgx-h100", "--gpus")
PROCESSES = ("--cluster", "local-cpu", "--gpus")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("mixtral-8x7b", *NODES, "16", "--ep", "8", "--pp", "4"),
            "expert_parallel 8 x pipeline_parallel 4 = 32 GPUs or more, but there are 16",
        ),
        (
            ("tiny-llama", *PROCESSES, "2", "--tp", "2", "--pp", "2"),
            "tensor_parallel 2 x pipeline_parallel 2 = 4 processes or more, but there are 2",
        ),
        (
            ("llama-3.1-8b", *NODES, "8", "--dp", "4", "--micro-batch", "8"),
            "data_parallel 4 x micro_batch_size 8 = 32 sequences or more, but there are 16",
        ),
    ],
)
def test_what_is_pinned_needs_more_than_there_is(words: tuple[str, ...], why: str) -> None:
    """Of experts, whose ranks are the same ones; of processes; and of a step of 16 sequences."""
    result = run("plan", *words, "--global-batch", "16")
    assert result.exit_code == 3
    assert f"pinned: {why}" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["plan", "tiny-llama", "--gpuss", "8"], "No such option: --gpuss (close names: --gpus"),
        (["plan", "tiny-llama", "--batch", "8"], "--batch (close names: --global-batch, "),
        (["plan", "tiny-llama", "--quiet"], "No such option: --quiet ("),
        (["learn", "a.log", "--plan", "b.yaml"], "No such option: --plan (it may be --config)"),
        (["diagnose", "a.log", "--plan", "b.yaml"], "--plan (it may be --config)"),
        (["plan", "tiny-llama", "--profile", "a.toml"], "--profile (it may be --cluster)"),
        (["plan", "tiny-llama", "--tokens", "8"], "--tokens (close names: "),
        (
            ["plan", "tiny-llama", "--gpus", "8", "--global-batch", "4M"],
            "--global-batch 4M: it is a whole number, such as 8; --global-batch-tokens counts",
        ),
        (["plan", "tiny-llama", "--gpus"], "'--gpus' requires an argument"),
        (["plan", "tiny-llama", "again", "--gpus", "8"], "unexpected extra argument(s) (again)"),
        (["plan", "--gpus", "8"], "Missing argument 'model'"),
        (["profiles", "frob"], "No such command 'frob'"),
        (["--gpus", "8"], "No such option: --gpus"),
        (["chek", "."], "no command 'chek'; close names: check"),
    ],
)
def test_words_that_cannot_be_read(words: list[str], line: str) -> None:
    """One line on standard error that names the word, exit code 2, and no usage beside it."""
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert line in result.stderr


def test_meshplan_alone_is_help() -> None:
    """Without a word the command says what there is."""
    assert "Find the fastest layout that fits." in run().output


def test_scores_of_more_bytes_than_64_bits_count_do_not_fit() -> None:
    """An engine without FlashAttention keeps (2**27)**2 x 64 heads of them for each sequence and
    layer: with 64 sequences over 2**63 KiB, refused without a warning.
    """
    words = "plan llama-3.1-70b --gpus 1 --gpu h100-sxm --seq-len 128m --global-batch 128"
    result = run(*words.split(), "--engine", "bigscience")
    assert result.exit_code == 3
    assert result.stderr.startswith("error: no layout of llama-3.1-70b fits on 1 GPU")


def test_an_illegal_config_beside_a_log_is_named(tmp_path: Path) -> None:
    """Its refusal says whose it is: the log's folder is looked through for the run's config."""
    text = "base_model: x/y\ndatasets: []\nsequence_len: 8\nmicro_batch_size: -1\n"
    (tmp_path / "a.yml").write_text(text, encoding="utf-8")
    (tmp_path / "log.txt").write_text("no steps\n", encoding="utf-8")
    result = run("diagnose", str(tmp_path / "log.txt"))
    assert result.exit_code == 2
    assert f"{tmp_path / 'a.yml'}: micro_batch_size is -1" in result.stderr
