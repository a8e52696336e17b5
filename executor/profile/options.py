"""What a profiling session is asked to do, as its processes get it."""

from pathlib import Path
from typing import Literal

from meshplan.hardware_profiles.frozen import Frozen


class Options(Frozen):
    """One session.

    out       the profile to write
    quick     the short list of shapes
    limit_s   time in which all must be measured; fewer repeats where it is short
    restart   drop the measurements of a killed run instead of going on from them
    command   what the user typed, for the profile's conditions
    progress  file through which rank 0 tells the starting process what it measures
    """

    out: Path
    quick: bool = False
    limit_s: float = 600.0
    restart: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    command: str = "meshplan profile"
    progress: Path | None = None
