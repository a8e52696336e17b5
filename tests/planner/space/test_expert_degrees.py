"""Degrees of expert parallelism in the space of layouts."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshplan.planner.search.rows.priced_space import Question, space_of
from meshplan.planner.space.pins import parse_pins

Questions = Callable[..., Question]


def test_a_pinned_tp_keeps_every_expert_tensor_degree(question: Questions) -> None:
    """tp 4 splits experts over 1, 2 or 4 of its ranks, whether or not other tp are allowed."""
    asked = question((0, 1), 16, 16, expert_tensor_parallel="free")
    pinned = space_of(replace(asked, pins=parse_pins({"tensor_parallel": "4"}))).layouts
    free = space_of(asked).layouts
    of_four = set(free.expert_tensor_parallel[free.tensor_parallel == 4].tolist())
    assert set(pinned.expert_tensor_parallel.tolist()) == of_four
    assert {1, 4} <= of_four


def test_tensor_parallelism_splits_the_experts_that_are_not_spread(question: Questions) -> None:
    """All of it, as torchtitan's does; none where experts are spread."""
    found = space_of(question((0, 1), 16, 16, expert_tensor_parallel="without_ep")).layouts
    splits = np.where(found.expert_parallel == 1, found.tensor_parallel, 1)
    assert {1, 2, 4} <= set(splits.tolist())
    np.testing.assert_array_equal(found.expert_tensor_parallel, splits)


def test_a_pinned_expert_tensor_degree_is_the_only_one(question: Questions) -> None:
    """Of 1, 2 and 4."""
    asked = question((0, 1), 16, 16, expert_tensor_parallel="free")
    pinned = space_of(replace(asked, pins=parse_pins({"expert_tensor_parallel": "2"}))).layouts
    assert set(pinned.expert_tensor_parallel.tolist()) == {2}


def test_an_expert_tensor_degree_divides_the_experts_of_images_too(question: Questions) -> None:
    """4 divides the experts' width of 2,048, and not the 2,046 of those that images have."""
    asked = question((0, 1), 16, 16, expert_tensor_parallel="free")
    kinds = tuple(
        replace(kind, experts=replace(kind.experts, of_images=2046)) if kind.experts else kind
        for kind in asked.model.kinds
    )
    both = replace(asked, model=replace(asked.model, kinds=kinds))
    assert set(space_of(both).layouts.expert_tensor_parallel.tolist()) == {1, 2}
