"""Stands in for torchrun where a test is about what is written by ranks or watches them: it starts
them alone and waits, in a thirtieth of the time. What torchrun reports and ends is its own
(`tests/executor/launch/test_launch.py`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def stand_in(folder: Path) -> None:
    """From now on `python -m torch.distributed.run` is this where `folder` is in PYTHONPATH."""
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    for each in (package.parent, package):
        (each / "__init__.py").touch()
    shutil.copy(__file__, package / "run.py")


def main(words: list[str]) -> int:
    """Start the ranks that torchrun's `words` ask for; the exit code is the largest of theirs."""
    ranks = next(int(word.split("=")[1]) for word in words if word.startswith("--nproc-per-node="))
    command = [sys.executable, *words[words.index("-m") :]]
    started = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)})
        for rank in range(ranks)
    ]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
