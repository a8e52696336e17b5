"""A model with the configuration that it was read from, as plan files quote it."""

from pathlib import Path
from typing import Any

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.hardware_profiles.load_models import known_as, load_model_config
from meshplan.planner.case.model_file import is_model_file, read_model_file


def read_model(name_or_path: str) -> tuple[dict[str, Any], Model]:
    """A model of the catalogue, a config.json or its folder, or a model file; raises
    `UnknownModel` and `UnsupportedModel`.
    """
    name_or_path = known_as(name_or_path)
    if is_model_file(name_or_path):
        config = read_model_file(Path(name_or_path))
    else:
        config = load_model_config(name_or_path)
    return config, model_from_config(config, model_name(name_or_path))


def model_name(name_or_path: str) -> str:
    """What to call it: the file's name, or its folder's for a `config.json`."""
    path = Path(name_or_path)
    if path.name == "config.json" or path.is_dir():
        path = path.resolve()
        return path.parent.name if path.name == "config.json" else path.name
    return path.stem if path.suffix in (".json", ".yaml", ".yml") else path.name
