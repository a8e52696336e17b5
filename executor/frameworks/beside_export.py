"""What stands in and beside every export, whatever its framework, so that `check` prices the plan.

comments         what the file cannot say (`planner.case.unsaid`)
meshplan.toml    facts that the files leave to the command line or the code: the cluster, the
                 model, the batch and the sequence (`planner.case.settings`)
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from os.path import relpath
from pathlib import Path

from meshplan.executor.frameworks.export_notes import uniform_recompute
from meshplan.executor.frameworks.hugging_face.script import MODEL
from meshplan.hardware_profiles.load import is_path
from meshplan.hardware_profiles.load_models import load_model_config, model_names
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import Exported
from meshplan.planner.case.unsaid import COMMENT_KEY, comment_of

Export = Callable[[Plan, int], Exported]
MARK = "# Written by `meshplan export` for `meshplan check`; another export replaces it."
OWN_MODEL = "meshplan_model.json"
_TAKE_COMMENTS = (".yaml", ".txt")
"""Of files beside the first, which is the framework's own."""


def commented(export: Export) -> Export:
    """The exporter, whose files also state what they cannot say."""

    def with_comments(plan: Plan, gpus_per_node: int) -> Exported:
        exported = export(plan, gpus_per_node)
        files = {
            name: _with_comments(name, text, exported) for name, text in exported.files.items()
        }
        return replace(exported, files=files)

    return with_comments


def _with_comments(name: str, text: str, exported: Exported) -> str:
    words = [comment_of(each) for each in exported.cannot_say]
    if not words:
        return text
    settings = name == next(iter(exported.files))
    if settings and name.endswith(".json"):
        return json.dumps({COMMENT_KEY: words, **json.loads(text)}, indent=2) + "\n"
    if settings or name.endswith(_TAKE_COMMENTS):
        return _below_shebang(text, [f"# {each}" for each in words])
    return text


def _below_shebang(text: str, lines: Iterable[str]) -> str:
    first, _, rest = text.partition("\n")
    said = "".join(f"{line}\n" for line in lines)
    return f"{first}\n{said}{rest}" if first.startswith("#!") else said + text


def settings_text(plan: Plan, exported: Exported, engine: str, folder: Path) -> str:
    """The settings file of `folder`: what the files leave open, as the plan has it.

    engine  that runs the files, where they are read as another one's; else ""
    """
    layout, training = plan.layout, plan.training
    rule = uniform_recompute(layout.stages)
    left = {each.name for each in exported.cannot_say if each.left}
    said: dict[str, object] = {
        "cluster": _cluster_of(plan, folder),
        "gpus": layout.world_size,
        "model": _model_of(plan, exported),
        "seq_len": training.seq_len,
        "global_batch_size": training.global_batch_size,
        "micro_batch_size": layout.micro_batch_size,
        "precision": training.precision,
    }
    if rule and rule.first is None:
        said["recompute"] = rule.mode
    if "layout.pipeline_parallel" in left:
        said["pipeline_parallel"] = layout.pipeline_parallel
    if engine:
        said["engine"] = engine
    lines = (f"{name} = {json.dumps(value)}" for name, value in said.items())
    return "\n".join((MARK, *lines)) + "\n"


def _cluster_of(plan: Plan, folder: Path) -> str:
    """Its name; a profile of one's own by its path from `folder`, wherever `check` is started."""
    name = plan.cluster.name
    return relpath(name, folder) if is_path(name) and Path(name).is_file() else name


def _model_of(plan: Plan, exported: Exported) -> str:
    """The catalogue's name, where the plan's model is the catalogue's; else the file beside."""
    name = plan.model.name
    known = name in model_names() and load_model_config(name) == dict(plan.model.config)
    return name if known and MODEL not in exported.files else f"./{_model_name(exported)}"


def _model_name(exported: Exported) -> str:
    """The framework's own, or one that overwrites no config.json of somebody's own."""
    return MODEL if MODEL in exported.files else OWN_MODEL


def model_file(plan: Plan, exported: Exported) -> dict[str, str]:
    """The file of a model that the catalogue lacks, where the export has none."""
    if MODEL in exported.files or not _model_of(plan, exported).startswith("./"):
        return {}
    return {OWN_MODEL: json.dumps(dict(plan.model.config), indent=2) + "\n"}
