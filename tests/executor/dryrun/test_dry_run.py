"""The dry run against arithmetic, against the same program on real tensors, and on a large plan."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from meshplan import hardware_profiles
from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.training import Training
from meshplan.executor.dryrun.dry_run import (
    _measure,
    dry_run_job,
    main,
    tag_state,
    watched_engine,
)
from meshplan.executor.dryrun.tracker import Tracker
from meshplan.executor.engine.layers.block import Block
from meshplan.executor.engine.step.data import Sequences
from meshplan.executor.engine.step.engine import Engine, Job
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel

GIB = 2**30
LAYERS = 8  # of Llama-3 8B's 32
LLAMA_8B = Model(
    name="llama-3-8b", hidden=4096, vocab=128256, pattern=(0,) * LAYERS,
    kinds=(
        Layer(attention=Attention(heads=32, kv_heads=8, head_dim=128, v_head_dim=128), ffn=14336),
    ),
)  # fmt: skip
ATTENTION = 4096 * 4096 * 2 + 2 * 1024 * 4096
LAYER = ATTENTION + 3 * 14336 * 4096 + 2 * 4096
TABLE = 128256 * 4096
PARAMETERS = LAYERS * LAYER + 2 * TABLE + 4096
TOKENS = 8192
TRAINING = Training(seq_len=TOKENS, global_batch_size=8)
TINY = Model(
    name="tiny", hidden=64, vocab=128, pattern=(0, 1, 0, 1),
    kinds=(
        Layer(attention=Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16), ffn=128),
        Layer(
            attention=Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16),
            experts=Experts(experts=4, top_k=2, ffn=64),
        ),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def zero3():
    """A quarter of Llama-3 8B on 8 GPUs, ZeRO-3, one sequence of 8192 tokens each."""
    layout = Layout(data_parallel=8, zero_stage=3, stages=even_stages(LAYERS, 1))
    return dry_run_job(Job(model=LLAMA_8B, layout=layout, training=TRAINING), 0)


@pytest.mark.parametrize(
    ("category", "expected_bytes"),
    [
        pytest.param("gradients", 4 * PARAMETERS / 8, id="fp32 gradient shard: 4 P / 8"),
        pytest.param("optimizer", 12 * PARAMETERS / 8, id="fp32 master and moments: 12 P / 8"),
    ],
)
def test_states_by_hand(category, expected_bytes, zero3):
    """ZeRO-3 keeps an eighth of every state on each of eight ranks."""
    assert zero3.peak_by_category[category] == pytest.approx(expected_bytes, rel=1e-5)


def saved_bytes(job, stage):
    """What a layer of the first kind keeps for its backward, of one micro-batch on rank 0."""
    with watched_engine(job, 0) as (engine, tracker):
        layer = Block(engine.local, "layer", job.model.kinds[0], stage, 0)
        x = torch.empty(engine.pipeline.shape, dtype=engine.local.dtype).requires_grad_()
        tracker.saved = []
        layer(x)
        return sum(size for _, _, size in tracker.saved)


def test_layer_by_hand():
    """A Llama layer saves x, two normed copies, q, k, v, the attention's output, its input to the
    feed-forward and three feed-forward-wide tensors: 17 s h elements; then three fp32 statistics.
    """
    layout = Layout(data_parallel=8, zero_stage=3, stages=even_stages(1, 1))
    model = replace(LLAMA_8B, pattern=(0,))
    job = Job(model=model, layout=layout, training=TRAINING)
    wide = TOKENS * (6 * 4096 + 2 * 1024 + 3 * 14336) * 2
    statistics = 4 * TOKENS * (1 + 1 + 32)
    saved = {
        mode: saved_bytes(job, stage)
        for mode, stage in (
            ("none", Stage(1)),
            ("full", Stage(1, 0, 1)),
            ("selective", Stage(1, 1)),
        )
    }
    assert saved["none"] == wide + statistics
    assert saved["full"] == TOKENS * 4096 * 2
    assert saved["selective"] == wide + 4 * TOKENS * 2


def test_activations_by_hand(zero3):
    """At the peak every layer's activations are alive, and the head's input and statistics."""
    layers = LAYERS * (TOKENS * (6 * 4096 + 2 * 1024 + 3 * 14336) * 2 + 4 * TOKENS * 34)
    tokens = TOKENS * (8 + 1)  # the local tokens and whether each is held, for the embedding
    ends = TOKENS * 4096 * 2 + 4 * TOKENS
    assert zero3.peak_by_category["activations"] == pytest.approx(layers + tokens + ends, rel=2e-4)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param(
            "forward.matmul",
            2 * TOKENS * (LAYERS * (LAYER - 2 * 4096) + 3 * TABLE),
            id="2 T (matrices + the head's three products)",
        ),
        pytest.param(
            "backward.matmul", 4 * TOKENS * LAYERS * (LAYER - 2 * 4096), id="4 T matrices"
        ),
        pytest.param(
            "forward.attention",
            LAYERS * 2 * TOKENS**2 * 4096,
            id="4 T^2 h of each layer, causal half",
        ),
        pytest.param(
            "backward.attention", LAYERS * 5 * TOKENS**2 * 4096, id="five products for two"
        ),
    ],
)
def test_flops_by_hand(kind, expected, zero3):
    """Every matrix product of the step is counted once."""
    assert zero3.flops[kind] == expected


@pytest.mark.parametrize(
    ("kind", "expected_bytes"),
    [
        pytest.param(
            "dp.all_gather", 2 * (2 * LAYERS * LAYER + 2 * TABLE + 2 * 4096),
            id="bf16: layers and the last norm twice, tables once",
        ),
        pytest.param("dp.reduce_scatter", 4 * PARAMETERS, id="fp32 gradient once"),
    ],
)  # fmt: skip
def test_communication_by_hand(kind, expected_bytes, zero3):
    """ZeRO-3 gathers weights for the forward and the backward pass and scatters gradients once."""
    assert zero3.comm_bytes[kind] == expected_bytes


DENSE = replace(TINY, kinds=TINY.kinds[:1], pattern=(0,) * 4)
SMALL = Training(seq_len=256, global_batch_size=4)
REAL = {
    "recompute": Layout(
        micro_batch_size=2, stages=(Stage(4, 2, 1),), selective_modules=("core_attention", "mlp")
    ),
    **{
        f"zero{z}": Layout(data_parallel=2, zero_stage=z, stages=even_stages(4, 1))
        for z in (0, 1, 2, 3)
    },
    "tp2": Layout(tensor_parallel=2, sequence_parallel=True, stages=even_stages(4, 1)),
    "tp2 full": Layout(
        tensor_parallel=2, sequence_parallel=True, zero_stage=3, stages=even_stages(4, 1, "full")
    ),
    "cp2": Layout(context_parallel=2, zero_stage=1, stages=even_stages(4, 1)),
    "1f1b": Layout(pipeline_parallel=2, zero_stage=1, stages=(Stage(3), Stage(1, 0, 1))),
    "zb_v": Layout(
        pipeline_parallel=2, virtual_stages=2, schedule="zb_v", stages=even_stages(4, 4)
    ),
}
QUICK = ("recompute", "zero2", "tp2 full", "zb_v")  # with every change; all of them nightly


def measured(name):
    """The tracker's figures for one rank of a layout with real tensors, in its process group."""
    job = Job(model=DENSE, layout=REAL[name], training=SMALL)
    tracker = Tracker()
    with tracker.watching():
        engine = Engine(job, torch.device("cpu"), observer=tracker)
        tag_state(tracker, engine)
    batches = engine.batches(0, Sequences(SMALL, DENSE.vocab, seed=0))
    with tracker.watching():
        engine.run(batches)
    return {"peak": tracker.peak, "at_peak": dict(tracker.at_peak)}


def worker(rank, world, folder, names):
    """One process: the named layouts of `world` ranks; every rank writes its figures."""
    torch.set_num_threads(1)
    results = {}
    for name in (n for n in names if REAL[n].world_size == world):
        store = dist.FileStore(f"{folder}/{name}.store", world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        results[name] = measured(name)
        dist.destroy_process_group()
    Path(folder, f"{world}-{rank}.json").write_text(json.dumps(results))


@pytest.fixture(scope="module")
def real(request, tmp_path_factory):
    """(world, rank) -> {layout: figures} of the selected runs with real tensors."""
    selected = {item.callspec.id for item in request.session.items if hasattr(item, "callspec")}
    folder = tmp_path_factory.mktemp("real")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, __file__, str(folder), *(name for name in REAL if name in selected)],
        check=True,
        timeout=280,
        env=environment,
    )
    return {
        (world, rank): json.loads((folder / f"{world}-{rank}.json").read_text())
        for world in (1, 2)
        for rank in range(world)
    }


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.nightly]) for n in REAL]
)
def test_against_real_tensors(name, real):
    """The same program on real tensors keeps the same states to the byte and peaks within 2 %.

    A dry run's messages are gone once sent; gloo keeps them until it is asked to wait for them, at
    the end of the step, so a pipeline may hold all that it sent beside the dry run's peak; its
    thread lets go of a tensor collective's two buffers a little after the collective is done.
    """
    layout = REAL[name]
    rank = layout.world_size - 1
    figures = real[layout.world_size, rank][name]
    fake = dry_run_job(Job(model=DENSE, layout=layout, training=SMALL), rank)
    gathered = 2 * SMALL.seq_len * DENSE.hidden if layout.tensor_parallel > 1 else 0
    kept = fake.comm_bytes.get("pp.send", 0.0) + 2 * gathered
    assert 0.98 * fake.peak_bytes <= figures["peak"] <= 1.02 * fake.peak_bytes + kept
    for category in ("weights", "gradients", "optimizer"):
        assert figures["at_peak"][category] == fake.peak_by_category[category], category
    if layout.world_size == 1:
        assert figures["at_peak"]["activations"] == fake.peak_by_category["activations"]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(
            Layout(data_parallel=2, zero_stage=2, stages=even_stages(4, 1)),
            id="zero2",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            Layout(pipeline_parallel=2, stages=even_stages(4, 2), data_parallel=2, zero_stage=1),
            id="1f1b",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            Layout(pipeline_parallel=2, schedule="gpipe", stages=even_stages(4, 2)),
            id="gpipe",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            Layout(
                pipeline_parallel=2, virtual_stages=2, schedule="interleaved_1f1b",
                stages=even_stages(4, 4), data_parallel=2, expert_parallel=2,
            ),
            id="interleaved",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            Layout(
                pipeline_parallel=2, virtual_stages=2, schedule="zb_v", stages=even_stages(4, 4)
            ),
            id="zb_v",
        ),
    ],
)  # fmt: skip
def test_long_steps_by_extrapolation(layout):
    """A step of 6 pp micro-batches is exactly what two shorter ones say it is."""
    m = 6 * layout.pipeline_parallel
    training = Training(seq_len=64, global_batch_size=m * layout.data_parallel)
    job = Job(model=TINY, layout=layout, training=training)
    rank = layout.world_size - 1
    whole, short = _measure(job, rank, 0.0), dry_run_job(job, rank)
    assert short.peak_bytes == whole.peak_bytes
    assert short.flops == whole.flops
    assert short.comm_bytes == whole.comm_bytes
    assert short.comm_calls == whole.comm_calls


def test_stages_add_up():
    """The stages of a pipeline execute the same FLOPs in sum as one stage, recompute aside."""
    training = Training(seq_len=64, global_batch_size=4)
    whole = dry_run_job(
        Job(model=TINY, layout=Layout(stages=even_stages(4, 1)), training=training), 0
    )
    layout = Layout(pipeline_parallel=4, stages=even_stages(4, 4), schedule="zb_h1")
    parts = [dry_run_job(Job(model=TINY, layout=layout, training=training), r) for r in range(4)]
    found = [sum(part.flops.values()) for part in parts]
    assert sum(found) == sum(whole.flops.values())


@pytest.fixture(scope="module")
def large_plan(tmp_path_factory):
    """Llama-3.1 405B on 16,384 GPUs: tp8 pp16 dp128, seven layers on the outer two ranks."""
    catalogue = Path(hardware_profiles.__file__).parent / "models"
    config = json.loads((catalogue / "llama-3.1-405b.json").read_text())
    stages = ({"layers": 7}, *({"layers": 8},) * 14, {"layers": 7})
    plan = Plan(
        model=PlanModel.of("llama-3.1-405b", config),
        cluster=PlanCluster(name="h100-sxm-ib", gpus=16384, sha256="0"),
        training=Training(seq_len=8192, global_batch_size=2048),
        engine="native",
        layout=Layout(
            data_parallel=128, tensor_parallel=8, sequence_parallel=True, pipeline_parallel=16,
            zero_stage=1, stages=stages,
        ),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    path.write_text(plan.to_yaml())
    return path


@pytest.mark.nightly
def test_large_rank_in_time(large_plan):
    """A rank of the 405B plan runs within 60 CPU seconds and 8 GiB, and fits an 80 GB GPU."""
    command = [
        sys.executable,
        "-m",
        "meshplan.executor.dryrun.dry_run",
        str(large_plan),
        "--rank",
        "0",
        "--json",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (result,) = json.loads(done.stdout)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
    assert after.ru_maxrss * 1024 < 8 * GIB
    parameters = 7 * (16384 * 16384 * 2 + 2 * 1024 * 16384 + 3 * 53248 * 16384) + 128256 * 16384
    norms = 7 * 2 * 16384  # held whole by every tensor rank
    held = parameters / 8 + norms
    assert result["peak_by_category"]["weights"] == pytest.approx(2 * held, rel=1e-5)
    assert result["peak_by_category"]["gradients"] == pytest.approx(4 * held, rel=1e-5)
    assert result["peak_by_category"]["optimizer"] == pytest.approx(12 * held / 128, rel=1e-4)


def test_wrong_rank(large_plan, monkeypatch, capsys):
    """A rank that the plan does not have is one line and exit code 2."""
    monkeypatch.setattr(sys, "argv", ["dry_run", str(large_plan), "--rank", "16384"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip() == "error: rank 16384: the plan has ranks 0 to 16383"


if __name__ == "__main__":
    import torch.fx.experimental.symbolic_shapes  # a backward pass does: here once for all ranks

    for processes in (1, 2):
        arguments = (processes, sys.argv[1], sys.argv[2:])
        mp.start_processes(worker, arguments, nprocs=processes, start_method="fork")
