"""Scripts that start a trainer with its file, and what their words say instead of it.

    llamafactory-cli train X.yaml learning_rate=1e-5 ...    LLaMA-Factory
    axolotl train X.yaml --micro-batch-size 2 ...           axolotl
    trl sft --config X.yaml --max_length 2048 ...           TRL
    accelerate launch ... PROGRAM X.yaml ...                any of them, by the file's keys

Words win over the file. The file is looked for beside the script and below the folders above it;
a script whose file is not there, or is no trainer's, is refused by name.

Source: hiyouga/LLaMA-Factory@ff6d4d12 src/llamafactory/hparams/parser.py (read_args: OmegaConf
merges `KEY=VALUE`), launcher.py; axolotl-ai-cloud/axolotl@067b021c src/axolotl/cli/main.py;
huggingface/trl@f2cd5771 trl/scripts/utils.py (TrlParser: the file's values are defaults).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from meshplan.executor.frameworks import refused_scripts
from meshplan.executor.frameworks.documents.beside import beside
from meshplan.executor.frameworks.documents.parse import read_yaml
from meshplan.executor.frameworks.documents.values import Values, put, shown
from meshplan.executor.frameworks.hugging_face import trainer_command
from meshplan.executor.frameworks.hugging_face.launch_options import (
    processes_launched,
    with_options,
    with_precision,
)
from meshplan.executor.frameworks.hugging_face.nearby import Nearby, known_files
from meshplan.executor.frameworks.hugging_face.trainer_command import (
    launcher_file,
    next_tokens,
    of_trl,
    other_training,
    program_at,
)
from meshplan.executor.frameworks.hugging_face.trainer_names import (
    LENGTHS,
    TRAINERS,
    Trainer,
    claims_of,
)
from meshplan.executor.frameworks.hugging_face.trainers import read_values
from meshplan.executor.frameworks.shell.launching.arguments import (
    Arguments,
    arguments,
    launcher_arguments,
)
from meshplan.executor.frameworks.shell.launching.gpus import launched
from meshplan.executor.frameworks.shell.launching.hosts import seen_by_deepspeed
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    left_open,
    needed,
    said_elsewhere,
)
from meshplan.executor.frameworks.shell.record import Script
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.reading import Fact, NothingToRead, Reading, Start

_STARTER = (
    r"^[^#\n]*\b(?:llamafactory-cli[ \t]+train|axolotl[ \t]+train|trl[ \t]+sft|torchrun|deepspeed"
    r"|accelerate[ \t]+launch)\b"
)
_STARTS = re.compile(rf"{_STARTER}[^#]{{0,2000}}?\.ya?ml\b", re.M)
_STARTS_LATER = re.compile(_STARTER, re.M)
_NAMES = re.compile(r"^[ \t]*(?:export[ \t]+)?\w+=[\"']?[^\s#]{1,500}\.ya?ml\b", re.M)
"""A variable that is a YAML's name."""
_FILE = re.compile(r"[^=]+\.ya?ml")
_OVERRIDE = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.S)
_STARTERS = ("llamafactory-cli", "axolotl", "trl")


@dataclass(frozen=True, slots=True)
class _Command:
    """A command of a script that starts a trainer with its file.

    words    of the command
    at       the place of the program among them
    held     the variables beside it
    trainer  whose file it is
    named    the word that names the file
    file     where it is, and `content`, what it says
    """

    words: list[Fact]
    at: int
    held: Mapping[str, Fact]
    trainer: Trainer
    named: Fact
    file: Path
    content: str

    @property
    def starts_itself(self) -> bool:
        """Whether the program starts torchrun or Accelerate on all GPUs by itself."""
        return str(self.words[self.at - 1].value).rpartition("/")[2] in _STARTERS


def claims(name: str, text: str) -> bool:
    """Whether a script's text has the Trainer's arguments, or may start a trainer with its file."""
    return (name.endswith(SCRIPTS) and _starts(text)) or trainer_command.claims(name, text)


def _starts(text: str) -> bool:
    """Whether a trainer's start has a YAML behind it, or a variable above it that names one."""
    above = _NAMES.search(text)
    later = above is not None and _STARTS_LATER.search(text, above.end()) is not None
    return later or _STARTS.search(text) is not None


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """The script's launches, each a case; raises `UnreadableConfig` and `IllegalConfig`."""
    script = read_script(text, start.environment if start else None, path)
    pairs = zip(script.commands, script.beside, strict=True)
    started = (
        _command(words, held, Nearby(Path(path), script.files_of(words))) for words, held in pairs
    )
    found = [command for command in started if command]
    if not found:
        if trainer_command.claims(path, text):
            return trainer_command.read(text, path, start)
        if refused_scripts.claims(path, text):
            return refused_scripts.refuse(text, path)
        raise NothingToRead("no command of this script starts a trainer with its file")
    commands, more = first_of(found)
    first, *others = (_case(each, script, path, text, start) for each in commands)
    return replace(first, others=tuple(others), notes=(*more, *first.notes))


def file_word(words: list[Fact]) -> Fact | None:
    """The YAML among a program's words: the first of them, or `--config`'s value."""
    if words and _FILE.fullmatch(str(words[0].value)):
        return words[0]
    stated = arguments(words).get("config")
    return stated if stated is not None and _FILE.fullmatch(str(stated.value)) else None


def which_file(found: Path, named: Fact, near: Nearby) -> str:
    """Which one is read of those that a script's words may mean."""
    own = near.here(str(named.value)) is not None
    return f"its file is {shown(named.value)}, which it writes" if own else f"its file is {found}"


def facts_of(words: list[Fact], named: Fact, text: str) -> dict[str, Fact]:
    """What the file's `text` and the `words` beside it say, at the line of the command."""
    facts = {name: Fact(fact.value, named.line) for name, fact in read_yaml(text).items()}
    for word in words:
        if match := _OVERRIDE.fullmatch(str(word.value)):
            for name, fact in read_yaml(f"{match[1]}: {match[2]}").items():
                facts[name] = Fact(fact.value, word.line)
    stated = arguments(words)
    return facts | {name: fact for name, fact in stated.items() if name not in ("config", "")}


def _command(words: list[Fact], held: Mapping[str, Fact], near: Nearby) -> _Command | None:
    """None where the words name no trainer's file that is there."""
    at = program_at(words)
    named = None if at is None else file_word(words[at + 1 :])
    if at is None or named is None:
        return None
    own = near.here(str(named.value))
    file = beside(str(named.value), near.path) if own is None else near.path
    if file is None:
        return None
    text = text_of(file) if own is None else own
    marked = next((each for each in TRAINERS if claims_of(each, str(named.value), text)), None)
    trainer = marked and (of_trl(words[at]) or marked)
    return _Command(words, at, held, trainer, named, file, text) if trainer else None


def _case(command: _Command, script: Script, path: str, text: str, start: Start | None) -> Reading:
    words, at, trainer = command.words, command.at, command.trainer
    began = launcher_arguments(words[:at], script.inherited_by(words))
    given, near = with_options(began, Nearby(Path(path), script.files_of(words)))
    facts = with_precision(facts_of(words[at + 1 :], command.named, command.content), given)
    facts, near = known_files(facts, near)
    said_by = _said_by(trainer)
    values = Arguments(needed(facts, start, said_by), script.waits, said_by)
    by_itself: tuple[str, tuple[Fact, ...]] = ("none", ())
    launcher, unread = by_itself if command.starts_itself else launcher_file(given, near, start)
    reading = read_values(trainer, values, replace(near, path=command.file), launcher)
    given |= seen_by_deepspeed(words[:at], given, command.held)
    foreign = trainer.name == "hf-trainer"
    return replace(
        reading,
        path=path,
        facts={**reading.facts, **_started(command, given, text, near)},
        notes=(
            *script.notes, *left_open([words]), which_file(command.file, command.named, near),
            *reading.notes, *([next_tokens(words[at])] if foreign else []),
        ),
        unread=(
            *other_training(words[at], adapters=foreign), *said_elsewhere(words, script.missed),
            *unread, *reading.unread,
        ),
    )  # fmt: skip


def _started(
    command: _Command, given: Mapping[str, Fact], text: str, near: Nearby
) -> dict[str, Fact]:
    """The GPUs of the start, or what leaves them open, by the launcher's arguments `given`."""
    begun = launched(Values(given), text, read=near.text)
    own = _visible(command.held) if command.starts_itself else None
    put(begun, gpus=begun.get("gpus") or own or processes_launched(given))
    return begun


def _said_by(trainer: Trainer) -> dict[str, str]:
    """Arguments, and the options that say the same."""
    return {
        trainer.model: "model", trainer.micro_batch: "micro_batch_size",
        "gradient_accumulation_steps": "global_batch_size",
        **dict.fromkeys((trainer.seq_len, *LENGTHS), "seq_len"),
    }  # fmt: skip


def _visible(held: Mapping[str, Fact]) -> Fact | None:
    """GPUs by NPROC_PER_NODE or those that are visible, and NNODES; None where one is left open."""
    counts = {name: fact for name, fact in held.items() if "$" not in str(fact.value)}
    if counts.keys() != held.keys():
        return None
    known = Values(counts)
    each, nodes = known.count("NPROC_PER_NODE"), known.count("NNODES")
    visible = counts.get("CUDA_VISIBLE_DEVICES")
    if each is None and visible is not None:
        each = Fact(len(str(visible.value).split(",")), visible.line)
    return Fact(each.value * (nodes.value if nodes else 1), each.line) if each else None
