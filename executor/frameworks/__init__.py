"""Seven frameworks' configurations, out of a plan and back into a reading; trainers', to read.

`FRAMEWORKS` are read and written, `READ_ONLY` are read; `read_config` finds the one that a file
belongs to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from meshplan.executor.frameworks import refused
from meshplan.executor.frameworks.automodel import read as automodel
from meshplan.executor.frameworks.hugging_face import (
    accelerate,
    deepspeed,
    trainer_command,
    trainers,
    transformers_config,
)
from meshplan.executor.frameworks.llm_foundry import read as llm_foundry
from meshplan.executor.frameworks.megatron import launch_script as megatron
from meshplan.executor.frameworks.nanotron import export as nanotron
from meshplan.executor.frameworks.nanotron import read as nanotron_read
from meshplan.executor.frameworks.nemo import bridge
from meshplan.executor.frameworks.neox import read as neox
from meshplan.executor.frameworks.torchtitan import export as torchtitan
from meshplan.executor.frameworks.torchtitan import read as torchtitan_read
from meshplan.executor.frameworks.torchtune import read as torchtune
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import Exported, Reading, Start, UnreadableConfig


@dataclass(frozen=True, slots=True)
class Framework:
    """One format.

    claims  whether a file (its name, its text) looks like this format
    read    text and path to a `Reading`; raises `UnreadableConfig` and `IllegalConfig`
    export  a plan and the GPUs of a node to files and a launch command
    started the same as `read` of a file that leaves something to its start, which is said
    """

    name: str
    title: str
    claims: Callable[[str, str], bool]
    read: Callable[[str, str], Reading]
    export: Callable[[Plan, int], Exported]
    started: Callable[[str, str, Start], Reading] | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A format that is read and not written; `claims`, `read`, `started` as in `Framework`."""

    name: str
    claims: Callable[[str, str], bool]
    read: Callable[[str, str], Reading]
    started: Callable[[str, str, Start], Reading] | None = None


STARTED = {**trainers.STARTED, "hf-script": trainer_command.read, "gpt-neox": neox.read}
READ_ONLY = {
    name: Format(name, claims, read, STARTED.get(name))
    for name, (claims, read) in {
        "gpt-neox": (neox.claims, neox.read), "llm-foundry": (llm_foundry.claims, llm_foundry.read),
        **trainers.READERS, "torchtune": (torchtune.claims, torchtune.read),
        "automodel": (automodel.claims, automodel.read),
        "hf-script": (trainer_command.claims, trainer_command.read),
        "refused": (refused.claims_refused, refused.refuse),
        "script": (refused.claims_script, refused.refuse_script),
    }.items()
}  # fmt: skip
"""Trainers' formats, and those that are known by name and refused."""

FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework("nanotron", "nanotron", nanotron.claims, nanotron_read.read, nanotron.export),
        Framework(
            "accelerate", "Accelerate", accelerate.claims, accelerate.read, accelerate.export
        ),
        Framework(
            "transformers", "transformers' DistributedConfig", transformers_config.claims,
            transformers_config.read, transformers_config.export,
        ),
        Framework("deepspeed", "DeepSpeed", deepspeed.claims, deepspeed.read, deepspeed.export),
        Framework(
            "torchtitan", "torchtitan", torchtitan.claims, torchtitan_read.read, torchtitan.export
        ),
        Framework(
            "megatron", "Megatron-LM", megatron.claims, megatron.read, megatron.export,
            megatron.read,
        ),
        Framework(
            "bridge", "Megatron-Bridge and NeMo", bridge.claims, bridge.read, bridge.export,
            bridge.read,
        ),
    )
}  # fmt: skip


VARIANTS: dict[str, Callable[[Plan, int], Exported]] = {
    "torchtitan-0.2": partial(torchtitan.export, version="0.2"),
    "torchtitan-0.3": partial(torchtitan.export, version="0.3"),
}
"""Formats of one version; the framework's own name means the latest."""

ALIASES = {
    "megatron-bridge": "bridge", "nemo": "bridge", "torchtitan-0.2": "torchtitan",
    "torchtitan-0.3": "torchtitan",
}  # fmt: skip
"""Other names of a framework: those of engines that take its files, and of its versions."""


def exporter_named(name: str) -> Callable[[Plan, int], Exported]:
    """The exporter of a framework, or of one version of it; raises `UnreadableConfig`."""
    return VARIANTS[name] if name in VARIANTS else framework_named(name).export


def framework_named(name: str) -> Framework:
    """The framework called `name`, which is written too; raises `UnreadableConfig`."""
    own = ALIASES.get(name, name)
    if own not in FRAMEWORKS:
        known = ", ".join((*FRAMEWORKS, *ALIASES))
        raise UnreadableConfig(f"no framework {name!r}; known are {known}")
    return FRAMEWORKS[own]


def recognise(name: str, text: str) -> Framework | Format | None:
    """The first format that claims a file, those refused by name first; None when none does."""
    every: list[Framework | Format] = [
        READ_ONLY["refused"], *FRAMEWORKS.values(), *READ_ONLY.values()
    ]  # fmt: skip
    return next((each for each in every if each.claims(name, text)), None)


def read_config(
    text: str, path: str, framework: str | None = None, start: Start | None = None
) -> Reading:
    """The configuration `text`; raises `UnreadableConfig` when no framework claims it.

    `start`: what the file is started with, where it leaves that open.
    """
    found: Framework | Format | None
    if framework in READ_ONLY:
        found = READ_ONLY[framework]
    else:
        found = framework_named(framework) if framework else recognise(path, text)
    if found is None:
        raise UnreadableConfig(
            f"no format recognised (known: {', '.join((*FRAMEWORKS, *READ_ONLY))}); name it with "
            "--framework"
        )
    return found.started(text, path, start) if found.started and start else found.read(text, path)
