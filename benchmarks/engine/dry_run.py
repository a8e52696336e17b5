"""The cost model of the native engine against its dry run: memory, FLOPs and bytes sent.

    python -m benchmarks.engine.dry_run [--quick]      writes the table of docs/engine.md

Both are asked for the same rank of the same layout. Quick layouts (six layers, one or two thousand
tokens) cross every axis; the larger ones are models of the catalogue on up to 16,384 GPUs.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.pages import ROOT, put
from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.memory.states import Memory
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.operations.embedding_head import (
    embedding_operations,
    head_operations,
    module_operations,
)
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Operation
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.replayed import replayed_of
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Training
from meshplan.executor.dryrun.dry_run import dry_run_job
from meshplan.executor.dryrun.result import DryRun
from meshplan.executor.engine.step.engine import Job
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

GROUPED = Attention(heads=16, kv_heads=4, head_dim=64, v_head_dim=64)
WHOLE = Attention(heads=16, kv_heads=16, head_dim=64, v_head_dim=64, qkv_bias=True, out_bias=True)
NORMED = replace(GROUPED, qk_norm="head")
LATENT = Attention(
    heads=16, kv_heads=16, head_dim=96, v_head_dim=64, q_lora_rank=384, kv_lora_rank=256,
    rope_head_dim=32,
)  # fmt: skip
ROUTED = Experts(experts=8, top_k=2, ffn=1408)
SHARED = Experts(experts=16, top_k=4, ffn=704, shared_ffn=704)
DELTA = Recurrent(
    kind="gated DeltaNet", heads=16, key_dim=64, value_dim=64, groups=16, chunk=64, inner=1024,
    projections=2 * 512 + 2 * 1024 + 32, delta_rule=True, convolution=4, convolved=2 * 512 + 1024,
    numbers=32 + 64,
)  # fmt: skip
STATE_SPACE = Recurrent(
    kind="Mamba-2", heads=32, key_dim=64, value_dim=64, groups=8, chunk=128, inner=2048,
    projections=2 * 2048 + 2 * 512 + 32, convolution=4, convolved=2048 + 2 * 512,
    convolution_bias=True, numbers=3 * 32 + 2048,
)  # fmt: skip
MODELS = {
    "llama": Model(
        name="llama", hidden=1024, vocab=32000, pattern=(0,) * 6,
        kinds=(Layer(attention=GROUPED, ffn=2816),),
    ),
    "qwen": Model(
        name="qwen", hidden=1024, vocab=32000, pattern=(0,) * 6, tied=True,
        kinds=(Layer(attention=NORMED, ffn=2816),),
    ),
    "gpt": Model(
        name="gpt", hidden=1024, vocab=50304, pattern=(0,) * 6, gated=False, norm="layernorm",
        bias=True, learned_positions=2048, tied=True, kinds=(Layer(attention=WHOLE, ffn=4096),),
    ),
    "moe": Model(
        name="moe", hidden=1024, vocab=32000, pattern=(0,) * 6,
        kinds=(Layer(attention=GROUPED, experts=ROUTED),),
    ),
    "latent": Model(
        name="latent", hidden=1024, vocab=32000, pattern=(0, 1, 1, 1, 1, 1),
        kinds=(Layer(attention=LATENT, ffn=2816), Layer(attention=LATENT, experts=SHARED)),
    ),
    "delta": Model(
        name="delta", hidden=1024, vocab=32000, pattern=(0, 0, 1, 0, 0, 1),
        kinds=(
            Layer(recurrent=DELTA, experts=SHARED),
            Layer(attention=replace(NORMED, gate="full"), experts=SHARED),
        ),
    ),
    "mamba": Model(
        name="mamba", hidden=1024, vocab=32000, pattern=(0, 1, 0, 2, 0, 1), gated=False,
        kinds=(Layer(recurrent=STATE_SPACE), Layer(ffn=4096), Layer(attention=GROUPED)),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One rank of one layout; `last`: of the last pipeline rank instead of the first."""

    model: Model
    layout: Layout
    training: Training
    last: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        la = self.layout
        schedule = f" {la.schedule}" if la.pipeline_parallel > 1 else ""
        counts = [stage.layers for stage in la.stages]
        uneven = f" {counts}" if len(set(counts)) > 1 and len(counts) < 5 else ""
        hybrid = f" hsdp{la.shard_group}" if la.shard_group else ""
        rank = ", last rank" if self.last else ""
        m = la.num_micro_batches(self.training)
        return f"{self.model.name} {la.label}{schedule}{uneven}{hybrid} m{m}{rank}"

    @property
    def pp_rank(self) -> int:
        """The pipeline rank that is looked at."""
        return self.layout.pipeline_parallel - 1 if self.last else 0

    @property
    def step(self) -> StepModel:
        """The cost model's view."""
        engine, cluster = load_engine("native"), load_cluster("dgx-h100")
        return StepModel(Setting(self.model, self.training, cluster, engine, Tuning()), self.layout)

    def run(self) -> DryRun:
        """The engine's."""
        job = Job(model=self.model, layout=self.layout, training=self.training)
        first = self.layout.world_size // self.layout.pipeline_parallel * self.pp_rank
        return dry_run_job(job, first)


@dataclass(frozen=True, slots=True)
class Compared:
    """Both answers."""

    case: Case
    memory: Memory
    measured: DryRun

    @property
    def error(self) -> float:
        """Of the peak, relative to the dry run."""
        return float(self.memory.allocated) / self.measured.peak_bytes - 1


def compared(case: Case) -> Compared:
    """One case, asked of both."""
    return Compared(case, case.step.memory()[case.pp_rank], case.run())


def executed_flops(case: Case) -> float:
    """What the cost model expects the rank to execute in a step.

    It counts twice the forward for a backward; flash attention's makes five products for the
    forward's two: 3 d + 2 e instead of 2 (d + e) numbers per query and key, with heads d and e
    wide.
    """
    step, total = case.step, 0.0
    for index, counts in enumerate(step.stage_counts):
        if step.rank_of(index) != case.pp_rank:
            continue
        cost = step.stage_costs[index]
        total += float(cost.model_flops + cost.replay_flops)
        for (kind, _), count in counts.items():
            total += count * _attention_extra(layer_operations(step.site, case.model.kinds[kind]))
    return total * step.m


def _attention_extra(operations: tuple[Operation, ...]) -> float:
    return sum(
        float(op.forward_flops) * op.head_dim / (op.head_dim + op.v_head_dim)
        for op in operations
        if isinstance(op, AttentionCore)
    )


def sent_bytes(case: Case, axis: str) -> float:
    """Bytes of the collectives inside layers and ends that the cost model prices on `axis`."""
    step, total = case.step, 0.0
    for index, counts in enumerate(step.stage_counts):
        if step.rank_of(index) != case.pp_rank:
            continue
        for (kind, mode), count in counts.items():
            operations = layer_operations(step.site, case.model.kinds[kind])
            modules = case.layout.selective_modules if mode == "selective" else ()
            again = operations if mode == "full" else tuple(replayed_of(operations, modules))
            total += count * (_bytes(operations, axis) + _bytes(again, axis, backward=False))
        if index == 0:
            total += _bytes(embedding_operations(step.site), axis)
        if index == len(step.stage_counts) - 1:
            head = head_operations(step.site) + module_operations(step.site)
            total += _bytes(head, axis)
    return total * step.m


def _bytes(operations: Any, axis: str, *, backward: bool = True) -> float:
    return sum(
        float(op.size_bytes * (op.forward_count + (op.backward_count if backward else 0)))
        for op in operations
        if isinstance(op, Communication) and op.axis == axis
    )


TP2: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True}
TP4: dict[str, Any] = {"tensor_parallel": 4, "sequence_parallel": True}
PP2: dict[str, Any] = {"pipeline_parallel": 2}
INTERLEAVED: dict[str, Any] = {
    **PP2, "virtual_stages": 3, "schedule": "interleaved_1f1b", "stages": even_stages(6, 6),
}  # fmt: skip
V: dict[str, Any] = {**PP2, "virtual_stages": 2, "stages": even_stages(6, 4)}
ALL = load_engine("native").legality.recompute_modules


def _case(name: str, m: int, *, last: bool = False, seq_len: int = 2048, **traits: Any) -> Case:
    pp = traits.get("pipeline_parallel", 1)
    layout = Layout(**{"stages": even_stages(6, pp), **traits})
    batch = m * layout.data_parallel * layout.micro_batch_size
    return Case(MODELS[name], layout, Training(seq_len=seq_len, global_batch_size=batch), last)


def quick_cases() -> Iterator[Case]:
    """Every axis alone, for each model; then compositions."""
    for name in ("llama", "gpt", "moe", "latent"):
        yield from _alone(name)
    yield from _composed()
    yield from _of_experts()
    yield from _of_states()


def _alone(name: str) -> Iterator[Case]:
    yield _case(name, 2)
    yield _case(name, 2, **TP2)
    yield _case(name, 2, context_parallel=2, zero_stage=1)
    for zero in (1, 2, 3) if name == "llama" else (2, 3):
        yield _case(name, 2, data_parallel=4, zero_stage=zero)
    yield _case(name, 2, stages=even_stages(6, 1, "full"))
    yield _case(name, 2, stages=even_stages(6, 1, "selective"), selective_modules=ALL)
    yield _case(name, 4, **PP2)
    yield _case(name, 4, **PP2, last=True)
    yield _case(name, 4, **INTERLEAVED)
    yield _case(name, 4, **PP2, schedule="zb_h1", last=True)
    yield _case(name, 5, **V, schedule="zb_v")


def _composed() -> Iterator[Case]:
    mixed = (Stage(6, 2, 2),)
    yield _case("llama", 3, **PP2, schedule="gpipe")
    uneven = (Stage(4, 1, 2), Stage(2))
    yield _case("llama", 2, stages=mixed)
    yield _case("llama", 1, micro_batch_size=4)
    yield _case("llama", 2, **TP4, micro_batch_size=2)
    yield _case("llama", 2, **TP2, stages=even_stages(6, 1, "selective"), selective_modules=ALL)
    yield _case("latent", 2, **TP2, stages=even_stages(6, 1, "selective"), selective_modules=ALL)
    yield _case("llama", 4, **PP2, stages=uneven)
    yield _case("llama", 4, **PP2, stages=uneven, last=True)
    yield _case("llama", 2, data_parallel=8, zero_stage=2, shard_group=2)
    yield _case("llama", 2, data_parallel=8, zero_stage=3, shard_group=4)
    yield _case("llama", 4, **PP2, **TP2, data_parallel=2, zero_stage=2)
    yield _case("llama", 4, **PP2, **TP2, data_parallel=2, zero_stage=3, last=True)
    yield _case("llama", 4, **INTERLEAVED, **TP2, data_parallel=2, zero_stage=1, last=True)
    yield _case("llama", 5, **V, schedule="dualpipe_v", data_parallel=2, zero_stage=1)
    yield _case("llama", 4, **PP2, **TP2, schedule="zb_h1")
    yield _case("llama", 2, context_parallel=4, **TP2, zero_stage=3)
    yield _case("qwen", 2)
    yield _case("qwen", 2, **TP2, data_parallel=2, zero_stage=2)
    yield _case("qwen", 4, **V, schedule="zb_v")


def _of_experts() -> Iterator[Case]:
    yield _case("moe", 2, data_parallel=4, expert_parallel=4, zero_stage=1)
    yield _case("moe", 2, data_parallel=4, expert_parallel=2, zero_stage=3)
    yield _case("moe", 2, **TP2, data_parallel=2, expert_parallel=4, zero_stage=2)
    yield _case("moe", 4, **PP2, data_parallel=2, expert_parallel=2, zero_stage=1)
    yield _case("latent", 2, **TP2, data_parallel=2, expert_parallel=2, zero_stage=1)
    yield _case("latent", 4, **PP2, data_parallel=4, expert_parallel=4, zero_stage=2, last=True)
    yield _case("latent", 2, data_parallel=8, expert_parallel=4, zero_stage=3, shard_group=4)


def _of_states() -> Iterator[Case]:
    for name in ("delta", "mamba"):
        yield _case(name, 2)
        yield _case(name, 2, **TP2, data_parallel=2, zero_stage=2)
        yield _case(name, 2, data_parallel=4, zero_stage=3)
        yield _case(name, 2, stages=even_stages(6, 1, "full"))
        yield _case(name, 2, stages=even_stages(6, 1, "selective"), selective_modules=ALL)
        yield _case(name, 4, **PP2, schedule="zb_h1", last=True)
    yield _case("delta", 2, **TP2, data_parallel=2, expert_parallel=2, zero_stage=1)
    yield _case("delta", 5, **V, schedule="zb_v")


def large_cases() -> Iterator[Case]:
    """Models of the catalogue, as one would run them."""
    for name, seq_len, batch, traits in LARGE:
        model = model_from_config(load_model_config(name), name)
        pp, vpp = traits.get("pipeline_parallel", 1), traits.get("virtual_stages", 1)
        layout = Layout(**{"stages": even_stages(model.num_layers, pp * vpp), **traits})
        training = Training(seq_len=seq_len, global_batch_size=batch)
        yield Case(model, layout, training)
        if pp > 1:
            yield Case(model, layout, training, last=True)


TP8: dict[str, Any] = {"tensor_parallel": 8, "sequence_parallel": True}
LARGE: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("llama-3.1-8b", 8192, 64, {"data_parallel": 8, "zero_stage": 3}),
    ("llama-3.1-8b", 8192, 64, {"data_parallel": 4, **TP2, "zero_stage": 1}),
    ("llama-3.1-70b", 8192, 128, {
        "data_parallel": 8, **TP8, "pipeline_parallel": 4, "zero_stage": 1,
    }),
    ("llama-3.1-405b", 8192, 2048, {
        "data_parallel": 128, **TP8, "pipeline_parallel": 16, "zero_stage": 1,
        "stages": (Stage(7), *(Stage(8),) * 14, Stage(7)),
    }),
    ("qwen3-next-80b-a3b", 4096, 256, {
        "data_parallel": 16, **PP2, "expert_parallel": 16, "zero_stage": 1,
    }),
    ("nemotron-h-8b", 4096, 64, {"data_parallel": 4, **TP2, "zero_stage": 1}),
    ("mixtral-8x22b", 4096, 256, {
        "data_parallel": 8, **TP4, "pipeline_parallel": 4, "expert_parallel": 8, "zero_stage": 1,
    }),
)  # fmt: skip


SHOWN = 8  # the farthest off of the small ones; of the catalogue all


def table(results: list[Compared]) -> str:
    """Median and worst error of all, and as Markdown rows the catalogue's and the farthest off."""
    errors = [abs(result.error) for result in results]
    own = {name for name, *_ in LARGE}
    farthest = sorted(results, key=lambda each: -abs(each.error))[:SHOWN]
    rows = [
        f"| {r.case.name} | {r.measured.peak_bytes / 2**20:,.0f} | "
        f"{float(r.memory.allocated) / 2**20:,.0f} | {r.error:+.2%} |"
        for r in results
        if r in farthest or r.case.model.name in own
    ]
    return "\n".join((
        f"{len(results)} layouts: median error {median(errors):.2%}, worst {max(errors):.2%}. "
        f"Those of the catalogue, and the {SHOWN} farthest off:", "",
        "| layout | dry run, MiB | cost model, MiB | error |", "|---|---|---|---|", *rows,
    ))  # fmt: skip


def main() -> None:
    """Compare all layouts and write the table between the marks in the document."""
    parser = argparse.ArgumentParser(prog="benchmarks.engine.dry_run")
    parser.add_argument("--quick", action="store_true", help="print, and leave out large models")
    options = parser.parse_args()
    results = []
    for case in (*quick_cases(), *(() if options.quick else large_cases())):
        results.append(compared(case))
        print(f"{results[-1].error:+7.2%}  {case.name}", flush=True)
    if options.quick:
        print(table(results).partition("\n")[0])
        return
    put(ROOT / "docs/engine.md", "dry run", table(results))


if __name__ == "__main__":
    main()
