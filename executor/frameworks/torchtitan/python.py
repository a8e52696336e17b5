"""torchtitan 0.3's configuration function, written from a plan.

Source: torchtitan 0.3.0 `torchtitan/config/README.md` (a configuration is a function),
`torchtitan/models/llama3/config_registry.py`.
"""

from collections.abc import Mapping
from typing import Any

from meshplan.costmodels.units import counted
from meshplan.executor.frameworks.export_notes import Answer, nearest_recompute
from meshplan.executor.frameworks.torchtitan.names import (
    BY_NAME,
    CONVERTER_CLASSES,
    MODELS,
    Flavor,
)


def write_python(model: str, answer: Answer, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A module with one function, `meshplan`, that changes a shipped configuration."""
    flavor = MODELS.get(model, Flavor("llama3", "debugmodel", "llama3_debugmodel"))
    base = flavor.plain or flavor.function or f"{flavor.module}_debugmodel"
    mode = nearest_recompute(answer.layout.stages).mode
    policy = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}.get(mode, "None")
    training = dict(sections["training"])
    if answer.layout.pipeline_parallel > 1 or answer.layout.expert_parallel > 1:
        training["disable_cuda_graphs"] = True
    lines = [
        repr(f"{model}: {answer.layout.label} on {counted(answer.layout.world_size, 'GPU')}."),
        "",
        "from torchtitan.config import ParallelismConfig",
        *(
            [f"from torchtitan.distributed.activation_checkpoint import {policy.split('.')[0]}"]
            if policy != "None"
            else []
        ),
        *_converter_imports(answer),
        f"from torchtitan.models.{flavor.module} import model_registry",
        f"from torchtitan.models.{flavor.module}.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
        "",
        "",
        "def meshplan() -> Trainer.Config:",
        f"    config = {base}()",
        f"    config.compile.enable = {sections['compile']['enable']}",
        *_model_lines(answer, flavor, compiled=sections["compile"]["enable"]),
        *(f"    config.training.{name} = {value!r}" for name, value in training.items()),
        "    config.parallelism = ParallelismConfig(",
        *(f"        {name}={value!r}," for name, value in sections["parallelism"].items()),
        "    )",
        f"    config.activation_checkpoint = {policy}",
        "    return config",
    ]
    return "\n".join(lines) + "\n"


def _converter(answer: Answer) -> str | None:
    kinds = {kind: name for name, kind in CONVERTER_CLASSES.items()}
    return kinds.get(answer.training.precision)


def _converter_imports(answer: Answer) -> list[str]:
    name = _converter(answer)
    return [f"from torchtitan.components.quantization import {name}"] if name else []


def _model_lines(answer: Answer, flavor: Flavor, *, compiled: bool) -> list[str]:
    name = _converter(answer)
    if name is None:
        return [f"    config.model_spec = model_registry({flavor.flavor!r})"]
    arguments = 'fqns=["layers"], ' if name in BY_NAME else ""
    return [
        "    config.model_spec = model_registry(",
        f"        {flavor.flavor!r},",
        f"        converters=[{name}.Config({arguments}model_compile_enabled={compiled})],",
        "    )",
    ]
