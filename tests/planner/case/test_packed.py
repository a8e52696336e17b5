"""Steps counted in documents, as sequences. Run: pytest tests/planner/case/test_packed.py."""

import json

import pytest

from meshplan.costmodels.training import MOST_SEQ_LEN
from meshplan.executor.frameworks import read_config
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.packed import as_sequences, check_options, packed_note
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.reading import Fact, IllegalConfig, Reading
from meshplan.planner.case.resolve import check_case, resolve
from meshplan.planner.case.settings import Settings

DEEPSPEED = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}


def made(dp: int = 8, cp: int = 1, **facts: int) -> tuple[int, int]:
    """Tokens of a micro-batch, and how many a replica has."""
    found = as_sequences({name: Fact(value, 3) for name, value in facts.items()}, dp, cp)
    return found["seq_len"].value, found["global_batch_size"].value // dp


@pytest.mark.parametrize(
    ("facts", "sizes"),
    [
        pytest.param({"tokens_at_once": 8192}, (6400, 1), id="32 x 200 = 6,400: one holds them"),
        pytest.param({"tokens_at_once": 2000}, (1600, 4), id="6,400 / 2,000: four, of 1,600"),
        pytest.param({"tokens_at_once": 200}, (200, 32), id="a document each"),
        pytest.param({"tokens_at_once": 300}, (292, 22), id="22 x 300 hold 6,400 together"),
        pytest.param({"documents_at_once": 4}, (800, 8), id="4 x 200, 32 / 4 times"),
        pytest.param({"tokens_at_once": 8192, "documents": 263}, (6400, 1), id="7 are left out"),
        pytest.param({"documents_at_once": 1, "cp": 8}, (208, 32), id="200 to a multiple of 16"),
    ],
)
def test_documents_make_micro_batches(facts: dict[str, int], sizes: tuple[int, int]) -> None:
    """256 documents of 200 tokens on 8 replicas: 32 for each."""
    assert made(**{"documents": 256, "packed_mean_length": 200} | facts) == sizes


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"documents": 7, "documents_at_once": 1}, "7 documents a step are fewer than 8 replicas"),
        ({"documents_at_once": 5}, "32 documents are not a multiple of the 5"),
        ({"tokens_at_once": 150}, "documents of 200 tokens in a micro-batch of at most 150"),
        (
            {"documents_at_once": 32, "packed_mean_length": MOST_SEQ_LEN // 32 + 1},
            "tokens; at most",
        ),
    ],
)
def test_what_makes_none_is_illegal(facts: dict[str, int], rule: str) -> None:
    """At the line that says it, with the rule."""
    with pytest.raises(IllegalConfig, match=rule) as illegal:
        made(**{"documents": 256, "packed_mean_length": 200} | facts)
    assert illegal.value.line == 3


@pytest.mark.parametrize("name", ["seq_len", "global_batch_size", "micro_batch_size"])
def test_an_option_of_what_follows_is_refused(name: str) -> None:
    """It would say the length of a document, or nothing; other files take it."""
    counted = Reading(framework="x", engine="x", path="x", facts={"documents": Fact(8, 1)})
    given = Settings.model_validate({name: 4})
    with pytest.raises(MissingFacts, match=r"4 \(follows from the documents"):
        check_options(counted, given)
    check_options(Reading(framework="x", engine="x", path="x", facts={}), given)


def test_documents_of_any_config_attend_to_themselves() -> None:
    """The option shortens a step of packed sequences, and none is longer than its sequence."""
    reading = read_config(json.dumps(DEEPSPEED), "ds.json")
    near = Settings(cluster="dgx-h100", gpus=8, model="llama-3.1-8b", seq_len=32768,
                    micro_batch_size=1, global_batch_size=8, recompute="full")  # fmt: skip
    whole, packed, longer = (
        resolve(reading, Settings(packed_mean_length=mean), near) for mean in (None, 512, 40000)
    )
    assert predicted(packed).step_time_s < predicted(whole).step_time_s
    assert not list(packed_note({}, packed.layout, packed.training))
    with pytest.raises(ValueError, match="packed mean length 40000: more than the 32768 tokens"):
        check_case(longer)
