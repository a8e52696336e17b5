"""The base of everything that people write: what a file may say, and the bounds of its numbers."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_COUNTED = 10**9  # of anything in a profile; a bound keeps a typo from being computed with
Count = Annotated[int, Field(gt=0, le=MOST_COUNTED)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Frozen(BaseModel):
    """Read from a file by people: immutable, numbers are finite, an unknown key is an error.

    What checks a class is built when it is first asked for: those inside another are part of its.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
