"""What a search proved, what it was over, and why the plan is this one of several, in sentences."""

from meshplan.costmodels.units import GIB, counted, format_bytes, format_seconds
from meshplan.planner.case.plan_file import SearchReport
from meshplan.planner.case.plan_findings import Choice
from meshplan.planner.space.words import BOUNDED, OTHER_DEGREES


def proof_lines(search: SearchReport, choice: Choice | None = None) -> list[str]:
    """What the search proved of the fastest layout, whether that is the plan, and what it did."""
    under = f"under the {search.price}{'' if search.price == 'event simulation' else ' prices'}"
    over = " over the listed cuts" if search.cuts == "listed" else ""
    if search.status == "OPTIMAL":
        claim = (
            f"OPTIMAL{over}: {under}, where the best takes {format_seconds(search.bound_s)}, "
            f"{_nothing(search)} is faster by more than a millionth"
        )
    else:
        which = "none of them" if over else _nothing(search)  # moved layers may be faster
        claim = (
            f"FEASIBLE{over}: {under} {which} is faster than "
            f"{format_seconds(search.bound_s)}, {_gap(search.gap)} below the best found"
        )
    claim += _of_every_cut(search) if over else ""
    work = (
        f"{counted(search.candidates, 'layout')}, {search.priced:,} priced, "
        f"{counted(search.cpsat_solves, 'CP-SAT solve')}, {search.simulated:,} simulated, "
        f"{search.wall_s:.2f} s"
    )
    if choice:
        claim += _beside_fastest(choice)
    told = [choice_line(choice)] if choice else []
    return [claim, *told, *_space(search), work]


def _nothing(search: SearchReport) -> str:
    """In the space, with what decides there which layouts fit where that may leave some out."""
    space = "\n".join(search.space)
    if BOUNDED in space:
        return "nothing in the space that fits by the bound of its memory"
    if OTHER_DEGREES in space:
        return "nothing in the space, which leaves out degrees by the bound of their memory,"
    return "nothing in the space"


def _space(search: SearchReport) -> list[str]:
    """What was searched: one entry, a line for each item."""
    return ["\n".join(["space:", *search.space])] if search.space else []


def _of_every_cut(search: SearchReport) -> str:
    """What is proved however layouts are cut, where the proof is over a list of cuts."""
    bound_s, best_s = search.every_cut_bound_s, search.bound_s / (1 - search.gap)
    if not bound_s:
        return ""
    gap = _gap(1 - bound_s / best_s)
    least = f"{format_seconds(bound_s)}, {gap} below"
    return f"; however it is cut nothing in the space is faster than {least}"


def _gap(gap: float) -> str:
    """A gap that was not closed is never called 0.0%."""
    return f"{gap:.1%}" if gap >= LEAST_LOSS else "less than 0.1%"


def _beside_fastest(choice: Choice) -> str:
    """Which layout a proof speaks of, where that is not the plan."""
    if not choice.slower_fraction:
        return ""
    return f". That is {choice.fastest}, {choice.slower_fraction:.1%} faster than this plan"


LEAST_LOSS = 0.0005  # a smaller loss is not shown


def choice_line(choice: Choice) -> str:
    """Why the plan is this one of several."""
    which = "ties, which measured runs do not tell apart"
    if choice.robust:
        which = "simulated layouts, the best found of their kinds"
    many = f"{choice.candidates} {which}"
    loses = f"loses {choice.worst_loss_fraction:.1%} at most to the others"
    where = f"where one figure is off ({choice.worst_where})"
    if not choice.slower_fraction and choice.worst_loss_fraction < LEAST_LOSS:
        return f"of {many}, the fastest stays so whichever one figure is off"
    if not choice.slower_fraction:
        return f"of {many}, the fastest {loses} {where}; none of these loses less by over 0.1%"
    other = f"the fastest {choice.fastest_worst_loss_fraction:.1%} ({choice.fastest_worst_where})"
    spares = choice.spares_bytes
    memory = f", and needs {format_bytes(spares)} less of a GPU" * (spares > 0.05 * GIB)
    return f"of {many}, this one {loses} {where}, {other}{memory}"
