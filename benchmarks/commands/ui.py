"""The page of `meshplan ui`: how long a change takes.

    python -m benchmarks.commands.ui    200 changes of a llama-3.1-405b layout, in the browser

Needs Chromium and the extra `browser`. Prints percentiles of two clocks: the server's own (each
answer's `Server-Timing`), and the page's, from a slider's event to the drawn answer.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from benchmarks.usage import check_usage

CHANGES, SEED = 200, 0
JOB = "#model=llama-3.1-405b&cluster=dgx-h100&gpus=2048&seq-len=8192&global-batch-tokens=16M"
LAYOUT = "&tp=8&pp=16&vpp=2&cp=1&zero=1&recompute=full"
AXES = (
    *("tensor_parallel", "pipeline_parallel", "virtual_stages", "context_parallel"),
    *("zero_stage", "micro_batch_size", "recompute"),
)
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
MOVE = """async ([axis, index]) => {
  const slider = document.getElementById(axis), before = document.body.dataset.answered;
  const started = performance.now();
  slider.value = index;
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  while (document.body.dataset.answered === before) await new Promise(requestAnimationFrame);
  return performance.now() - started;
}"""


@contextmanager
def served() -> Iterator[str]:
    """The address of a running page."""
    command = [sys.executable, "-c", "from meshplan.planner.cli.main import main; main()"]
    with subprocess.Popen(
        [*command, "ui", "--no-open", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


@contextmanager
def opened(**options: Any) -> Iterator[Any]:
    """The page at `JOB`, answered, in a headless Chromium."""
    with served() as address, browsing(**options) as page:
        page.goto(address + JOB + LAYOUT)
        page.wait_for_selector(".rank")
        yield page


@contextmanager
def browsing(**options: Any) -> Iterator[Any]:
    """An empty page of a headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        yield browser.new_page(**options)
        browser.close()


def changes() -> None:
    """Move random sliders to random stops; print what each took."""
    random, refused = Random(SEED), 0
    page_ms, server_ms = list[float](), list[float]()
    with opened(viewport={"width": 1280, "height": 900}) as page:

        def note(response: Any) -> None:
            timing = response.headers.get("server-timing")
            if timing and response.url.endswith("/api/price"):
                server_ms.append(float(timing.partition("dur=")[2]))

        page.on("response", note)
        while len(page_ms) < CHANGES:
            axis = random.choice(AXES)
            slider = page.locator(f"#{axis}")
            stops, now = int(slider.get_attribute("max") or 0), int(slider.input_value())
            others = [index for index in range(stops + 1) if index != now]
            if not others:
                continue
            page_ms.append(page.evaluate(MOVE, [axis, random.choice(others)]))
            if page.is_visible("#refused"):  # back to where it was, and not counted as a change
                refused += 1
                page.evaluate(MOVE, [axis, now])
                server_ms.pop()
    for name, found in (("server", server_ms), ("page", page_ms)):
        print(f"{name}: {percentiles(found)}")
    print(f"of {CHANGES} changes {refused} were refused")


def percentiles(found: list[float]) -> str:
    """Median, 95th percentile and the longest, in milliseconds."""
    ordered = sorted(found)
    p95 = ordered[-(-95 * len(ordered) // 100) - 1]
    return (
        f"median {ordered[len(ordered) // 2]:.0f} ms, p95 {p95:.0f} ms, "
        f"longest {ordered[-1]:.0f} ms of {len(ordered)}"
    )


if __name__ == "__main__":
    check_usage(str(__doc__))
    changes()
