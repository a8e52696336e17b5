"""What a config's switches leave beside nothing: exchanges of replicas, and what notes say of them.

Megatron-LM hides them when told so (`--overlap-grad-reduce`, `--overlap-param-gather`, off unless
given: NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py); a recipe of Megatron-Bridge has
them on.
"""

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
DEEPSPEED = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, %s}}'


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
    ("switch", "noted"),
    [
        pytest.param('"overlap_comm": false', True, id="off, where the engine is priced with it"),
        ('"overlap_comm": true', False),
        pytest.param('"overlap_comm": null', False, id="left to DeepSpeed"),
    ],
)
def test_a_switch_that_is_usually_on_is_noted_where_it_is_off(switch: str, noted: bool) -> None:
    """`false` is no default of what the engine usually does."""
    notes = read_config(DEEPSPEED % switch, "ds_config.json").notes
    assert any("zero_optimization.overlap_comm" in note for note in notes) is noted
