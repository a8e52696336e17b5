"""Measured runs against the cost model: rows in, predictions and errors out. Run: pytest
tests/planner.
"""

import gc
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import cases
from rows import ROW
from typer.testing import CliRunner

from meshplan.planner.cli.main import app
from meshplan.planner.runs.accuracy import (
    Fitting,
    choice,
    fitting,
    memory_errors,
    spread,
    step_errors,
    summary,
)
from meshplan.planner.runs.clusters import cluster_of, node_network_bytes_per_s
from meshplan.planner.runs.engines import engine_name
from meshplan.planner.runs.rows import SkippedRow, row_of
from meshplan.planner.runs.runs import BUILT_IN, read_runs, run_of
from meshplan.planner.runs.validate import NUMBERS as PREDICTED
from meshplan.planner.runs.validate import (
    Predicted,
    Skipped,
    json_row,
    predict_chunk,
    predict_rows,
)

ROWS = list(read_runs(BUILT_IN))[::7]
NUMBERS = sorted({"layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "experts", "top_k",
                  "moe_ffn", "seq_len", "gpus", "gpus_per_node", "dp", "tp", "pp", "vpp", "cp",
                  "ep", "etp", "zero", "micro_batch", "global_batch", "step_time_s", "mem_gb",
                  "world_allgather_gbs", "node_allreduce_gbs"})  # fmt: skip
ODD = ("", "0", "-1", "1e9", "nan", "inf", "abc", "3.5", "7", "12", "0.5", "1e30")


@settings(max_examples=cases(100, nightly=400))
@given(data=st.data())
def test_no_row_is_too_odd(data: st.DataObject) -> None:
    """Published rows with up to three cells that make no sense, or another row's: each is predicted
    or skipped for a reason, never a crash.
    """
    row = dict(data.draw(st.sampled_from(ROWS)))
    for key in data.draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3)):
        others = st.sampled_from(ROWS).map(lambda other, key=key: other[key])
        row[key] = data.draw(st.sampled_from(ODD) | others)
    row["schedule"] = data.draw(st.sampled_from((row["schedule"], "interleaved", "zb-v", " ")))
    (found,) = predict_rows([row])
    assert isinstance(found, Predicted) or found.reason


@pytest.fixture(scope="module")
def published() -> list[Predicted | Skipped]:
    """Every sixteenth of the published runs."""
    return list(predict_rows(list(read_runs(BUILT_IN))[::16]))


def test_one_published_row_is_within_a_tenth():
    """A plain row of a tuned stack is predicted to 10 %."""
    (row,) = predict_rows([ROW])
    assert isinstance(row, Predicted)
    assert abs(row.step_error) < 0.10, f"{row.step_error:+.1%}"


def test_the_simple_model_by_hand() -> None:
    """6 x 8.03e9 weights x 128 x 8,192 tokens, by eight cards at 42 % of 989e12."""
    (found,) = predict_rows([ROW])
    assert isinstance(found, Predicted)
    by_hand = 6 * 8.03e9 * 128 * 8192 / (0.42 * 989e12 * 8)
    assert found.simple_step_time_s == pytest.approx(by_hand, rel=1e-3)


def test_memory_that_a_log_printed_in_bytes() -> None:
    """72,972,500,992 bytes are 67.96 GiB, whatever the cell (73.0, in 1e9 bytes) says."""
    note = "log prints peak_memory_usage 72972500992 bytes, memory_allocated 34466545664 bytes"
    measured = run_of(ROW | {"mem_gb": "73.0", "note": note}).measured
    assert measured.allocated_gib == pytest.approx(67.96, abs=0.005)
    assert measured.reserved_gib is None


def test_memory_reserved_beside_what_is_allocated() -> None:
    """SimuMax's notes state both peaks."""
    note = "mem = max over ranks of torch max_allocated in GiB (max reserved 47.05 GiB)"
    measured = run_of(ROW | {"mem_gb": "44.7", "note": note}).measured
    assert (measured.allocated_gib, measured.reserved_gib) == (44.7, 47.05)


@pytest.mark.parametrize(
    ("suite", "worst"),
    [
        pytest.param("simumax", 0.005, id="SimuMax: Megatron-LM with Transformer Engine on B200"),
        pytest.param("dgxc", 0.005, id="NeMo on H100, the bytes of a logit measured by these two"),
    ],
)
def test_published_peaks_of_allocated_memory(suite: str, worst: float) -> None:
    """Every tensor is counted (errors printed)."""
    rows = [row for row in read_runs(BUILT_IN) if row["suite"] == suite and row["mem_gb"]]
    errors = {
        row.run.id: row.allocated_gib / row.run.measured.allocated_gib - 1
        for row in predict_rows(rows)
        if isinstance(row, Predicted) and row.run.measured.allocated_gib
    }
    print({name: f"{error:+.2%}" for name, error in errors.items()})
    assert max(map(abs, errors.values())) < worst


def test_a_layout_from_another_run_may_have_recomputed() -> None:
    """GPT 5B of four sequences keeps more than 80 GB without FlashAttention; the config that says
    so need not be that of the run.
    """
    (row,) = (row for row in read_runs(BUILT_IN) if row["id"] == "nemo-launcher-gpt3-5b-a100-32")
    said, unsure = predict_rows([row | {"other_config": ""}, row])
    assert isinstance(said, Predicted)
    assert isinstance(unsure, Predicted)
    assert ("recompute" in said.run.assumed, said.fits) == (False, False)
    assert ("recompute" in unsure.run.assumed, unsure.fits) == (True, True)
    assert unsure.time == said.time


@pytest.mark.parametrize(
    ("schedule", "chunks", "played"),
    [
        ("1f1b", "1", "1f1b"),
        ("1f1b", "2", "interleaved_1f1b"),
        ("", "4", "interleaved_1f1b"),
        ("zb-v", "", "zb_v"),
        ("zb", "2", "zb_v"),
        ("zb", "", "zb_h1"),
        ("zb-v", "4", "zb-v has 2 virtual stages, not 4"),
        ("gpipe", "2", "gpipe has 1 virtual stages, not 2"),
        ("interleaved", "30", "60 stages for 32 layers"),
    ],
)
def test_schedules_and_their_chunks(schedule: str, chunks: str, played: str) -> None:
    """What cannot be played as stated is played as what it must have been, or skipped."""
    row = ROW | {"pp": "2", "dp": "4", "schedule": schedule, "vpp": chunks}
    (found,) = predict_rows([row])
    if isinstance(found, Skipped):
        assert found.reason == played
    else:
        assert found.run.layout.schedule == played


def test_chunks_of_an_interleaved_run_that_does_not_say() -> None:
    """62 layers and both ends over 32 ranks: two chunks of one each; 1F1B has one."""
    row = ROW | {
        "suite": "zb", "framework": "megatron-lm (zero-bubble fork)", "layers": "62", "gpus": "32",
        "dp": "1", "pp": "32", "schedule": "interleaved", "zero": "0",
    }  # fmt: skip
    layout = run_of(row).layout
    assert "vpp" in run_of(row).assumed
    assert "vpp" not in run_of(row | {"layers": "64", "vpp": "2"}).assumed
    assert (layout.virtual_stages, [stage.layers for stage in layout.stages]) == (
        2, [0, *[1] * 62, 0],
    )  # fmt: skip
    assert run_of(row | {"schedule": "1f1b"}).layout.virtual_stages == 1
    one_rank = run_of(row | {"pp": "1", "dp": "32"}).layout
    assert [stage.layers for stage in one_rank.stages] == [62]
    assert run_of(row | {"layers": "64", "vpp": "2"}).layout.virtual_stages == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"layers": ""}, "layers", id="a missing size is named"),
        pytest.param({"gpu": "abacus"}, "abacus", id="an unknown GPU is named"),
        pytest.param({"dp": "3"}, "is not 8 GPUs", id="3 x 1 x 1 x 1 is not 8"),
        pytest.param({"precision": "int4"}, "int4", id="an unpriced precision is named"),
        pytest.param(
            {"schedule": "spiral", "pp": "2", "dp": "4"}, "spiral", id="an unknown schedule"
        ),
        pytest.param({"seq_len": "long"}, "long", id="a word for a number"),
        pytest.param({"layers": "20000"}, "more than 10000", id="20,000 layers"),
        pytest.param(
            {"framework": "nanotron", "pp": "8", "dp": "1", "vpp": "5", "schedule": "interleaved"},
            "40 stages for 32 layers",
            id="32 layers and five other blocks are 37 to cut",
        ),
        pytest.param(
            {"pp": "4", "dp": "2", "vpp": "3", "schedule": "interleaved", "global_batch": "10"},
            "5 micro-batches are no multiple of 4",
            id="10 / 2 in groups of 4",
        ),
        pytest.param({"global_batch": "4"}, "less than", id="4 sequences cannot feed 8 replicas"),
    ],
)
def test_a_row_that_cannot_be_priced_says_why(change, reason):
    """A skipped row carries the reason, with the value that caused it."""
    (row,) = predict_rows([ROW | change])
    assert isinstance(row, Skipped)
    assert reason in row.reason


@settings(max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(sorted(ROW)),
        st.one_of(st.text(max_size=8), st.integers(-5, 10**6).map(str), st.just("")),
        max_size=4,
    )
)
def test_no_row_crashes(change):
    """Whatever a cell holds, a row is predicted or skipped with a reason."""
    (row,) = predict_rows([ROW | change])
    assert row.reason if isinstance(row, Skipped) else math.isfinite(row.time.step_time_s)


@pytest.mark.parametrize(
    ("framework", "engine"),
    [
        ("nanotron v0.5 (bench branch)", "nanotron"),
        ("nemo 25.02 (dgxc v25.04)", "nemo"),
        ("megatron-bridge (NeMo 26.06)", "megatron-bridge"),
        ("llm-foundry (composer FSDP), torch 1.13.1", "llm-foundry"),
        ("torchtitan + torchao", "torchtitan"),
        ("BioNeMo recipes (PyTorch FSDP2 + Transformer Engine)", "automodel"),
        ("llama3_native_te", "generic"),
        ("a framework of next year", "generic"),
    ],
)
def test_frameworks_find_their_engine(framework, engine):
    """A framework is priced as the engine that runs it, an unknown one as the generic engine."""
    assert engine_name(framework) == engine


def test_published_runs_stay_predicted(published):
    """The published runs' median step error and out-of-memory answers hold (printed)."""
    rows = [row for row in published if isinstance(row, Predicted)]
    report = summary(rows, len(published) - len(rows))
    print(json.dumps(report, indent=1))
    graded = [row for row in rows if row.run.grade in ("A", "B")]
    assert spread(step_errors(graded)).median < 0.12
    assert spread(step_errors(graded)).median < spread(step_errors(graded, simple=True)).median
    assert fitting(rows).balanced_accuracy > 0.95
    assert spread(memory_errors(graded, "reserved")).median < 0.08


def test_choice_of_a_perfect_model_costs_nothing(published):
    """Ranking by the measured times themselves has regret 0 and rank correlation 1."""
    rows = [row for row in published if isinstance(row, Predicted)]
    found = choice(rows)
    assert found is not None
    assert 0 <= found.median_regret <= found.rules_mean_regret + 1
    assert -1 <= found.spearman <= 1


def test_balanced_accuracy_by_hand():
    """(1 - 1/4 + 1 - 2/10) / 2 = 0.775."""
    assert Fitting(4, 10, missed=1, careful=2).balanced_accuracy == pytest.approx(0.775)


@pytest.mark.parametrize(
    ("text", "gb_per_s"),
    [
        pytest.param("NVLink3; 4x100Gb RoCE per node", 50, id="4 x 100 Gb / 8 = 50 GB/s"),
        pytest.param("4 * 100Gb RoCE", 50, id="the same with a star"),
        pytest.param("1600 Gbps RoCE node-to-node", 200, id="1600 Gb / 8, the whole node"),
        pytest.param("400 Gb/s RDMA NIC per GPU", 400, id="8 GPUs x 400 Gb / 8"),
        pytest.param("NVLink4 + 8x50GB/s IB", 400, id="8 x 50 GB/s, bytes"),
        pytest.param("NVLink 450GB/s per direction", None, id="NVLink is no network"),
        pytest.param("", None, id="not stated"),
    ],
)
def test_network_of_a_row(text, gb_per_s):
    """The rate of a node's network cards, out of the words that people write."""
    stated = node_network_bytes_per_s(text, 8)
    assert stated == (None if gb_per_s is None else gb_per_s * 1e9)


def test_a_stated_network_replaces_the_usual_one():
    """Cards of 100 Gb where 400 Gb are usual: a quarter of the bandwidth between nodes."""
    usual = cluster_of(row_of(ROW)).network.bus_bandwidth.all_gather
    stated = row_of(ROW | {"interconnect": "8x100Gb/s RoCE"})
    slower = cluster_of(stated).network.bus_bandwidth.all_gather
    assert slower == pytest.approx(usual / 4, rel=0.1)


def test_a_note_names_the_shard_group():
    """Hybrid sharding is read from "shard_group=N", and a group of all ranks is none."""
    two_nodes = ROW | {"gpus": "16", "dp": "16"}
    assert run_of(two_nodes | {"note": "shard_group=8"}).layout.shard_group == 8
    assert run_of(ROW | {"note": "shard_group=8"}).layout.shard_group == 0


def test_json_is_one_document_of_the_stated_shape(tmp_path):
    """`--json` writes rows with the stated columns, intervals among them, and a summary."""
    path = tmp_path / "runs.csv"
    path.write_text(",".join(ROW) + "\n" + ",".join(ROW.values()) + "\n")
    result = CliRunner().invoke(app, ["validate", str(path), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert set(document) == {"rows", "summary"}
    (row,) = document["rows"]
    assert set(row) == {
        "id", "predicted_step_time_s", "predicted_step_time_low_s", "predicted_step_time_high_s",
        "predicted_allocated_gib", "predicted_reserved_gib", "predicted_reserved_low_gib",
        "predicted_reserved_high_gib", "fits", "skipped",
    }  # fmt: skip
    for what, unit in (("step_time", "s"), ("reserved", "gib")):
        low, high = (row[f"predicted_{what}_{end}_{unit}"] for end in ("low", "high"))
        assert low < row[f"predicted_{what}_{unit}"] * 1.2
        assert low < high


def test_the_share_inside_the_range_is_counted(tmp_path):
    """A run that took what is predicted is inside, one that took a hundred times as long is not:
    half of the two. One of grade C is not counted.
    """
    predicted = next(iter(predict_rows([ROW])))
    seconds = predicted.time.step_time_s
    rows = [ROW | {"id": str(x), "step_time_s": str(seconds * x)} for x in (1, 100)]
    odd = rows[1] | {"id": "odd", "grade": "C"}
    found = summary(list(predict_rows([*rows, odd])), skipped=0)["inside_8_of_10"]
    assert found == {"step_time": 0.5, "reserved": None}


def test_skipped_rows_are_named_errors():
    """A row's refusal is a ValueError of its own, so that nothing else is caught with it."""
    with pytest.raises(SkippedRow):
        run_of(ROW | {"hidden": "0"})


@pytest.mark.parametrize("on", [True, False])
def test_a_chunk_leaves_the_search_for_garbage_as_it_was(on: bool) -> None:
    """Also where a row's price fails."""
    was_on = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        assert [each.id for each in predict_chunk([{"id": "a"}]) if isinstance(each, Skipped)]
        with pytest.raises(TypeError):
            predict_chunk([None])  # type: ignore[list-item]
        assert gc.isenabled() is on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_a_row_that_was_not_priced_has_no_numbers() -> None:
    """In JSON its keys are those of a priced one."""
    skipped = json_row(Skipped("a1", "no model"))
    assert skipped == {"id": "a1", "skipped": "no model"} | dict.fromkeys(PREDICTED)
