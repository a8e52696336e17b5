"""What FSDP shards by Accelerate's YAML.

    FSDP1 (`fsdp_version` 1, the default)  fsdp_sharding_strategy, FULL_SHARD unless stated
    FSDP2                                  fsdp_reshard_after_forward, true unless stated

Neither takes the other's key. Without `fsdp_auto_wrap_policy` nothing is wrapped but the model.

Source: huggingface/accelerate@16cb6eb8 `src/accelerate/utils/dataclasses.py`
(FullyShardedDataParallelPlugin.__post_init__), `utils/launch.py` (prepare_multi_gpu_env),
`commands/launch.py` (its defaults, and the prefix of `_validate_launch_command`).
"""

from collections.abc import Iterator, Mapping

from meshplan.executor.frameworks.documents.values import Values, shown
from meshplan.planner.case.reading import Fact, IllegalConfig

_RESHARD = "fsdp_config.fsdp_reshard_after_forward"
_STRATEGY = "fsdp_config.fsdp_sharding_strategy"
_WRAP = "fsdp_config.fsdp_auto_wrap_policy"
STRATEGIES = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
    "1": 3, "2": 2, "3": 0, "4": 3, "5": 2,
}  # fmt: skip
_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")


def zero_stage(values: Values, kind: Fact | None) -> Fact:
    """FSDP2 reshards or not; FSDP1 names a strategy; plain data parallelism shards nothing."""
    if kind is not None and kind.value != "FSDP":
        return Fact(0, kind.line)
    if kind is not None and not _is_second(values):
        return values.word(STRATEGIES, _STRATEGY) or Fact(3, kind.line)
    reshard = values.get(_RESHARD)
    if reshard is not None and str(reshard.value) in STRATEGIES:
        why = "FSDP2 takes true or false, and accelerate stops at a strategy's name"
        raise IllegalConfig(f"{_RESHARD} {shown(reshard.value)}: {why}", reshard.line)
    again = values.flag(_RESHARD) or Fact(value=True, line=1)
    return Fact(3 if again.value else 2, again.line)


def copies_of(values: Values, replicas: Fact) -> Fact | None:
    """Copies of the sharded state: as stated, or one in each machine by a hybrid strategy."""
    strategy = None if _is_second(values) else values.get(_STRATEGY)
    if replicas.value == 1 and strategy is not None and str(strategy.value) in _HYBRID:
        replicas = values.count("num_machines") or replicas
    return replicas if replicas.value > 1 else None


def _is_second(values: Values) -> bool:
    """Whether FSDP2 runs, of which accelerate takes other keys than of FSDP1."""
    version = values.word({"1": False, "2": True}, "fsdp_config.fsdp_version")
    return version is not None and version.value


def other_version(values: Values, kind: Fact | None) -> Iterator[str]:
    """The key of the other version, which accelerate does not take."""
    theirs, ours = (_STRATEGY, _RESHARD) if _is_second(values) else (_RESHARD, _STRATEGY)
    stated = values.get(theirs)
    usual = ("FULL_SHARD", "1", "true", "True")
    if kind is not None and stated is not None and str(stated.value) not in usual:
        version = 2 if theirs == _STRATEGY else 1
        said = f"{theirs} {shown(stated.value)} is not taken by accelerate under FSDP{version}"
        yield f"line {stated.line}: {said}: {ours} says it"


def one_unit(values: Values, kind: Fact | None) -> Iterator[Fact]:
    """FSDP without a policy that wraps layers: all weights are gathered at once."""
    if kind is not None and kind.value == "FSDP" and values.get(_WRAP) is None:
        why = "accelerate then wraps the model as one unit, all of which is gathered: not modelled"
        yield Fact(f"no {_WRAP} ({why})", kind.line)


def prefixed(found: Mapping[str, Fact]) -> dict[str, Fact]:
    """Keys of `fsdp_config` by their whole names: accelerate adds a missing `fsdp_`."""
    section = "fsdp_config."
    return {
        f"{section}fsdp_{name.removeprefix(section)}"
        if name.startswith(section) and not name.startswith(f"{section}fsdp")
        else name: fact
        for name, fact in found.items()
    }
