"""Launch scripts whose options no reader takes, each with what to check instead."""

import re
from collections.abc import Mapping

from meshplan.executor.frameworks.shell.script import SCRIPTS
from meshplan.planner.case.reading import NothingToRead, Reading

BY = r"(?:[^#\n]*[ \t\"'])?"
"""What may stand before a command in its line, as of one in quotes."""
_NAMED = "check the configuration that it names, with what its options replace"
_SCRIPTS: Mapping[str, tuple[str, str]] = {
    "a launch script of torchtitan": (
        rf"{BY}(?:-m[ \t]+torchtitan\.train\b|--job\.config[_-]file\b)",
        "check the configuration that is chosen elsewhere, with what its --SECTION.KEY=VALUE "
        "options replace"),
    "a launch script of Megatron-Bridge's performance recipes": (
        rf"{BY}[^\s#]*scripts/performance/(?:run_script|setup_experiment)\.py\b",
        "its recipes, which are programs, set recompute, stages and precision; check the "
        "configuration that a run dumps, or a plan of the same layout"),
    "a launch script of LLaMA-Factory": (rf"{BY}llamafactory-cli[ \t]+train[ \t]+[^-#\s]", _NAMED),
    "a launch script of axolotl": (
        rf"{BY}(?:axolotl[ \t]+train|-m[ \t]+axolotl\.cli\.train)[ \t]+[^#\s]", _NAMED),
    "a launch script of torchtune": (
        rf"{BY}tune[ \t]+run[ \t]+[^#\s]",
        "check the YAML that --config names (`tune cp` copies torchtune's own), with what its "
        "KEY=VALUE options replace"),
    "a launch script of LitGPT": (
        rf"{BY}litgpt[ \t]+(?:finetune\w*|pretrain)\b",
        "its configuration's names are its own; check a plan of the same layout"),
    "a launch script of OpenRLHF": (
        rf"{BY}--micro_train_batch_size\b", "check the DeepSpeed part as a plan"),
    "a launch script of nanotron": (
        rf"{BY}[^\s#]*run_train\.py[ \t]+(?:[^#\n]{{0,200}}[ \t])?--config-file\b", _NAMED),
    "a launch script of Oumi": (
        rf"{BY}oumi[ \t]+(?:train|distributed)(?:[ \t]|$)",
        "its configuration's names are its own; check a plan of the same layout"),
    "a launch script of GPT-NeoX": (rf"{BY}[^\s#]*deepy\.py[ \t]+[^#\s]", _NAMED),
    "a launch script of llm-foundry": (
        rf"{BY}composer[ \t]+[^#\n]{{0,200}}\.py[ \t]+[^#\s]+\.ya?ml\b", _NAMED),
    "a launch script of a Hugging Face Trainer": (
        rf"{BY}(?:accelerate[ \t]+launch\b|--per_device_train_batch_size\b|"
        r"deepspeed[ \t]+(?:--(?:num_gpus|num_nodes|include|hostfile)\b|[^#\s]*\.py\b))",
        "check the DeepSpeed or Accelerate file that it names, with --model, --seq-len, "
        "--micro-batch, --global-batch and --gpus as the script says them"),
}  # fmt: skip
"""Scripts whose options no reader takes: how a line of one reads, and what to check instead."""


def claims(name: str, text: str) -> bool:
    """Whether a file is such a script; asked after all formats that are read."""
    return name.endswith(SCRIPTS) and _script(text) is not None


def _script(text: str) -> str | None:
    found = (title for title, (mark, _) in _SCRIPTS.items() if re.search(f"^{mark}", text, re.M))
    return next(found, None)


def refuse(text: str, path: str) -> Reading:
    """Raises `NothingToRead` that names the script's kind and the way on: in a folder its
    configuration lies beside it.
    """
    title = _script(text) or "a script"
    raise NothingToRead(f"{title}: not read ({_SCRIPTS[title][1]})")
