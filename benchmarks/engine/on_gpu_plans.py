"""What `benchmarks.engine.on_gpu` runs: plans that differ in what the cost model does not know.

One device each, but for the layouts of laboratories, of which a rank is run alone, and for plans of
as many devices as a host has (`several`), which run both ways: a rank of the first and one of the
last stage alone, and all of them together. Models of the catalogue with fewer layers, so that their
states fit 80 GB; a plan that does not fit what is free says so. Left out: fp8, in which the native
engine does not train (its products are in the profile), and hybrids with state-space layers, which
it does not build.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from meshplan import hardware_profiles
from meshplan.costmodels.layout import Layout, RecomputeModule, Stage, even_stages
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.case.plan_file import Plan, PlanCluster, PlanModel

MODELS = Path(hardware_profiles.__file__).parent / "models"
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "ffn_hidden_size": 128, "head_dim": 16,
    "num_attention_heads": 8, "vocab_size": 512, "moe_intermediate_size": 32, "q_lora_rank": 32,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_embd": 64, "n_inner": 128, "n_head": 8,
}  # fmt: skip
AT_MOST = {
    "num_key_value_heads": 8, "n_routed_experts": 64, "num_experts": 64, "num_local_experts": 64,
    "moe_num_experts": 64,
    "sliding_window": 32,
}  # fmt: skip
SHORT = 64
"""Tokens of a tiny plan; it has as many micro-batches as pipeline ranks, and is fp32: CPUs without
bf16 products take many times as long for them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One plan and the ranks of it that run.

    separates  what its time or memory depends on that the others' do not
    changes    keys of the model's configuration that differ from the catalogue's
    published  priced by the GPU's published cluster: a profile of one GPU has no network
    together   all its ranks run too, over a real process group
    """

    name: str
    separates: str
    model: str
    layout: Layout
    seq_len: int = 4096
    micro_batches: int = 4
    precision: Literal["bf16", "fp32"] = "bf16"
    changes: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = (0,)
    published: bool = False
    together: bool = False

    def plan(self, cluster: Cluster, *, tiny: bool) -> Plan:
        """The plan on `cluster`; `tiny`: for a CPU."""
        config = {**json.loads((MODELS / f"{self.model}.json").read_text()), **self.changes}
        micro_batches = self.layout.pipeline_parallel if tiny else self.micro_batches
        return Plan(
            model=PlanModel.of(self.name, shrunk(config) if tiny else config),
            cluster=PlanCluster(
                name=cluster.name, gpus=self.layout.world_size, sha256=cluster_hash(cluster)
            ),
            training=Training(
                seq_len=min(self.seq_len, SHORT) if tiny else self.seq_len,
                global_batch_size=micro_batches * self.layout.micro_batch_size
                * self.layout.data_parallel,
                precision="fp32" if tiny else self.precision,
            ),
            engine="native", layout=self.layout,
        )  # fmt: skip


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of the same family and depth whose layers a CPU runs in milliseconds."""
    known = {key: value for key, value in config.items() if value is not None}
    most = {key: min(value, known[key]) for key, value in AT_MOST.items() if key in known}
    return {**config, **{key: value for key, value in TINY.items() if key in known}, **most}


def alone(layers: int, mbs: int = 1, recompute: str = "none", module: str = "") -> Layout:
    """One GPU that recomputes all layers, or one module of each."""
    full = layers if recompute == "full" else 0
    modules: tuple[RecomputeModule, ...] = (module,) if module else ("core_attention",)  # type: ignore[assignment]
    stage = Stage(layers, layers if recompute == "selective" else 0, full)
    return Layout(micro_batch_size=mbs, stages=(stage,), selective_modules=modules)


def cut(
    name: str, separates: str, model: str, layers: int = 4, *,
    config: Mapping[str, Any] | None = None, mbs: int = 1, recompute: str = "none",
    module: str = "", **others: Any,
) -> Item:  # fmt: skip
    """A model of the catalogue with so many layers, on one GPU."""
    changes = {"num_hidden_layers": layers, **(config or {})}
    layout = alone(layers, mbs, recompute, module)
    return Item(
        name=name, separates=separates, model=model, changes=changes, layout=layout, **others
    )


def labs() -> Iterator[Item]:
    """Ranks of published layouts (`benchmarks.search.lab_layouts` has the sources)."""
    ends = Stage(7)
    yield Item(
        name="llama-3.1-405b tp8 pp16", separates="a rank of 16,384", model="llama-3.1-405b",
        seq_len=8192, micro_batches=16, published=True, ranks=(0, 16383),
        layout=Layout(
            data_parallel=128, tensor_parallel=8, sequence_parallel=True, pipeline_parallel=16,
            zero_stage=1, stages=(ends, *(Stage(8),) * 14, ends),
        ),
    )  # fmt: skip
    yield Item(
        name="deepseek-v3 pp16 ep64", model="deepseek-v3",
        separates="a rank of 2,048; 1F1B with full recompute, since a V schedule keeps what weight "
        "products put off, which is too much for 80 GB",
        micro_batches=64, published=True, ranks=(0, 2047),
        layout=Layout(
            data_parallel=128, pipeline_parallel=16, expert_parallel=64, zero_stage=1,
            stages=(*(Stage(4, 0, 4),) * 13, *(Stage(3, 0, 3),) * 3),
        ),
    )  # fmt: skip
    yield Item(
        name="nemotron-4-340b tp8 pp12", separates="a rank of 6,144; rotary on whole heads, since "
        "the engine has none on half of them", model="nemotron-4-340b",
        changes={"partial_rotary_factor": 1.0}, micro_batches=36, published=True, ranks=(0, 6143),
        layout=Layout(
            data_parallel=64, tensor_parallel=8, sequence_parallel=True, pipeline_parallel=12,
            virtual_stages=8, schedule="interleaved_1f1b", zero_stage=1, stages=even_stages(96, 96),
        ),
    )  # fmt: skip


def several(devices: int) -> Iterator[Item]:
    """Plans of `devices` devices, or of the largest power of two below: one for each kind of
    message between them, and what meets in real layouts. None for one device.
    """
    n = 1 << (devices.bit_length() - 1)
    if n < 2:
        return
    data: dict[str, Any] = {"data_parallel": n}
    tensor: dict[str, Any] = {"tensor_parallel": n, "sequence_parallel": True}
    piped: dict[str, Any] = {"pipeline_parallel": n}
    yield together("data", "gradients summed", 4, zero_stage=1, **data)
    yield together("sharded", "weights gathered and gradients scattered", 4, zero_stage=3, **data)
    yield together("tensor", "messages within layers", 4, **tensor)
    yield together("context", "keys and values gathered", 4, context_parallel=n, zero_stage=1)
    yield together("pipeline", "messages between stages, and waiting for them", n, 1, **piped)
    yield together("chunks", "two chunks of each stage", 2 * n, 2, virtual_stages=2,
                   schedule="interleaved_1f1b", **piped)  # fmt: skip
    yield together("zero bubble", "weight gradients put off", n, 1, schedule="zb_h1", **piped)
    yield together("experts", "tokens sent to their experts", 2, model="mixtral-8x7b",
                   expert_parallel=min(n, 8), zero_stage=1, **data)  # fmt: skip
    if n > 2:
        yield together("tensor and data", "two axes at once", 4, zero_stage=1,
                       tensor_parallel=2, sequence_parallel=True, data_parallel=n // 2)  # fmt: skip


def together(
    what: str, separates: str, layers: int, chunks: int = 0, *, model: str = "llama-3.1-8b",
    **axes: Any,
) -> Item:  # fmt: skip
    """So many layers over all devices, in `chunks` parts on each stage of a pipeline. Of its stages
    the first and the last run alone, too: each start takes a minute of a call.
    """
    stages = axes.get("pipeline_parallel", 1)
    layout = Layout(stages=even_stages(layers, stages * max(1, chunks)), **axes)
    last = layout.world_size - layout.world_size // stages
    return Item(
        name=f"{what} over {layout.world_size}", separates=separates, model=model, layout=layout,
        changes={"num_hidden_layers": layers}, micro_batches=4 * stages,
        ranks=(0, last) if last else (0,), together=True,
    )  # fmt: skip


def separating() -> Iterator[Item]:
    """One GPU: each differs from one before it in one thing."""
    llama, wide = "llama-3.1-8b", {"vocab_size": 256000}
    yield cut("dense", "nothing: the one that others are compared with", llama)
    yield cut("dense mbs4", "rows of a product", llama, mbs=4, micro_batches=1)
    yield cut("dense fp32", "precision", llama, 2, precision="fp32")
    yield cut("dense full", "full recompute", llama, 8, recompute="full")
    for module in ("core_attention", "mlp"):
        yield cut(f"dense {module}", f"recompute of {module}", llama, 4, recompute="selective",
                  module=module)  # fmt: skip
    yield cut("dense 32k", "attention of long context", llama, 2, seq_len=32768, micro_batches=1)
    yield cut("dense 131k", "attention of very long context", llama, 1, seq_len=131072,
              micro_batches=1, recompute="full")  # fmt: skip
    yield cut("vocabulary 256k", "the head and its loss", llama, 2, config=wide)
    yield cut("narrow heads", "heads of 64", "llama-3.2-1b", 8)
    yield cut("window", "a sliding window of 4,096", "mistral-7b", 4, seq_len=16384,
              micro_batches=1, config={"sliding_window": 4096})  # fmt: skip
    yield cut("norms of heads", "query and key norms", "qwen3-8b", 4)
    yield cut("layer norm", "LayerNorm, biases, GELU, learned positions", "gpt3-6.7b", 4,
              config={"n_layer": 4}, seq_len=2048)  # fmt: skip
    yield cut("latent", "multi-head latent attention", "deepseek-v2-lite", 3)
    yield cut("latent 16k", "latent attention of long context", "deepseek-v2-lite", 3,
              seq_len=16384, micro_batches=1)  # fmt: skip
    yield cut("8 experts", "few wide experts", "mixtral-8x7b", 2)
    yield cut("128 experts", "many narrow experts: rows moved", "qwen3-30b-a3b", 4)
    yield cut("128 experts mbs4", "rows moved, of four sequences", "qwen3-30b-a3b", 4, mbs=4,
              micro_batches=1)  # fmt: skip
    yield cut("experts again", "recompute of experts", "qwen3-30b-a3b", 4, recompute="selective",
              module="moe")  # fmt: skip
    yield cut("shared experts", "routed beside shared experts", "ernie-4.5-21b-a3b", 3)


def items(devices: int = 1) -> tuple[Item, ...]:
    """All that a host of so many devices runs, the most telling first."""
    first, *others = separating()
    return (first, *several(devices), *labs(), *others)
