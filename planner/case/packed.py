"""Steps that a config counts in documents of any length: what sequences and batch they make.

    documents           of a step; each replica has as many, what does not divide is left out
    documents_at_once   of a replica's micro-batch, one behind the other without padding
    tokens_at_once      or the tokens that one is filled to: a replica's documents are dealt out
                        evenly to as many as their sum fills, so some may hold more than that
    longest_document    the most tokens of a document, if there is a most
    packed_mean_length  tokens of a document, which only the data says

A micro-batch is then one sequence of documents that attend to themselves alone.
"""

import math
from collections.abc import Iterator, Mapping

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.training import MOST_SEQ_LEN, Training
from meshplan.planner.case.missing import FLAGS, MissingFacts
from meshplan.planner.case.reading import Fact, IllegalConfig, Reading
from meshplan.planner.case.settings import Settings

AS_ONE = (
    "documents of a pack, which attend to themselves alone, are priced as one, unless "
    f"{FLAGS['packed_mean_length']} says how long they are"
)
"""The note on packs of a known length."""
_FOLLOW = ("seq_len", "global_batch_size", "micro_batch_size")


def is_packed(facts: Mapping[str, Fact]) -> bool:
    """Whether a step is counted in documents."""
    return "documents" in facts


def check_options(reading: Reading, given: Settings) -> None:
    """Raise `MissingFacts` for options of what follows from the documents."""
    stated = [name for name in _FOLLOW if getattr(given, name)] if is_packed(reading.facts) else []
    if stated:
        why = "follows from the documents and --packed-mean-length: leave it out"
        said = (f"{FLAGS[name]} {getattr(given, name)} ({why})" for name in stated)
        raise MissingFacts((), tuple(Fact(each, reading.line("documents")) for each in said))


def as_sequences(facts: Mapping[str, Fact], dp: int, cp: int) -> dict[str, Fact]:
    """The facts with a micro-batch of one sequence; raises `IllegalConfig`."""
    mean = int(facts["packed_mean_length"].value)
    longest = facts.get("longest_document")
    if longest is not None and mean > longest.value:
        raise IllegalConfig(
            f"documents of {mean:,} tokens, where the longest may have {longest.value:,}",
            longest.line,
        )
    share, line = int(facts["documents"].value) // dp, facts["documents"].line
    if not share:
        raise IllegalConfig(
            f"{facts['documents'].value} documents a step are fewer than {dp} replicas: each needs "
            "at least one", line,
        )  # fmt: skip
    count = _micro_batches(facts, share, mean)
    length = 2 * cp * math.ceil(share * mean / (2 * cp * count))
    if length > MOST_SEQ_LEN:
        raise IllegalConfig(
            f"a micro-batch of {length:,} tokens; at most {MOST_SEQ_LEN:,} are priced: pack fewer "
            "documents", line,
        )  # fmt: skip
    sizes = {"seq_len": length, "micro_batch_size": 1, "global_batch_size": dp * count}
    return {**facts, **{name: Fact(value, line) for name, value in sizes.items()}}


def _micro_batches(facts: Mapping[str, Fact], share: int, mean: int) -> int:
    """How many hold a replica's `share` of the documents."""
    most, each = facts.get("tokens_at_once"), facts.get("documents_at_once")
    if most is not None:
        if mean > most.value:
            raise IllegalConfig(
                f"documents of {mean:,} tokens in a micro-batch of at most {most.value:,}: it must "
                "hold the longest", most.line,
            )  # fmt: skip
        return math.ceil(share * mean / int(most.value))
    assert each is not None
    if share % each.value:
        raise IllegalConfig(
            f"a replica's {share} documents are not a multiple of the {each.value} of its "
            "micro-batch", each.line,
        )  # fmt: skip
    return share // int(each.value)


def packed_note(facts: Mapping[str, Fact], layout: Layout, training: Training) -> Iterator[str]:
    """What the documents were made."""
    if is_packed(facts):
        share = int(facts["documents"].value) // layout.data_parallel
        yield (
            f"{share} documents of {training.packed_mean_length:,} tokens are a replica's share: "
            f"priced as {layout.num_micro_batches(training)} micro-batches of "
            f"{training.seq_len:,} tokens; some may be longer, as documents differ and are not cut"
        )
