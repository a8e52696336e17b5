"""One process of the engine computes what a plain PyTorch model with the same weights computes.

The parity suite compares layouts with one process; this compares one process with autograd, so that
the engine's own backward passes are checked against somebody else's.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.numerics import Numerics, Rotary, Router
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.training import Training
from meshplan.executor.engine.parts.kernels import EPS
from meshplan.executor.engine.parts.rank_context import ROPE_BASE
from meshplan.executor.engine.step.data import Sequences
from meshplan.executor.engine.step.engine import Engine, Job

TRAINING = Training(seq_len=24, global_batch_size=2, precision="fp32")
GROUPED = Attention(heads=4, kv_heads=2, head_dim=8, v_head_dim=8, qk_norm="head")
WINDOWED = Attention(heads=4, kv_heads=1, head_dim=8, v_head_dim=8, window=5)
LATENT = Attention(
    heads=4, kv_heads=4, head_dim=12, v_head_dim=8, q_lora_rank=16, kv_lora_rank=8, rope_head_dim=4
)
MULTI = Attention(heads=4, kv_heads=4, head_dim=8, v_head_dim=8, qkv_bias=True, out_bias=True)
SHARED = Experts(experts=4, top_k=2, ffn=16, shared_ffn=32, shared_gate=True, router_bias=True)
MODELS = {
    "llama with query and key norms": Model(
        name="llama", hidden=32, vocab=61, kinds=(Layer(attention=GROUPED, ffn=48),), pattern=(0, 0)
    ),
    "tied, sliding window, four norms": Model(
        name="gemma", hidden=32, vocab=61, kinds=(Layer(attention=WINDOWED, ffn=48),),
        pattern=(0, 0), tied=True, norms_per_layer=4, embedding_norm=True,
    ),
    "gpt": Model(
        name="gpt", hidden=32, vocab=64, kinds=(Layer(attention=MULTI, ffn=64),), pattern=(0, 0),
        gated=False, norm="layernorm", bias=True, learned_positions=24,
    ),
    "parallel blocks": Model(
        name="neox", hidden=32, vocab=64, kinds=(Layer(attention=MULTI, ffn=64),), pattern=(0, 0),
        gated=False, norm="layernorm", bias=True, parallel_blocks=True,
    ),
    "latent attention and experts": Model(
        name="deepseek", hidden=32, vocab=64, pattern=(0, 1),
        kinds=(Layer(attention=LATENT, ffn=48), Layer(attention=LATENT, experts=SHARED)),
    ),
    "experts whose weights do not add up to one": Model(
        name="qwen", hidden=32, vocab=64, pattern=(0, 0),
        kinds=(Layer(attention=GROUPED, experts=SHARED),),
        numerics=Numerics(router=Router(score="softmax", normalised=False)),
    ),
    "DeepSeek-V3's router": Model(
        name="sigmoid", hidden=32, vocab=64, pattern=(0, 0),
        kinds=(Layer(attention=LATENT, experts=replace(SHARED, experts=8, shared_gate=True)),),
        numerics=Numerics(router=Router(
            score="sigmoid", normalised=True, bias=True, groups=4, top_groups=2, scale=2.5)),
    ),
    "latent attention, stated numerics": Model(
        name="stated", hidden=32, vocab=61, kinds=(Layer(attention=LATENT, ffn=48),),
        pattern=(0, 0), numerics=Numerics(norm_epsilon=0.1, rotary=Rotary(base=100.0)),
    ),
    "layer norms, stated numerics": Model(
        name="stated", hidden=32, vocab=64, kinds=(Layer(attention=MULTI, ffn=64),), pattern=(0, 0),
        gated=False, norm="layernorm", bias=True, numerics=Numerics(norm_epsilon=0.1),
    ),
}  # fmt: skip


class Reference:
    """The model in plain PyTorch, weights by the engine's names."""

    def __init__(self, model, weights):
        self.model, self.weights = model, weights
        self.eps = model.numerics.norm_epsilon or EPS
        self.base = model.numerics.rotary.base or ROPE_BASE

    def norm(self, x, name, eps=None):
        if self.model.norm == "layernorm":
            return F.layer_norm(
                x,
                x.shape[-1:],
                self.weights[f"{name}.weight"],
                self.weights[f"{name}.bias"],
                self.eps,
            )
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], eps or self.eps)

    def linear(self, x, name):
        return F.linear(x, self.weights[name], self.weights.get(f"{name}.bias"))

    def rope(self, x):
        """(batch, heads, sequence, width), halves rotated."""
        width = x.shape[-1]
        angle = torch.outer(
            torch.arange(x.shape[-2]).double(),
            self.base ** (-torch.arange(0, width, 2).double() / width),
        ).float()
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attend(self, q, k, v, shape):
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        if shape.window is not None:
            mask &= ~mask.tril(-shape.window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)

    def grouped(self, x, name, shape):
        def heads(part, count, width):
            return self.linear(x, f"{name}.{part}").unflatten(-1, (count, width)).transpose(1, 2)

        q = heads("q", shape.heads, shape.head_dim)
        k = heads("k", shape.kv_heads, shape.head_dim)
        v = heads("v", shape.kv_heads, shape.v_head_dim)
        if shape.qk_norm == "head":
            q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        if not self.model.learned_positions:
            q, k = self.rope(q), self.rope(k)
        return self.linear(self.attend(q, k, v, shape), f"{name}.o")

    def latent(self, x, name, shape):
        nope = shape.head_dim - shape.rope_head_dim
        q = self.linear(
            self.norm(self.linear(x, f"{name}.q_down"), f"{name}.q_norm", 1e-6), f"{name}.q_up"
        )
        q = q.unflatten(-1, (shape.heads, -1)).transpose(1, 2)
        latent, key = self.linear(x, f"{name}.kv_down").split(
            [shape.kv_lora_rank, shape.rope_head_dim], -1
        )
        kv = self.linear(self.norm(latent, f"{name}.kv_norm", 1e-6), f"{name}.kv_up")
        k, v = (
            kv.unflatten(-1, (shape.heads, -1)).transpose(1, 2).split([nope, shape.v_head_dim], -1)
        )
        q = torch.cat((q[..., :nope], self.rope(q[..., nope:])), -1)
        k = torch.cat((k, self.rope(key.unsqueeze(1)).expand(-1, shape.heads, -1, -1)), -1)
        return self.linear(self.attend(q, k, v, shape), f"{name}.o")

    def dense(self, x, name):
        up = self.linear(x, f"{name}.up")
        y = F.silu(self.linear(x, f"{name}.gate")) * up if self.model.gated else F.gelu(up)
        return self.linear(y, f"{name}.down")

    def experts(self, x, name, shape):
        router, logits = self.model.numerics.router, self.linear(x, f"{name}.router")
        sigmoid = router is not None and router.score == "sigmoid"
        scores = 1 / (1 + (-logits).exp()) if sigmoid else logits.softmax(-1)
        allowed = scores
        if router is not None and router.groups:
            of_group = torch.stack([
                part.sort(-1).values[..., -2:].sum(-1) for part in scores.chunk(router.groups, -1)
            ], -1)  # fmt: skip
            worst = of_group.sort(-1).values[..., -router.top_groups].unsqueeze(-1)
            inside = (of_group >= worst).repeat_interleave(shape.experts // router.groups, -1)
            allowed = scores.masked_fill(~inside, float("-inf"))
        chosen = allowed.topk(shape.top_k, -1).indices
        largest = scores.gather(-1, chosen)
        if router is None or router.normalised:
            largest = largest / largest.sum(-1, keepdim=True)
        largest = largest * ((router and router.scale) or 1.0)
        share = torch.zeros(*x.shape[:-1], shape.experts).scatter(-1, chosen, largest)
        y = torch.sigmoid(self.linear(x, f"{name}.shared_gate")) * self.dense(x, f"{name}.shared")
        for e in range(shape.experts):
            gate, up = (self.linear(x, f"{name}.{part}.{e}") for part in ("gate", "up"))
            y = y + share[..., e : e + 1] * self.linear(F.silu(gate) * up, f"{name}.down.{e}")
        return y

    def layer(self, x, number):
        model, name = self.model, f"layers.{number}"
        kind = model.kinds[model.pattern[number]]
        attention = self.latent if kind.attention.is_mla else self.grouped
        norms = [f"{name}.norm{i}" for i in range(model.norms_per_layer)]

        def feed(y):
            ffn = f"{name}.ffn"
            return self.experts(y, ffn, kind.experts) if kind.experts else self.dense(y, ffn)

        attended = attention(self.norm(x, norms[0]), f"{name}.attention", kind.attention)
        if model.parallel_blocks:
            return x + attended + feed(self.norm(x, norms[1]))
        if len(norms) == 4:
            x = x + self.norm(attended, norms[2])
            return x + self.norm(feed(self.norm(x, norms[1])), norms[3])
        x = x + attended
        return x + feed(self.norm(x, norms[1]))

    def loss(self, tokens, targets):
        x = self.weights["embedding"][tokens]
        if self.model.learned_positions:
            x = x + self.weights["positions"]
        if self.model.embedding_norm:
            x = self.norm(x, "embedding_norm")
        for number in range(self.model.num_layers):
            x = self.layer(x, number)
        head = self.weights["embedding" if self.model.tied else "head"]
        logits = self.norm(x, "final_norm") @ head.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.fixture
def alone(tmp_path):
    """A process group of one process."""
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", MODELS)
def test_one_process_against_autograd(name, alone):
    """The engine's loss and gradient norm are those of a plain PyTorch model."""
    model = MODELS[name]
    job = Job(model=model, layout=Layout(stages=even_stages(2, 1)), training=TRAINING, seed=3)
    engine = Engine(job, torch.device("cpu"))
    engine.init_weights()
    weights = {}
    for unit in engine.units:
        for weight in unit.weights:
            values = weight.value if weight.stacked else [weight.value]
            for source, value in zip(weight.sources, values, strict=True):
                weights[source.name] = value.clone().requires_grad_()
    sequences = Sequences(TRAINING, model.vocab, seed=3)
    rows = torch.stack([sequences.sequence(0, i) for i in range(2)])
    loss = Reference(model, weights).loss(rows[:, :-1], rows[:, 1:])
    loss.backward()
    norm = torch.stack([w.grad.square().sum() for w in weights.values()]).sum().sqrt()
    record = engine.step(0, sequences)
    assert record.loss == pytest.approx(loss.item(), rel=1e-6)
    assert record.grad_norm == pytest.approx(norm.item(), rel=1e-5)
