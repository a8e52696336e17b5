"""What you run now beside what we would run: the same quantities, the same question."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Images, Lora, Training
from meshplan.executor.frameworks import read_config
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.errors.layout_ratios import faster_probability, in_of_100
from meshplan.planner.answer.answer import case_at, plan_of, solve
from meshplan.planner.answer.compare import (
    Comparison,
    Quantity,
    Searched,
    Yours,
    compare,
    cost_per_trillion_tokens,
    yours_of,
)
from meshplan.planner.answer.explain import needed_bytes
from meshplan.planner.answer.own_question import (
    STATED,
    differences,
    same_question,
    why_not_the_plan,
)
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.plan_findings import Choice
from meshplan.planner.case.predict import predicted
from meshplan.planner.cli.comparing import compared
from meshplan.planner.cli.main import app
from meshplan.planner.report.comparison import difference

ASKED = ask(
    Arguments(model="llama-3.1-8b", gpus=8, cluster="dgx-h100", seq_len="4096", global_batch=64,
              engine="nanotron")
)  # fmt: skip
OURS = case_at(
    ASKED.question,
    Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1, "full")),
)
YOURS = """parallelism: {dp: 2, tp: 4, pp: 1, tp_mode: REDUCE_SCATTER, recompute_layer: true}
tokens: {sequence_length: 4096, micro_batch_size: 1, batch_accumulation_per_replica: %d}
optimizer: {zero_stage: 1}
"""


def yours(text: str, name: str = "nanotron.yaml", framework: str = "nanotron") -> Yours:
    """A config as a case of `ASKED`."""
    return yours_of(ASKED.question, "dgx-h100", read_config(text, name, framework))


def parts_of(found: Comparison, whole: str) -> dict[str, Quantity]:
    """The rows that `whole` is made of."""
    rows = list(found.rows)
    start = next(i for i, row in enumerate(rows) if row.name == whole)
    ended = next((i for i in range(start + 1, len(rows)) if not rows[i].part), len(rows))
    return {row.name: row for row in rows[start + 1 : ended] if row.unit != "text"}


def test_cost_by_hand() -> None:
    """1e12 tokens / 1000 tokens per s and GPU / 3600 s x 2 per hour = 555,555.56."""
    assert cost_per_trillion_tokens(1000, 2.0) == pytest.approx(555_555.5556)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (Quantity(name="step", unit="s", yours=8.0, ours=6.0), "-25.0%"),
        (Quantity(name="pipeline bubble", unit="s", yours=0.0, ours=0.0673, part=True), "+67.3 ms"),
        (Quantity(name="MFU", unit="fraction", yours=0.329, ours=0.513), "+18.4 points"),
        (Quantity(name="left free", unit="bytes", yours=-(2.0**30), ours=2.0**31), "+3.0 GiB"),
        (Quantity(name="GPUs", unit="count", yours=8.0, ours=8.0), "the same"),
        (Quantity(name="MFU", unit="fraction", yours=None, ours=0.4), ""),
        (Quantity(name="layout", unit="text", yours="dp8", ours="dp4"), ""),
    ],
)
def test_differences_by_hand(row: Quantity, shown: str) -> None:
    """Whole quantities differ in per cent, parts and bytes in their own unit: no ratio to nearly
    nothing.
    """
    assert difference(row) == shown


def test_parts_add_up_on_both_sides() -> None:
    """Time by part is the step, memory by part is the fullest rank's, the cost is of the tokens."""
    found = compare(yours(YOURS % 32), OURS, gpu_hour_price=2.0)
    rows = {row.name: row for row in found.rows}
    assert rows["layout"].yours == "dp2 tp4 zero1 mbs1 recompute-full"
    assert rows["layout"].ours == "dp8 zero1 mbs1 recompute-full"
    assert rows["GPUs"].yours == rows["GPUs"].ours == 8
    for side in ("yours", "ours"):
        for whole in ("step", "memory of the fullest rank"):
            total = sum(getattr(row, side) for row in parts_of(found, whole).values())
            assert total == pytest.approx(getattr(rows[whole], side), rel=0.01)
        tokens = 4096 * 64 / getattr(rows["step"], side) / 8
        assert getattr(rows["tokens/s per GPU"], side) == pytest.approx(tokens)
        cost = cost_per_trillion_tokens(tokens, 2.0)
        assert getattr(rows["cost of 1T tokens"], side) == pytest.approx(cost)
    assert found.assumed == ("the model llama-3.1-8b", "adamw")
    assert found.notes == ()


def test_how_sure_the_order_of_both_is() -> None:
    """As of a runner-up: in how many cases of 100 pairs of measured runs kept the order that is
    predicted of two layouts so far apart. Of the axes that are chosen these differ in tp alone.
    """
    layout = Layout(data_parallel=4, tensor_parallel=2, zero_stage=1,
                    stages=even_stages(32, 1, "full"))  # fmt: skip
    found = compare(yours(YOURS % 32), case_at(ASKED.question, layout))
    step = next(row for row in found.rows if row.name == "step")
    assert isinstance(step.yours, float)
    assert isinstance(step.ours, float)
    ratio = max(step.ours / step.yours, step.yours / step.ours)
    sure = in_of_100(faster_probability(ratio, 1))
    assert f" takes {ratio:.2f} x as long (really slower {sure})" in found.verdict
    assert in_of_100(0.57) == "in 57 of 100, a tie"
    assert in_of_100(0.996) == "in more than 99 of 100"


def test_without_a_price_there_is_no_cost() -> None:
    """What nobody said is left out."""
    assert all("cost" not in row.name for row in compare(yours(YOURS % 32), OURS).rows)


def test_the_same_question_is_the_plan_s() -> None:
    """A config of the same batch, engine and model is set beside the plan itself."""
    case = yours(YOURS % 32).case
    assert why_not_the_plan(ASKED.question, case) == ""
    assert same_question(ASKED.question, case) is ASKED.question


def test_another_batch_is_another_question() -> None:
    """A config of half the batch is set beside the best layout of half the batch."""
    case = yours(YOURS % 16).case
    assert list(differences(ASKED.question, case)) == ["your config has a batch of 32, not 64"]
    own = same_question(ASKED.question, case)
    assert own.training.global_batch_size == 32
    assert replace(own, training=ASKED.question.training) == ASKED.question


def test_every_fact_of_training_is_compared_in_words() -> None:
    """Each field of `Training` has words of its own, present and absent; no object is printed."""
    case = yours(YOURS % 32).case
    other = {
        "lora": (Lora(rank=8, targets="qv"), "LoRA of rank 8 on query and value "
                 "(frozen weights not quantised), not all weights trained"),
        "images": (Images(tokens=2048, frozen=True),
                   "2,048 tokens of images, the tower frozen, not text only"),
        "packed_mean_length": (512, "documents of 512 tokens in a sequence, not whole sequences"),
        "optimizer_states": (
            "bf16", "optimizer states in bf16, not those the engine usually keeps"
        ),
        "expert_imbalance": (1.5, "busiest experts at 1.5 times the mean, not 1.0"),
    }  # fmt: skip
    for name, (value, words) in other.items():
        theirs = replace(case, training=replace(case.training, **{name: value}))
        assert list(differences(ASKED.question, theirs)) == [f"your config has {words}"]
    assert set(STATED) == {field.name for field in fields(Training)}


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --seq-length 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer {}"
)


@pytest.mark.parametrize(
    ("flags", "hidden"), [("--overlap-grad-reduce --overlap-param-gather", 0.9), ("", 0.0)]
)
def test_a_config_is_priced_with_its_own_switches(flags: str, hidden: float) -> None:
    """What it leaves beside nothing is seen on its side, and not on ours."""
    question = replace(ASKED.question, engine=load_engine("megatron"))
    case = yours_of(question, "dgx-h100", read_config(SCRIPT.format(flags), "a.sh")).case
    assert (case.engine.overlap.data_reduce, case.engine.overlap.weight_gather) == (hidden, hidden)
    half = replace(case, training=replace(case.training, global_batch_size=32))
    assert same_question(question, half).engine == question.engine


def test_a_config_that_counts_documents_has_the_plan_s_length_and_its_own_sums() -> None:
    """8 replicas of 32 documents of 512 tokens, 2 micro-batches of at most 8,192."""
    script = "torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B\n"
    arguments = Arguments(model="qwen3-8b", gpus=8, cluster="dgx-h100", seq_len="8192",
                          global_batch=16, packed_mean_length="512",
                          engine="verl-fsdp")  # fmt: skip
    found = yours_of(ask(arguments).question, "dgx-h100", read_config(script, "a.sh"))
    assert (found.case.training.seq_len, found.case.training.global_batch_size) == (8192, 16)
    assert "documents of 512 tokens" in found.assumed
    assert not any("sequence" in said for said in found.assumed)
    assert found.case.engine.state.sums_before_reducing


def test_another_engine_is_another_question() -> None:
    """A config of another engine is set beside the best layout on its own engine."""
    text = "[training]\nlocal_batch_size = 1\nglobal_batch_size = 64\nseq_len = 4096\n"
    case = yours(f"{text}[compile]\nenable = true\n", "a.toml", "torchtitan").case
    assert same_question(ASKED.question, case).engine.name == "torchtitan-0.2"
    assert "your config runs on torchtitan-0.2, not nanotron" in why_not_the_plan(
        ASKED.question, case
    )


def test_a_micro_batch_that_is_not_searched_is_pinned_open() -> None:
    """A config with micro-batches of 18 sequences opens that size for its rival, no other."""
    text = (YOURS % 1).replace("micro_batch_size: 1", "micro_batch_size: 18")
    case = yours(text).case
    own = same_question(ASKED.question, case)
    assert own.pins.allows("micro_batch_size", 18)
    assert own.pins.allows("micro_batch_size", 64)
    assert not own.pins.allows("micro_batch_size", 22)


def test_absent_facts_are_named() -> None:
    """A DeepSpeed config says accumulation and nothing else: the rest is assumed, by name, and the
    micro-batch follows from the batch of the question: 64 / (8 replicas x 2) = 4.
    """
    stated = {"gradient_accumulation_steps": 2, "bf16": {"enabled": True}}
    text = json.dumps({**stated, "zero_optimization": {"stage": 1}})
    found = yours(text, "ds.json", "deepspeed")
    assert found.case.training == ASKED.question.training
    assert found.case.layout.micro_batch_size == 4
    assert found.assumed == (
        "the model llama-3.1-8b", "8 GPUs", "sequences of 4,096 tokens", "64 sequences a step",
        "micro-batches of 4 sequences", "adamw",
    )  # fmt: skip


def test_what_does_not_fit_is_said() -> None:
    """A config of 64 sequences per micro-batch lacks memory, and its step is called a wish, of
    which no measured runs say how sure it is.
    """
    text = YOURS.replace("recompute_layer: true", "recompute_layer: false")
    text = text.replace("dp: 2, tp: 4", "dp: 1, tp: 8")
    text = text.replace("micro_batch_size: 1", "micro_batch_size: 64") % 1
    found = compare(yours(text), OURS)
    assert any(note.startswith("your config is predicted not to fit") for note in found.notes)
    assert " x as long" in found.verdict
    assert "of 100" not in found.verdict


@pytest.mark.parametrize(
    ("usable", "fills", "bound", "fastest", "why"),
    [
        pytest.param(2, 1.1, 1.02, 1.3, "as your layout is outside the searched space", id="proof"),
        pytest.param(2, 0.9, 0.9, 1.3, "as yours fills more of a GPU than a plan may", id="filled"),
        pytest.param(2, 1.1, 1.0, 1.0, "as ours is the choice among near-equals", id="a tie"),
        pytest.param(2, 1.1, 0.9, 1.3, "as the search did not end with a proof", id="open"),
        pytest.param(0.95, 0.9, 0.9, 1.3, "but fits", id="lacks memory"),
    ],
)
def test_why_ours_is_the_slower_one(
    usable: float, fills: float, bound: float, fastest: float, why: str
) -> None:
    """Memory is times what yours needs, bound and fastest are times its step; ours, which
    recomputes, takes 1.08 of that. All that fit were said to be outside the space.
    """
    own = case_at(ASKED.question, replace(OURS.layout, stages=even_stages(32, 1)))
    prediction = predicted(own)
    needed, step_s = needed_bytes(prediction.memory), prediction.step_time_s
    memory = {"usable_memory_bytes": usable * needed, "plan_memory_bytes": fills * needed}
    question = replace(ASKED.question, cluster=ASKED.question.cluster.model_copy(update=memory))
    config = Yours(path="plan.yaml", case=case_at(question, own.layout), assumed=())
    said = Searched(bound_s=bound * step_s, fastest_s=fastest * step_s)
    verdict = compare(config, case_at(question, OURS.layout), searched=said).verdict
    assert verdict.startswith("ours takes 1.08 x as long")
    assert f", {why}" in verdict


def test_what_a_switch_of_the_engine_gains_is_not_the_layout_s() -> None:
    """Under one layout, gradients in 16 bits are reduced in half the time: no layout outside."""
    layout = Layout(data_parallel=2, tensor_parallel=4, zero_stage=1, micro_batch_size=4,
                    stages=even_stages(32, 1, "full"))  # fmt: skip
    ours = case_at(ASKED.question, layout)
    state = ours.engine.state.model_copy(update={"gradient_bytes": 2.0, "reduce_bytes": 2.0})
    own = replace(ours, engine=ours.engine.model_copy(update={"state": state}))
    step_s = predicted(ours).step_time_s
    assert predicted(own).step_time_s < step_s * (1 - 5e-4)
    said = Searched(bound_s=step_s, fastest_s=step_s)
    found = compare(Yours(path="a.json", case=own, assumed=()), ours, searched=said)
    assert "x as long, as yours is priced with its own switches" in found.verdict


def test_the_fastest_beside_a_tie_of_it_is_in_the_space() -> None:
    """The plan is a slower one of several that tie, and yours the fastest of all."""
    plan = plan_of(ASKED, solve(ASKED.question, 1))
    assert plan.prediction is not None
    step_s, slower = plan.prediction.step_time_s, predicted(OURS)
    choice = Choice(
        robust=False, candidates=2, fastest=plan.layout.full_label, fastest_step_time_s=step_s,
        slower_fraction=slower.step_time_s / step_s - 1, worst_loss_fraction=0.0, worst_where="",
        fastest_worst_loss_fraction=0.0, fastest_worst_where="", spares_bytes=0.0,
    )  # fmt: skip
    tied = {"layout": OURS.layout, "prediction": slower, "choice": choice}
    own = Yours(path="plan.yaml", case=case_at(ASKED.question, plan.layout), assumed=())
    found = compared(
        ASKED, plan.model_copy(update=tied), own, gpu_hour_price=None, time_limit_s=None
    )
    assert "as ours is the choice among near-equals" in found.verdict


def test_of_one_layout_under_two_settings_no_chance_is_said() -> None:
    """What a switch of the engine costs is not what pairs of layouts were measured for."""
    question = replace(ASKED.question, engine=load_engine("megatron"))
    script = SCRIPT.format("--recompute-granularity full --recompute-method uniform "
                           "--recompute-num-layers 1")  # fmt: skip
    found = yours_of(question, "dgx-h100", read_config(script, "a.sh"))
    both = compare(found, case_at(question, found.case.layout))
    assert both.notes == ()
    verdict = both.verdict
    assert verdict.startswith("yours takes 1.")
    assert "of 100" not in verdict


CONFIGS = Path(__file__).parents[2] / "data/framework_configs"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("config", "model", "gpus"),
    [
        ("torchtitan/llama3_70b.toml", "llama-3.1-70b", "64"),
        ("megatron/mixtral_8x7b.sh", "mixtral-8x7b", "16"),
        ("deepspeed/gpt2_zero2_gas3.json", "llama-3.1-8b", "8"),
        ("nanotron/tiny_llama.yaml", "llama-3.1-8b", "8"),
    ],
)
def test_every_framework_in_words(config: str, model: str, gpus: str) -> None:
    """What is printed of each framework's config has no field names and no absurd percentage; ours
    is never slower than a layout of yours that fits and that the pins allow.
    """
    job = ("plan", model, "--gpus", gpus, "--cluster", "dgx-h100", "--seq-len", "4096",
           "--global-batch", "64", "--top", "1", "--pp", "1")  # fmt: skip
    result = CliRunner().invoke(app, [*job, "--compare", str(CONFIGS / config)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split()).partition("beside the best layout")[2]
    assert text
    assert re.findall(r"\b[a-z]+_(?:s|bytes|tokens)\b", text.split("note:")[0]) == []
    assert all(abs(float(number)) < 1000 for number in re.findall(r"([+-][\d.]+)%", text))
    both = CliRunner().invoke(app, [*job, "--compare", str(CONFIGS / config), "--json"])
    rows = {row["name"]: row for row in json.loads(both.stdout)["comparison"]["rows"]}
    if rows["left free of a GPU"]["yours"] >= 0 and " pp" not in rows["layout"]["yours"]:
        assert rows["step"]["ours"] <= rows["step"]["yours"] * 1.0005


def test_a_file_of_several_runs_is_not_compared_by_its_first(tmp_path: Path) -> None:
    """Which run is meant is not ours to say: one line, as `diagnose` says it."""
    path = tmp_path / "config_registry.py"
    path.write_text(
        "import torchtitan\n"
        "def a() -> Trainer.Config:\n    config.parallelism.tensor_parallel_degree = 2\n"
        "def b() -> Trainer.Config:\n    config.parallelism.tensor_parallel_degree = 4\n"
    )
    done = CliRunner().invoke(
        app, ["plan", "llama-3.2-1b", "--gpus", "8", "--cluster", "dgx-h100", "--global-batch", "8",
              "--compare", str(path)],
    )  # fmt: skip
    assert "2 runs in one file" in done.output + str(done.exception)


SMALL = ("plan", "llama-3.2-1b", "--gpus", "8", "--cluster", "dgx-h100", "--engine", "megatron",
         "--seq-len", "4096", "--global-batch", "64")  # fmt: skip


def test_a_plan_of_another_day_is_set_beside_the_plan(tmp_path: Path) -> None:
    """A plan file says everything itself; its step is what its own answer printed."""
    saved = tmp_path / "tp2.yaml"
    before = CliRunner().invoke(app, [*SMALL, "--tp", "2", "-o", str(saved), "--json"])
    now = CliRunner().invoke(app, [*SMALL, "--compare", str(saved), "--json"])
    step = next(
        row for row in json.loads(now.stdout)["comparison"]["rows"] if row["name"] == "step"
    )
    assert step["yours"] == pytest.approx(json.loads(before.stdout)["prediction"]["step_time_s"])
    assert step["ours"] == pytest.approx(json.loads(now.stdout)["prediction"]["step_time_s"])
    assert step["ours"] < step["yours"]


def test_a_config_whose_question_has_no_answer_keeps_no_plan_back(tmp_path: Path) -> None:
    """Sequences of 4M tokens fit on 8 GPUs in no way: the plan that was asked for is printed all
    the same, and what could not be set beside it ends the command.
    """
    config = tmp_path / "nanotron.yaml"
    config.write_text(YOURS.replace("sequence_length: 4096", "sequence_length: 4194304") % 32)
    result = CliRunner().invoke(app, [*SMALL, "--compare", str(config)])
    assert "3  Maximise throughput" in result.stdout
    assert "no layout fits for its question" in result.stderr
