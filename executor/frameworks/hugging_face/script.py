"""What every export for a Hugging Face model has beside its settings: a script that trains it.

    train.py      `train_script.py` of this folder as it is: the framework's own loop on synthetic
                  tokens, with random weights
    config.json   the model's own configuration, as the plan has it

What the frameworks' files leave to the training code are the script's arguments.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from meshplan.executor.frameworks.export_notes import Answer
from meshplan.planner.case.reading import CannotSay

SCRIPT, MODEL = "train.py", "config.json"
RECOMPUTE_IN_CODE = "the training code switches it on, and this file does not say it"
NOT_HERE = "not in this file: "
ARGUMENT = NOT_HERE + "an argument of train.py"
WITH_PIECES = {
    "accelerate": "accelerate-chunked-loss", "deepspeed": "deepspeed-chunked-loss",
}  # fmt: skip
"""Of an engine whose loss has all logits at once: the same with the loss in pieces."""
SOURCE = Path(__file__).with_name("train_script.py")


def said_by_script(answer: Answer) -> list[CannotSay]:
    """What the settings beside the script leave to it, whatever the plan."""
    la, training = answer.layout, answer.training
    return [
        CannotSay("layout.micro_batch_size", la.micro_batch_size, ARGUMENT, True),
        CannotSay("training.seq_len", training.seq_len, ARGUMENT, True),
        CannotSay("training.global_batch_size", training.global_batch_size, ARGUMENT, True),
        CannotSay("training.optimizer", training.optimizer, NOT_HERE + "train.py runs adamw"),
        CannotSay("model", answer.model.name, NOT_HERE + "train.py reads config.json", True),
    ]


def loss_unsaid(planned_for: str, engine: str) -> list[CannotSay]:
    """Of a plan for an engine whose loss is in pieces: no file of `engine` says so."""
    if planned_for not in WITH_PIECES.values():
        return []
    why = (
        "train.py has all logits at once; where other code makes the loss in pieces, as TRL's and "
        "Liger's does, engine in meshplan.toml tells"
    )
    return [CannotSay("engine", WITH_PIECES[engine], why, True)]


def script_files(answer: Answer) -> Mapping[str, str]:
    """The script and the model's configuration, by file name."""
    config = {name: value for name, value in answer.config.items() if not name.startswith("_")}
    return {
        SCRIPT: SOURCE.read_text(encoding="utf-8"),
        MODEL: json.dumps(config, indent=2) + "\n",
    }


def script_words(answer: Answer, settings: str, *, recompute: bool) -> str:
    """`train.py` with its arguments; `settings` says whose file it runs beside.

    recompute  the script switches it on, where the framework's file cannot
    """
    la, training = answer.layout, answer.training
    dtype = training.precision if training.precision in ("fp16", "fp32") else "bf16"
    words = (
        f"{SCRIPT} {settings} --model {MODEL} --seq-len {training.seq_len}"
        f" --micro-batch-size {la.micro_batch_size}"
        f" --micro-batches {la.num_micro_batches(training)} --dtype {dtype}"
    )
    return f"{words} --recompute" if recompute and la.recompute != "none" else words
