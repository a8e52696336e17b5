"""What the user fixes before the search: for each axis a value, a list or a range of them.

8        exactly 8                 none,selective   either word
on,off   all or nothing            0,0.5,1          either fraction
1,3      either                    1..16            from 1 to 16, both included
mlp,moe  of modules: all of these together, and no others
4..      at least 4                ..8              at most 8
"""

from collections.abc import Mapping
from dataclasses import field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from meshplan.costmodels.layout import (
    CONTEXT_KINDS,
    DISPATCHERS,
    MODES,
    RecomputeModule,
    Schedule,
)
from meshplan.hardware_profiles.dataclass import dataclass

NUMBER_AXES = (
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_stages",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "zero_stage",
    "shard_group",
    "micro_batch_size",
    "num_micro_batches",
)
SWITCH = ("off", "on")
WORD_AXES: dict[str, tuple[str, ...]] = {
    "schedule": get_args(Schedule),
    "recompute": MODES,
    "sequence_parallel": SWITCH,
    "context_kind": CONTEXT_KINDS,
    "dispatcher": DISPATCHERS,
    "modules_apart": SWITCH,
    "recompute_modules": get_args(RecomputeModule),
}
"""Of `recompute_modules` a pin names the one set that selective recomputation replays."""
ELSEWHERE = {"dualpipe": "; DualPipe over 16 ranks is dualpipe_v over 8, in twice the replicas"}
"""What a schedule that goes by another name is here."""
FRACTION_AXES = ("optimizer_offload", "activation_offload")
"""Their default is 0, which a pin opens: without the pin there is less to choose from, not more."""
_MOST = 2**62
LEAST = {"zero_stage": 0, "shard_group": 0}
"""Of an axis; 1 of the others. A shard group of 0 is all ranks, as in a layout."""
LARGEST = {"zero_stage": 3}


class PinError(ValueError):
    """A pin that cannot be read; one line with the value, the rule and an example."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The values that one axis may take: closed ranges of numbers, words, or fractions."""

    text: str
    ranges: tuple[tuple[int, int], ...] = ()
    words: frozenset[str] = frozenset()
    fractions: tuple[float, ...] = ()

    def allows(self, value: int | str) -> bool:
        """Whether `value` is among them."""
        if isinstance(value, str):
            return value in self.words
        return any(low <= value <= high for low, high in self.ranges)

    def allows_each(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`allows` for an array of numbers."""
        allowed = np.zeros(values.shape, dtype=bool)
        for low, high in self.ranges:
            allowed |= (values >= low) & (values <= high)
        return allowed


@dataclass(frozen=True, slots=True)
class Pins:
    """The pinned axes by name; an axis that is not named is free."""

    axes: Mapping[str, Pin] = field(default_factory=dict)

    def allows(self, axis: str, value: int | str) -> bool:
        """Whether `axis` may be `value`."""
        pin = self.axes.get(axis)
        return pin is None or pin.allows(value)

    @property
    def opening(self) -> "Pins":
        """Only the pins that enlarge the space, without those that narrow it."""
        return Pins({name: pin for name, pin in self.axes.items() if name in FRACTION_AXES})

    @property
    def offloads_activations(self) -> bool:
        """Whether activations may be on the host."""
        pin = self.axes.get("activation_offload")
        return pin is not None and any(pin.fractions)

    def without(self, axis: str) -> "Pins":
        """The same pins with `axis` free."""
        return Pins({name: pin for name, pin in self.axes.items() if name != axis})

    def describe(self) -> tuple[str, ...]:
        """Each pin as `axis text`, in the order given."""
        return tuple(f"{axis} {pin.text}" for axis, pin in self.axes.items())


def parse_pins(texts: Mapping[str, str]) -> Pins:
    """Pins from `axis: text`; raises `PinError`."""
    return Pins({axis: parse_pin(axis, text) for axis, text in texts.items()})


def parse_pin(axis: str, text: str) -> Pin:
    """One pin from its text, such as `1..16` or `none,selective`; raises `PinError`."""
    items = [item.strip() for item in text.split(",")]
    if axis in WORD_AXES:
        known = WORD_AXES[axis]
        unknown = [item for item in items if item not in known]
        if unknown:
            words = ", ".join(known) + ELSEWHERE.get(unknown[0], "")
            raise PinError(f"{axis} {unknown[0]!r} is not known; it is one of {words}")
        return Pin(text, words=frozenset(items))
    if axis in FRACTION_AXES:
        return Pin(text, fractions=tuple(sorted({_parse_fraction(axis, item) for item in items})))
    if axis not in NUMBER_AXES:
        known_axes = ", ".join((*NUMBER_AXES, *WORD_AXES, *FRACTION_AXES))
        raise PinError(f"{axis!r} cannot be pinned; what can: {known_axes}")
    return Pin(text, ranges=tuple(_parse_range(axis, item) for item in items))


def _parse_fraction(axis: str, item: str) -> float:
    try:
        fraction = {"off": 0.0, "on": 1.0}.get(item) if item in SWITCH else float(item)
    except ValueError:
        fraction = None
    if fraction is None or not 0 <= fraction <= 1:
        raise PinError(f"{axis} {item!r} is not a fraction; write on, off, 0.5 or 0,0.5,1")
    return fraction


def _parse_range(axis: str, item: str) -> tuple[int, int]:
    low, dots, high = item.partition("..")
    least, most = LEAST.get(axis, 1), LARGEST.get(axis, _MOST)
    try:
        first = int(low) if low or not dots else least
        last = (int(high) if high else _MOST) if dots else first
    except ValueError:
        raise PinError(
            f"{axis} {item!r} is not a whole number or a range; write 8, 1,3 or 1..16"
        ) from None
    if first > last:
        raise PinError(f"{axis} {item!r} holds no value; write the smaller number first: 1..16")
    if first < least or first > most or (high and last > most):
        too_small = first < least and axis not in LARGEST
        known = f"at least {least}" if too_small else f"from {least} to {most}"
        raise PinError(f"{axis} {item!r} does not exist; it is {known}")
    return first, last
