"""Models by name: the built-in catalogue, or any Hugging Face `config.json`.

The catalogue is `hardware_profiles/models/<name>.json`, each file the fields of that model's public
`config.json` that say how large it is, and `_source`, which says where they were read. What a
configuration means is decided in `costmodels.model.hf_config`.
"""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.hardware_profiles.files.bounded_file import read_bounded
from meshplan.hardware_profiles.names import near_names
from meshplan.hardware_profiles.repositories import named_in

MODELS = Path(__file__).parent / "models"
MAX_CONFIG_BYTES = (
    4 * 2**20
)  # the largest public config.json (with quantisation maps) is under 1 MiB


_REPOSITORY = re.compile(r"(?:https?://huggingface\.co/)?(\w[\w.-]*/\w[\w.-]*)/?")
"""`ORG/NAME`, or its address."""


class UnknownModel(ValueError):
    """A name that is not in the catalogue, or a file that is not a readable `config.json`."""


def model_names() -> list[str]:
    """The names of the catalogue, in alphabetical order."""
    return list(_names_in(MODELS))


@cache
def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.json")))


def load_model_config(name_or_path: str | Path) -> dict[str, object]:
    """The parsed `config.json` of a catalogue name or of a repository that the catalogue has, of a
    file, or of the folder that holds one.

    A catalogue name wins over a file of the same name in the working folder; write `./name` for the
    file. Raises `UnknownModel` with one line that says what was looked for.
    """
    text = known_as(str(name_or_path))
    if text in model_names():
        return _read_config(MODELS / f"{text}.json")
    path = Path(text)
    if not text or not _exists(path):
        raise UnknownModel(_not_found(text))
    return _read_config(path / "config.json" if path.is_dir() else path)


def in_catalogue(repository: str) -> str | None:
    """The catalogue's name of a repository of Hugging Face, such as `Qwen/Qwen3-32B`."""
    return named_in(repository, model_names())


def known_as(name_or_path: str) -> str:
    """The catalogue's name of a repository, where no such file is there; else what was given."""
    if name_or_path in model_names() or not name_or_path or _exists(Path(name_or_path)):
        return name_or_path
    of_file = name_or_path.endswith((".json", ".yaml", ".yml"))
    return name_or_path if of_file else in_catalogue(name_or_path) or name_or_path


def _exists(path: Path) -> bool:
    """Whether the path is there; a text that cannot be one (too long, a null byte) is not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _not_found(text: str) -> str:
    close = near_names(text, model_names())
    hint = f"close names: {', '.join(close)}" if close else "`meshplan models` lists the names"
    if repository := _REPOSITORY.fullmatch(text):
        name = repository[1]
        hint += f"; of a repository give its file: `hf download {name} config.json --local-dir .`"
    return f"no model {_shown(text)} in the catalogue, and no such file or folder; {hint}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _read_config(path: Path) -> dict[str, object]:
    try:
        raw = read_bounded(path, MAX_CONFIG_BYTES, "a config.json")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        fix = "; a folder must hold a config.json" if isinstance(error, FileNotFoundError) else ""
        raise UnknownModel(f"cannot read {path}: {reason}{fix}") from error
    try:
        config = json.loads(raw)
    except UnicodeDecodeError as error:
        raise UnknownModel(f"{path} is not a JSON file: not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise UnknownModel(f"{path} is not a JSON file: {error}") from error
    if not isinstance(config, dict):
        raise UnknownModel(f"{path} is JSON, but not an object with the fields of a model")
    try:
        return finite_config(config, str(path))
    except RecursionError:
        raise UnknownModel(f"{path} nests too deep for a config.json") from None


def finite_config(config: dict[str, Any], name: str) -> dict[str, Any]:
    """`config` with its infinities as transformers 5 writes them, so that it is JSON everywhere.

    Python reads NaN and Infinity in a JSON file, which JSON does not have. Raises `UnknownModel`
    for NaN, with the field.
    """
    return {key: _finite(value, name, str(key)) for key, value in config.items()}


def _finite(value: object, name: str, field: str) -> object:
    if isinstance(value, dict):
        return {key: _finite(each, name, f"{field}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each, name, field) for each in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        raise UnknownModel(f"{name}: the field {_shown(field)} is NaN, which is no number")
    return {"__float__": "Infinity" if value > 0 else "-Infinity"}
