"""The page of a plan in a browser: no error on its console, and the numbers of `explain --json`."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshplan.planner.cli.main import app

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--enable-logging=stderr")  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here"),
]


def shown(page: Path, profile: Path) -> tuple[str, str]:
    """The document after its script has run, and what the browser logged."""
    assert BROWSER is not None
    ran = subprocess.run(
        [BROWSER, *QUIET, f"--user-data-dir={profile}", "--virtual-time-budget=2000",
         "--window-size=1280,900", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return ran.stdout, ran.stderr


def test_page_runs_without_error(tmp_path: Path) -> None:
    """The script draws the timeline, the console stays empty, and each figure is the one of
    `explain --json`.
    """
    runner, plan, page = CliRunner(), str(tmp_path / "plan.yaml"), tmp_path / "plan.html"
    job = ["--gpus", "32", "--cluster", "dgx-h100", "--global-batch", "128", "--pp", "4"]
    assert runner.invoke(app, ["plan", "llama-3.1-8b", *job, "-o", plan]).exit_code == 0
    assert runner.invoke(app, ["explain", plan, "--html", str(page)]).exit_code == 0
    document = json.loads(runner.invoke(app, ["explain", plan, "--json"]).stdout)
    dom, log = shown(page, tmp_path / "profile")
    assert "CONSOLE" not in log
    drawn = re.search(r'id="timeline-range"[^>]*>([^<]+)<', dom)
    assert drawn is not None, "the script has not drawn the timeline"
    assert " of " in drawn[1]
    figures = re.findall(r'<data data-from="([^"]+)" value="([^"]+)">', dom)
    assert len(figures) > 15
    for path, value in figures:
        found = document
        for key in html.unescape(path).split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        assert float(value) == pytest.approx(found, rel=1e-12), path
