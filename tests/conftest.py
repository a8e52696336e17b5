"""Hypothesis draws the same examples in every run: main cannot fail by luck.

`HYPOTHESIS_PROFILE=nightly pytest` draws new ones: a thousand where a test sets no number, and ten
thousand for every reader of files (`tests/planner/cli/test_fuzz_readers.py`).
"""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from nightly import thin

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.register_profile("fixed", derandomize=True, max_examples=60, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(PROFILE)
if PROFILE == "fixed":
    # Some of what is drawn are constants in the source of our modules, as many as are imported by
    # then: other examples wherever tests run in another order. None here: each worker would parse
    # all of our source as well. Hypothesis has no setting of it; without this line it is slower.
    providers._get_local_constants = lambda: providers._local_constants
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch: a worker has one processor
gc.disable()  # until all tests are collected, which live until the end
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what is behind an `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send Ctrl-C

LONG = (
    "test_execute_command", "test_parity", "test_launch", "test_dry_run", "test_one_rank",
    "test_written", "test_dry_run_cost_model", "test_simulated_proof",
    "test_own_layouts", "test_price", "test_every_cut", "test_budget", "test_fuzz_readers",
    "test_sweep", "test_counted_plans", "test_counted_memory", "test_fit", "test_moved_layers",
    "test_intervals", "test_simulated_bounds", "test_adapters", "test_what_if", "test_row_prices",
    "test_runners_up", "test_families", "test_bruteforce", "test_check_fuzz", "test_cli",
    "test_sweep_cache", "test_startup", "test_dry_run_command", "test_plan_dry_run", "test_docs",
)  # fmt: skip
"""Files that take longest are begun first, so that the workers end together; before all those whose
processes are waited for, as long as mypy has what they leave.
"""


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves out what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Few cases of what is marked so, and the long files first, in their order."""
    thin(items)
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))


def pytest_collection_finish() -> None:
    """Of garbage made by tests what was collected is no part: a fifth of collecting, and a fortieth
    of what tests take, went to looking through it.
    """
    gc.freeze()
    gc.enable()


def is_short(part: object) -> bool:
    """Whether it is a word, or a number that is not there for its length."""
    return isinstance(part, str) or (isinstance(part, int) and part.bit_length() < 64)


def pytest_make_parametrize_id(val: object) -> str | None:
    """What a test is given names it, as it is read: words, counts, fields, the end of a file."""
    if isinstance(val, dict) and all(map(is_short, val.values())):
        val = [f"{name} {value}" for name, value in val.items()]
    if isinstance(val, tuple | list) and val and all(map(is_short, val)):
        val = " ".join(map(str, val))
        return val if len(val) < 60 else f"...{val[-60:]}"
    if isinstance(val, str) and ("\n" in val or len(val) > 80):
        return f"...{' '.join(val.split())[-60:]}"
    return None  # as pytest does


@pytest.fixture(autouse=True)
def usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is as wide as without a terminal: the workers of pytest-xdist say COLUMNS=80."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True, scope="session")
def one_process() -> Iterator[None]:
    """A search forks no process, and a command starts none unless told by `--jobs`: each worker of
    pytest-xdist has a processor, and another process costs more than it does. `test_second_core`
    has forks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshplan.planner.processes.second_core._has_second_core", lambda: False)
        for command in ("sweep", "what_if"):
            patch.setattr(f"meshplan.planner.cli.{command}.num_cores", lambda: 1)
        yield
