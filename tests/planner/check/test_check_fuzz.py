"""Whatever a file holds, `check` says one line about it: no traceback, a documented exit code."""

import json
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import cases
from random_plans import CLUSTER, model_named, plan_of
from sarif_schema import valid_log

from meshplan.costmodels.layout import Layout, Schedule, even_stages
from meshplan.costmodels.training import Optimizer, Precision, Training
from meshplan.planner.case.plan_file import write_plan
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths, exit_code
from meshplan.planner.check.output import MACHINE, as_sarif, as_table
from meshplan.planner.cli.check import tools

FOLDER = Path(__file__).parents[2] / "data" / "framework_configs"
SEEDS = sorted(path for path in FOLDER.rglob("*.*") if path.suffix != ".md")
GIVEN = Settings(
    cluster=CLUSTER, gpus=8, model="llama-3.2-1b", seq_len=2048, global_batch_size=64,
    micro_batch_size=1,
)  # fmt: skip
ODD = ("0", "-1", "eight", "null", "true", "[]", "{}", "1e9", "99999999999999999999", "1.5", "''",
       "auto", "\x01", "é", "*x", "${TP}", "2001-99-99", "3", "7", "1000000000")  # fmt: skip
PLAN = """meshplan: 1
model: {name: m, config: {model_type: llama}, sha256: x}
cluster: {name: dgx-h100, gpus: 8, sha256: y}
training: {seq_len: 2048, global_batch_size: 8}
engine: megatron
layout: {data_parallel: 8, stages: [{layers: 4}]}
"""
VERDICTS: Counter[str] = Counter()
EXAMPLES = cases(90, nightly=2000)
MANY = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _check(path: Path, given_facts: Settings = GIVEN) -> str:
    """Check one file, print every 50th in every format (SARIF more often); returns the verdict."""
    findings = check_paths([path], tools(), given_facts)
    finding = findings[0]  # a script that is cut in two may launch twice
    assert all(each.text.isprintable() for each in findings), findings
    assert all(each.line >= 1 for each in findings)
    assert exit_code(findings) in (0, 1, 2)
    VERDICTS[finding.verdict] += 1
    if sum(VERDICTS.values()) % 10 == 0:
        valid_log(as_sarif(findings))
    if sum(VERDICTS.values()) % 50 == 0:
        assert all(write(findings) for write in (*MACHINE.values(), as_table))
    return finding.verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all files of a run."""
    return tmp_path_factory.mktemp("fuzz")


@MANY
@given(
    data=st.binary(max_size=300), suffix=st.sampled_from([".yaml", ".json", ".toml", ".sh", ".py"])
)
def test_any_bytes(folder: Path, data: bytes, suffix: str) -> None:
    """Random bytes are unreadable, whatever their suffix."""
    path = folder / f"any{suffix}"
    path.write_bytes(data)
    assert _check(path) == "unreadable"


@MANY
@given(st.data())
def test_a_published_config_with_one_thing_wrong(folder: Path, data: st.DataObject) -> None:
    """A line lost, a value replaced, a cut or a swap in a real config: one line, no traceback."""
    seed = data.draw(st.sampled_from(SEEDS))
    lines = seed.read_text().splitlines()
    kind = data.draw(st.sampled_from(["value", "cut", "drop", "swap", "repeat"]))
    at = data.draw(st.integers(0, len(lines) - 1))
    if kind == "value":
        words = lines[at].split()
        if words:
            old = data.draw(st.sampled_from(words))
            lines[at] = lines[at].replace(old, data.draw(st.sampled_from(ODD)))
    elif kind == "cut":
        lines = [*lines[:at], lines[at][: data.draw(st.integers(0, len(lines[at])))]]
    elif kind == "drop":
        del lines[at]
    elif kind == "swap":
        other = data.draw(st.integers(0, len(lines) - 1))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines.insert(at, lines[at])
    path = folder / f"mutated{seed.suffix}"
    path.write_text("\n".join(lines))
    _check(path, data.draw(st.sampled_from([GIVEN, Settings(cluster=CLUSTER)])))


KEYS = {
    "nanotron": ["dp", "tp", "pp", "pp_engine", "tp_mode", "expert_parallel_size",
                 "context_parallel_size", "recompute_layer"],
    "torchtitan": ["data_parallel_replicate_degree", "data_parallel_shard_degree",
                   "tensor_parallel_degree", "pipeline_parallel_degree",
                   "pipeline_parallel_schedule", "context_parallel_degree",
                   "pipeline_parallel_layers_per_stage", "module_fqns_per_model_part",
                   "expert_parallel_degree", "fsdp_reshard_after_forward"],
}  # fmt: skip
VALUES = st.one_of(
    st.integers(-3, 20),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.sampled_from(
        ["1f1b", "afab", "1F1B", "Interleaved1F1B", "ZBVZeroBubble", "always", "never"]
    ),
    st.lists(st.lists(st.sampled_from(["layers.0", "layers.1", "x"]), max_size=3), max_size=3),
)


@MANY
@given(st.data())
def test_any_value_of_any_key(folder: Path, data: st.DataObject) -> None:
    """Any type under any parallelism key of a well-formed file: a verdict or a reason."""
    keys = KEYS["nanotron"] + KEYS["torchtitan"]
    section = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=6))
    document = {
        "parallelism": {"dp": 2, "tp": 2, "pp": 2, **section},
        "tokens": {"micro_batch_size": 1, "batch_accumulation_per_replica": 4},
        "zero_optimization": {"stage": data.draw(VALUES)},
    }
    if data.draw(st.booleans()):
        path = folder / "values.yaml"
        path.write_text("parallelism:\n" + "".join(
            f"  {key}: {json.dumps(value)}\n" for key, value in document["parallelism"].items()
        ) + "tokens: {micro_batch_size: 1, batch_accumulation_per_replica: 4}\n")  # fmt: skip
    else:
        path = folder / "values.json"
        path.write_text(json.dumps(document))
    _check(path)


@MANY
@given(st.data())
def test_any_flags(folder: Path, data: st.DataObject) -> None:
    """Megatron's flags in any order with any numbers: legal, illegal, too big, never broken."""
    names = ["tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
             "num-virtual-stages-per-pipeline-rank", "micro-batch-size", "global-batch-size",
             "num-layers-per-virtual-pipeline-stage", "recompute-num-layers",
             "swiglu --num-experts",
             "expert-model-parallel-size", "expert-tensor-parallel-size", "moe-router-topk",
             "decoder-first-pipeline-num-layers", "num-distributed-optimizer-instances",
             "num-layers", "hidden-size", "num-attention-heads", "num-query-groups",
             "kv-lora-rank", "mtp-num-layers", "vocab-size", "seq-length"]  # fmt: skip
    switches = ["swiglu", "use-distributed-optimizer", "sequence-parallel", "bf16", "fp16",
                "group-query-attention", "recompute-activations", "use-megatron-fsdp",
                "multi-latent-attention", "qk-layernorm", "recompute-granularity full",
                "recompute-method block", "account-for-embedding-in-pipeline-split",
                "fp8-format hybrid"]  # fmt: skip
    numbers = st.sampled_from([1, 1, 2, 2, 4, 8, 16, 3, 5, 12, 64, 2048, 0])
    chosen = data.draw(st.dictionaries(st.sampled_from(names), numbers, min_size=2))
    on = data.draw(st.lists(st.sampled_from(switches), max_size=6))
    base = {"num-layers": 16, "hidden-size": 2048, "num-attention-heads": 32, "vocab-size": 32000,
            "micro-batch-size": 1, "global-batch-size": 64, "seq-length": 2048}  # fmt: skip
    flags = {**base, **chosen} if data.draw(st.booleans()) else chosen
    words = [f"--{name} {value}" for name, value in flags.items()] + [f"--{word}" for word in on]
    path = folder / "flags.sh"
    start = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --micro-batch-size 1 "
    path.write_text(start + " ".join(words))
    _check(path, data.draw(st.sampled_from([GIVEN, Settings(cluster=CLUSTER)])))


@MANY
@given(st.data())
def test_any_damage_to_a_plan(folder: Path, data: st.DataObject) -> None:
    """A plan file with any part replaced, cut or repeated is unreadable or judged."""
    text = PLAN
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 20))
        text = (
            text[:at]
            + data.draw(st.sampled_from((*ODD, "", "\n", " ", ": ")))
            + text[at + length :]
        )
    path = folder / "plan.yaml"
    path.write_text(text)
    _check(path)


DEGREES = st.sampled_from([1, 1, 1, 2, 2, 3, 4, 8])
LAYOUT = {
    **dict.fromkeys(("data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_stages",
                     "context_parallel", "expert_parallel", "expert_tensor_parallel",
                     "micro_batch_size"), DEGREES),
    "zero_stage": st.integers(0, 3),
    "shard_group": st.sampled_from([0, 0, 1, 2, 3]),
    "schedule": st.sampled_from(get_args(Schedule)),
    **dict.fromkeys(("sequence_parallel", "optimizer_offload", "activation_offload"),
                    st.booleans()),
}  # fmt: skip


@MANY
@given(st.data())
def test_any_layout_in_a_plan(folder: Path, data: st.DataObject) -> None:
    """Any degrees, schedule, chunks, sharding and micro-batches under any engine: a verdict."""
    layout = {name: data.draw(values) for name, values in LAYOUT.items()}
    chunks = layout["pipeline_parallel"] * layout["virtual_stages"]
    name = data.draw(st.sampled_from(["llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite"]))
    mode = data.draw(st.sampled_from(["none", "selective", "full"]))
    stages = even_stages(model_named(name).num_layers, chunks, mode)
    plan = plan_of(
        name,
        Layout(stages=stages, **layout),
        Training(
            seq_len=data.draw(st.sampled_from([2048, 65536, 262144])),
            global_batch_size=layout["data_parallel"] * layout["micro_batch_size"]
            * data.draw(st.integers(1, 9)),
            precision=data.draw(st.sampled_from(get_args(Precision))),
            optimizer=data.draw(st.sampled_from(get_args(Optimizer))),
        ),
    )  # fmt: skip
    engine = data.draw(st.sampled_from(["native", "megatron", "torchtitan", "deepspeed"]))
    path = folder / "layout.yaml"
    write_plan(plan.model_copy(update={"engine": engine}), path)
    verdict = _check(path)
    assert verdict in ("fits", "does not fit", "illegal")


def test_the_cases_were_of_every_kind() -> None:
    """The cases above reached every verdict: they tested more than refusals."""
    assert sum(VERDICTS.values()) >= 5 * EXAMPLES
    for verdict in ("fits", "does not fit", "illegal", "unreadable", "incomplete"):
        assert VERDICTS[verdict] >= EXAMPLES // 50, VERDICTS
