"""What the words of a layout's label mean, such as `dp8 tp4 zero1 mbs2`."""

from collections.abc import Iterator

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.training import Training
from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dispatchers import load_dispatchers

ZERO = {
    0: "nothing sharded",
    1: "optimizer states sharded",
    2: "optimizer states and gradients sharded",
    3: "weights, gradients and optimizer states sharded",
}


def meanings(layout: Layout) -> Iterator[tuple[str, str]]:
    """Each word of `Layout.full_label` in order, and what it says."""
    known = dict(_meanings(layout))
    for word in layout.full_label.split():
        yield word, known[word]


def _meanings(layout: Layout) -> Iterator[tuple[str, str]]:
    la = layout
    size = la.micro_batch_size
    yield f"dp{la.data_parallel}", "data-parallel replicas"
    yield f"tp{la.tensor_parallel}", "ranks split each matrix"
    yield f"pp{la.pipeline_parallel}", "pipeline ranks"
    yield f"vpp{la.virtual_stages}", "virtual stages per pipeline rank"
    yield f"cp{la.context_parallel}", "ranks split each sequence"
    yield f"ep{la.expert_parallel}", "ranks hold different experts"
    yield f"etp{la.expert_tensor_parallel}", "ranks split each expert"
    yield f"zero{la.zero_stage}", ZERO[la.zero_stage]
    yield f"mbs{size}", f"{counted(size, 'sequence')} per micro-batch"
    yield f"recompute-{la.recompute}", _RECOMPUTE[la.recompute]
    yield f"shard{la.shard_group}", "ranks in each ZeRO shard group; the groups hold copies"
    for what, part in (("optimizer", la.optimizer_offload), ("activation", la.activation_offload)):
        name = "optimizer states" if what == "optimizer" else "saved activations"
        yield f"{what}-offload{f'-{part:.0%}' if part < 1 else ''}", f"{name} kept on the host"


def batch_words(layout: Layout, training: Training) -> str:
    """How a layout reaches the batch."""
    parts = (
        counted(layout.data_parallel, "replica"),
        counted(layout.micro_batch_size, "sequence"),
        counted(layout.num_micro_batches(training), "micro-batch", "micro-batches"),
    )
    return f"{' x '.join(parts)} = {training.global_batch_size:,}, exactly"


def exchange_meanings(layout: Layout) -> Iterator[tuple[str, str]]:
    """Each kind of exchange that the layout states, and what it says."""
    if layout.context_kind and layout.context_parallel > 1:
        yield f"cp by {layout.context_kind}", _CONTEXT[layout.context_kind]
    if layout.dispatcher and layout.expert_parallel > 1:
        library = load_dispatchers().get(layout.dispatcher)
        yield (
            f"ep by {layout.dispatcher}",
            (
                f"{library.title}, a library of its own, sends one copy of a token to each node; "
                "--dispatcher all_to_all needs no library"
                if library
                else "one copy of a token to each of its experts"
            ),
        )


def module_meanings(layout: Layout) -> Iterator[tuple[str, str]]:
    """Where modules of multi-token prediction are, where the layout places them."""
    if layout.modules_apart:
        held = layout.stages[-2].layers
        beside = f", with {counted(held, 'layer')}" if held else ", alone there"
        where = f"on the stage before the last{beside}; the heads on the last"
        yield "modules apart", f"multi-token prediction {where}"


_CONTEXT = {
    "ring": "keys and values pass around its ranks during attention",
    "all_gather": "keys and values are gathered before attention",
    "all_to_all": "all-to-all swaps tokens for heads before attention, and back after it",
    "hierarchical": "all-to-all within a node, ring between nodes",
}
_RECOMPUTE = {
    "none": "",
    "selective": "part of each layer runs again in the backward pass",
    "full": "layers run again in the backward pass",
    "mixed": "some layers run again in the backward pass",
}
