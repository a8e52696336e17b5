"""Which ranks form the groups of a shape: (ranks of a node, nodes)."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class GroupShape:
    """Ranks of one node in a group, and nodes that the group spans."""

    nodes: int
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        """Members of one group."""
        return self.nodes * self.ranks_per_node


def group_shapes(ranks_per_node: int, nodes: int) -> tuple[GroupShape, ...]:
    """Every shape worth measuring: powers of two of both, and all of both."""
    inside, across = _powers(ranks_per_node), _powers(nodes)
    return tuple(sorted(GroupShape(n, r) for n in across for r in inside if n * r > 1))


def _powers(limit: int) -> tuple[int, ...]:
    return tuple(sorted({2**i for i in range(limit.bit_length()) if 2**i <= limit} | {limit}))


def members(shape: GroupShape, ranks_per_node: int, nodes: int) -> Iterator[tuple[int, ...]]:
    """The ranks of each group: neighbours inside a node, the same places across nodes."""
    r, g = shape.ranks_per_node, ranks_per_node
    for first_node in range(0, nodes - shape.nodes + 1, shape.nodes):
        for first in range(0, g - r + 1, r):
            yield tuple(
                (first_node + node) * g + first + place
                for node in range(shape.nodes)
                for place in range(r)
            )
