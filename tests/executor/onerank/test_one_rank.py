"""One rank alone: what answers hold and take, the same bytes as the real run, the whole step."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from called import executed
from tiny_runs import CPU, PP2, tiny_plan

from benchmarks.engine import one_rank as benchmark
from benchmarks.engine.one_rank_layouts import DENSE, EVERY
from meshplan import hardware_profiles
from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import MIB
from meshplan.executor.dryrun.dry_run import shortened
from meshplan.executor.engine.step.engine import Job
from meshplan.executor.onerank import command, line
from meshplan.executor.onerank.line import CpuLine, Waited
from meshplan.executor.onerank.local_group import Answers, LocalGroup, answered_here
from meshplan.executor.onerank.priced import priced
from meshplan.executor.onerank.result import RankMeasured, action_s, parts_of, step_of
from meshplan.executor.onerank.wire import Message, Wire
from meshplan.hardware_profiles.curves import fit_curves
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel, write_plan

ROOT = Path(__file__).parents[3]
DGX = load_cluster("dgx-h100")
BY_FORMULA = DGX.model_copy(update={"node": DGX.node.model_copy(update={"collective_fits": ()})})
LOCAL = Wire(load_cluster("local-cpu:2"))

# --- what answers take --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "by_hand"),
    [
        pytest.param(
            Wire(BY_FORMULA).collective("all_gather", 10**9, [0, 1, 2, 3]).seconds,
            3 * DGX.node.latency_s + 0.75e9 / DGX.node.bus_bandwidth.all_gather,
            id="in a node: 3 hops, 3/4 of the bytes",
        ),
        pytest.param(
            Wire(DGX, 2.0).collective("all_to_all", 10**9, [0, 8]).seconds,
            2 * (1.08 * DGX.network.latency_s + 0.5e9 / DGX.network.bus_bandwidth.all_to_all),
            id="one rank on each of 2 nodes, twice as slow: half of the bytes leave it",
        ),
        pytest.param(
            Wire(DGX).send(10**9, 7, 8).seconds,
            DGX.network.latency_s + 1e9 / DGX.network.bus_bandwidth.send,
            id="ranks 7 and 8 are on two nodes",
        ),
        pytest.param(
            Wire(DGX).send(10**9, 6, 7).seconds,
            DGX.node.latency_s + 1e9 / DGX.node.bus_bandwidth.send,
            id="ranks 6 and 7 are on one",
        ),
    ],
)
def test_a_message_takes_what_the_profile_says(seconds: float, by_hand: float) -> None:
    """Where the ranks sit decides which links count."""
    assert seconds == pytest.approx(by_hand)


def measured_pair() -> Cluster:
    """A node of two CPU ranks whose all_gather was measured at two sizes."""
    points = tuple(
        CurvePoint(kind="all_gather", ranks_per_node=2, nodes=1, size_bytes=size, seconds=seconds,
                   processor_s=busy_s)
        for size, seconds, busy_s in ((1000, 1.0, 0.2), (3000, 1.5, 0.6))
    )  # fmt: skip
    return LOCAL.cluster.model_copy(
        update={
            "collective_points": points, "collective_fits": fit_curves(points),
            "conditions": {"kind": "measured"},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "size", "busy_s"),
    [
        pytest.param("all_gather", 2000, 0.4, id="half way from 0.2 to 0.6 s"),
        pytest.param("all_gather", 500, 0.2, id="smaller than any: that of the smallest"),
        pytest.param("all_gather", 9000, 3 * 0.6, id="three times the largest"),
        pytest.param("all_reduce", 10**9, None, id="not measured: 0.7 of its seconds"),
    ],
)
def test_how_long_a_message_is_work(kind, size: int, busy_s: float | None) -> None:
    """Its processor seconds as measured, never more than it takes."""
    message = Wire(measured_pair()).collective(kind, size, [0, 1])
    assert message.busy_s == pytest.approx(busy_s or 0.7 * message.seconds)
    assert message.busy_s <= message.seconds


class Clock:
    """Time that passes only where somebody sleeps or looks: a busy machine changes nothing."""

    LOOK_S = 1e-5

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._worked_s = count()

    def perf_counter(self) -> float:
        """A look takes a moment: who waits awake sees time pass."""
        self.now_s += self.LOOK_S
        return self.now_s

    def thread_time(self) -> float:
        """A thread that works is done at once."""
        return next(self._worked_s)

    def sleep(self, seconds: float) -> None:
        """As long as asked."""
        self.now_s += seconds


def test_what_is_computed_meanwhile_hides_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages of 40 ms follow each other on one line; of 80 ms, 50 passed before the wait."""
    clock, waited = Clock(), Waited()
    monkeypatch.setattr(line, "time", clock)
    dp = CpuLine("dp", waited)
    began = clock.now_s
    first, second = (dp.begin(Message(0.040, 0.0), lambda: None) for _ in range(2))
    clock.sleep(0.050)
    first.work.result()
    assert first.is_completed()
    assert not second.is_completed()
    second.wait()
    assert clock.now_s - began == pytest.approx(0.080, abs=1e-3)
    assert waited.take() == {"dp": pytest.approx(0.030, abs=1e-3)}
    assert waited.take() == {}


def test_the_slowest_rank_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes 5 % longer: 100 ms after the last message arrived a message of 40 ms takes 45 ms;
    a second one, begun at once, nothing more.
    """
    clock = Clock()
    monkeypatch.setattr(line, "time", clock)
    pair = measured_pair()
    fits = tuple(fit.model_copy(update={"apart": 0.05}) for fit in pair.collective_fits)
    wire = Wire(pair.model_copy(update={"collective_fits": fits}))
    assert wire.straggler_fraction([0, 1]) == 0.05
    monkeypatch.setattr(Wire, "collective", lambda *_: Message(0.040, 0.0))
    answers = Answers(rank=0, wire=wire, device=torch.device("cpu"))
    group = LocalGroup(answers, [0, 1], "tp")
    answers.waited.add("tp", 0.0)
    clock.sleep(0.100)
    began = clock.now_s
    first, second = (group.all_gather_single(torch.zeros(4), torch.zeros(2)) for _ in range(2))
    first.wait()
    assert clock.now_s - began == pytest.approx(0.045, abs=1e-3)
    second.wait()
    assert clock.now_s - began == pytest.approx(0.085, abs=1e-3)


def test_a_message_keeps_a_core_busy_as_long_as_it_says() -> None:
    """Two messages of 30 ms, waited for, 21 ms of each busy."""
    began_s, dp = time.process_time(), CpuLine("dp", Waited())
    arrivals = [dp.begin(Message(0.030, 0.021), lambda: None) for _ in range(2)]
    for arrival in arrivals:
        arrival.wait()
    used_s = time.process_time() - began_s
    assert used_s == pytest.approx(2 * 0.021, rel=0.2)


# --- what answers hold --------------------------------------------------------------------------


def test_answers_are_those_of_ranks_that_hold_the_same() -> None:
    """Rank 1 of 3: gathered three times, reduced times three, its own rows back; all finite."""
    answers = Answers(rank=1, wire=LOCAL, device=torch.device("cpu"))
    x = torch.arange(6.0).view(3, 2)
    with answered_here(answers, 3):
        group = dist.new_group([0, 1, 2], use_local_synchronization=True)
        whole, part, rows = torch.full((9, 2), torch.nan), torch.empty(1, 2), torch.empty(5, 2)
        dist.all_gather_single(whole, x, group=group)
        dist.reduce_scatter_single(part, x, group=group)
        most, summed = x.clone(), x.clone()
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        dist.all_reduce(summed, group=group)
        dist.all_to_all_single(rows, x, [1, 2, 2], [1, 1, 1], group=group)
        arrived = torch.full((1000,), torch.nan)
        dist.irecv(arrived, 0, group=group).wait()
        in_place = torch.tensor([7.0, 1.0, 7.0])
        dist.all_gather_single(in_place, in_place[1:2], group=group)
    assert torch.equal(whole, torch.cat([x] * 3))
    assert part.tolist() == [[3 * 2.0, 3 * 3.0]]
    assert torch.equal(most, x)
    assert torch.equal(summed, 3 * x)
    assert torch.equal(rows, torch.cat([x, x])[:5])
    assert in_place.tolist() == [1.0, 1.0, 1.0]
    assert 0.01 < float(arrived.std()) < 0.03


# --- against the real run -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("pp2 zb_v",),
        pytest.param(tuple(EVERY), marks=pytest.mark.nightly),
    ],
    ids=len,
)
def test_a_rank_alone_is_the_rank_of_the_real_run(names: tuple[str, ...], tmp_path: Path) -> None:
    """On two gloo processes and each rank alone: the engine holds the same weights, gradients,
    optimizer states and saved tensors to the byte; a step takes about as long (on a shared machine:
    within a factor of ten); alone the loss is that of weights near zero, log(vocabulary).
    """
    short = ["--rounds", "1", "--steps", "1", "--seq-len", "32", "--batch", "2"]
    short += ["--folder", str(tmp_path), "--cluster", "local-cpu:2"]
    training = replace(benchmark.TRAINING, seq_len=32, global_batch_size=2)
    subprocess.run(
        [sys.executable, "-m", "benchmarks.engine.one_rank", *short, "--only", *names],
        cwd=ROOT, check=True, timeout=280,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )  # fmt: skip
    task = benchmark.Task(
        names=names,
        cluster="local-cpu:2",
        rounds=1,
        steps=1,
        folder=str(tmp_path),
        training=training,
    )
    for turns in benchmark.results(task):
        ((first, last),) = turns.alone
        assert turns.same_bytes, turns.name
        assert benchmark.held(turns.alone)[0] > 10 * MIB
        model = benchmark.model_of(turns.name, "local-cpu:2", training)
        together = min(benchmark.steps_s(turns.together, None))
        alone = min(benchmark.steps_s(turns.alone, model))
        assert 0.1 < alone / together < 10, turns.name
        assert first.exposed_s
        # of a pipeline the rank with the last stage knows it: of a V that is the first
        loss = max(first.loss, last.loss)
        assert loss == pytest.approx(math.log(EVERY[turns.name][0].vocab), rel=0.01)


# --- the step of the plan -----------------------------------------------------------------------


def rank_of(place: int, forward_s: float, backward_s: float) -> RankMeasured:
    """A rank of the tiny pipeline's four micro-batches."""
    return RankMeasured(
        rank=place, pipeline_rank=place, micro_batches=4, step_s=1.0, step_times_s=(1.0,),
        processor_s=(1.0,), loss=5.0, held_bytes={"weights": 100, "total": 200}, device_bytes={},
        seconds={"wait": 0.5, "reduce": 0.25, "optimizer": 0.375, "rest": 0.125},
        actions=((place, "F", forward_s, forward_s), (place, "B", backward_s, backward_s)),
        exposed_s={"pp": 0.5, "world": 0.0},
    )  # fmt: skip


def test_the_step_is_put_together_from_ranks() -> None:
    """4 micro-batches on 2 equal ranks: (4 + 1) (F + B), then reductions 0.25 and update 0.5; a
    rank that was not measured has its predicted seconds.
    """
    model = priced(tiny_plan(PP2), None)
    model.hops.__dict__["hop_s"] = 0.0
    both = step_of(model, [rank_of(0, 1.0, 2.0), rank_of(1, 1.0, 2.0)])
    assert both.measured == pytest.approx(5 * 3.0 + 0.25 + 0.5)
    assert both.predicted == pytest.approx(model.time().step_time_s)
    one = step_of(model, [rank_of(1, 1.0, 2.0)])
    assert one.measured is not None
    assert 4 * 3.0 < one.measured < 4 * 3.0 + 1.5  # the other takes milliseconds


def test_a_few_micro_batches_stand_for_all() -> None:
    """Of 4 run micro-batches three took 1 s and the last 5 s (gradients, once per step): of 16,
    15 x 1 s and 5 s; waits are each micro-batch's.
    """
    training = Training(seq_len=64, global_batch_size=16, precision="fp32")
    plan = tiny_plan(PP2).model_copy(update={"training": training})
    model, found = priced(plan, None), rank_of(0, 1.0, 2.0)
    found = found.model_copy(update={"actions": ((0, "F", 1.0, 1.0), (0, "B", 2.0, 1.0))})
    assert action_s(model, found) == {(0, "F"): 1.0, (0, "B"): 20 / 16}
    parts = {part.name: part.measured for part in parts_of(model, found)}
    assert parts["forward"] == 16.0
    assert parts["backward"] == 20.0
    assert parts["wait for messages"] == 4 * 0.5
    assert parts["step of this rank"] == 16 + 20 + 2 + 0.25 + 0.5
    assert parts["  exposed pipeline messages"] == 4 * 0.5


@pytest.mark.parametrize(
    ("schedule", "batch", "few"),
    [
        pytest.param("1f1b", 21, 5, id="1f1b: 2 pp and the remainder"),
        pytest.param("1f1b", 8, 8, id="no more than twice as many: all"),
        pytest.param("gpipe", 40, 40, id="gpipe holds all of them: all"),
    ],
)
def test_how_many_micro_batches_run(schedule, batch: int, few: int) -> None:
    """Two pipeline ranks, one replica."""
    layout = Layout(pipeline_parallel=2, schedule=schedule, stages=even_stages(4, 2))
    training = Training(seq_len=64, global_batch_size=batch)
    job = shortened(Job(model=DENSE, layout=layout, training=training))
    assert job.layout.num_micro_batches(job.training) == few


# --- the command --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_hardware", lambda: CPU)


def test_one_rank_by_the_command(tmp_path: Path) -> None:
    """The last stage, measured beside predicted, and the step of the plan with the first one's
    predicted seconds.
    """
    write_plan(tiny_plan(PP2), tmp_path / "plan.yaml")
    arguments = ["--one-rank", "--rank", "1", "--steps", "1", "--warmup", "0", "--json"]
    answer = executed([str(tmp_path / "plan.yaml"), *arguments])
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    (rank,) = said["ranks"]
    assert rank["pipeline_rank"] == 1
    assert said["estimated_pipeline_ranks"] == [0]
    assert said["step"]["measured"] > rank["seconds"]["backward"]
    parts = {part["name"]: part for part in said["parts"]["1"]}
    for name in ("weights", "gradients", "optimizer"):
        assert parts[f"  {name}"]["predicted"] == pytest.approx(
            parts[f"  {name}"]["measured"], 0.01
        )
    assert parts["forward"]["measured"] == pytest.approx(rank["seconds"]["forward"])


def test_every_stage_is_the_first_rank_of_each() -> None:
    """dp2 tp2 pp2: ranks 0 to 3 are the first stage."""
    layout = Layout(
        data_parallel=2, tensor_parallel=2, sequence_parallel=True, pipeline_parallel=2,
        stages=even_stages(2, 2),
    )  # fmt: skip
    assert command.ranks_of(layout, command.Wanted(every_stage=True)) == [0, 4]
    assert command.ranks_of(layout, command.Wanted(rank=7)) == [7]


def large_plan() -> Plan:
    """Llama-3.1 405B on one H100: terabytes."""
    catalogue = Path(hardware_profiles.__file__).parent / "models"
    config = json.loads((catalogue / "llama-3.1-405b.json").read_text())
    return Plan(
        model=PlanModel.of("llama-3.1-405b", config),
        cluster=PlanCluster(name="dgx-h100", gpus=1, sha256="0"),
        training=Training(seq_len=8192, global_batch_size=1),
        engine="native",
        layout=Layout(stages=even_stages(126, 1)),
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--device", "cpu"], "free: nothing was allocated", id="too big"),
        pytest.param([], "has no GPU: look at it with --dry-run", id="no GPU"),
        pytest.param(["--rank", "1"], "the plan has ranks 0 to 0", id="no such rank"),
    ],
)
def test_what_cannot_run_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    """Exit 2 before anything is built."""
    write_plan(large_plan(), tmp_path / "plan.yaml")
    answer = executed([str(tmp_path / "plan.yaml"), "--one-rank", *arguments])
    assert answer.exit_code == 2
    assert said in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_options_of_one_rank_need_it(tmp_path: Path) -> None:
    """--device alone would be ignored: exit 2 says so."""
    answer = executed([str(tmp_path / "plan.yaml"), "--device", "cpu"])
    assert answer.exit_code == 2
    assert "belong to --one-rank" in answer.stderr
