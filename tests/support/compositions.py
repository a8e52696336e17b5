"""All cuts of some layers into stages, and all mixes of recomputation of one."""

from collections.abc import Iterator

from meshplan.costmodels.layout import Stage


def compositions(total: int, fewest: list[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as counts of at least `fewest`."""
    if len(fewest) == 1:
        yield from [(total,)] if total >= fewest[0] else []
        return
    for n in range(fewest[0], total - sum(fewest[1:]) + 1):
        yield from ((n, *rest) for rest in compositions(total - n, fewest[1:]))


def mixes(layers: int, modes: tuple[int, ...]) -> list[Stage]:
    """All stages of `layers` whose layers have the recompute `modes`."""
    return [
        Stage(layers, selective, full)
        for full in range(layers + 1 if 2 in modes else 1)
        for selective in range(layers - full + 1 if 1 in modes else 1)
        if 0 in modes or full + selective == layers
    ]
