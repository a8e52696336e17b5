"""Columns of a row: believed before its words, typed once, and what they say was trained."""

import csv
import re

import pytest
from rows import ROW, engine_of

from meshplan.costmodels.training import Images, Lora
from meshplan.hardware_profiles.tunings import Tuning, load_fit
from meshplan.planner.runs.notes import FACTS, facts_in_words
from meshplan.planner.runs.rows import SkippedRow, row_of
from meshplan.planner.runs.runs import BUILT_IN, read_runs, run_of
from meshplan.planner.runs.validate import Predicted, predict_rows, step_model


def test_columns_are_believed_before_words() -> None:
    """A file with the columns is read by them: an empty one is not filled from the note."""
    note = {"framework": "torchtitan", "note": "FSDP2 eager"}
    assert row_of(ROW | note).facts.compiled is False
    assert row_of(ROW | note | {"compiled": ""}).facts.compiled is None
    assert row_of(ROW | note | {"compiled": "1"}).facts.compiled is True


@pytest.mark.parametrize("word", ["exploration of layouts", "colorado"])
def test_lora_is_a_word_of_its_own(word: str) -> None:
    """Other words that hold the four letters train all weights."""
    assert not run_of(ROW | {"note": word}).training.lora
    assert run_of(ROW | {"note": "LoRA (rank 16)"}).training.lora


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"bf16_layers": "1 2"}, [0, 30, 31]),
        ({"note": "FP8, first 1 and last 2 layers in bf16"}, [0, 30, 31]),
        ({"note": "FP8"}, []),
    ],
)
def test_layers_that_stay_in_16_bits(said: dict[str, str], kept: list[int]) -> None:
    """A row says how many layers of Llama's 32 its recipe keeps; they take longer."""
    run, plain = run_of(ROW | {"precision": "fp8"} | said), run_of(ROW | {"precision": "fp8"})
    found = [i for i, kind in enumerate(run.model.pattern) if run.model.kinds[kind].in_16_bit]
    assert found == kept
    tuning = load_fit("megatron-bridge", "h100-sxm").tuning
    times = [step_model(each, tuning).time().step_time_s for each in (plain, run)]
    assert (times[0] < times[1]) == bool(kept)


@pytest.mark.parametrize("said", ["1", "20 20", "one two"])
def test_impossible_16_bit_layers_are_skipped(said: str) -> None:
    """Two numbers that the model's layers hold, or the row is skipped with the rule."""
    with pytest.raises(SkippedRow, match=r"bf16_layers is .* at most 32 layers"):
        run_of(ROW | {"bf16_layers": said})


def test_published_columns_are_those_of_the_words() -> None:
    """What a note says stands in the shipped columns, unless a person has corrected it there."""
    with BUILT_IN.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() >= FACTS.keys()
    known = [(row["id"], facts_in_words(row)) for row in rows]
    cells = {row["id"]: row for row in rows}
    missing = [(name, key) for name, facts in known for key in facts if not cells[name][key]]
    assert missing == []


@pytest.mark.parametrize(
    ("said", "engine"),
    [
        pytest.param({"note": "job 14097149; gas=8"}, "nanotron-2024", id="ran before the fix"),
        pytest.param({"note": "job 14097150; gas=8"}, "nanotron", id="the first job after it"),
        pytest.param({"note": "gas=8; pp_fix=0"}, "nanotron-2024", id="stalled, no number"),
        pytest.param(
            {"note": "job 13436266", "suite": "mine"}, "nanotron", id="another cluster's numbers"
        ),
    ],
)
def test_a_job_number_says_which_nanotron(said: dict[str, str], engine: str) -> None:
    """Jobs of the Playbook before its first fixed one ran nanotron before the fix, those too that
    ran out of memory before they could stall.
    """
    run = run_of(ROW | {"framework": "nanotron v0.5 (bench branch)", "suite": "playbook"} | said)
    assert run.engine.name == engine


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({"tp": "2.5"}, "tp is 2.5; it takes a whole number from 1"),
        ({"zero": "-1"}, "zero is -1; it takes a number from 0"),
        ({"sp": "yes"}, "sp is 'yes'; it takes 1, 0 or nothing"),
        ({"seq_len": ""}, "seq_len is not stated"),
        ({"step_time_s": "soon"}, "step_time_s is 'soon', not a number"),
    ],
)
def test_cells_are_typed_once(cell: dict[str, str], reason: str) -> None:
    """A cell that makes no sense skips the row with its value and the rule."""
    with pytest.raises(SkippedRow, match=re.escape(reason)):
        row_of(ROW | cell)


@pytest.mark.parametrize(
    ("framework", "said", "lora"),
    [
        pytest.param("nemo", "lora", Lora(rank=16, targets="qkv"), id="as NeMo's recipes do"),
        pytest.param("nemo-automodel", "lora", Lora(rank=16), id="as AutoModel's do"),
        pytest.param("nemo", "lora 8", Lora(rank=8, targets="qkv"), id="rank stated"),
        pytest.param(
            "deepspeed", "lora 64 attention nf4",
            Lora(rank=64, targets="attention", base_precision="nf4"), id="all but dropout stated",
        ),
        pytest.param(
            "deepspeed", "lora 8 qv bf16 0.1", Lora(rank=8, targets="qv", dropout=0.1),
            id="all stated",
        ),
    ],
)  # fmt: skip
def test_a_row_says_what_was_trained(framework: str, said: str, lora: Lora) -> None:
    """Rank, targets and the base's precision, as `plan` takes them; documents packed in it."""
    row = ROW | {"framework": framework, "adapters": said, "packed_mean_length": "256"}
    training = run_of(row).training
    assert training.lora == lora
    assert training.packed_mean_length == 256


@pytest.mark.parametrize("said", ["lora x", "lora 16 mlp", "lora 16 qkv int3", "lora 8 qv bf16 2"])
def test_adapters_that_make_no_sense_skip_the_row(said: str) -> None:
    """With the cell, and what it takes."""
    with pytest.raises(SkippedRow, match="lora 16 attention nf4"):
        run_of(ROW | {"adapters": said})


@pytest.mark.parametrize(
    ("said", "gib"),
    [
        pytest.param("1", 26, id="checkpoints on the host: 52e9 x 16 / 64 bytes and what works"),
        pytest.param("", 73, id="on the device 64 x 48 x 1024 x 8192 x 2 bytes more, 48 GiB"),
    ],
)
def test_checkpoints_that_waited_on_the_host(said: str, gib: float) -> None:
    """BigScience's 52B on V100s of 32 GiB, 48 sequences a micro-batch: its script keeps checkpoints
    in the host's memory and notes some 30 GB a GPU (experiments/gpt2-meg-ds-zero).
    """
    published = {row["id"]: row for row in read_runs(BUILT_IN)}
    row = published["bs-v100-371-52b-64g-tp4pp1dp16"] | {"activation_offload": said}
    found = next(predict_rows([row]))
    assert isinstance(found, Predicted)
    assert found.allocated_gib == pytest.approx(gib, abs=1.5)
    assert found.fits == bool(said)


def test_no_more_than_all_waits_on_the_host() -> None:
    """A share above 1 skips the row with the rule."""
    with pytest.raises(SkippedRow, match="activation_offload is 2; it takes a number from 0 to 1"):
        run_of(ROW | {"activation_offload": "2"})


SEEING = {"config": "qwen3.5-27b", "framework": "megatron-bridge (NeMo 26.08)"}


@pytest.mark.parametrize(
    ("said", "images"),
    [
        ("", None),
        ("64", Images(tokens=64, number=1)),
        ("64 frozen", Images(tokens=64, number=1, frozen=True)),
    ],
)
def test_a_row_says_what_its_image_gave(said: str, images: Images | None) -> None:
    """Images of a row are those of `plan --image-tokens`: one image's tokens of each sequence."""
    run = run_of(ROW | SEEING | {"images": said})
    assert run.training.images == images


def test_towers_of_rows_take_their_time() -> None:
    """No tower, a frozen one and a trained one: each longer than the one before."""
    tuning = load_fit("megatron-bridge", "h100-sxm").tuning
    rows = (ROW | SEEING | {"images": said} for said in ("", "64 frozen", "64"))
    times = [step_model(run_of(row), tuning).time().step_time_s for row in rows]
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (SEEING | {"images": "0"}, "images is '0'; it takes at most"),
        (SEEING | {"images": "64 thawed"}, "images is '64 thawed'"),
        (SEEING | {"images": "99999999"}, "images is '99999999'"),
        ({"images": "64"}, "no tower of a bare shape"),
        (SEEING | {"images": "64", "framework": "MLPerf"}, "no tower of .* under mlperf"),
    ],
)
def test_images_that_make_no_sense_skip_the_row(said: dict[str, str], reason: str) -> None:
    """Tokens that a sequence holds, of a tower that the model has and the engine places."""
    with pytest.raises(SkippedRow, match=reason):
        run_of(ROW | said)


def test_kernels_that_are_not_fused() -> None:
    """DeepSeek-V2-Lite on 8 ranks of experts: 2 products of 8 experts a rank are 16 kernels instead
    of 2, routing 26 instead of 10; the rotation's operators are no kernels of a module.
    """
    lite = ROW | {"framework": "Megatron-LM", "config": "deepseek-v2-lite", "ep": "8", "dp": "8"}
    launches = []
    for words in ("", "no_grouping", "no_rope", "no_routing no_grouping"):
        run = run_of(lite | {"fused_kernels": words})
        rank = step_model(run, Tuning())
        kind = next(i for i, each in enumerate(run.model.kinds) if each.experts)
        launches.append(rank.pricer.launches(rank.operations(kind)))
    assert [some - launches[0] for some in launches] == [0, 14, 0, 30]


def test_states_that_are_kept_in_16_bits() -> None:
    """GPT-OSS 120B on 8 B200, weights, gradients and moments in bf16: 8 and not 16 bytes for each
    of 116.8e9 / 8 parameters, 109 GiB less, and 2 less for each of 2 layers' 3.2e9 whole gradients,
    12 GiB; what the engine cannot keep so skips the row.
    """
    published = {row["id"]: row for row in read_runs(BUILT_IN.with_name("elsewhere.csv"))}
    row = published["lambdab200-oss120-full-1"]
    half, whole = (
        next(predict_rows([row | {"optimizer_states": word}])) for word in ("bf16", "fp32")
    )
    assert isinstance(half, Predicted)
    assert isinstance(whole, Predicted)
    assert whole.allocated_gib - half.allocated_gib == pytest.approx(109 + 12, rel=0.02)
    assert half.reserved_gib == pytest.approx(float(row["mem_gb"]), rel=0.06)
    with pytest.raises(SkippedRow, match="known: fp32"):
        run_of(ROW | {"optimizer_states": "bf16"})


@pytest.mark.parametrize(
    ("said", "casts"),
    [
        ({"framework": "torchtitan"}, "fused"),
        ({"framework": "torchtitan", "compiled": "0"}, "none"),
        ({"framework": "NeMo AutoModel (FSDP2)"}, "fused"),
        ({"framework": "NeMo AutoModel (FSDP2)", "compiled": "0"}, "fused"),
        ({"framework": "HF transformers + PyTorch FSDP1"}, "none"),
        ({"framework": "HF trl", "fused_kernels": "cast_adapters"}, "inputs"),
    ],
)
def test_what_scales_an_adapters_output(said: dict[str, str], casts: str) -> None:
    """A compiler, or nothing where the narrow output is scaled, unless nothing is compiled."""
    assert engine_of({"adapters": "lora 8 qv bf16"} | said).kernels.adapter_casts == casts


def test_adapters_are_units_unless_the_row_says_otherwise() -> None:
    """Of FSDP1 alone; modules that nothing compiles are issued in 13.5 us of 59.3."""
    row = {"framework": "PyTorch FSDP1", "adapters": "lora 8 qv bf16", "compiled": "0"}
    units, whole = engine_of(row), engine_of(row | {"fused_kernels": "norm whole_adapters"})
    assert (units.state.adapter_unit_s, whole.state.adapter_unit_s) == (3.3e-4, 0)
    assert engine_of(row | {"framework": "torchtitan"}).state.adapter_unit_s == 0
    assert not units.state.keeps_experts_whole
    assert engine_of(row | {"fused_kernels": "whole_experts"}).state.keeps_experts_whole
    shares = [
        engine_of({"framework": name, "compiled": compiled}).kernels.launch_share
        for name in ("torchtitan", "DeepSpeed", "nemo-automodel", "megatron-lm")
        for compiled in ("0", "1")
    ]
    assert shares == [0.227, 1, 0.227, 0.227, 1, 1, 1, 1]


@pytest.mark.parametrize(("ep", "splits"), [("1", 2), ("2", 1)])
def test_torchtitan_splits_experts_that_are_not_spread(ep: str, splits: int) -> None:
    """Over its ranks of tensor parallelism, where a row does not say."""
    said = {
        "framework": "torchtitan", "gpus": "8", "dp": "4", "tp": "2", "pp": "1", "experts": "16",
        "top_k": "2", "moe_ffn": "1024", "ep": ep,
    }  # fmt: skip
    assert run_of(ROW | said).layout.expert_tensor_parallel == splits
