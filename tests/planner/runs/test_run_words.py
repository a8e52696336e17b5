"""A word that nothing reads skips its row."""

import csv
import re

import pytest
from rows import ROW

from meshplan.planner.runs.notes import FACTS
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import BUILT_IN, run_of
from meshplan.planner.runs.words import WORDS


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"fused_kernels": "norm no_ropes"}, "'no_ropes', .* near: no_rope"),
        ({"dispatcher": "pigeons"}, "'pigeons', .* known: alltoall"),
        ({"cp_kind": "rign"}, "'rign', .* near: ring"),
        ({"cuda_graph": "attention ful_iteration"}, "'ful_iteration', .* near: full_iteration"),
        ({"gate": "dealed"}, "takes dealt, capacity or natural 1.5"),
        ({"memory_of": "lst"}, "takes 0, last or nothing"),
        ({"attention_kernel": "flash5"}, "'flash5', .* near: flash"),
    ],
)
def test_a_word_that_nothing_reads_skips_the_row(cell: dict[str, str], said: str) -> None:
    """With the word, and the nearest ones or all."""
    with pytest.raises(SkippedRow, match=said):
        run_of(ROW | cell)


@pytest.mark.parametrize("fact", WORDS)
def test_every_word_is_explained(fact: str) -> None:
    """Where a person looks for it; `flash1 to flash4` are four."""
    told = FACTS[fact].replace("flash1 to flash4", "flash1 flash2 flash3 flash4")
    assert [word for word in WORDS[fact] if not re.search(rf"\b{word}\b", told)] == []


def test_published_rows_have_no_others() -> None:
    """Of all files that ship."""
    others = []
    for path in BUILT_IN.parent.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                for fact, known in WORDS.items():
                    others += [word for word in (row.get(fact) or "").split() if word not in known]
    assert others == []
