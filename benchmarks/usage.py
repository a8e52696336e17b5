"""What every benchmark without an argument parser of its own begins with: `--help` shows its
docstring and starts nothing, and an option that it does not have is refused.
"""

import sys


def check_usage(said: str, *options: str) -> None:
    """Exit 0 after printing `said` for `-h` and `--help`; exit 2 for an option not in `options`."""
    given = [word for word in sys.argv[1:] if word.startswith("-")]
    if {"-h", "--help"} & {*given}:
        print(said.strip())
        raise SystemExit(0)
    unknown = [word for word in given if word not in options]
    if unknown:
        text = " ".join(options) or "none"
        print(f"error: no option {unknown[0]}; known: {text} (--help says more)", file=sys.stderr)
        raise SystemExit(2)
