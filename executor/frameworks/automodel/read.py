"""NeMo AutoModel's YAML, without running the components that it names.

    theirs                                          ours
    step_scheduler.global_batch_size                global_batch_size
    step_scheduler.local_batch_size                 micro_batch_size; with a pipeline what one run
                                                    of it takes
    distributed.pipeline.pp_microbatch_size         micro_batch_size of a pipeline
    dataset.seq_len, seq_length, max_length,
      packed_sequence.packed_sequence_size          seq_len
    distributed.tp_size, pp_size, cp_size, ep_size  the degrees
    distributed.dp_size (none: what is left),
      dp_replicate_size                             data_parallel, shard_replicas
    distributed.reshard_after_forward, of experts
      distributed.moe.reshard_after_forward         zero_stage 3, else 2: by default 2 with a
                                                    pipeline or expert parallelism
    distributed.pipeline.pp_schedule                schedule
    distributed.pipeline.layers_per_stage,
      round_virtual_stages_to_pp_multiple           virtual_stages

How many GPUs there are is the launcher's (`--nproc-per-node`). The other sections are read by
`model.py` and `training.py`. A key that is in no list (`automodel_keys.toml`), and one that changes
memory or time in a way that is not modelled, makes the verdict incomplete and is named.

Source: NVIDIA-NeMo/Automodel@36044ad `nemo_automodel/recipes/_dist_utils.py`,
`recipes/llm/train_ft.py`, `components/distributed/config.py`, `distributed/mesh_utils.py`,
`distributed/pipelining/config.py`, `distributed/pipelining/functional.py`.
"""

import re
from collections.abc import Mapping
from typing import Literal

from meshplan.costmodels.units import counted
from meshplan.executor.frameworks.adapters import of_automodel
from meshplan.executor.frameworks.automodel.model import read_kernels, read_model
from meshplan.executor.frameworks.automodel.training import (
    defers_sums,
    engine_of,
    kept_whole,
    read_numbers,
    read_recompute,
)
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.keys.lists import judged, unjudged
from meshplan.executor.frameworks.torchtitan.names import SCHEDULE_NAMES, SINGLE_STAGE
from meshplan.planner.case.packed import AS_ONE
from meshplan.planner.case.reading import Fact, IllegalConfig, NothingToRead, Placement, Reading

KEYS = ("automodel_keys.toml",)
_MARK = re.compile(r"^[ \t]*_target_:[ \t]*nemo_automodel\.|^recipe:[ \t]*\w+Recipe", re.M)
_RECIPES = ("TrainFinetuneRecipeForNextTokenPrediction",
            "BenchmarkingRecipeForNextTokenPrediction")  # fmt: skip
_DEGREES = {"tensor_parallel": "tp_size", "pipeline_parallel": "pp_size",
            "context_parallel": "cp_size", "expert_parallel": "ep_size"}  # fmt: skip
_STAGES = "distributed.pipeline."
_SCHEDULES = {name.lower(): name for name in SCHEDULE_NAMES}
_ROUNDS: dict[str, Literal["up", "down"]] = {"up": "up", "down": "down"}
_OF_UNKNOWN = "adapters are priced beside attention and dense layers: assumed of a model by --model"
_CHECKPOINTS = "no torch_dtype: the checkpoint's format is taken to be of 16 bits"
_ONE = Fact(1, 1)


def claims(name: str, text: str) -> bool:
    """Whether a YAML file names components of NeMo AutoModel."""
    return name.endswith((".yaml", ".yml")) and bool(_MARK.search(text))


def read(text: str, path: str) -> Reading:
    """A configuration of pretraining or fine-tuning; raises `UnreadableConfig`, `IllegalConfig`."""
    values = Values(_without_none(read_yaml(text)))
    if not values.has("optimizer"):
        raise NothingToRead("no optimizer in a file of NeMo AutoModel's: it trains nothing")
    facts: dict[str, Fact] = {}
    unread = [*_another_recipe(values), *_read_degrees(values, facts)]
    config, unknown, more, notes = read_model(values, facts)
    unread += more
    placement, more = _read_stages(values, facts)
    unread += more
    notes += [*_read_batch(values, facts), *_read_length(values, facts), *_of_nodes(values)]
    lora, more = of_automodel(values, config)
    put(facts, lora=lora)
    notes += [_OF_UNKNOWN] if lora and config is None else []
    unread += [*more, *read_numbers(values, facts)]
    called = str((values.get("model._target_") or Fact("", 1)).value)
    loaded = called.endswith(".from_pretrained") and values.get("model.torch_dtype") is None
    notes += [_CHECKPOINTS] * loaded
    more, kernels = read_kernels(values, facts)
    unread += more
    engine, of_loss, more = engine_of(values)
    recompute, of_layers = read_recompute(values, facts, config)
    defers, waiting = defers_sums(values, facts), kept_whole(values)
    not_understood, noted = judged(unjudged(values, KEYS), KEYS, "{}")
    return Reading(
        framework="automodel", engine=engine, path=path, facts=facts, placement=placement,
        recompute=recompute, unknown_model=unknown, ignored=values.ignored(),
        model_config=None if "model" in facts else config,
        notes=(*notes, *kernels, *of_loss, *noted),
        unread=(*unread, *more, *of_layers, *values.nested(), *not_understood),
        unread_if_accumulated=waiting, defers_sums=defers,
    )  # fmt: skip


def _without_none(found: Mapping[str, Fact]) -> dict[str, Fact]:
    """Its loader takes the word `none` for null (`components/config/loader.py`)."""
    return {
        name: Fact(None, fact.line) if fact.value in ("none", "None") else fact
        for name, fact in found.items()
    }


def _another_recipe(values: Values) -> list[Fact]:
    """A recipe that trains something else than a language model by its next tokens."""
    stated = values.get("recipe", "recipe._target_")
    if stated is None or str(stated.value).rpartition(".")[2] in _RECIPES:
        return []
    why = "only recipes that train one language model by its next tokens are modelled"
    return [Fact(f"recipe {shown(stated.value)} ({why})", stated.line)]


def _read_degrees(values: Values, facts: dict[str, Fact]) -> list[Fact]:
    """Adds the degrees, the sharding, and what splits sequences; what is not understood."""
    for ours, theirs in _DEGREES.items():
        facts[ours] = values.count(f"distributed.{theirs}") or _ONE
    facts["expert_tensor_parallel"] = _ONE
    tensor = facts["tensor_parallel"]
    sequence = values.flag("distributed.sequence_parallel") or Fact(False, 1)
    facts["sequence_parallel"] = Fact(sequence.value and tensor.value > 1, sequence.line)
    replicas = values.count("distributed.dp_size", least=0)
    copies = values.count("distributed.dp_replicate_size")
    put(
        facts,
        data_parallel=replicas if replicas and replicas.value > 0 else None,
        shard_replicas=copies if copies and copies.value > 1 else None,
        zero_stage=_zero_stage(values, facts),
    )
    return _another_strategy(values)


def _zero_stage(values: Values, facts: Mapping[str, Fact]) -> Fact:
    """3 where layers free their gathered weights after the forward, else 2."""
    experts = facts["expert_parallel"].value > 1
    stated = values.flag("distributed.reshard_after_forward")
    of_experts = values.flag("distributed.moe.reshard_after_forward")
    if experts and stated is None:
        stated = of_experts
    usual = not experts and facts["pipeline_parallel"].value == 1
    reshards = stated or Fact(usual, 1)
    return Fact(3 if reshards.value else 2, reshards.line)


def _another_strategy(values: Values) -> list[Fact]:
    """DDP and Megatron-FSDP; older files name a manager instead."""
    manager = values.get("distributed._target_")
    why = "only FSDP2 is priced of AutoModel's strategies"
    found = values.besides(("fsdp2", "FSDP2"), "distributed.strategy", why)
    if manager is not None and not str(manager.value).endswith(".FSDP2Manager"):
        found.append(Fact(f"distributed._target_ {shown(manager.value)} ({why})", manager.line))
    return found


def _read_batch(values: Values, facts: dict[str, Fact]) -> list[str]:
    """Adds the batch; a note where a step may run the pipeline several times."""
    local = values.count("step_scheduler.local_batch_size")
    split = values.count(_STAGES + "pp_microbatch_size") or _ONE
    total = values.count("step_scheduler.global_batch_size")
    ranks = facts["pipeline_parallel"].value
    put(facts, global_batch_size=total, micro_batch_size=local if ranks == 1 else split)
    if ranks == 1 or local is None or total is None:
        return []
    if local.value % split.value or local.value // split.value < ranks:
        raise IllegalConfig(
            f"local_batch_size {local.value} must be pp_microbatch_size {split.value} x at least "
            f"pp_size {ranks}",
            local.line,
        )
    replicas = facts.get("data_parallel")
    if replicas is not None and total.value == local.value * replicas.value:
        return []
    said = f"line {local.line}: the pipeline runs once for each local_batch_size {local.value} of a"
    return [f"{said} replica; a step of several runs is priced as one, with less bubble"]


def _read_stages(values: Values, facts: dict[str, Fact]) -> tuple[Placement, list[Fact]]:
    """Adds schedule and chunks; the rule for the stages, the first of which hold the layers left
    over; and what is not understood.
    """
    ranks = facts["pipeline_parallel"]
    wide = values.count(_STAGES + "layers_per_stage")
    rounds = values.word(_ROUNDS, _STAGES + "round_virtual_stages_to_pp_multiple")
    stated = values.get(_STAGES + "pp_schedule") or Fact("1f1b", ranks.line)
    why = "stages or an order of its own are not modelled"
    unread = [each for name in ("module_fqns_per_model_part", "pp_schedule_csv")
              for each in values.besides((), _STAGES + name, why)]  # fmt: skip
    if ranks.value == 1:
        facts |= {"schedule": Fact("1f1b", ranks.line), "virtual_stages": Fact(1, ranks.line)}
        return Placement(rule="weighted"), []
    if not values.has("distributed.pipeline"):
        said = f"pp_size {ranks.value} needs a section distributed.pipeline"
        raise IllegalConfig(said, ranks.line)
    name = _SCHEDULES.get(str(stated.value).lower())
    if name is None:
        why = "this schedule is not modelled"
        return Placement(), [*unread, Fact(f"pp_schedule {shown(stated.value)} ({why})",
                                           stated.line)]  # fmt: skip
    facts["schedule"] = Fact(SCHEDULE_NAMES[name], stated.line)
    if wide is None:
        facts["virtual_stages"] = Fact(1 if name in SINGLE_STAGE else 2, stated.line)
    place = Placement(
        rule="weighted", line=(wide or stated).line, rounds=rounds.value if rounds else "",
        layers_per_stage=wide.value if wide else None,
        fewest_chunks=1 if name in SINGLE_STAGE else 2,
    )  # fmt: skip
    return place, unread


def _read_length(values: Values, facts: dict[str, Fact]) -> list[str]:
    """Adds the tokens of a sequence; notes on what is priced of samples that are shorter."""
    packed = values.count("packed_sequence.packed_sequence_size", least=0)
    longest = values.count("dataset.seq_len", "dataset.seq_length", "dataset.max_length")
    data = str((values.get("dataset._target_") or Fact("", 1)).value)
    if packed and packed.value:
        put(facts, seq_len=packed)
        return [AS_ONE]
    put(facts, seq_len=longest)
    whole = "mock" in data or "megatron" in data.lower() or longest is None
    return [] if whole else ["samples that are not packed are priced as whole sequences"]


def _of_nodes(values: Values) -> list[str]:
    """How many nodes a benchmark says it had: its GPUs are the launcher's."""
    nodes = values.count("benchmark.num_nodes", "ci.nodes")
    if nodes is None:
        return []
    meant = f"line {nodes.line}: meant for {counted(nodes.value, 'node')}"
    return [f"{meant}; the launcher says how many GPUs"]
