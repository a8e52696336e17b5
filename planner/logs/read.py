"""Reads a log file of any known format, recognised by its content.

Of a file longer than `MAX_LOG_BYTES` only the end is read, where the run is in its steady state;
what a log says of its run (`stated`) is looked for at its beginning too.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from meshplan.costmodels.units import counted
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.logs import console, records
from meshplan.planner.logs.composer_console import read_composer
from meshplan.planner.logs.event_file import MAX_EVENT_BYTES, scalars
from meshplan.planner.logs.lines import by_rank, plain
from meshplan.planner.logs.log_file import MAX_LOG_BYTES, NoText, end_and_beginning, finished
from meshplan.planner.logs.nemo_console import read_nemo
from meshplan.planner.logs.not_priced import not_priced
from meshplan.planner.logs.pretraining_console import (
    read_maxtext,
    read_nanochat,
    read_nanogpt,
    read_olmo,
)
from meshplan.planner.logs.stated import stated
from meshplan.planner.logs.swift_log import read_swift
from meshplan.planner.logs.trainer_console import read_trainer
from meshplan.planner.logs.training_log import TrainingLog, slowest_rank
from meshplan.planner.logs.tuning_console import read_automodel, read_torchtune, read_verl
from meshplan.planner.logs.warned import warned


class UnreadableLog(ValueError):
    """A log without a step time; one line with the place, the rule and the fix."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The size of a step of the run, which turns logged rates into seconds."""

    sequences: int
    tokens_per_gpu: float
    gpus: int

    @property
    def tokens(self) -> float:
        """Of a step, over all GPUs."""
        return self.tokens_per_gpu * self.gpus


@dataclass(frozen=True, slots=True)
class Recognised:
    """A log, and whose format it is."""

    format: str
    log: TrainingLog


OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|\b(?:CUDA|HIP|XPU|NPU)(?: error:)? out of memory\b", re.I
)
"""What PyTorch raises where the device's memory does not suffice."""
DID_NOT_FIT = "an out-of-memory error is in the log: the run did not fit"
WENT_ON = "steps come after an out-of-memory error in the log: what failed before them did not fit"
OF_OTHER_RANKS = 1
"""Steps that other ranks may still print after one of them failed."""
CONSOLE = ("torchtitan", "megatron", "nanotron")
BINARY = "events.out.tfevents"


def read_log(path: Path, batch: Batch) -> Recognised:
    """The log at `path`; raises `UnreadableLog`."""
    if BINARY in path.name:
        return _checked(path, _of_events(path, batch), batch)
    text, beginning = _text(path)
    if kind := not_priced(text):
        raise UnreadableLog(f"{path}: a log of {kind}; its steps are not priced")
    found = _checked(path, _of_finished(text, path.name, batch), batch, text)
    whole = f"{beginning}\n{text}" if beginning else text
    found = replace(found, log=replace(found.log, stated=stated(whole), warned=warned(whole)))
    if beginning:
        said = f"of {path.name} the last {MAX_LOG_BYTES >> 20} MiB were read"
        found = replace(found, log=replace(found.log, notes=(*found.log.notes, said)))
    return found


def check_text(path: Path) -> None:
    """Raise `UnreadableLog` for what is no log whatever its run: no file, binary, or empty."""
    if BINARY not in path.name and not _text(path)[0].strip():
        raise UnreadableLog(f"{path}: empty")


def _of_finished(text: str, name: str, batch: Batch) -> Recognised:
    """Text as a log without a last line that was cut, unless no other has a step: of "tps: 10,050"
    cut behind "tps: 10" nothing shows that it goes on.
    """
    found = recognised(finished(text), name, batch)
    return found if found.log.steps else recognised(text, name, batch)


def _checked(path: Path, read: Recognised, batch: Batch, text: str = "") -> Recognised:
    """With the steps that count; raises `UnreadableLog` where there are none."""
    found = _of_batch(_taking_time(read), batch)
    failed = max((m.end() for m in OUT_OF_MEMORY.finditer(text)), default=0)
    if not found.log.steps and failed:
        raise UnreadableLog(f"{path}: no step times, and {DID_NOT_FIT}: `check` its config")
    if not found.log.steps:
        why = "; ".join(found.log.notes) or f"no step times found; {KNOWN}"
        raise UnreadableLog(f"{path}: {why}")
    if not failed:
        return found
    fits = _went_on(recognised(text[:failed], path.name, batch).log, found.log)
    notes = (*found.log.notes, WENT_ON if fits else DID_NOT_FIT)
    return replace(found, log=replace(found.log, out_of_memory=not fits, notes=notes))


def _went_on(before: TrainingLog, whole: TrainingLog) -> bool:
    """Whether a run took steps that it had not before: lines of other ranks may come late."""
    if whole.whole:
        return not before.whole
    had = {(step.attempt, step.step) for step in before.steps}
    new = [step for step in whole.steps if (step.attempt, step.step) not in had]
    return len(new) > OF_OTHER_RANKS


def _of_events(path: Path, batch: Batch) -> Recognised:
    try:
        with path.open("rb") as file:
            whole = path.stat().st_size <= MAX_EVENT_BYTES
            rows = records.of_known_tags(scalars(file))
    except OSError as error:
        raise UnreadableLog(f"{path}: cannot be read: {error.strerror}") from None
    log = records.of_records(rows, batch.tokens_per_gpu, batch.sequences)
    said = f"of {path.name} the first {MAX_EVENT_BYTES >> 20} MiB were read"
    log = replace(log, notes=(*log.notes, *(() if whole else (said,))))
    return Recognised("TensorBoard events", log)


def _taking_time(found: Recognised) -> Recognised:
    """The steps that took any: a clock that stands still says nothing of them."""
    kept = tuple(each for each in found.log.steps if 0 < each.step_time_s < math.inf)
    return replace(found, log=replace(found.log, steps=kept))


def _of_batch(found: Recognised, batch: Batch) -> Recognised:
    """The steps of the config's batch, where the log says of how many sequences each is."""
    usual = (None, batch.sequences)
    kept = tuple(each for each in found.log.steps if each.sequences in usual)
    others = [each.sequences for each in found.log.steps if each.sequences not in usual]
    if not others:
        return found
    sizes = ", ".join(f"{size:,}" for size in dict.fromkeys(others))
    steps = counted(len(others), "logged step")
    told = f"{sizes} sequences, not the config's {batch.sequences:,}"
    said = f"{steps} of {told}, left out" if kept else f"all {steps} are of {told}"
    return replace(found, log=replace(found.log, steps=kept, notes=(*found.log.notes, said)))


KNOWN = (
    "known are the logs of torchtitan, Megatron-LM, nanotron, DeepSpeed, NeMo, Composer, "
    "torchtune, AutoModel, MaxText, OLMo-core, nanochat, nanoGPT, ms-swift, verl's SFT and "
    "Hugging Face's Trainer, trainer_state.json, trainer_log.jsonl, W&B and TensorBoard exports, "
    "event files, and result.json of `meshplan execute`; of any other write a CSV with "
    "the columns step and step_time_s"
)


def recognised(text: str, name: str, batch: Batch) -> Recognised:
    """Text as a log, without steps where no format fits; `name`: the file's. Steps are each rank's
    own; peaks and notes may be of ranks that print no steps.
    """
    bare, ranks = by_rank(plain(text))
    found = _of_text(bare, name, batch)
    kind = (found.format, found.log.whole)
    each = (_of_text(lines, name, batch) for lines in ranks)
    own = (read.log.steps for read in each if (read.format, read.log.whole) == kind)
    steps = slowest_rank(step for steps in own for step in steps)
    return replace(found, log=replace(found.log, steps=steps or found.log.steps))


def _of_text(text: str, name: str, batch: Batch) -> Recognised:
    suffix = Path(name).suffix.lower()
    if suffix in (".json", ".jsonl") or text.lstrip()[:1] in ("{", "["):
        found = _of_json(text, Path(name).stem, batch)
        if found and (found.log.steps or found.log.notes):
            return found
    if suffix == ".csv":
        rows = records.csv_records(text, Path(name).stem)
        log = records.of_records(rows, batch.tokens_per_gpu, batch.sequences)
        return Recognised("CSV export", log)
    consoles = (Recognised(*named) for named in _consoles(text, batch))
    if known := next((each for each in consoles if each.log.steps), None):
        return known
    return Recognised("deepspeed", console.read_deepspeed(text, batch.sequences))  # with its notes


def _consoles(text: str, batch: Batch) -> Iterator[tuple[str, TrainingLog]]:
    """What each reader of a console makes of the text, in the order in which they are asked."""
    for framework in CONSOLE:
        yield framework, console.READERS[framework](text, batch.tokens_per_gpu)
    yield "nemo", read_nemo(text)
    yield "composer", read_composer(text, batch.sequences)
    yield "torchtune", read_torchtune(text, batch.tokens_per_gpu)
    yield "automodel", read_automodel(text, batch.tokens)
    yield "ms-swift", read_swift(text)
    yield "verl", read_verl(text)
    yield "maxtext", read_maxtext(text)
    yield "olmo-core", read_olmo(text, batch.tokens_per_gpu)
    yield "nanochat", read_nanochat(text)
    yield "nanoGPT", read_nanogpt(text)
    yield "deepspeed", console.read_deepspeed(text, batch.sequences)
    yield "Trainer", read_trainer(text)


def _of_json(text: str, tag: str, batch: Batch) -> Recognised | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        rows = records.json_lines(text)
        if not rows:
            return None
        for framework, own in (("ms-swift", read_swift(text)), ("verl", read_verl(text))):
            if own.steps:
                return Recognised(framework, own)
        if records.of_llama_factory(rows):
            return Recognised("trainer_log.jsonl", records.of_clock(rows))
        log = records.of_records(rows, batch.tokens_per_gpu, batch.sequences)
        return Recognised("W&B history", log)
    if isinstance(document, dict) and isinstance(document.get("log_history"), list):
        return Recognised("trainer_state.json", records.of_trainer(document))
    if isinstance(document, dict) and "train_runtime" in document:
        summary = TrainingLog((), None, None, notes=(records.SUMMARY,))
        return Recognised("train_results.json", summary)
    if isinstance(document, dict) and "meshplan_run" in document:
        return Recognised("meshplan execute", records.of_result(document))
    rows = records.json_records(document, tag)
    log = records.of_records(rows, batch.tokens_per_gpu, batch.sequences)
    return Recognised("JSON export", log)


def _text(path: Path) -> tuple[str, str]:
    """The end of the file, and its beginning where that is not in it."""
    try:
        return end_and_beginning(path)
    except NoText as error:
        known = f"; {KNOWN}" if str(error) == "a binary file" else ""
        raise UnreadableLog(f"{path}: {error}{known}") from None
    except ValueError:
        raise UnreadableLog(f"{path!r}: no path of a file") from None
