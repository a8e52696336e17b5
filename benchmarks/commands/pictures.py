"""The pictures of the pages in README.md and docs/, drawn by what they show.

    python -m benchmarks.commands.pictures    write docs/ui.png and docs/explain.png

Needs Chromium and the extra `browser`. The plan is the README's.
"""

import io
import tempfile
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from benchmarks.commands.ui import browsing, opened
from benchmarks.pages import ROOT
from benchmarks.usage import check_usage
from meshplan.planner.cli.main import app

COLOURS = 64
DOCS = ROOT / "docs"
SCREEN = {"width": 1280, "height": 900}
QUESTION = "llama-3.1-70b --gpus 256 --cluster dgx-h100 --seq-len 8192 --global-batch-tokens 4M"


def written(name: str, shot: bytes) -> None:
    """A screenshot as a file of docs/, in few colours."""
    path = DOCS / name
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"wrote {path}, {path.stat().st_size} bytes")


def explained(folder: Path) -> Path:
    """The page of the README's plan."""
    plan, page = folder / "plan.yaml", folder / "plan.html"
    for command in (["plan", *QUESTION.split(), "-o", str(plan)],
                    ["explain", str(plan), "--html", str(page)]):  # fmt: skip
        ran = CliRunner().invoke(app, command)
        assert ran.exit_code == 0, ran.output
    return page


def main() -> None:
    """Both pictures."""
    with opened(viewport=SCREEN) as page:
        written("ui.png", page.screenshot())
    with tempfile.TemporaryDirectory() as folder, browsing(viewport=SCREEN) as page:
        page.goto(explained(Path(folder)).as_uri())
        page.wait_for_function("document.getElementById('timeline-range').textContent")
        written("explain.png", page.screenshot())


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
