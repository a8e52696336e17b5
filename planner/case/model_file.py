"""The file that `meshplan models --trace` writes: out, and in as a model's configuration."""

from pathlib import Path
from typing import Any

from meshplan.hardware_profiles.load_models import UnknownModel
from meshplan.hardware_profiles.traced_model import TracedModel
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.plan_file import SCALAR_ERRORS
from meshplan.planner.case.reading import UnreadableConfig
from meshplan.planner.case.settings import one_line
from meshplan.planner.text_files import write_text

SUFFIXES = (".yaml", ".yml")


def is_model_file(name_or_path: str) -> bool:
    """Whether a model is asked for by a file in YAML: a configuration is in JSON."""
    return Path(name_or_path).suffix.lower() in SUFFIXES


def read_model_file(path: Path) -> dict[str, Any]:
    """The parsed file, whose fields `model_from_config` checks; raises `UnknownModel`."""
    from meshplan.planner.case.yaml_text import YAMLError, parsed

    try:
        document = parsed(text_of(path))
    except UnreadableConfig as error:
        raise UnknownModel(f"{path}: {one_line(error)}") from None
    except (OSError, YAMLError, *SCALAR_ERRORS) as error:
        raise UnknownModel(f"{path}: cannot be read: {one_line(error)}") from None
    if not isinstance(document, dict) or "trace_version" not in document:
        raise UnknownModel(f"{path} is not a model file; `meshplan models NAME --trace` writes one")
    return document


def write_model_file(model: TracedModel, path: Path) -> None:
    """Write the file as a whole; raises `CannotWrite`."""
    from meshplan.planner.case.yaml_text import written

    write_text(path, written(model.model_dump(mode="json", exclude_defaults=True)))
