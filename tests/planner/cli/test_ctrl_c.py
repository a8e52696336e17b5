"""Ctrl-C before a command works, and after it: no traceback, whatever it meets.

Each in a process of its own, whose end it is.
"""

import subprocess
import sys

import pytest

HEARS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
IMPORTS = """
from meshplan.planner.cli.start_up import importing
with importing():
    signal.raise_signal(signal.SIGINT)
"""
IS_DONE = """
import atexit
from meshplan.planner.cli import main
atexit.register(signal.raise_signal, signal.SIGINT)
main.app = lambda: None
main.main()
"""
WORKS = """
from meshplan.planner.cli import main
def app():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise SystemExit(7) from None
main.app = app
main.main()
"""
BUILDS = """
from meshplan.planner.cli import main
def app():
    raise RuntimeError("Error building `literal` serializer: KeyboardInterrupt: ")
main.app = app
main.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signal")
@pytest.mark.parametrize(
    ("program", "code"), [(IMPORTS, -2), (IS_DONE, -2), (WORKS, 7), (BUILDS, 130)],
    ids=["while it imports", "when it is done", "at work: heard", "while pydantic builds"],
)  # fmt: skip
def test_ctrl_c_is_no_traceback(program: str, code: int) -> None:
    """-2 is 130 to a shell; pydantic says of it in the text of its own error alone."""
    command = [sys.executable, "-c", HEARS + program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, "")
