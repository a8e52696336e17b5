"""Facts that a config leaves out: from flags, `meshplan.toml`, or `[tool.meshplan]` in pyproject.

    [tool.meshplan]            # the same keys at the top level of meshplan.toml
    cluster = "dgx-h100"       # a built-in profile or a file
    gpus = 64
    model = "llama-3.1-70b"    # a built-in model, or a config.json
    seq_len = 8192             # or "8k", as the option is written
    global_batch_size = 512

The nearest file above the config counts. A flag wins over the config; the file only fills in. What
it names by a path is looked for beside it, then from the working folder.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from meshplan.costmodels.training import Precision
from meshplan.hardware_profiles.files.bounded_file import read_bounded
from meshplan.hardware_profiles.files.profile_file import first_fault
from meshplan.hardware_profiles.frozen import Frozen
from meshplan.planner.case.input_limits import MAX_PROGRAM_BYTES, MOST, check_toml
from meshplan.planner.case.lengths import Length
from meshplan.planner.case.reading import FIELDS, Mode, Start

FILE, PROJECT = "meshplan.toml", "pyproject.toml"


class UnreadableSettings(ValueError):
    """A settings file that cannot be used; one line with the place, the value and the fix."""


class Settings(Frozen):
    """What flags and settings files may state; None where they do not."""

    cluster: str | None = None
    gpus: int | None = Field(default=None, gt=0, le=MOST["gpus"])
    model: str | None = None
    seq_len: Length | None = Field(default=None, gt=0, le=MOST["seq_len"])
    global_batch_size: int | None = Field(default=None, gt=0, le=MOST["global_batch_size"])
    micro_batch_size: int | None = Field(default=None, gt=0, le=MOST["micro_batch_size"])
    pipeline_parallel: int | None = Field(default=None, gt=0, le=MOST["pipeline_parallel"])
    packed_mean_length: Length | None = Field(default=None, gt=0, le=MOST["packed_mean_length"])
    vocab_size: int | None = Field(default=None, gt=0, le=MOST["vocab_size"])
    precision: Precision | None = None
    recompute: Mode | None = None
    engine: str | None = None
    environment: dict[str, str] | None = None
    launched_by: str | None = None
    joined_with: tuple[str, ...] | None = None
    gpu_hour_price: float | None = Field(default=None, gt=0)

    @property
    def start(self) -> Start:
        """What files are started with."""
        said = {name for name, value in self if value is not None}
        return Start(
            environment=self.environment or {}, launched_by=self.launched_by or "",
            joined_with=self.joined_with or (), instead=frozenset(said & FIELDS),
        )  # fmt: skip

    def fill(self, other: Self) -> Self:
        """These settings, with those of `other` where these are absent."""
        missing = {name: getattr(other, name) for name, value in self if value is None}
        return self.model_copy(update=missing)


def settings_near(path: Path) -> Settings:
    """The settings of the nearest file at or above `path`; empty ones when there is none.

    Raises `UnreadableSettings`.
    """
    folder = path if path.is_dir() else path.parent
    return _settings_of(Path(folder).absolute())


@cache
def _settings_of(folder: Path) -> Settings:
    found = _nearest(folder)
    return _settings(found[1], found[0]) if found else Settings()


def settings_file(folder: Path) -> Path | None:
    """The file whose settings count in `folder`; raises `UnreadableSettings`."""
    found = _nearest(folder.absolute())
    return found[0] if found else None


def _nearest(folder: Path) -> tuple[Path, object] | None:
    """The nearest settings file at or above `folder`, and its table."""
    for place in (folder, *folder.parents):
        own, project = place / FILE, place / PROJECT
        if own.is_file():
            return own, _table(own)
        if project.is_file():
            table = _table(project).get("tool", {})
            if isinstance(table, dict) and "meshplan" in table:
                return project, table["meshplan"]
    return None


def _table(path: Path) -> dict[str, Any]:
    try:
        text = read_bounded(path, MAX_PROGRAM_BYTES, "TOML").decode("utf-8-sig")
        check_toml(text)
        return tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableSettings(f"{path}: cannot be read: {one_line(error)}") from None


def _settings(table: object, path: Path) -> Settings:
    try:
        return _from_here(Settings.model_validate(table), path.parent)
    except ValidationError as error:
        fault = first_fault(error, "[tool.meshplan]")
        known = f" (known keys: {', '.join(Settings.model_fields)})"
        unknown = any(each["type"] == "extra_forbidden" for each in error.errors())
        raise UnreadableSettings(f"{path}: {fault}{known * unknown}") from None


def _from_here(settings: Settings, folder: Path) -> Settings:
    """The settings with the paths of files beside them, whatever the working folder is."""
    named = {name: getattr(settings, name) for name in ("model", "cluster")}
    beside = {
        name: str(folder / text)
        for name, text in named.items()
        if text and (text.endswith(_FILES) or "/" in text) and _is_there(folder / text)
    }
    return settings.model_copy(update=beside)


def _is_there(path: Path) -> bool:
    """Whether it is a file, or a model's folder; a name too long for one is neither."""
    try:
        return path.is_file() or (path / "config.json").is_file()
    except OSError:
        return False


_FILES = (".json", ".toml", ".yaml", ".yml")
MOST_WORD, MOST_LINE = 300, 1500  # characters; a file's name has at most 255


def error_line(error: BaseException) -> str:
    """`one_line` without the middle of a long word and of a long line: a value of 5,000 characters
    is known by its ends, and the rule that it breaks stands behind it.
    """
    words = (_ends(word, MOST_WORD) for word in one_line(error).split(" "))
    return _ends(" ".join(words), MOST_LINE)


def _ends(text: str, most: int) -> str:
    """`text`, or its ends where it has more than `most` characters."""
    kept = most // 3
    return text if len(text) <= most else f"{text[:kept]}...{text[-kept:]}"


def one_line(error: BaseException) -> str:
    """The text of an error without newlines and control characters, for a one-line message."""
    text = " ".join(str(error).split())
    return "".join(char if char.isprintable() else "?" for char in text)
