"""Seven frameworks' configurations, out of a plan and back into a reading; trainers', to read.

`FRAMEWORKS` are read and written, `READ_ONLY` are read; `read_config` finds the one that a file
belongs to.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from meshplan.executor.frameworks import (
    calling,
    config_map,
    jobs,
    records,
    refused,
    refused_scripts,
)
from meshplan.executor.frameworks.automodel import read as automodel
from meshplan.executor.frameworks.beside_export import commented
from meshplan.executor.frameworks.documents.laid_out import laid_out
from meshplan.executor.frameworks.hugging_face import (
    accelerate,
    deepspeed,
    trainer_file,
    trainers,
    transformers_config,
)
from meshplan.executor.frameworks.llm_foundry import read as llm_foundry
from meshplan.executor.frameworks.megatron import export as megatron
from meshplan.executor.frameworks.megatron import launch_script
from meshplan.executor.frameworks.nanotron import export as nanotron
from meshplan.executor.frameworks.nanotron import read as nanotron_read
from meshplan.executor.frameworks.nemo import bridge
from meshplan.executor.frameworks.nemo import export as nemo
from meshplan.executor.frameworks.neox import read as neox
from meshplan.executor.frameworks.swift import read as swift
from meshplan.executor.frameworks.torchtitan import export as torchtitan
from meshplan.executor.frameworks.torchtitan import read as torchtitan_read
from meshplan.executor.frameworks.torchtitan import script as torchtitan_script
from meshplan.executor.frameworks.torchtune import read as torchtune
from meshplan.executor.frameworks.torchtune import script as torchtune_script
from meshplan.executor.frameworks.verl import read as verl
from meshplan.hardware_profiles.names import near_names
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import (
    UNRECOGNISED,
    Exported,
    Reading,
    Start,
    UnreadableConfig,
)

Read = Callable[[str, str, Start | None], Reading]
Claims = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Format:
    """A format that is read.

    claims  whether a file (its name, its text) looks like this format
    read    text, path and what the file is started with, where it leaves that open, to a `Reading`;
            raises `UnreadableConfig` and `IllegalConfig`
    """

    name: str
    claims: Claims
    read: Read


@dataclass(frozen=True, slots=True)
class Framework(Format):
    """A format that is written too.

    export  a plan and the GPUs of a node to files and a launch command
    """

    title: str
    export: Callable[[Plan, int], Exported]


def whole(read: Callable[[str, str], Reading]) -> Read:
    """Of a format that leaves nothing to its start."""
    return lambda text, path, _: read(text, path)


_READERS: dict[str, tuple[Claims, Read]] = {
    "ms-swift": (swift.claims, swift.read),
    "verl-sft": (verl.claims, verl.read),
    "gpt-neox": (neox.claims, neox.read),
    "llm-foundry": (llm_foundry.claims, whole(llm_foundry.read)),
    **trainers.READERS, "torchtune": (torchtune.claims, whole(torchtune.read)),
    "torchtune-script": (torchtune_script.claims, torchtune_script.read),
    "torchtitan-script": (torchtitan_script.claims, torchtitan_script.read),
    "automodel": (automodel.claims, whole(automodel.read)),
    "hf-script": (trainer_file.claims, trainer_file.read),
}  # fmt: skip
READ_ONLY = {name: Format(name, claims, read) for name, (claims, read) in _READERS.items()}
"""Trainers' formats."""
REFUSED = Format("refused", refused.claims, whole(refused.refuse))
RECORD = Format("record", records.claims, whole(records.refuse))
SCRIPT = Format("script", refused_scripts.claims, whole(refused_scripts.refuse))
"""What is recognised in order to be refused by its own name; nobody asks for it."""

FRAMEWORKS = {
    name: Framework(name, claims, read, title, commented(export))
    for name, title, claims, read, export in (
        ("nanotron", "nanotron", nanotron.claims, whole(nanotron_read.read), nanotron.export),
        ("accelerate", "Accelerate", accelerate.claims, whole(accelerate.read), accelerate.export),
        (
            "transformers", "transformers' DistributedConfig", transformers_config.claims,
            whole(transformers_config.read), transformers_config.export,
        ),
        ("deepspeed", "DeepSpeed", deepspeed.claims, whole(deepspeed.read), deepspeed.export),
        (
            "torchtitan", "torchtitan", torchtitan.claims, torchtitan_read.read,
            torchtitan.export,
        ),
        ("megatron", "Megatron-LM", launch_script.claims, launch_script.read, megatron.export),
        ("bridge", "Megatron-Bridge and NeMo", bridge.claims, bridge.read, nemo.export),
    )
}  # fmt: skip

FORMATS: tuple[Format, ...] = (
    READ_ONLY["verl-sft"], *FRAMEWORKS.values(), *READ_ONLY.values()
)  # fmt: skip
"""All that are read, in the order of asking: verl's options look like Megatron-Bridge's."""

VARIANTS: dict[str, Callable[[Plan, int], Exported]] = {
    "torchtitan-0.2": commented(partial(torchtitan.export, version="0.2")),
    "torchtitan-0.3": commented(partial(torchtitan.export, version="0.3")),
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


def framework_named(name: str, also: Iterable[str] = ()) -> Framework:
    """The framework called `name`, which is written too; raises `UnreadableConfig`, which names
    those that are known, and `also` others.
    """
    own = ALIASES.get(name, name)
    if own not in FRAMEWORKS:
        known = (*FRAMEWORKS, *ALIASES, *also)
        near = near_names(name, known)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnreadableConfig(f"no framework {name!r}; {hint}known are {', '.join(known)}")
    return FRAMEWORKS[own]


def takes_files(engine: str, framework: str) -> bool:
    """Whether an engine's files are another one's framework's, as they are."""
    return engine not in VARIANTS and ALIASES.get(engine) == framework


def _reader(name: str, text: str) -> Read | None:
    """The reader of the format that is read and claims a file."""
    if refused.claims(name, text):
        return None
    return next((each.read for each in FORMATS if each.claims(name, text)), None)


def _refuse(plain: str, text: str, path: str, start: Start | None) -> Reading:
    return refused.refuse(plain, path)


LEVELS = 3  # of scripts that only call the next one, as far as they are followed


def _reader_below(levels: int) -> calling.Find:
    """Finds the reader of a file, or of a script that calls one, so many levels down."""
    if not levels:
        return _reader
    inner = _reader_below(levels - 1)

    def find(name: str, text: str) -> Read | None:
        read = _reader(name, text)
        if read is None and calling.calls(text, name, inner, calling.MOST_INNER):
            return partial(calling.read_calls, find=inner, most=calling.MOST_INNER)
        return read

    return find


_BELOW = _reader_below(LEVELS - 1)
CALLING = Format(
    "calling",
    lambda name, text: calling.calls(text, name, _BELOW),
    lambda text, path, start: calling.read_calls(text, path, start, _BELOW),
)
"""A script whose launch is in another one beside it, or in one that this calls, `LEVELS` deep."""


JOB = Format(
    "job",
    lambda name, text: jobs.claims(name, text, _reader),
    lambda text, path, start: jobs.read(text, path, start, _reader),
)
"""A job's document whose command starts a trainer."""


CONFIG_MAP = Format(
    "config-map",
    lambda name, text: config_map.claims(name, text, _in_map),
    lambda text, path, start: config_map.read(text, path, start, _in_map),
)
"""A document of Kubernetes that holds a configuration as a file."""


def _in_map(name: str, text: str) -> Format | None:
    """The format of a file in a ConfigMap, which is no document of a job."""
    return next((each for each in (REFUSED, *FORMATS) if each.claims(name, text)), None)


def recognise(name: str, text: str) -> Format | None:
    """The first format that claims a file, those refused by name first; None when none does."""
    every = (RECORD, CONFIG_MAP, REFUSED, *FORMATS, CALLING, JOB, SCRIPT)
    found = next((each for each in every if each.claims(name, text)), None)
    return found or _otherwise_laid_out(name, text)


def _otherwise_laid_out(name: str, text: str) -> Format | None:
    """The format of a YAML or TOML file that has not a key a line."""
    plain = laid_out(name, text)
    if plain is None:
        return None
    if refused.claims(name, plain):
        return replace(REFUSED, read=partial(_refuse, plain))
    return next((each for each in FORMATS if each.claims(name, plain)), None)


def read_config(
    text: str, path: str, framework: str | None = None, start: Start | None = None
) -> Reading:
    """The configuration `text`; raises `UnreadableConfig` when no framework claims it.

    `start`: what the file is started with, where it leaves that open.
    """
    found: Format | None
    if framework is None:
        found = recognise(path, text)
    else:
        found = READ_ONLY.get(framework) or framework_named(framework, READ_ONLY)
    if found is None:
        raise UnreadableConfig(f"{UNRECOGNISED} (known: {', '.join((*FRAMEWORKS, *READ_ONLY))})")
    return found.read(text, path, start)
