"""The layout and the training that the facts of a config make.

data_parallel   stated, or gpus / (tp cp pp)
virtual_stages  stated, or what `layers_per_stage` makes of the model's layers
shard_group     stated, or dp cp / shard_replicas
global batch    stated, or micro-batches x mbs x dp
"""

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.training import Training
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.packed import as_sequences, is_packed
from meshplan.planner.case.reading import Fact, IllegalConfig, Reading, check_dividing
from meshplan.planner.case.stage_rules import stage_layers

_OPTIONS = (
    *("sequence_parallel", "selective_modules", "optimizer_offload", "activation_offload"),
    *("context_kind", "dispatcher", "modules_apart"),
)
ENDS = 2  # the embedding and the head may have a stage of their own


def stated_layout(
    facts: dict[str, Fact], reading: Reading, model: Model
) -> tuple[Layout, Training]:
    """Both; raises `IllegalConfig` where facts contradict each other, and `MissingFacts`."""

    def count(name: str) -> int:
        return int(facts[name].value) if name in facts else 1

    tp, cp, pp = (count(f"{axis}_parallel") for axis in ("tensor", "context", "pipeline"))
    dp = _data_parallel(facts, tp * cp * pp, reading.left_to_code - facts.keys())
    facts = as_sequences(facts, dp, cp) if is_packed(facts) else facts
    mbs = _micro_batch(facts, dp)
    if reading.micro_batch_is_most and "global_batch_size" in facts:
        mbs = _within_share(facts, mbs, dp)
    training = _training(facts, count("seq_len"), _batch(facts, dp * mbs))
    vpp = _virtual_stages(facts, reading, model, pp)
    follows = tp if reading.expert_tensor_follows else 1
    etp = count("expert_tensor_parallel") if "expert_tensor_parallel" in facts else follows
    options = {name: facts[name].value for name in _OPTIONS if name in facts}
    layout = Layout(
        data_parallel=dp,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        virtual_stages=vpp,
        context_parallel=cp,
        expert_parallel=count("expert_parallel"),
        expert_tensor_parallel=etp if model.is_moe else 1,  # engines look at it for experts only
        zero_stage=facts.get("zero_stage", Fact(0, 1)).value,
        shard_group=_shard_group(facts, dp * cp),
        micro_batch_size=mbs,
        schedule=facts["schedule"].value
        if "schedule" in facts
        else ("interleaved_1f1b" if vpp > 1 else "1f1b"),
        stages=_stages(reading, model, pp, vpp),
        **options,
    )
    return layout, training


def _training(facts: dict[str, Fact], seq_len: int, global_batch_size: int) -> Training:
    return Training(
        seq_len=seq_len,
        global_batch_size=global_batch_size,
        precision=facts.get("precision", Fact("bf16", 1)).value,
        optimizer=facts.get("optimizer", Fact("adamw", 1)).value,
        optimizer_states=facts.get("optimizer_states", Fact(None, 1)).value,
        lora=facts.get("lora", Fact(None, 1)).value,
        packed_mean_length=facts.get("packed_mean_length", Fact(None, 1)).value,
    )


def _data_parallel(facts: dict[str, Fact], inner: int, left: frozenset[str]) -> int:
    """Stated, or the rest of the GPUs; raises `MissingFacts` where degrees that are `left` to the
    code may explain why there are more.
    """
    gpus, stated = facts.get("gpus"), facts.get("data_parallel")
    if stated is not None:
        if gpus is not None and stated.value * inner != gpus.value:
            if left and gpus.value % (stated.value * inner) == 0:
                raise MissingFacts(tuple(left))
            raise IllegalConfig(
                f"data_parallel {stated.value} x tp x cp x pp {inner} = {stated.value * inner} "
                f"GPUs, but there are {gpus.value}",
                stated.line,
            )
        return int(stated.value)
    assert gpus is not None
    check_dividing(facts, gpus.value, inner)
    return int(gpus.value // inner)


def _micro_batch(facts: dict[str, Fact], dp: int) -> int:
    if "micro_batch_size" in facts:
        return int(facts["micro_batch_size"].value)
    total, count = facts["global_batch_size"], facts["num_micro_batches"]
    mbs, rest = divmod(total.value, count.value * dp)
    if rest or not mbs:
        raise IllegalConfig(
            f"global batch {total.value} is not a multiple of micro-batches {count.value} x "
            f"data_parallel {dp}",
            total.line,
        )
    return int(mbs)


def _within_share(facts: dict[str, Fact], mbs: int, dp: int) -> int:
    """The micro-batch that a replica's share of the batch leaves; raises `MissingFacts` where the
    last one would be smaller, which no layout says.
    """
    share, rest = divmod(int(facts["global_batch_size"].value), dp)
    if rest or not share:
        return mbs  # no batch of this many replicas, which `check_layout` says
    mbs = min(mbs, share)
    if share % mbs:
        line = facts["micro_batch_size"].line
        why = f"of {share} samples of a GPU the last micro-batch is smaller: not modelled"
        raise MissingFacts((), (Fact(f"micro-batch {mbs} ({why})", line),))
    return mbs


def _batch(facts: dict[str, Fact], per_pass: int) -> int:
    total, count = facts.get("global_batch_size"), facts.get("num_micro_batches")
    if total is None:
        assert count is not None
        return int(count.value * per_pass)
    if count is not None and total.value != count.value * per_pass:
        raise IllegalConfig(
            f"global batch {total.value} is not micro-batches {count.value} x (data_parallel x "
            f"micro_batch_size) {per_pass} = {count.value * per_pass}",
            total.line,
        )
    return int(total.value)


def _shard_group(facts: dict[str, Fact], ranks: int) -> int:
    copies = facts.get("shard_replicas")
    if copies is None or copies.value == 1:
        return int(facts["shard_group"].value) if "shard_group" in facts else 0
    if ranks % copies.value:
        raise IllegalConfig(
            f"{copies.value} copies of the shards do not divide dp x cp = {ranks}", copies.line
        )
    return int(ranks // copies.value)


def _virtual_stages(facts: dict[str, Fact], reading: Reading, model: Model, pp: int) -> int:
    place = reading.placement
    chunks = int(facts["virtual_stages"].value) if "virtual_stages" in facts else 1
    if "virtual_stages" not in facts and place.layers_per_stage is not None:
        total = model.num_layers + place.embedding + place.head
        stages = place.stages(total, pp)
        if stages % pp:
            raise IllegalConfig(
                f"{total} layers in stages of {place.layers_per_stage} make {stages} stages, not "
                f"a multiple of pipeline_parallel {pp}",
                place.line,
            )
        chunks = stages // pp
    most = model.num_layers + ENDS + ("modules_apart" in facts)
    if pp * chunks > most:
        raise IllegalConfig(
            f"pipeline_parallel {pp} x virtual_stages {chunks} = {pp * chunks} stages, but "
            f"{model.name} has {model.num_layers} layers",
            reading.line("pipeline_parallel"),
        )
    return chunks


def _stages(reading: Reading, model: Model, pp: int, vpp: int) -> tuple[Stage, ...]:
    try:
        counts = stage_layers(reading.placement, model, pp, vpp)
    except InvalidLayout as error:
        if word := reading.left_to_recipe.get("stages"):
            why = f"the recipe, a program that is not read, must set it: {error}"
            line = reading.line("pipeline_parallel")
            raise MissingFacts((), (Fact(f"{word} ({why})", line),)) from None
        raise IllegalConfig(str(error), reading.placement.line) from None
    return tuple(map(reading.recompute.stage, counts))
