"""What a framework's configuration says that its reader does not understand."""

from meshplan.planner.case.reading import Reading


def unread_of(reading: Reading) -> str:
    """It, in one line."""
    return ", ".join(str(fact.value) for fact in reading.unread)
