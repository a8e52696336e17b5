"""Buffers that a pipeline rank receives into, where each micro-batch has its own.

    bytes = m b

    b      an activation of a micro-batch, as it is handed on      m   micro-batches of a step

The last rank receives as many activations and the first as many gradients.
torch.distributed.pipelining allocates a buffer for each when a step's shapes are known and keeps
them until they change (torch/distributed/pipelining/stage.py, _prepare_forward_infra and
_prepare_backward_infra: "one activation and gradient receive buffer for every microbatch",
pytorch/pytorch pull request 196463; issue 136380). On two pipeline ranks with tp 2 an 8B under
torchtitan takes 66 MB more for each sequence of 16,384 tokens, whose activation is 67 MB
(daddyofadoggy/blog@db07f840 posts/torchtitan/3d.md: 51.8, 55.5, 62.9 and 79.5 GiB with 64, 128, 256
and 512 sequences a rank); a 30B over two ranks 56.2, 56.4 and 58.2 GiB with 4, 16 and 128
sequences of 16 MiB (OpenEuroLLM/oellm-autoexp@c6d0cc0).
Leaves out as much again on ranks between the two, which have neither the most micro-batches in
flight nor logits, and for each further chunk of a rank twice as much, since a grid does not know
how many those are. The input of a micro-batch in flight is such a buffer and counted once more in
what its stage keeps.
"""

from meshplan.costmodels.elementwise import Number, where


def receive_buffer_bytes(
    pipeline_parallel: Number, sent_bytes: Number, micro_batches: Number, *, apart: bool
) -> Number:
    """Bytes on the first and on the last rank of a pipeline; 0 where buffers are used again."""
    if not apart:
        return 0.0
    return where(pipeline_parallel > 1, micro_batches * sent_bytes, 0.0)
