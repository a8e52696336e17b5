"""Plans beside published recipes."""

from benchmarks.search.recipes import Beside, _release, large_claims, recipes, summary


def test_the_last_release_of_each_question_counts() -> None:
    """One run of each question; of gpt-oss-120b on 64 GB300 in MXFP8 that of NeMo 26.08."""
    found = recipes()
    assert len({run.group[1:-1] for run in found}) == len(found)
    assert "mbridge-26.08-gpt-oss-120b-gb300-64-mxfp8-gbs1280" in {run.id for run in found}
    assert _release("megatron-bridge (NeMo 26.06.01)") > _release("megatron-bridge (NeMo 26.06)")


def test_claims_are_counted_before_and_after() -> None:
    """Median and share of large claims of each way; a large one is listed with what it loses by."""
    run = recipes()[0]
    found = [
        Beside(run=run, plan="dp8", before=before, claim=claim, expected=expected, faster=0.6,
               own_error=0.01, why="pipeline bubble 1.00 s")
        for before, claim, expected in ((0.3, 0.2, 0.13), (0.12, 0.05, 0.03), (0.0, 0.0, 0.0))
    ]  # fmt: skip
    lines = list(summary(found))
    assert "| +12.0% | 67% | 33% |" in lines[2]
    assert "| +5.0% | 33% | 33% |" in lines[3]
    assert "| +3.0% | 33% | 33% |" in lines[4]
    assert len([line for line in large_claims(found) if "pipeline bubble 1.00 s" in line]) == 1
