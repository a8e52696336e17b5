"""A price that can be worked out by hand, and checks of plans and texts under it."""

from collections.abc import Callable
from pathlib import Path

from random_plans import CLUSTER, plan_of

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import GIB
from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.plan_file import Plan, Prediction, StageMemory, write_plan
from meshplan.planner.case.reading import Reading, Start
from meshplan.planner.case.resolve import Case
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import NOT_SAID, Tools, case_of, check_paths
from meshplan.planner.check.fixes import Quote
from meshplan.planner.check.verdicts import Finding, Limits

GIVEN = Settings(cluster=CLUSTER)
LAYOUT = Layout(
    data_parallel=8,
    tensor_parallel=4,
    pipeline_parallel=2,
    sequence_parallel=True,
    zero_stage=1,
    micro_batch_size=4,
    stages=even_stages(80, 2),
)
TRAINING = Training(seq_len=4096, global_batch_size=128)
SCRIPT = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \\
    --tensor-model-parallel-size 2 \\
    --micro-batch-size 4 --global-batch-size 64 --seq-length 2048 \\
    --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 \\
    --swiglu --normalization RMSNorm --vocab-size 128256 --bf16 --use-distributed-optimizer
"""


def price(case: Case) -> Prediction:
    """10 GiB of weights, 10 GiB of activations per sequence of the micro-batch (2 if recomputed).

    A step takes 2 s (3 if recomputing) x batch / GPUs, and 10 % / micro_batch_size more.
    """
    la = case.layout
    recomputes = la.recompute == "full"
    activations = (2.0 if recomputes else 10.0) * GIB * la.micro_batch_size
    step_s = (3.0 if recomputes else 2.0) * case.training.global_batch_size / la.world_size
    step_s *= 1 + 0.1 / la.micro_batch_size  # smaller micro-batches are less efficient
    memory = StageMemory(
        weights=10 * GIB, gradients=0, optimizer=0, activations=activations, transient=0,
        context=GIB, slack=0, allocated=10 * GIB + activations, reserved=10 * GIB + activations,
    )  # fmt: skip
    return Prediction(
        step_time_s=step_s, compute_s=step_s, exposed_comm_s=0, bubble_s=0, optimizer_s=0,
        error_fraction=0.1, tokens_per_s_per_gpu=1000.0, mfu=0.4, hfu=0.4,
        memory=(memory,) * la.pipeline_parallel, gpu_memory_bytes=80 * GIB,
    )  # fmt: skip


def read(text: str, path: str, framework: str | None, start: Start = NOT_SAID, /) -> Reading | None:
    known = framework or recognise(path, text)
    return read_config(text, path, framework, start) if known else None


def tools_of(whole: Callable[[Case], Prediction]) -> Tools:
    return Tools(read=read, price=lambda case: Quote(whole(case).memory, lambda: whole(case)))


TOOLS = tools_of(price)


def a_plan(prediction: Prediction | None = None, layout: Layout = LAYOUT) -> Plan:
    return plan_of("llama-3.1-70b", layout, TRAINING).model_copy(update={"prediction": prediction})


def check_plan(path: Path, plan: Plan, **options: object) -> Finding:
    write_plan(plan, path)
    limits = Limits(**options)  # type: ignore[arg-type]
    (finding,) = check_paths([path], TOOLS, limits=limits)
    return finding


def check_text(path: Path, text: str, given: Settings = GIVEN) -> Finding:
    path.write_text(text)
    (finding,) = check_paths([path], TOOLS, given)
    return finding


def a_case(layout: Layout) -> Case:
    return case_of(a_plan(layout=layout))
