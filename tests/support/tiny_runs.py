"""A tiny plan and records of its ranks, as `meshplan execute` meets them."""

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.training import Training
from meshplan.executor.engine.watch.record import StepRecord
from meshplan.executor.launch.preflight import pinned_torch
from meshplan.executor.launch.probe import Found
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.case.plan_file import (
    Plan,
    PlanCluster,
    PlanModel,
    Prediction,
    RunnerUp,
    StageMemory,
)

GIB = 2**30
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
DP2 = Layout(data_parallel=2, zero_stage=1, stages=(Stage(layers=2),))
PP2 = Layout(pipeline_parallel=2, stages=(Stage(layers=1), Stage(layers=1)))
MEMORY = StageMemory(
    weights=1, gradients=1, optimizer=1, activations=1, transient=1, context=GIB / 4, slack=1,
    allocated=GIB / 4, reserved=GIB / 2,
)  # fmt: skip
CLUSTER = load_cluster("local-cpu:2")
CPU = Found(
    host="here", device="cpu", devices=2, name="cpu", memory_bytes=8e9,
    torch=f"{pinned_torch()}+cpu",
)  # fmt: skip
GPUS = CPU.model_copy(update={"device": "cuda", "devices": 8, "name": "H100"})


def tiny_prediction(step_time_s: float, stages: int = 1) -> Prediction:
    """A prediction of so many seconds: 60 % compute, 10 % communication, 20 % bubble."""
    return Prediction(
        step_time_s=step_time_s, compute_s=0.6 * step_time_s, exposed_comm_s=0.1 * step_time_s,
        bubble_s=0.2 * step_time_s, optimizer_s=0.1 * step_time_s, error_fraction=0.25,
        tokens_per_s_per_gpu=1.0, mfu=None, hfu=None, memory=(MEMORY,) * stages,
        gpu_memory_bytes=8e9,
    )  # fmt: skip


def tiny_plan(layout: Layout = DP2, prediction: Prediction | None = None) -> Plan:
    """Two ranks of a Llama of two layers, with one runner-up."""
    return Plan(
        model=PlanModel.of("tiny", CONFIG),
        cluster=PlanCluster(name="local-cpu:2", gpus=2, sha256=cluster_hash(CLUSTER)),
        training=Training(
            seq_len=64, global_batch_size=max(4, layout.data_parallel), precision="fp32"
        ),
        engine="native",
        layout=layout,
        prediction=prediction,
        runners_up=(RunnerUp(layout=PP2, step_time_s=0.5, reserved_bytes=GIB, lost_by={}),),
    )


def tiny_step(
    number: int, seconds: float, *, forward_s: float = 0.2, waiting_s: float = 0.1
) -> StepRecord:
    """Step `number` of a rank, the first one for warming up."""
    return StepRecord(
        step=number, warmup=number == 0, loss=5.0 - number, grad_norm=1.0, step_time_s=seconds,
        forward_s=forward_s, backward_s=2 * forward_s, optimizer_s=0.05, waiting_s=waiting_s,
        exposed_comm_s=0.02, processor_s=seconds / 2,
        allocated_peak_bytes=GIB // 4, reserved_peak_bytes=GIB // 2,
    )  # fmt: skip
