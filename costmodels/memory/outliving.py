"""Activations that stay alive after the pass that made them, in PyTorch's training loops.

    returned keys     Hugging Face's models return the keys and values of every layer unless they
                      are told not to (use_cache), so that checkpoints do not free them. Where the
                      loop's variable holds the output, the one of the step before is there too
                      until the forward pass ends.
    input gradients   a unit of FSDP1 whose weights are all frozen hooks the gradient of its input
                      (`_register_post_backward_reshard_only_hook`) and keeps that hook until the
                      backward ends. Under a reentrant checkpoint the input is a leaf of the replay,
                      so the hook holds it with its gradient: of L layers L - 1 are there when the
                      backward of the first one runs.

Source: huggingface/transformers@v4.31 models/llama/modeling_llama.py (LlamaModel.forward: only its
own gradient_checkpointing turns use_cache off); torch 2.13 torch/distributed/fsdp/_runtime_utils.py
(the hook, and _finalize_params, which removes it), torch/autograd/graph.py (what a hook on several
gradients holds of a leaf), torch/utils/checkpoint.py (CheckpointFunction.backward).
torch 2.13 on a CPU holds 11.0 inputs more in the backward of twelve such layers, none without the
hook or where the checkpoint is not reentrant.
"""

from meshplan.costmodels.elementwise import Condition, Number, where
from meshplan.costmodels.layout import Mode
from meshplan.costmodels.model.transformer import Attention
from meshplan.costmodels.operations.attention.context_exchange import kv_heads
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.layers import input_bytes


def returned_bytes(site: Site, attention: Attention, mode: Mode) -> Number:
    """Of a layer's keys and values what outputs hold (`KernelHabits.returned_keys`), but for those
    that the layer keeps for its backward anyway.
    """
    sets = site.kernels.returned_keys - (mode != "full")
    if sets <= 0 or not attention.heads:
        return 0.0
    widths = attention.head_dim + attention.v_head_dim
    return sets * site.itemsize * site.shard.tokens * kv_heads(site.shard, attention) * widths


def held_gradients_bytes(site: Site, sharded: Condition, layers: Number) -> Number:
    """Of the inputs of all of a rank's layers but the first, where frozen weights are `sharded`
    and the engine holds them (`KernelHabits.holds_input_gradients`).
    """
    if not site.kernels.holds_input_gradients:
        return 0.0
    return where(sharded, input_bytes(site) * (layers - 1), 0.0)
