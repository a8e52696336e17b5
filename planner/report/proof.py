"""What a search proved, what it searched, and why the plan is this one of several, in sentences."""

from meshplan.costmodels.units import GIB, counted, format_bytes, format_seconds
from meshplan.planner.answer.explain import AS_FAST
from meshplan.planner.case.plan_findings import Choice
from meshplan.planner.case.search_report import ROUNDING, SearchReport
from meshplan.planner.space.words import BOUNDED, OTHER_DEGREES, PAYS, UNLISTED

OVER_LISTED = "over the listed stage splits"
"""Of what more is proved: the space says which splits are listed."""


UNLISTED_CLAIM = (
    "the time limit ended the list of the space, so nothing is proved: this is the best found "
    "among the degrees that were listed by then"
)


def proof_lines(search: SearchReport, choice: Choice | None = None) -> list[str]:
    """What the search proved of the fastest layout, and why the plan is that one or another."""
    under = f"under the {search.price}{'' if search.price == 'event simulation' else ' prices'}"
    least = format_seconds(search.bound_s)
    if search.status == "OPTIMAL":
        claim = f"OPTIMAL: {under} {_nothing(search)} beats {least} by more than a millionth"
    elif UNLISTED in search.space:
        claim = f"FEASIBLE: {UNLISTED_CLAIM}"
    else:
        gap = f"{_gap(search.gap)} below the best found"
        unproved = f"FEASIBLE, not proved to be the fastest: {under}"
        claim = f"{unproved} {_nothing(search)} takes less than {least}, {gap}"
    claim += _of_listed(search) if search.bound_s else ""
    if choice:
        claim += _beside_fastest(choice)
    return [claim, *([choice_line(choice)] if choice else [])]


def search_lines(search: SearchReport) -> list[str]:
    """What was searched, a line for each item, and how much work it was."""
    done = [
        f"{search.priced:,} priced",
        f"{counted(search.simulated, 'stage split')} simulated",
        counted(search.cpsat_solves, "CP-SAT solve"),
    ]
    work = f"{counted(search.candidates, 'layout')} in {search.wall_s:.2f} s: {', '.join(done)}"
    return [*search.space, work]


def _nothing(search: SearchReport) -> str:
    """In the space, with what decides there which layouts fit where that may leave some out."""
    space = "\n".join(search.space)
    if BOUNDED in space:
        more = " and recomputes no more than it asks for" * (PAYS in space)
        return f"no layout of the space that fits by an upper bound of its memory{more}"
    if OTHER_DEGREES in space:
        return "no layout of the space, which an upper bound of memory narrows,"
    return "no layout of the space"


def _of_listed(search: SearchReport) -> str:
    """What is proved of layouts that are cut as a list says, where that is more than of all."""
    if search.cuts != "listed" or search.listed_bound_s is None:
        return ""
    if search.listed_bound_s <= search.bound_s * (1 + ROUNDING):
        return ""
    least = format_seconds(search.listed_bound_s)
    if search.listed_gap < ROUNDING:
        return f"; {OVER_LISTED} none beats {least} by more than a millionth"
    return f"; {OVER_LISTED} none takes less than {least}, {_gap(search.listed_gap)} below"


def _gap(gap: float) -> str:
    """What is not nothing is never called 0.0%."""
    return f"{gap:.1%}" if gap >= AS_FAST else "less than 0.1%"


def _beside_fastest(choice: Choice) -> str:
    """Which layout a proof speaks of, where that is not the plan."""
    if not choice.slower_fraction:
        return ""
    return f". The fastest is {choice.fastest}; this plan is {_gap(choice.slower_fraction)} slower"


IF_OFF = "if any one rate or overlap is off by a standard deviation"


def choice_line(choice: Choice) -> str:
    """Why the plan is this one of several."""
    among = f"{choice.candidates} layouts tie, as measured runs do not tell them apart"
    if choice.robust:
        among = f"{choice.candidates} layouts, each the best found of its degrees"
    is_fastest, worst = not choice.slower_fraction, choice.worst_loss_fraction
    if is_fastest and worst < AS_FAST:
        return f"{among}: this one, the fastest, stays so within 0.05% {IF_OFF}"
    which = "this one, the fastest," if is_fastest else "this one"
    loses = f"{which} is at most {worst:.1%} slower than another {IF_OFF} ({choice.worst_where})"
    if is_fastest:
        return f"{among}: {loses}; no other does better by more than 0.1%"
    other = f"the fastest {choice.fastest_worst_loss_fraction:.1%} ({choice.fastest_worst_where})"
    spares = choice.spares_bytes
    memory = f"; this one needs {format_bytes(spares)} less of a GPU" * (spares > 0.05 * GIB)
    return f"{among}: {loses}, {other}{memory}"
