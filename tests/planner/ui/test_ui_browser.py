"""The page in a real browser: numbers, keyboard, address, no console error.

Run with `pytest -m browser`; needs Chromium and the extra `browser`.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.commands.ui import OPTIONS, served

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
STATE = (
    "#model=tiny-llama&cluster=dgx-h100&gpus=16&seq-len=1024&global-batch=64&tp=2&pp=2&zero=1"
    "&pin=tensor_parallel"
)
PLAN = ["tiny-llama", "--cluster", "dgx-h100", "--gpus", "16", "--seq-len", "1024"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running page, as a user starts it."""
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page at `STATE`, answered; a console error or an exception in it fails the test."""
    errors: list[str] = []
    found = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    found.goto(address + STATE)
    answered(found)
    yield found
    found.context.close()
    assert errors == []


def answered(page: Any) -> None:
    """Wait until nothing is asked and at least one answer was drawn."""
    until(page, "document.body.dataset.answered && document.querySelector('.rank')")


def until(page: Any, condition: str) -> None:
    """Wait until the expression holds; asked from here, since the page's policy forbids eval."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def step_s(page: Any) -> float:
    """The step time that the page shows, unrounded."""
    return float(page.locator("#step-time").get_attribute("data-value"))


def planned(*pins: str) -> dict[str, Any]:
    """The plan of the same job on the command line, as JSON."""
    words = ["plan", *PLAN, "--global-batch", "64", *pins, "--json"]
    command = [sys.executable, "-c", "from meshplan.planner.cli.main import main; main()", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def test_solved_page_equals_plan_json(page: Any) -> None:
    """Solve with a pinned axis sets the sliders, and shows the step that `plan --json` gives."""
    page.click("#solve")
    page.wait_for_selector("#proof:not([hidden])")
    until(page, "document.querySelector('#label').textContent.includes('tp2')")
    page.wait_for_timeout(500)
    plan = planned("--tp", "2")
    assert step_s(page) == plan["prediction"]["step_time_s"]
    assert "OPTIMAL: under the event simulation" in page.inner_text("#proof-lines")
    assert page.locator(".rank").count() == plan["layout"]["pipeline_parallel"]
    assert page.inner_text("#axis-micro_batch_size output") == str(
        plan["layout"]["micro_batch_size"]
    )


def test_sliders_move_by_keyboard(page: Any) -> None:
    """Arrow right on a focused slider takes the next stop and prices it; End goes to the last."""
    before = step_s(page)
    page.focus("#pipeline_parallel")
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelectorAll('.rank').length == 4")
    assert page.inner_text("#axis-pipeline_parallel output") == "4"
    assert step_s(page) != before
    page.focus("#recompute")
    page.keyboard.press("End")
    until(page, "document.querySelector('#label').textContent.includes('full')")
    assert "recompute=full" in page.url


def test_refused_choice_says_why(page: Any) -> None:
    """A stop that the rules refuse shows the rule, in the words of `check`."""
    page.focus("#context_parallel")
    page.keyboard.press("End")
    page.wait_for_selector("#refused:not([hidden])")
    text = page.inner_text("#refused")
    assert "16 GPUs are not a multiple of tensor x context x pipeline = 64" in text


def test_address_restores_the_state(page: Any, browser: Any) -> None:
    """The address of a changed page opens the same numbers, sliders and pins in a new tab."""
    page.focus("#micro_batch_size")
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('micro-batch=2')")
    other = page.context.new_page()
    other.goto(page.url)
    answered(other)
    assert step_s(other) == step_s(page)
    assert other.inner_text("#axis-micro_batch_size output") == "2"
    assert other.is_checked("#pin-tensor_parallel")


def test_uploaded_model_is_in_the_address(page: Any, tmp_path: Path) -> None:
    """A config.json is read, and the address alone brings it back."""
    from meshplan.hardware_profiles.load_models import load_model_config

    config = {**load_model_config("tiny-llama"), "num_hidden_layers": 6}
    (tmp_path / "mine.json").write_text(json.dumps(config))
    page.set_input_files("#config-file", tmp_path / "mine.json")
    until(page, "document.querySelector('#job-line').textContent.startsWith('mine')")
    until(page, "location.hash.includes('config=')")
    shown = step_s(page)
    other = page.context.new_page()
    other.goto(page.url)
    answered(other)
    assert other.inner_text("#job-line").startswith("mine on 16")
    assert step_s(other) == shown


def test_page_fits_a_phone(page: Any) -> None:
    """At 390 pixels nothing is wider than the screen."""
    page.set_viewport_size({"width": 390, "height": 844})
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390


def test_every_control_has_a_name(page: Any) -> None:
    """Each input and button that is shown has an accessible name."""
    silent = page.evaluate(
        """() => [...document.querySelectorAll('input, select, button')]
        .filter((e) => e.offsetParent && !(e.labels && e.labels.length) && !e.ariaLabel
                       && !e.textContent.trim()).map((e) => e.outerHTML)"""
    )
    assert silent == []
