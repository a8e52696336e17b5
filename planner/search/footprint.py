"""Does it fit at all? The smallest number of GPUs, and why nothing fits.

    fitting_layout   any legal layout of a question that fits, with its least memory
    minimum_gpus     the first size, ascending, that has one: sizes are not monotone (divisibility),
                     so they are scanned and not bisected
    explain          nothing fits: a minimal set of the user's pins that together forbid it (by
                     deletion filter), what lifting each of them alone would allow (or several,
                     where no single one is enough), how many bytes
                     the nearest miss lacks, and the GPUs from which it fits

A layout holds least with micro-batches of one sequence or, where no gradient stands beside those of
a step's only micro-batch, with all of a replica's sequences in one; and with one chunk per rank (a
layer is never held for fewer micro-batches with more). So only these sizes are looked at, and
chunked schedules count only where the question allows no other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.processes.second_core import done_beside
from meshplan.planner.processes.until import done_by
from meshplan.planner.search.checked_fit import (
    checked_fit,
    checked_sizes,
    held_bytes,
    may_need_less,
)
from meshplan.planner.search.least_memory import MISS_PRECISION, Fit, LeastMemory, NearestMiss
from meshplan.planner.search.rows.priced_space import (
    Pricer,
    Question,
    closed_form,
    space_of,
)
from meshplan.planner.space.legal_layouts import reachable_sizes
from meshplan.planner.space.pins import Pins, parse_pin

MOST_NEARER, MOST_ROWS_NEARER = 6, 500
"""Steps to a nearer miss by what ranks hold, of questions of so few rows that each is asked."""
ROWS_TOGETHER = 16_384  # about so many rows of several sizes are priced at once


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why nothing fits.

    core          pins that together forbid every layout; of them alone, without any one something
                  fits. Empty: nothing fits whatever is pinned
    relaxations   for each pin of the core a layout that fits without it, all others kept; where no
                  single one is enough, for those that must be lifted together. Where the core is
                  empty and no number of GPUs was found that fits, the same on the fewest GPUs that
                  fit without pins
    nearest       None if no layout is legal at all, or the host alone lacks memory; of layouts that
                  the host takes, if there are any
    enough        the smallest larger size that fits with the same pins, None if none was found
    fewer         the smallest smaller size that does, None if none was found
    on_host       a layout that fits with the optimizer on the host, None if none does
    dropped       legal rules that dropped layouts, by count
    beyond_host   a layout that the GPUs hold, and of which the host alone takes too little; None if
                  none is, or nothing is kept there
    unsettled     sizes of which it is not known whether they fit, where no larger one was found
    ended         what a deadline left out of this: `PINS`, `NEAREST`, `LARGER`, `FEWER`, `ON_HOST`,
                  `BEYOND_HOST`, `RULES`
    """

    core: tuple[str, ...]
    relaxations: dict[str, Fit]
    nearest: NearestMiss | None
    enough: Fit | None
    fewer: Fit | None
    on_host: Fit | None
    dropped: dict[str, int]
    beyond_host: Fit | None = None
    unsettled: tuple[int, ...] = ()
    ended: tuple[str, ...] = ()


PINS, NEAREST = "the pins that forbid it", "the nearest miss"
LARGER, FEWER = "larger numbers of GPUs", "smaller numbers of GPUs"
ON_HOST, BEYOND_HOST = "the optimizer on the host", "what the host takes too little of"
RULES = "the rules that exclude layouts"


def fitting_layout(question: Question, price: Pricer = closed_form) -> Fit | None:
    """A layout of `question` that fits, None if none is found."""
    return (
        _fewest_by_price(question, [question.gpus], price).fit
        or (_checked(question, [question.gpus], price)[0])
    )


def sizes(question: Question, most: int) -> Iterator[int]:
    """GPUs worth asking, ascending: every count within a node, then whole nodes."""
    node = question.cluster.gpus_per_node
    yield from range(1, min(node, most) + 1)
    yield from range(2 * node, most + 1, node)


class Fewest(NamedTuple):
    """The fewest GPUs that hold one step, None: no number that was tried does, but for the numbers
    that are `unsettled`.
    """

    fit: Fit | None
    unsettled: tuple[int, ...] = ()


def minimum_gpus(
    question: Question, *, most: int | None = None, price: Pricer = closed_form
) -> Fit | None:
    """The fewest GPUs, up to `most` (the question's own number), that hold one step."""
    return fewest(question, most=most, price=price).fit


def fewest(
    question: Question, *, first: int = 1, most: int | None = None, price: Pricer = closed_form
) -> Fewest:
    """`minimum_gpus` from `first` on, and the numbers of GPUs that were not settled."""
    q, node = question, question.cluster.gpus_per_node
    counts = [gpus for gpus in sizes(q, most if most is not None else q.gpus) if gpus >= first]
    reached = np.array(counts, np.int64)
    left = reachable_sizes(q.model, q.training, reached, q.engine, q.pins, node).tolist()
    found = _fewest_by_price(question, left, price)
    fewer = [gpus for gpus in left if found.fit is None or gpus < found.fit.gpus]
    less, unsettled = _checked(question, fewer, price)
    fit = less or found.fit
    open_ = {gpus for gpus in found.unsettled if fit is None or gpus < fit.gpus}
    unsettled = tuple(sorted(open_.union(unsettled)))
    return Fewest(fit and replace(fit, unsettled=unsettled), unsettled)


def _fewest_by_price(question: Question, left: list[int], price: Pricer) -> Fewest:
    """The first of the sizes that are `left` of which something fits by its priced memory, and
    those before it of which something may fit though it was not found (`LeastMemory.open`).
    """
    together, open_ = 1, set[int]()
    while left:
        memories = [LeastMemory(q, price, left[:together]) for q in _smallest_batches(question)]
        found = [fit for memory in memories if (fit := memory.fit())]
        open_ |= {gpus for memory in memories for gpus in memory.open}
        if found:
            return Fewest(min(found, key=lambda fit: fit.gpus), tuple(sorted(open_)))
        rows = sum(memory.looked_at for memory in memories) // together
        left = left[together:]
        together = max(1, min(2 * together, ROWS_TOGETHER // max(1, rows)))
    return Fewest(None, tuple(sorted(open_)))


def _checked(
    question: Question, counts: Sequence[int], price: Pricer
) -> tuple[Fit | None, tuple[int, ...]]:
    """The fewest of some numbers of GPUs that hold a step by what ranks hold, where prices say more
    than that, and those that were not settled.
    """
    if price is not closed_form or not counts or not may_need_less(question):
        return None, ()
    tried = [checked_sizes(q, counts) for q in _smallest_batches(question)]
    found = [layout for layout, _ in tried if layout]
    fit = min(found, key=lambda layout: layout.world_size, default=None)
    open_ = sorted({gpus for _, unsettled in tried for gpus in unsettled})
    if fit is None:
        return None, tuple(open_)
    unsettled = tuple(gpus for gpus in open_ if gpus < fit.world_size)
    return Fit(fit.world_size, fit, held_bytes(question, fit)[1]), unsettled


def nearest_miss(question: Question, price: Pricer = closed_form) -> NearestMiss | None:
    """What comes closest where nothing fits; None if no layout is legal. It lacks what its ranks
    hold beyond the capacity.
    """
    tried = (LeastMemory(q, price).nearest_miss() for q in _smallest_batches(question))
    found = min(filter(None, tried), key=lambda miss: miss.lacking_bytes, default=None)
    if found is None or price is not closed_form:
        return found
    lacking = held_bytes(question, found.layout)[0] - question.cluster.fillable_bytes
    found = replace(found, lacking_bytes=lacking) if lacking > 0 else found
    few = may_need_less(question) and len(space_of(question).layouts) <= MOST_ROWS_NEARER
    return _nearer(question, found) if few else found


def _nearer(question: Question, found: NearestMiss) -> NearestMiss:
    """What lacks less by what ranks hold than the nearest by its price, by bisection."""
    fillable, low = question.cluster.fillable_bytes, 0.0
    for _ in range(MOST_NEARER):
        between = (low + found.lacking_bytes) / 2
        if found.lacking_bytes - low < (MISS_PRECISION - 1) * fillable:
            break
        cluster = with_usable(question.cluster, fillable + between)
        layout = checked_fit(replace(question, cluster=cluster), question.gpus).layout
        lacking = held_bytes(question, layout)[0] - fillable if layout else 0.0
        if layout and lacking > 0:
            found = replace(found, layout=layout, lacking_bytes=lacking)
        else:
            low = between
    return found


def explain(
    question: Question,
    *,
    most_gpus: int | None = None,
    price: Pricer = closed_form,
    deadline: float | None = None,
) -> Explanation:
    """Why no layout of `question` fits; asks up to `most_gpus` (four times as many) for enough.
    What the deadline, of `time.perf_counter`, comes before is left out, and said.

    Processes of a CPU share one machine's memory, so that another number of them has another
    cluster: no other number is asked.
    """
    most = most_gpus if most_gpus is not None else 4 * question.gpus
    if deadline is None:
        by_pins, beside = _by_pins(question, price), _beside(question, most, price)
    else:  # first what costs least and says most
        beside = _beside(question, most, price, deadline)
        found = done_by(lambda: _by_pins(question, price), deadline)
        by_pins = found.answer if found else ByPins(Pins(), {}, ended=True)
    core, relaxations, ended = by_pins
    if not (core.axes or ended or beside.larger.fit or beside.fewer):
        elsewhere = done_by(lambda: _relaxed_elsewhere(question, most, price), deadline)
        relaxations, ended = elsewhere.answer if elsewhere else {}, not elsewhere
    dropped = done_by(lambda: _dropped(question), deadline)
    return Explanation(
        core=core.describe(),
        relaxations=relaxations,
        nearest=beside.nearest,
        enough=beside.larger.fit,
        fewer=beside.fewer,
        on_host=beside.on_host,
        dropped=dropped.answer if dropped else {},
        beyond_host=beside.beyond_host,
        unsettled=beside.larger.unsettled,
        ended=(*([PINS] if ended else []), *beside.ended, *([] if dropped else [RULES])),
    )


class ByPins(NamedTuple):
    """The pins that together forbid every layout, and what fits without them; `ended`: a deadline
    came before they were found.
    """

    core: Pins
    relaxations: dict[str, Fit]
    ended: bool = False


def _by_pins(question: Question, price: Pricer) -> ByPins:
    core, free = _core(question, price)
    return ByPins(core, _relaxations(question, core, free, price) if core.axes else {})


def _core(question: Question, price: Pricer) -> tuple[Pins, Pins]:
    """The pins that together forbid every layout, none of which can be left out (none where nothing
    fits whatever is pinned), and those that open something, if with these something fits.
    """

    def fits(pins: Pins) -> bool:
        return fitting_layout(replace(question, pins=pins), price) is not None

    pins, opening = question.pins, question.pins.opening
    free = opening if fits(opening) else Pins()
    for axis in [axis for axis in pins.axes if axis not in free.axes]:
        if not fits(pins.without(axis)):
            pins = pins.without(axis)
    possible = free == opening or fits(free)
    fixing = {axis: pin for axis, pin in pins.axes.items() if axis not in free.axes}
    return Pins(fixing if possible else {}), free


def _relaxations(question: Question, core: Pins, free: Pins, price: Pricer) -> dict[str, Fit]:
    """For each pin of `core` a layout that fits without it alone. Where there is none, as where two
    pins forbid everything each alone, one without all pins that cannot stay beside `free` and those
    before them.
    """
    q, found = question, dict[str, Fit]()
    for axis, pin in core.axes.items():
        if fit := fitting_layout(replace(q, pins=q.pins.without(axis)), price):
            found[f"{axis} {pin.text}"] = fit
    if found:
        return found
    kept, fit = free, fitting_layout(replace(q, pins=free), price)
    for axis, pin in q.pins.axes.items():
        more = Pins({**kept.axes, axis: pin})
        if another := fitting_layout(replace(q, pins=more), price):
            kept, fit = more, another
    assert fit is not None, "nothing fits without the pins that forbid every layout"
    lifted = [axis for axis in q.pins.axes if axis not in kept.axes]
    return {" and ".join(f"{axis} {q.pins.axes[axis].text}" for axis in lifted): fit}


def _relaxed_elsewhere(question: Question, most: int, price: Pricer) -> dict[str, Fit]:
    """`_relaxations` on the fewest GPUs, up to `most`, that hold a step without the pins that fix
    something; nothing where there are no such pins, or no such GPUs.
    """
    opening = question.pins.opening
    if question.cluster.gpu.vendor == "cpu" or len(opening.axes) == len(question.pins.axes):
        return {}
    held = fewest(replace(question, pins=opening), most=most, price=price).fit
    if held is None:
        return {}
    q = replace(question, gpus=held.gpus)
    core, free = _core(q, price)
    return _relaxations(q, core, free, price) if core.axes else {}


class Beside(NamedTuple):
    """What is nearly enough, what is from there on up to some number of GPUs, what on fewer GPUs,
    what with the optimizer on the host, and what on a larger host; `ended`: what a deadline left
    out.
    """

    nearest: NearestMiss | None
    larger: Fewest
    fewer: Fit | None
    on_host: Fit | None
    beyond_host: Fit | None
    ended: tuple[str, ...] = ()


def _beside(question: Question, most: int, price: Pricer, deadline: float | None = None) -> Beside:
    """What there is beside a question of which nothing fits, up to `most` GPUs."""
    shared, pins = question.cluster.gpu.vendor == "cpu", _on_host(question.pins)

    def fewest_of(first: int, last: int) -> Fewest:
        none = Fewest(None)
        return none if shared else fewest(question, first=first, most=last, price=price)

    pieces: dict[str, Callable[[], NearestMiss | Fewest | Fit | None]] = {
        NEAREST: lambda: nearest_miss(question, price),
        LARGER: lambda: fewest_of(question.gpus + 1, most),
        FEWER: lambda: fewest_of(1, question.gpus - 1),
        ON_HOST: lambda: fitting_layout(replace(question, pins=pins), price),
    }
    if _with_endless_host(question) is not None:
        pieces[BEYOND_HOST] = lambda: on_endless_host(question, price)
    found = done_beside(*(partial(done_by, piece, deadline) for piece in pieces.values()))
    nearest, *fits = (each.answer if each else None for each in found)
    larger, fewer = (each if isinstance(each, Fewest) else Fewest(None) for each in fits[:2])
    moved, beyond = (*fits[2:], None)[:2]
    misses = (each for each in (nearest, beyond) if isinstance(each, NearestMiss))
    if not larger.fit:
        larger = Fewest(None, (*fewer.unsettled, *larger.unsettled))
    ended = tuple(name for name, each in zip(pieces, found, strict=True) if each is None)
    on_host, larger_host = (each if isinstance(each, Fit) else None for each in (moved, beyond))
    return Beside(next(misses, None), larger, fewer.fit, on_host, larger_host, ended)


def on_endless_host(question: Question, price: Pricer = closed_form) -> Fit | NearestMiss | None:
    """What the GPUs hold, or else what comes closest, on a host that takes whatever is kept there;
    None where that changes nothing, or no layout is legal.
    """
    endless = _with_endless_host(question)
    if endless is None:
        return None
    return fitting_layout(endless, price) or nearest_miss(endless, price)


def _with_endless_host(question: Question) -> Question | None:
    """The question on a host that takes whatever is kept there; None where that changes nothing."""
    kept = any(any(pin.fractions) for pin in question.pins.opening.axes.values())
    if question.cluster.host_memory_bytes is None or not kept:
        return None
    endless = question.cluster.model_copy(update={"host_memory_bytes": None})
    return replace(question, cluster=endless)


def _dropped(question: Question) -> dict[str, int]:
    """How many layouts each rule drops, under the user's own pins alone."""
    return space_of(question).dropped


def _on_host(pins: Pins) -> Pins:
    """`pins` with the optimizer on the host."""
    return Pins({**pins.axes, "optimizer_offload": parse_pin("optimizer_offload", "on")})


def _smallest_batches(question: Question) -> list[Question]:
    """The question with the micro-batches of which a layout holds least, unless the user said how
    large or how many they are: of one sequence, and all that a replica has, where nothing of a
    micro-batch before stands beside it then.
    """
    pins, engine = question.pins, question.engine
    if {"micro_batch_size", "num_micro_batches"} & pins.axes.keys():
        return [question]
    only = engine.kernels.counts_passes or engine.state.frees_gradients
    ones = [Pins({**pins.axes, axis: parse_pin(axis, "1")})
            for axis in ("micro_batch_size", *(["num_micro_batches"] if only else []))]  # fmt: skip
    return [replace(question, pins=each) for each in ones]
