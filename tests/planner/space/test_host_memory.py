"""Optimizer and activations on the host: who may, what the search does with it, what is said."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from judged_questions import with_memory
from own_layouts import layout_bytes
from typer.testing import CliRunner

from meshplan.costmodels.layout import InvalidLayout, Layout, Schedule, Stage, even_stages
from meshplan.costmodels.prices.prices import host_may_take
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.answer.answer import solve
from meshplan.planner.case.host_memory import HostUse, check_host
from meshplan.planner.case.plan_file import read_plan
from meshplan.planner.cli.main import app
from meshplan.planner.report.fit import misfit_lines
from meshplan.planner.search.footprint import Fewest, explain, fewest
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows.least_of_kinds import rows_of_kinds_may_fit
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.engine_rules import check_engine
from meshplan.planner.space.legal_layouts import Space, enumerate_space
from meshplan.planner.space.pins import PinError, parse_pins

Questions = Callable[..., Question]
GIB = 2**30
BOTH = {"optimizer_offload": "off,on", "activation_offload": "off,on"}
PLAN = (
    "plan", "llama-3.1-8b", "--gpus", "1", "--cluster", "dgx-h100", "--seq-len", "4096",
    "--global-batch", "8", "--engine", "deepspeed",
)  # fmt: skip


def asked_of(question: Questions, engine: str, pins: dict[str, str]) -> Question:
    return replace(question((0, 0, 0, 0), 4, 16), engine=load_engine(engine), pins=parse_pins(pins))


def space_of(q: Question) -> Space:
    return enumerate_space(q.model, q.training, q.gpus, q.engine, q.pins, q.cluster.gpus_per_node)


@pytest.mark.parametrize("engine", ["generic", "megatron", "deepspeed", "native"])
def test_everything_stays_on_the_device_unless_asked(engine: str, question: Questions) -> None:
    """No row keeps anything on the host without a pin."""
    layouts = space_of(asked_of(question, engine, {})).layouts
    assert not layouts.optimizer_offload.any()
    assert not layouts.activation_offload.any()


def test_a_pin_opens_and_the_engine_decides(question: Questions) -> None:
    """Megatron: activations without a pipeline or recompute; DeepSpeed: the optimizer; native: not
    at all.
    """
    space = space_of(asked_of(question, "megatron", BOTH))
    rows = space.layouts.activation_offload.nonzero()[0]
    assert len(rows)
    assert (space.layouts.pipeline_parallel[rows] == 1).all()
    assert {v.modes for row in rows for v in space.variants(int(row))} == {(0,)}
    deepspeed = space_of(asked_of(question, "deepspeed", BOTH)).layouts
    assert deepspeed.optimizer_offload.any()
    assert not deepspeed.activation_offload.any()
    native = space_of(asked_of(question, "native", BOTH))
    assert not native.layouts.optimizer_offload.any()
    assert native.dropped["the engine does not keep this on the host"] > 0


REFUSED = [
    pytest.param("native", {"optimizer_offload": True}, "keeps the optimizer", id="native"),
    pytest.param("deepspeed", {"activation_offload": True}, "keeps activations", id="deepspeed"),
    pytest.param(
        "megatron", {"activation_offload": True, "stages": even_stages(4, 1, "full")},
        "without pipeline_parallel and recompute", id="megatron: recompute",
    ),
    pytest.param(
        "megatron", {"optimizer_offload": True, "data_parallel": 4}, "zero_stage 1", id="zero 0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "traits", "words"), REFUSED)
def test_refused_by_the_engine(engine, traits, words: str, question: Questions) -> None:
    """A layout that the engine cannot run is named as such."""
    asked = asked_of(question, engine, {})
    layout = Layout(**{"stages": even_stages(4, 1), **traits})
    with pytest.raises(InvalidLayout, match=words):
        check_engine(layout, asked.model, asked.training, asked.engine)


def test_a_host_that_is_too_small_holds_nothing(question: Questions) -> None:
    """With a few kB of memory in a node no layout keeps its optimizer there, and none is found."""
    asked = asked_of(question, "generic", {"optimizer_offload": "on"})
    small = asked.cluster.model_copy(update={"host_memory_bytes": 1e4})
    asked = replace(asked, cluster=small)
    with pytest.raises(NoLayoutFits):
        solve(asked, 1)
    assert explain(asked).relaxations.keys() == {"optimizer_offload on"}
    setting = Setting(asked.model, asked.training, small, asked.engine, Tuning())
    layout = Layout(data_parallel=4, zero_stage=1, stages=even_stages(4, 1), optimizer_offload=True)
    with pytest.raises(InvalidLayout, match=r"more than its share of"):
        check_host(setting, layout)


@pytest.mark.parametrize(
    ("part", "begins"), [(1.0, "the GPUs alone hold"), (0.5, "the nearest miss")]
)
def test_a_refusal_says_what_the_host_lacks(part: float, begins: str, question: Questions) -> None:
    """Whether the GPUs would hold a layout, or lack memory too. The rule that excluded most layouts
    was named as the reason.
    """
    asked = asked_of(question, "generic", {"optimizer_offload": "on"})
    held = fewest(asked, first=4).fit
    assert held is not None
    asked = with_memory(asked, part * layout_bytes(asked, held.layout))
    small = asked.cluster.model_copy(update={"host_memory_bytes": 1e4})
    asked = replace(asked, cluster=small)
    first, *_ = misfit_lines(asked, explain(asked))
    assert first.startswith(begins)
    assert "MiB, more than its share of 0.00238 MiB" in first


@pytest.mark.parametrize("kinds", [(0, 0, 0, 0), (0, 1, 0, 1)], ids=["priced", "checked"])
def test_a_host_holds_what_its_fullest_rank_sends(
    kinds: tuple[int, ...], question: Questions
) -> None:
    """A node that takes what the mean rank sends and not what the one with the embedding does holds
    no step: neither a plan nor a number of GPUs says otherwise, and that number is left unsettled.
    """
    pins = {"optimizer_offload": "on", "pipeline_parallel": "4"}
    asked = replace(question(kinds, 4, 16), engine=load_engine("generic"), pins=parse_pins(pins))
    found = fewest(asked, first=4).fit
    assert found is not None
    hosts = [float(rank.host) for rank in StepModel(asked.setting, found.layout).memory()]
    between = (sum(hosts) / 4 + max(hosts)) / 2 * min(4, asked.cluster.gpus_per_node)
    tight = asked.cluster.model_copy(update={"host_memory_bytes": between})
    asked = replace(asked, cluster=tight)
    with pytest.raises(NoLayoutFits):
        solve(asked, 1)
    assert fewest(asked, first=4) == Fewest(None, unsettled=(4,))


def test_what_no_host_takes_is_left_out_where_layers_differ(question: Questions) -> None:
    """The device holds the larger fraction without recomputing, and no host takes it. The least
    that kinds of layers need said nothing of the host, so that the best plan stayed FEASIBLE.
    """
    pins = {"optimizer_offload": "0.3,0.7", "pipeline_parallel": "1", "tensor_parallel": "1",
            "micro_batch_size": "1", "data_parallel": "4", "expert_parallel": "1",
            "zero_stage": "1"}  # fmt: skip
    asked = replace(
        question((0, 1, 0, 1), 4, 16), engine=load_engine("generic"), pins=parse_pins(pins)
    )
    some, more = (
        Layout(
            data_parallel=4, zero_stage=1, stages=even_stages(4, 1, recompute), optimizer_offload=of
        )
        for of, recompute in ((0.3, "full"), (0.7, "none"))
    )
    (least,), (most,) = (StepModel(asked.setting, each).memory() for each in (some, more))
    share = min(4, asked.cluster.gpus_per_node)
    between = {"host_memory_bytes": (least.host + most.host) / 2 * share}
    asked = with_memory(asked, layout_bytes(asked, some))
    assert solve(asked, 1).solutions[0].layout == more
    tight = asked.cluster.model_copy(update=between)
    found = solve(replace(asked, cluster=tight), 1)
    assert found.solutions[0].layout == some
    assert found.status == "OPTIMAL"


@pytest.mark.parametrize("kept", ["optimizer_offload", "activation_offload"])
def test_kinds_of_layers_fit_no_row_that_no_host_takes(kept: str, question: Questions) -> None:
    """By the least that its ranks need, though the device holds it."""
    asked = replace(
        question((0, 1, 0, 1), 4, 16), engine=load_engine("generic"),
        pins=parse_pins({kept: "0,0.5,1"}),
    )  # fmt: skip
    tight = asked.cluster.model_copy(update={"host_memory_bytes": 1e6})
    small = replace(asked, cluster=tight)
    space = enumerate_space(
        asked.model, asked.training, asked.gpus, asked.engine, asked.pins,
        asked.cluster.gpus_per_node,
    )  # fmt: skip
    takes = host_may_take(space.layouts, small.setting)
    held, fit = (rows_of_kinds_may_fit(space, each.setting) for each in (asked, small))
    assert (held & ~takes).any()
    np.testing.assert_array_equal(fit, held & takes)


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_cut_that_no_host_takes_is_settled(chunks: int, question: Questions) -> None:
    """What the optimizer keeps there no recomputation makes less. Such cuts stayed open: a plan by
    16 %, a refusal without a proof.
    """
    schedule: Schedule = "1f1b" if chunks == 1 else "interleaved_1f1b"
    pins = {"optimizer_offload": "on", "pipeline_parallel": "2", "micro_batch_size": "1",
            "virtual_stages": str(chunks), "schedule": schedule}  # fmt: skip
    ample = replace(
        question((0, 0, 1, 1), 2, 16), engine=load_engine("generic"), pins=parse_pins(pins)
    )

    def with_host(share_bytes: float) -> Question:
        on_a_node = min(2, ample.cluster.gpus_per_node)
        tight = {"host_memory_bytes": share_bytes * on_a_node}
        return replace(ample, cluster=ample.cluster.model_copy(update=tight))

    def host_bytes(*counts: int) -> float:
        layout = Layout(
            pipeline_parallel=2, virtual_stages=chunks, stages=tuple(map(Stage, counts)),
            schedule=schedule, optimizer_offload=1.0,
        )  # fmt: skip
        return max(float(rank.host) for rank in StepModel(ample.setting, layout).memory())

    even = host_bytes(*[2 // chunks] * (2 * chunks))
    found = solve(with_host(even * 1.01), 1)
    assert found.status == "OPTIMAL"
    assert sum(each.layers for each in found.solutions[0].layout.stages[::2]) == 2
    with pytest.raises(NoLayoutFits) as refused:
        solve(with_host(even * 0.99), 1)
    assert refused.value.proved


@pytest.mark.parametrize(
    ("use", "lacks", "words"),
    [
        pytest.param(HostUse(0.0, 1.0), -1.0, "", id="nothing there"),
        pytest.param(
            HostUse(GIB, 3 * GIB), -2 * GIB, "1.0 GiB, of its share of 3.0 GiB", id="fits"
        ),
        pytest.param(
            HostUse(3 * GIB, GIB),
            2 * GIB,
            "more than its share of 1.0 GiB",
            id="too much",
        ),
        pytest.param(HostUse(GIB, None), 0.0, "does not state the memory", id="not known"),
    ],
)
def test_what_is_said_of_the_host(use: HostUse, lacks: float, words: str) -> None:
    """How much is there, of how much; what is not known is said."""
    assert use.lacking_bytes == lacks
    assert words in use.text


@pytest.mark.parametrize(
    ("text", "fractions"),
    [
        pytest.param("on", (1.0,), id="on"),
        pytest.param("off,on", (0.0, 1.0), id="off,on"),
        pytest.param("1,0.5", (0.5, 1.0), id="fractions"),
    ],
)
def test_fractions_are_pinned(text: str, fractions: tuple[float, ...], question: Questions) -> None:
    """Each fraction is tried in a row of its own."""
    asked = asked_of(question, "generic", {"optimizer_offload": text, "zero_stage": "1.."})
    assert set(space_of(asked).layouts.optimizer_offload.tolist()) == set(fractions)


@pytest.mark.parametrize("text", ["2", "some", "-0.5", "nan", "0..1"])
def test_what_is_no_fraction(text: str) -> None:
    """One line with what can be written."""
    with pytest.raises(PinError, match="is not a fraction; write on, off"):
        parse_pins({"optimizer_offload": text})


def test_offload_from_the_command_line(tmp_path: Path) -> None:
    """8e9 parameters on one GPU: nothing fits, until the optimizer runs on the host; the plan file
    says so and reads back.
    """
    runner, path = CliRunner(), tmp_path / "plan.yaml"
    refused = runner.invoke(app, [*PLAN, "--json"])
    assert refused.exit_code == 3
    assert json.loads(refused.stdout)["on_host"]["layout"]["optimizer_offload"]
    assert "with --offload-optimizer on one fits" in refused.stderr
    done = runner.invoke(app, [*PLAN, "--offload-optimizer", "on", "-o", str(path)])
    assert done.exit_code == 0
    assert "host memory per GPU:" in done.stdout
    plan = read_plan(path)
    assert plan.layout.optimizer_offload
    assert plan.prediction is not None
    assert plan.prediction.memory[0].optimizer == 0
    assert plan.prediction.memory[0].host == pytest.approx(14 * 8.03e9, rel=0.01)
    told = runner.invoke(app, ["explain", str(path), "--json"])
    parts = json.loads(told.stdout)["time_parts"]
    assert parts["update_s"] > 1  # 28 bytes x 8e9 at 0.43 x 614 / 8 GB/s
    assert sum(parts.values()) == pytest.approx(plan.prediction.step_time_s)
