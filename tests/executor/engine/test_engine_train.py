"""The program of a rank, with what the launcher tells it."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.training import Training
from meshplan.executor.engine.step.data import Sequences, UnreadableData
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
FIELDS = {
    "step", "warmup", "loss", "grad_norm", "step_time_s", "forward_s", "backward_s", "optimizer_s",
    "waiting_s", "exposed_comm_s", "allocated_peak_bytes", "reserved_peak_bytes",
    "processor_s",
}  # fmt: skip


def free_port():
    """A port that nothing listens at now."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return str(some.getsockname()[1])


def run(tmp_path, layout, processes, *options):
    """What each of the plan's ranks on this machine said, and its exit code; `test_execute_command`
    has them started by torchrun.
    """
    plan = Plan(
        model=PlanModel.of("tiny", CONFIG),
        cluster=PlanCluster(name="local-cpu", gpus=processes, sha256="0"),
        training=Training(seq_len=32, global_batch_size=4),
        engine="native",
        layout=layout,
    )
    path = tmp_path / "plan.yaml"
    path.write_text(plan.to_yaml())
    command = [
        *(sys.executable, "-m", "meshplan.executor.engine.train", str(path)),
        *("--steps", "2", "--warmup", "1", "--out", str(tmp_path / "out"), "--device", "cpu"),
        *options,
    ]
    common = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    started = [
        subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(processes)
    ]  # fmt: skip
    return [(rank.communicate(timeout=240)[1], rank.returncode) for rank in started]


def test_two_ranks_write_records(tmp_path):
    """Each rank writes one line per step; both know the global loss and gradient norm, in bf16."""
    tokens = tmp_path / "tokens.bin"
    (np.arange(4096) % 128).astype(np.uint16).tofile(tokens)
    layout = Layout(pipeline_parallel=2, stages=({"layers": 1, "full_layers": 1}, {"layers": 1}))
    for said, code in run(tmp_path, layout, 2, "--data", str(tokens)):
        assert code == 0, said
    texts = [(tmp_path / "out" / f"rank{r}.jsonl").read_text() for r in (0, 1)]
    ranks = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for records in ranks:
        assert [r["step"] for r in records] == [0, 1, 2]
        assert [r["warmup"] for r in records] == [True, False, False]
        assert set(records[0]) == FIELDS
        parts = ("forward_s", "backward_s", "optimizer_s", "waiting_s", "exposed_comm_s")
        assert all(0 < sum(r[p] for p in parts) <= r["step_time_s"] for r in records)
    for name in ("loss", "grad_norm"):
        assert [r[name] for r in ranks[0]] == [r[name] for r in ranks[1]]
    assert ranks[0][0]["loss"] == pytest.approx(np.log(128), rel=0.05)
    assert ranks[0][2]["loss"] < ranks[0][0]["loss"]


def test_token_file_too_short(tmp_path):
    """A file that holds less than one sequence is refused with the counts."""
    path = tmp_path / "tokens.bin"
    np.arange(8, dtype=np.uint16).tofile(path)
    training = Training(seq_len=32, global_batch_size=1)
    with pytest.raises(UnreadableData, match="8 uint16 tokens; one sequence needs 33"):
        Sequences(training, 128, seed=0, path=path)


def test_token_outside_the_vocabulary(tmp_path):
    """A token that the model has no row for is refused, not clamped."""
    path = tmp_path / "tokens.bin"
    np.full(64, 200, dtype=np.uint16).tofile(path)
    sequences = Sequences(Training(seq_len=32, global_batch_size=1), 128, seed=0, path=path)
    with pytest.raises(UnreadableData, match="token 200 at or after position 0"):
        sequences.sequence(0, 0)


def test_sequences_come_from_the_file_in_order(tmp_path):
    """Sequence i of step s starts at token (s x batch + i) x length of the file."""
    path = tmp_path / "tokens.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    sequences = Sequences(Training(seq_len=10, global_batch_size=4), 1000, seed=0, path=path)
    assert sequences.sequence(2, 3).tolist() == list(range(110, 121))
