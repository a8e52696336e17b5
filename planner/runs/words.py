"""Which words the facts of a measured run may hold (`planner.runs.notes.FACTS` explains them).

A word that nothing reads would price a row as if its source had said nothing, so it skips the row.
"""

from typing import get_args

from meshplan.hardware_profiles.kernel_habits import ContextKind, GraphedPart
from meshplan.hardware_profiles.names import near_names
from meshplan.planner.runs.attention import FLASH_KERNELS
from meshplan.planner.runs.dispatchers import DISPATCHERS
from meshplan.planner.runs.fused_kernels import KERNELS, STATES
from meshplan.planner.runs.losses import LOSSES
from meshplan.planner.runs.rows import Facts, SkippedRow

WHOLE_STEP = "full_iteration"
"""Of `cuda_graph`: one graph holds a whole step."""

WORDS: dict[str, frozenset[str]] = {
    "fused_kernels": frozenset((*KERNELS, *STATES, "no_reentrant")),
    "fused_loss": frozenset((*LOSSES, "chunks", "whole")),
    "gradient_add": frozenset(("16", "32", "added", "synced", "unsynced")),
    "comm_overlap": frozenset(("0", "reduce", "data", "tensor")),
    "cp_kind": frozenset(get_args(ContextKind)),
    "dispatcher": frozenset(DISPATCHERS),
    "cuda_graph": frozenset((WHOLE_STEP, *get_args(GraphedPart))),
    "attention_kernel": frozenset(FLASH_KERNELS),
    "fp8_scaling": frozenset(("rowwise", "flow")),
}


def check_words(facts: Facts) -> None:
    """Raise `SkippedRow` at a word that its fact does not know."""
    for fact, known in WORDS.items():
        for word in getattr(facts, fact).split():
            if word not in known:
                near = near_names(word, sorted(known))
                said = f"near: {', '.join(near)}" if near else f"known: {', '.join(sorted(known))}"
                raise SkippedRow(f"{fact} says {word!r}, which is no word of it; {said}")
