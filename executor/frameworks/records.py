"""Files that a run wrote about itself beside its checkpoints: no configuration starts with them.

Source: huggingface/transformers@0261a467 `trainer_callback.py` (TrainerState.save_to_json);
wandb/wandb `sdk/wandb_run.py`, core/internal/runconfig (files/config.yaml has `_wandb` and a
`value` below each key), files/wandb-metadata.json.
"""

import re

from meshplan.planner.case.reading import NothingToRead, Reading

_STATE = re.compile(r'^\s*"log_history"\s*:', re.M)
_METADATA = re.compile(r'^\s*"(?:startedAt|heartbeatAt)"\s*:', re.M)
_VALUES = re.compile(r"^_wandb:[ \t]*$", re.M)


def _title(name: str, text: str) -> str:
    """What a run's record is called; "" of another file."""
    if name.endswith(".json") and _STATE.search(text) and '"global_step"' in text:
        return "the Trainer's state of a run: `meshplan learn` and `meshplan validate` read it"
    if name.endswith("wandb-metadata.json") and _METADATA.search(text):
        return "what W&B wrote of a run"
    if name.endswith((".yaml", ".yml")) and _VALUES.search(text) and "\n    value:" in text:
        return "what W&B wrote of a run, its defaults too: check the file or the script behind it"
    return ""


def claims(name: str, text: str) -> bool:
    """Whether a file is such a record."""
    return bool(_title(name, text))


def refuse(text: str, path: str) -> Reading:
    """Raises `NothingToRead`, which says whose record it is."""
    raise NothingToRead(_title(path, text) or "a record of a run")
