"""What a config's switches leave beside nothing: exchanges of replicas, and what notes say of them.

Megatron-LM hides them when told so (`--overlap-grad-reduce`, `--overlap-param-gather`, off unless
given: NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py); a recipe of Megatron-Bridge has
them on.
"""

from pathlib import Path

import pytest
from random_plans import plan_of

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import FRAMEWORKS, read_config
from meshplan.planner.case.resolve import resolve
from meshplan.planner.case.settings import Settings

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 4096 "
    "--num-attention-heads 32 --micro-batch-size 1 --global-batch-size 8 --seq-length 4096 --bf16 "
    "--tensor-model-parallel-size 1 --vocab-size 32000 "
)
BRIDGE = (
    "model: {tensor_model_parallel_size: 1, num_layers: 4, hidden_size: 4096, seq_length: 4096,"
    " num_attention_heads: 32, vocab_size: 32000, gated_linear_unit: false,"
    " num_query_groups: null, share_embeddings_and_output_weights: true}\n"
    "train: {micro_batch_size: 1, global_batch_size: 8}\n"
)
BOTH, NEITHER = (0.9, 0.9), (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "name", "hidden"),
    [
        (f"{SCRIPT}--overlap-grad-reduce --overlap-param-gather", "a.sh", BOTH),
        (f"{SCRIPT}--overlap-grad-reduce", "a.sh", (0.9, 0.0)),
        pytest.param(SCRIPT, "a.sh", NEITHER, id="off unless told"),
        pytest.param(f"{SCRIPT}--use-torch-fsdp2", "a.sh", BOTH, id="FSDP2 prefetches by itself"),
        pytest.param(BRIDGE, "a.yaml", BOTH, id="Bridge, as its recipes"),
        pytest.param(
            f"{BRIDGE}ddp: {{overlap_grad_reduce: false, overlap_param_gather: false}}\n",
            "a.yaml", NEITHER, id="Bridge, off",
        ),
    ],
)  # fmt: skip
def test_replicas_exchange_beside_products_where_megatron_is_told_to(
    text: str, name: str, hidden: tuple[float, float]
) -> None:
    """Of gradients and weights: 0.9 hidden, or nothing."""
    case = resolve(read_config(text, name), Settings(cluster="dgx-h100", gpus=8), Settings())
    overlap = case.engine.overlap
    assert (overlap.data_reduce, overlap.weight_gather) == hidden


def test_a_script_of_replicas_that_hold_all_hides_their_gradients() -> None:
    """Without ZeRO too the plan was priced so."""
    layout = Layout(data_parallel=8, zero_stage=0, stages=even_stages(32, 1))
    plan = plan_of("llama-3-8b", layout, Training(seq_len=2048, global_batch_size=8))
    script = FRAMEWORKS["megatron"].export(plan, 8).files["train.sh"]
    assert "--overlap-grad-reduce" in script
    assert "--overlap-param-gather" not in script


@pytest.mark.parametrize(
    ("stage", "switch", "hidden"),
    [
        pytest.param(2, "", (0.0, 0.4), id="stage 2: off unless told"),
        pytest.param(2, ', "overlap_comm": true', (0.8, 0.4), id="stage 2: told"),
        pytest.param(3, "", (0.8, 0.4), id="stage 3: on unless told"),
        pytest.param(3, ', "overlap_comm": null', (0.8, 0.4), id="left to DeepSpeed"),
        pytest.param(3, ', "overlap_comm": false', NEITHER, id="off, and its gathers with it"),
    ],
)
def test_deepspeed_hides_by_streams_of_their_own(
    stage: int, switch: str, hidden: tuple[float, float]
) -> None:
    """Gradients where overlap_comm is on, which it is by itself in stage 3 alone."""
    zero = f'{{"stage": {stage}{switch}}}'
    text = f'{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {zero}}}'
    flags = Settings(cluster="dgx-h100", gpus=8, model="llama-3-8b", seq_len=4096)
    reading = read_config(text, "ds_config.json")
    overlap = resolve(reading, flags, Settings()).engine.overlap
    assert (overlap.data_reduce, overlap.weight_gather) == hidden
    assert not any("overlap_comm" in said for said in (*reading.ignored, *reading.alone().notes))


AXOLOTL = (
    "base_model: meta-llama/Llama-3.1-8B\ndatasets: [{path: x}]\nsequence_len: 4096\n"
    "micro_batch_size: 1\nbf16: true\ndeepspeed: "
)
FACTORY = (
    "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\n"
    "cutoff_len: 4096\nper_device_train_batch_size: 1\nbf16: true\ndeepspeed: "
)


@pytest.mark.parametrize(
    ("text", "exposed"),
    [
        (f"{AXOLOTL}{{zero_optimization: {{stage: 2, overlap_comm: false}}}}", ("data_reduce",)),
        pytest.param(f"{AXOLOTL}deepspeed_configs/zero1.json", (), id="axolotl's own"),
        pytest.param(
            f"{FACTORY}examples/deepspeed/ds_z3_config.json", ("data_reduce", "weight_gather"),
            id="LLaMA-Factory's own",
        ),
        pytest.param(
            "model: Qwen/Qwen2.5-7B\ndataset: [x]\ntuner_type: full\nmax_length: 4096\n"
            "deepspeed: zero3", ("data_reduce", "weight_gather"), id="ms-swift's own",
        ),
    ],
)  # fmt: skip
def test_a_trainer_takes_the_switches_of_deepspeeds_file(
    tmp_path: Path, text: str, exposed: tuple[str, ...]
) -> None:
    """Of a section, and of the files that it brings along."""
    (tmp_path / "train.yaml").write_text(f"{text}\n")
    assert read_config(f"{text}\n", str(tmp_path / "train.yaml")).exposed == exposed


@pytest.mark.parametrize(("stage", "exposed"), [(2, ("data_reduce",)), (3, ())])
def test_accelerates_own_settings_of_deepspeed_have_no_streams(
    stage: int, exposed: tuple[str, ...]
) -> None:
    """Its plugin leaves overlap_comm to DeepSpeed, which turns it on in stage 3."""
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
        f"num_processes: 8\ndeepspeed_config: {{zero_stage: {stage}}}\n"
    )
    assert read_config(text, "accelerate.yaml").exposed == exposed
