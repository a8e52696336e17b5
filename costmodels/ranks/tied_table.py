"""A tied table at both ends of a pipeline: its gradients are added up once more.

    seconds  all_reduce of b V h / tp bytes over the first and the last rank of the pipeline

    V h  numbers of the table          Model.vocab, hidden
    b    bytes of each                 State.reduce_bytes

The first stage has the gradient of its use as an embedding, the last that of its use as a head.
Ranks at one place of the first and the last stage add theirs up once a step, whole, where nothing
hides it: Megatron-Core after all other reductions (NVIDIA/Megatron-LM@d98e8a64
megatron/core/distributed/finalize_model_grads.py, `_allreduce_word_embedding_grads`), nanotron
after those of data parallel, in its fp32 buffers (huggingface/nanotron@2411b022
src/nanotron/trainer.py, `sync_tied_weights_gradients` of parallel/tied_parameters.py),
DeepSpeed's pipeline before them (deepspeedai/DeepSpeed@edaa7221 deepspeed/runtime/pipe/schedule.py,
ReduceTiedGrads; engine.py `_exec_reduce_tied_grads`), meshplan's own engine of a shard where
gradients are in shards (`State.tied_in_shards`).

Leaves out: that DeepSpeed's bf16 optimizer adds them up in fp32 (`_hp_grad`), whatever the others
are communicated in; the copy of the embedding that a module of multi-token prediction has on the
last stage.
"""

import numpy as np

from meshplan.costmodels.elementwise import Number, where
from meshplan.costmodels.ranks.rank import Rank
from meshplan.costmodels.ranks.shared_table import shares_table
from meshplan.costmodels.seconds.collectives import collective_s
from meshplan.costmodels.seconds.process_groups import place


def tied_table_s(rank: Rank) -> Number:
    """Seconds at the end of a step; 0 where one rank has the only copy, or nothing trains it."""
    setting, la = rank.setting, rank.layout
    model, state = setting.model, setting.engine.state
    apart = (la.pipeline_parallel > 1) & np.logical_not(shares_table(setting, la))
    if not model.tied or setting.training.lora or not np.any(apart):
        return 0.0
    numbers: Number = model.vocab * model.hidden / (la.tensor_parallel * 1.0)
    if state.tied_in_shards:
        numbers = numbers / where(la.zero_stage > 0, rank.traffic.dense.shard.size, 1.0)
    leaves = rank.hops.group.nodes > 1
    stride: Number = where(leaves, rank.hops.group.stride * (la.pipeline_parallel - 1.0), 1.0)
    ends = place(where(apart, 2.0, 1.0), stride, setting.cluster.gpus_per_node, la.world_size * 1.0)
    whole = collective_s(
        setting.cluster, "all_reduce", state.reduce_bytes * numbers, ends, one_message=False
    )
    return where(apart, whole * setting.tuning.collective_scale, 0.0)
