"""What PyTorch's ring attention moves and issues, against PyTorch's own functions, and by hand."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.attention.pytorch_ring import merges_outside
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Operation, Pointwise
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import shard_of
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

LLAMA = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")
S, CP, TP = 512, 4, 4
T = S // CP  # tokens of a rank
Q, KV = 2 * T * 32 // TP * 128, 2 * T * 8 // TP * (128 + 128)  # bytes of queries; keys and values
KERNELS = ("aten.add_", "aten.cat", "aten.clone", "aten._to_copy", "aten.zeros_like", "aten.sub",
           "aten.sigmoid", "aten.log_sigmoid_forward", "aten.mul")  # fmt: skip


class Counted(TorchDispatchMode):
    """Kernels that operators launch, and what they move: read, where not made of zeros, and put
    out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.moved = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = str(func)
        if name.rpartition(".")[0] in KERNELS:
            read = [] if "zeros" in name else [*args[0]] if "cat" in name else [*args]
            out = made[0] if isinstance(made, tuple) else made
            self.kernels += 1
            self.moved += sum(t.nbytes for t in [*read, out] if isinstance(t, Tensor))
        return made


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """The last of four ranks, whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=CP - 1, world_size=CP)
    yield dist.group.WORLD  # type: ignore[misc]
    dist.destroy_process_group()


def rank(kind: str = "all_gather", cp: int = CP, **habits: object) -> Site:
    """A rank of torchtitan without a compiler, but for these habits."""
    layout = Layout(tensor_parallel=TP, context_parallel=cp, stages=even_stages(32, 1))
    kernels = load_engine("torchtitan-eager").kernels.model_copy(
        update={"context": kind, "attention": "flash2", **habits}
    )
    return Site(LLAMA, shard_of(layout, Training(seq_len=S, global_batch_size=1)), kernels)


def operations(where: Site) -> dict[str, Operation]:
    return {op.name: op for op in layer_operations(where, LLAMA.kinds[0])}


def merge(where: Site) -> Pointwise:
    found = operations(where)["context_merge"]
    assert isinstance(found, Pointwise)
    return found


def flat(heads: int) -> Tensor:
    """Of this rank, as a layer hands it over: heads behind tokens, seen the other way round."""
    return torch.zeros(1, T, heads, 128, dtype=torch.bfloat16).transpose(1, 2)


def forward(query: Tensor, key: Tensor, value: Tensor, **_: object) -> tuple[Tensor, ...]:
    """In place of the kernel: an output and a log-sum-exp that are there already."""
    return query, LOGSUMEXP[:, :, : query.shape[2]]


def backward(*, query: Tensor, key: Tensor, value: Tensor, **_: object) -> tuple[Tensor, ...]:
    return query, key, value


LOGSUMEXP = torch.zeros(1, 8, T)


@pytest.mark.parametrize("kind", ["all_gather", "ring"])
def test_what_pytorch_moves(
    group: dist.ProcessGroup, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own functions on the last rank: kernels as counted, bytes but for log-sum-exps."""
    method = ring._RotateMethod.ALL_TO_ALL if kind == "ring" else ring._RotateMethod.ALL_GATHER
    monkeypatch.setattr(ring._cp_options, "rotate_method", method)
    q, k, v, op = flat(8), flat(2), flat(2), merge(rank(kind))
    with Counted() as seen:
        ring._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)
    assert op.operators[0] - 15 * (CP - 1) * (kind == "ring") == op.kernels == seen.kernels
    assert op.forward_bytes == pytest.approx(seen.moved, rel=0.02)
    with Counted() as seen:
        ring._templated_ring_attention_backward(
            group, 2, backward, q, "grad_out", q, k, v, q, LOGSUMEXP, is_causal=True
        )
    permutes = CP + (CP - 1) * (kind == "ring")
    assert op.operators[1] - 15 * permutes == seen.kernels
    assert op.backward_bytes == pytest.approx(seen.moved, rel=0.02)


def test_gradients_go_round_in_fp32() -> None:
    """3 of 4 hops beside attention, which a gather over 4 ranks has too, and one behind it."""
    found = [op for op in operations(rank()).values() if isinstance(op, Communication)]
    sent = [
        (op.size_bytes * (CP - 1) / CP, op.forward_count, op.backward_count, op.hidden_by)
        for op in found
        if op.axis == "cp"
    ]
    assert sent == [
        (3 * KV, 1, 1, "first_chunk"), (3 * 2 * KV, 0, 1, "attention"), (2 * KV, 0, 1, "nothing"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("compiled", "moved"),
    [
        pytest.param(
            "compiled", (13 * Q + 2 * KV, 5 * Q + 21.5 * KV), id="2 outputs in, 2 fp32 out; 2 + 1 +"
        ),
        pytest.param(
            "operators", (63 * Q + 8 * KV, 25 * Q + 57.5 * KV), id="6 + 3 x 19; 10 + 3 x 5"
        ),
    ],
)
def test_what_merges_move(compiled: str, moved: tuple[float, float]) -> None:
    """Three hops of four ranks; outputs are as wide as queries."""
    op = merge(rank(context_merge=compiled))
    assert (op.forward_bytes, op.backward_bytes) == moved


def test_the_host_issues_each_hop() -> None:
    """4 + 3 x 10 operators forward, and for a ring three hops that Python sends; 13 + 3 x 7 and
    four hops of gradients backward.
    """
    assert merge(rank()).operators == (34, 34 + 4 * 15)
    assert merge(rank("ring")).operators == (34 + 3 * 15, 34 + 7 * 15)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(rank(cp=1), id="one rank"),
        pytest.param(rank("all_to_all"), id="heads are exchanged"),
        pytest.param(rank(context_merge=""), id="Transformer Engine's"),
        pytest.param(rank(attention="flex"), id="one kernel over gathered keys"),
    ],
)
def test_where_nothing_is_merged(where: Site) -> None:
    found = operations(where)
    core = found["core_attention"]
    assert isinstance(core, AttentionCore)
    assert "context_merge" not in found
    assert core.in_turn == 1


@pytest.mark.parametrize(
    ("engine", "habits"),
    [
        ("torchtitan", ("all_gather", "compiled")),
        ("accelerate", ("all_gather", "operators")),
        ("transformers", ("all_gather", "operators")),
        ("accelerate-chunked-loss", ("all_gather", "operators")),
        ("automodel", ("ring", "")),
        ("verl-fsdp", ("all_to_all", "operators")),
        ("megatron", ("ring", "")),
    ],
)
def test_who_runs_it(engine: str, habits: tuple[str, str]) -> None:
    """FSDP2's trainers gather keys unless told; AutoModel has Transformer Engine, verl Ulysses."""
    kernels = load_engine(engine).kernels
    assert (kernels.context, kernels.context_merge) == habits


@pytest.mark.parametrize(
    "other", [{"causal": False}, {"window": 64}], ids=["not causal", "a window"]
)
def test_only_whole_causal_attention_is_merged(other: dict[str, Any]) -> None:
    kind = LLAMA.kinds[0]
    assert kind.attention is not None
    other_kind = replace(kind, attention=replace(kind.attention, **other))
    assert merges_outside(rank(), kind.attention)
    names = [op.name for op in layer_operations(rank(), other_kind)]
    assert "context_merge" not in names


def test_a_hop_meets_fewer_keys() -> None:
    """Four kernels of 64 keys each take what one over 64 keys does for as many queries, 4 times."""
    gpu = "h100-sxm"
    device = Device(load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"], "flash2")
    whole = operations(rank())["core_attention"]
    assert isinstance(whole, AttentionCore)
    one = replace(whole, keys=whole.keys / CP, in_turn=1)
    for backward in (False, True):
        assert attention_s(device, whole, backward=backward) == pytest.approx(
            CP * attention_s(device, one, backward=backward)
        )
