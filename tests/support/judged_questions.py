"""Random small questions for `own_layouts`: models of the catalogue cut short, dense ones, mixtures
of experts and hybrids, odd batches, few GPUs, slow networks, and pins of any axis.
"""

import random
from dataclasses import replace
from itertools import islice

from own_layouts import layout_bytes, layouts, mixes, with_mix

from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import Cluster
from meshplan.planner.answer.models import read_model
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import parse_pins

MODELS = (
    "jamba-v0.1", "nemotron-h-8b", "qwen3-next-80b-a3b", "glm-5", "deepseek-v3", "phi-3-mini",
    "deepseek-v2-lite", "gemma-3-4b", "gpt-oss-20b", "llama-4-scout", "granite-4.0-h-small",
    "qwen2.5-0.5b", "gemma-2-2b", "olmoe-7b-a1b", "mixtral-8x7b", "llama-3.2-1b",
    "nemotron-3-nano-30b-a3b", "kimi-linear-48b-a3b", "glm-4.5-air", "ernie-4.5-0.3b",
)  # fmt: skip
CLUSTERS = ("dgx-h100", "dgx-a100", "mi300x-8", "l40s-8", "gb200-nvl72")
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 60, 1000)
PINNED: dict[str, tuple[float, tuple[str, ...]]] = {
    "pipeline_parallel": (0.75, ("2..", "2..", "2", "3", "4", "1")),
    "context_parallel": (0.6, ("1", "1", "2", "..2")),
    "tensor_parallel": (0.5, ("1", "2", "..2")),
    "virtual_stages": (0.3, ("1", "2..", "2", "3")),
    "micro_batch_size": (0.6, ("1", "..2", "1,3", "2..")),
    "zero_stage": (0.6, ("0", "..1", "1", "2..")),
    "schedule": (0.15, ("1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v")),
    "sequence_parallel": (0.3, ("on", "off")),
    "expert_parallel": (0.5, ("1", "2", "..2")),
    "expert_tensor_parallel": (0.4, ("1",)),
    "data_parallel": (0.1, ("1", "2", "1,2")),
    "modules_apart": (0.1, ("on", "off")),
    "shard_group": (0.1, ("0", "2", "1..2")),
}
"""How often an axis is pinned, and to what."""
FEWEST, DRAWN, LOOKED_AT = 4, 40, 4_000


def cut_short(model: Model, draw: random.Random) -> Model:
    """Some layers of a model, and sometimes a module of multi-token prediction."""
    layers = min(draw.randint(1, 5), model.num_layers)
    first = draw.choice((0, draw.randrange(model.num_layers - layers + 1)))
    pattern = model.pattern[first : first + layers]
    used = sorted(set(pattern))
    return replace(
        model, kinds=tuple(model.kinds[kind] for kind in used),
        pattern=tuple(map(used.index, pattern)), mtp_layers=draw.choice((0, 0, 0, 1)),
    )  # fmt: skip


def with_network(cluster: Cluster, draw: random.Random) -> Cluster:
    """With nodes of another size, and often a slow network."""
    network, times = cluster.network, draw.choice((1, 1, 0.1, 0.01))
    rates = {name: rate * times for name, rate in network.bus_bandwidth.model_dump().items()}
    slow = network.bus_bandwidth.model_copy(update=rates)
    return cluster.model_copy(update={
        "gpus_per_node": draw.choice((1, 2, 3, 4, 8)), "pod": None, "max_gpus": None,
        "network": network.model_copy(update={"bus_bandwidth": slow}),
    })  # fmt: skip


def judged_question(seed: int, engine: str | None = None) -> Question:
    """With a few layouts at least, and mostly the memory that one of them needs or some more."""
    draw = random.Random(f"judged {seed}")
    for _ in range(100):
        q = _drawn(draw, engine)
        some = list(islice(layouts(q), LOOKED_AT))
        if len(some) >= FEWEST:
            break
    layout = draw.choice(some)
    mix = draw.choice(list(islice(mixes(q, layout), DRAWN)))
    return with_memory(q, layout_bytes(q, with_mix(layout, mix)) * draw.uniform(1.0001, 1.2))


def with_memory(q: Question, usable_bytes: float) -> Question:
    """With so many bytes of each GPU."""
    cluster = q.cluster.model_copy(update={"usable_memory_bytes": usable_bytes})
    return replace(q, cluster=cluster)


def _drawn(draw: random.Random, engine: str | None) -> Question:
    pins = {axis: draw.choice(words) for axis, (p, words) in PINNED.items() if draw.random() < p}
    return Question(
        model=cut_short(read_model(draw.choice(MODELS))[1], draw),
        training=Training(
            seq_len=draw.choice((512, 2048, 4096, 32768)), global_batch_size=draw.choice(BATCHES)
        ),
        gpus=draw.choice((1, 2, 2, 3, 4, 4, 6, 8)),
        cluster=with_network(load_cluster(draw.choice(CLUSTERS)), draw),
        engine=load_engine(engine or draw.choice([*engine_names(), "native", "generic"])),
        pins=parse_pins(pins),
    )
