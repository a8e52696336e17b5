"""Every layout trains like one process: losses and gradient norms of some AdamW steps agree.

Gloo, fp32, tiny models. One process imports torch and forks the ranks of each world size, which run
their layouts, each in a process group of its own; each result is one test. Of the layouts on more
processes than one those run every time that show something first, compositions before single axes;
all of them run nightly.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from first_shown import facts_of, first_shown
from nightly import cases

from meshplan.costmodels.layout import Layout, Stage, even_stages
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.training import Training
from meshplan.executor.engine.step.data import Sequences
from meshplan.executor.engine.step.engine import Engine, Job

STEPS = cases(3, nightly=5)
LOSS_TOLERANCE = 2e-6  # relative; fp32 sums in another order differ by some 1e-7
FIRST_NORM_TOLERANCE = 1e-6
NORM_TOLERANCE = 1e-4  # later steps start from weights that differ by the first's rounding

GROUPED = Attention(heads=4, kv_heads=2, head_dim=8, v_head_dim=8)
LATENT = Attention(
    heads=4, kv_heads=4, head_dim=12, v_head_dim=8, q_lora_rank=16, kv_lora_rank=8, rope_head_dim=4
)
MULTI = Attention(heads=4, kv_heads=4, head_dim=8, v_head_dim=8, qkv_bias=True, out_bias=True)
EXPERTS = Experts(experts=8, top_k=2, ffn=16)
SHARED = Experts(experts=4, top_k=2, ffn=16, shared_ffn=32, shared_gate=True, router_bias=True)
DENSE = Layer(attention=GROUPED, ffn=48)
LLAMA = Model(name="llama", hidden=32, vocab=61, kinds=(DENSE,), pattern=(0,) * 4)
TIED = replace(LLAMA, name="tied", tied=True)
GPT = Model(
    name="gpt", hidden=32, vocab=64, kinds=(Layer(attention=MULTI, ffn=64),), pattern=(0,) * 4,
    gated=False, norm="layernorm", bias=True, learned_positions=32, tied=True,
)  # fmt: skip
MOE = Model(
    name="moe", hidden=32, vocab=64, kinds=(Layer(attention=GROUPED, experts=EXPERTS),),
    pattern=(0,) * 4,
)  # fmt: skip
DEEPSEEK = Model(
    name="deepseek", hidden=32, vocab=64, pattern=(0, 1, 1, 1), mtp_layers=1,
    kinds=(Layer(attention=LATENT, ffn=48), Layer(attention=LATENT, experts=SHARED)),
)  # fmt: skip
MODELS = {model.name: model for model in (LLAMA, TIED, GPT, MOE, DEEPSEEK)}
TRAINING = Training(seq_len=32, global_batch_size=8, precision="fp32")


@dataclass(frozen=True)
class Case:
    """One layout of one model."""

    model: str
    layout: Layout

    @property
    def name(self) -> str:
        """Unique, and says what is tested."""
        la = self.layout
        extra = [la.schedule] if la.pipeline_parallel > 1 else []
        extra += [f"shard{la.shard_group}"] if la.shard_group else []
        counts = [(s.layers, s.selective_layers, s.full_layers) for s in la.stages]
        if len({c[0] for c in counts}) > 1 or la.recompute == "mixed":
            extra.append("stages " + " ".join("/".join(map(str, c)) for c in counts))
        if la.recompute not in ("none", "full"):
            extra.append("+".join(la.selective_modules))
        return " ".join([self.model, la.label, *extra])


def case(model: str, recompute: str = "none", **fields: object) -> Case:
    """A layout of `model` with even stages unless given."""
    pp, vpp = int(fields.get("pipeline_parallel", 1)), int(fields.get("virtual_stages", 1))
    layers = MODELS[model].num_layers
    values = {"stages": even_stages(layers, pp * vpp, recompute), **fields}
    values.setdefault("micro_batch_size", 2 if pp == 1 and values.get("data_parallel") != 4 else 1)
    values["sequence_parallel"] = fields.get("tensor_parallel", 1) != 1
    return Case(model, Layout(**values))


def pipeline(model: str, pp: int, schedule: str, virtual: int = 1, **fields: object) -> Case:
    """A pipeline of `pp` ranks."""
    return case(model, pipeline_parallel=pp, schedule=schedule, virtual_stages=virtual, **fields)


MIXED = (Stage(3, 1, 1), Stage(1, 0, 1))
CASES = [
    case("llama"),
    case("llama", zero_stage=3, micro_batch_size=1),
    case("llama", "full"),
    case("llama", "selective", selective_modules=("core_attention", "mlp")),
    case("deepseek", "full"),
    case("deepseek", "selective", selective_modules=("moe",)),
    # two processes
    *(case(m, data_parallel=2, zero_stage=z) for m, z in (("llama", 0), ("llama", 1), ("llama", 2),
      ("llama", 3), ("tied", 3), ("gpt", 1))),
    *(case(m, tensor_parallel=2) for m in ("llama", "tied", "gpt", "moe", "deepseek")),
    case("llama", "full", tensor_parallel=2, zero_stage=3),
    *(case(m, context_parallel=2, zero_stage=z) for m, z in (("llama", 0), ("gpt", 1),
      ("deepseek", 3))),
    *(case("moe", data_parallel=2, expert_parallel=2, zero_stage=z) for z in (0, 1, 2, 3)),
    case("deepseek", data_parallel=2, expert_parallel=2, zero_stage=1),
    case("moe", context_parallel=2, expert_parallel=2),
    case("moe", tensor_parallel=2, expert_parallel=2),
    case("deepseek", "full", tensor_parallel=2, expert_parallel=2, zero_stage=2),
    *(pipeline("llama", 2, s, v) for s, v in (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2),
      ("zb_h1", 1), ("zb_v", 2), ("dualpipe_v", 2))),
    *(pipeline("llama", 2, s, v, recompute="full", zero_stage=3)
      for s, v in (("1f1b", 1), ("zb_h1", 1), ("zb_v", 2), ("dualpipe_v", 2))),
    *(pipeline("tied", 2, s, v, zero_stage=1) for s, v in (("1f1b", 1), ("zb_v", 2))),
    pipeline("gpt", 2, "1f1b"),
    pipeline("deepseek", 2, "zb_v", 2),
    pipeline("llama", 2, "1f1b", stages=MIXED),
    pipeline("llama", 2, "zb_h1", stages=(Stage(1), Stage(3))),
    # four processes
    *(case("llama", data_parallel=2, tensor_parallel=2, zero_stage=z) for z in (0, 1, 2, 3)),
    case("llama", data_parallel=4, zero_stage=3, shard_group=2),
    case("llama", data_parallel=4, zero_stage=1, shard_group=2),
    case("moe", data_parallel=4, expert_parallel=2, zero_stage=2, shard_group=2),
    case("llama", context_parallel=2, data_parallel=2, zero_stage=3),
    case("gpt", context_parallel=2, tensor_parallel=2),
    case("moe", data_parallel=4, expert_parallel=2, zero_stage=3),
    case("moe", data_parallel=2, tensor_parallel=2, expert_parallel=2, zero_stage=1),
    case("moe", data_parallel=2, tensor_parallel=2, expert_parallel=4, zero_stage=3),
    case("deepseek", data_parallel=2, tensor_parallel=2, expert_parallel=4, zero_stage=1),
    *(pipeline("llama", 2, s, v, data_parallel=2, zero_stage=z)
      for s, v, z in (("1f1b", 1, 1), ("1f1b", 1, 2), ("zb_v", 2, 3), ("interleaved_1f1b", 2, 1))),
    *(pipeline("tied", 2, s, v, tensor_parallel=2) for s, v in (("1f1b", 1), ("zb_h1", 1))),
    pipeline("llama", 4, "1f1b"),
    pipeline("llama", 4, "zb_h1", data_parallel=1),
    pipeline("llama", 2, "1f1b", context_parallel=2, zero_stage=2),
    pipeline("moe", 2, "dualpipe_v", 2, data_parallel=2, expert_parallel=2, zero_stage=1),
    # eight processes
    pipeline("llama", 2, "1f1b", tensor_parallel=2, data_parallel=2, zero_stage=1),
    pipeline("tied", 2, "interleaved_1f1b", 2, tensor_parallel=2, data_parallel=2, zero_stage=3),
    pipeline("deepseek", 2, "zb_v", 2, tensor_parallel=2, data_parallel=2, expert_parallel=4,
             zero_stage=1),
    case("gpt", context_parallel=2, tensor_parallel=2, data_parallel=2, zero_stage=2),
]  # fmt: skip
REFERENCES = [case(name, micro_batch_size=8) for name in MODELS]


def of_world(world: int) -> list[Case]:
    """The layouts for `world` processes; the references are for one."""
    return [c for c in (*REFERENCES, *CASES) if c.layout.world_size == world]


def train(chosen: Case) -> list[list[float]]:
    """[loss, gradient norm] of each step, in an initialised process group."""
    model = MODELS[chosen.model]
    job = Job(model=model, layout=chosen.layout, training=TRAINING, seed=1, learning_rate=1e-2)
    engine = Engine(job, torch.device("cpu"))
    engine.init_weights()
    sequences = Sequences(TRAINING, model.vocab, seed=1, ahead=1 + model.mtp_layers)
    records = [engine.step(step, sequences) for step in range(STEPS)]
    return [[record.loss, record.grad_norm] for record in records]


def worker(rank: int, world: int, out: str, names: list[str]) -> None:
    """One process: the named layouts of its world size, each in a new group; rank 0 writes."""
    torch.set_num_threads(1)
    results = {}
    for number, chosen in enumerate(c for c in of_world(world) if c.name in names):
        store = dist.FileStore(f"{out}.{number}.store", world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        results[chosen.name] = train(chosen)
        dist.destroy_process_group()
    if rank == 0:
        Path(out).write_text(json.dumps(results))


OF = {world: [c for c in CASES if c.layout.world_size == world] for world in (2, 4, 8)}
QUICK = first_shown(
    (OF[8][0], *reversed(OF[2]), *OF[4]), lambda c: facts_of(c.layout) | {("model", c.model)}
)
CHOSEN = [
    pytest.param(c, id=c.name, marks=[] if c in QUICK or c.layout.world_size == 1
                 else [pytest.mark.nightly])
    for c in CASES
]  # fmt: skip


@pytest.fixture(scope="module")
def curves(request, tmp_path_factory):
    """world -> {case name: curve} of the selected cases."""
    selected = {item.callspec.id for item in request.session.items if hasattr(item, "callspec")}
    names = [c.name for c in REFERENCES] + [c.name for c in CASES if c.name in selected]
    folder = tmp_path_factory.mktemp("parity")
    command = [sys.executable, "-W", "error", __file__, str(folder), *names]
    support = str(Path(__file__).parents[2] / "support")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": support}
    subprocess.run(command, check=True, timeout=600, env=environment)
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize("chosen", CHOSEN)
def test_parity(chosen, curves):
    """Losses and gradient norms of each step equal one process's, whatever the layout."""
    reference = curves[1][case(chosen.model, micro_batch_size=8).name]
    curve = curves[chosen.layout.world_size][chosen.name]
    losses, norms = zip(*curve, strict=True)
    expected_losses, expected_norms = zip(*reference, strict=True)
    assert losses == pytest.approx(expected_losses, rel=LOSS_TOLERANCE)
    assert norms[0] == pytest.approx(expected_norms[0], rel=FIRST_NORM_TOLERANCE)
    assert norms == pytest.approx(expected_norms, rel=NORM_TOLERANCE)


def test_cases_are_distinct():
    """No layout is tested twice under one name."""
    names = [c.name for c in (*CASES, *REFERENCES)]
    assert len(set(names)) == len(names)


if __name__ == "__main__":
    import torch.fx.experimental.symbolic_shapes  # a backward pass does: here once for all ranks

    folder, *named = sys.argv[1:]
    for processes in sorted(
        {c.layout.world_size for c in (*REFERENCES, *CASES) if c.name in named}
    ):
        arguments = (processes, f"{folder}/{processes}.json", named)
        mp.start_processes(worker, arguments, nprocs=processes, start_method="fork")
