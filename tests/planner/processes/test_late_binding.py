"""What is imported meanwhile is bound when it is called; what is imported later as usual."""

import os
import sys

import pytest

from meshplan.planner.processes.late_binding import bound_when_called


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such choice")
@pytest.mark.parametrize("fails", [False, True])
def test_the_usual_way_comes_back(fails: bool) -> None:
    """Also after an import that fails; what else was asked of the loader stays asked."""
    before = sys.getdlopenflags()
    usual = os.RTLD_NOW | os.RTLD_GLOBAL
    sys.setdlopenflags(usual)
    try:
        with bound_when_called():
            meanwhile = sys.getdlopenflags()
            if fails:
                raise ImportError
    except ImportError:
        assert fails
    finally:
        after = sys.getdlopenflags()
        sys.setdlopenflags(before)
    assert meanwhile == os.RTLD_LAZY | os.RTLD_GLOBAL
    assert after == usual


def test_where_there_is_no_choice_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: nothing is raised."""
    monkeypatch.delattr(sys, "setdlopenflags", raising=False)
    with bound_when_called():
        pass
