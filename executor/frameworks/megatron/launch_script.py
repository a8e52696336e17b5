"""Megatron-LM arguments: a launch script out, and launch scripts as people write them in.

    ours                       theirs
    data_parallel              what is left of --nproc-per-node x --nnodes
    tensor_parallel            --tensor-model-parallel-size
    virtual_stages, stages     --num-virtual-stages-per-pipeline-rank, or uneven stages as
                               --pipeline-model-parallel-layout "Et*3|t*4|t*3L"
    zero_stage 1               --use-distributed-optimizer
    zero_stage 2, 3            --use-megatron-fsdp --data-parallel-sharding-strategy
                               optim_grads[_params]
    recompute                  --recompute-granularity, -method, -num-layers, -modules
    context_kind, dispatcher   --cp-comm-type, --moe-token-dispatcher-type (`exchanges`)
    gradients of 16 bit        --grad-reduce-in-bf16 (the engine megatron-bridge; else megatron)
    hidden tensor parallelism  --tp-comm-overlap (as engines hide it whose recipes have userbuffers)
    hidden data parallelism    --overlap-grad-reduce, --overlap-param-gather

The rest is in `settings` and `model`. Reading takes what the command line would
be after the script's own variables (`shell`), and `#SBATCH` lines for the number of GPUs.

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py`, `examples/`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshplan.executor.frameworks.documents.values import put, shown
from meshplan.executor.frameworks.hugging_face.nearby import Nearby
from meshplan.executor.frameworks.keys.lists import MEGATRON, judged
from meshplan.executor.frameworks.megatron.attention_scores import (
    engine_of,
    gradient_bytes,
    keeps_scores,
    scores_of_2023,
)
from meshplan.executor.frameworks.megatron.core_loss import loss_of_flags
from meshplan.executor.frameworks.megatron.deepspeed_config import deepspeed_facts
from meshplan.executor.frameworks.megatron.exchanges import exposed
from meshplan.executor.frameworks.megatron.functional_tests import (
    check_test,
    gpus_of_test,
    is_test_case,
    runs_of_test,
)
from meshplan.executor.frameworks.megatron.hybrid import has_pattern
from meshplan.executor.frameworks.megatron.model_config import (
    model_config_of,
    model_unread,
    other_words,
    plain_experts,
    routing_assumed,
    ungrouped,
)
from meshplan.executor.frameworks.megatron.options import check_options
from meshplan.executor.frameworks.megatron.pipeline_layout import groups_unread
from meshplan.executor.frameworks.megatron.plain_experts import learns_positions
from meshplan.executor.frameworks.megatron.settings import (
    COUNTS,
    OLDER,
    layout_facts,
    optimizer_unread,
    training_facts,
)
from meshplan.executor.frameworks.shell.jobs.documents import DOCUMENTS, job_of
from meshplan.executor.frameworks.shell.launching.arguments import (
    FlagArguments,
    arguments,
    launcher_arguments,
)
from meshplan.executor.frameworks.shell.launching.gpus import launched
from meshplan.executor.frameworks.shell.launching.launches import (
    first_of,
    is_launched,
    launches,
    left_open,
    needed,
    said_elsewhere,
)
from meshplan.executor.frameworks.shell.script import SCRIPTS, read_script
from meshplan.planner.case.reading import (
    Fact,
    NothingToRead,
    Reading,
    Start,
    UnreadableConfig,
)

_LAUNCHING = frozenset(
    (
        *("nproc_per_node", "nnodes", "num_gpus", "num_nodes", "node_rank", "master_addr", ""),
        *("master_port", "rdzv_id", "rdzv_backend", "rdzv_endpoint", "max_restarts", "hostfile"),
        *("tee", "redirects", "log_dir", "standalone", "local_addr", "no_python", "module"),
    )
)
_PROGRAM = re.compile(r"\.py$")
_OTHER_PROGRAMS = re.compile(
    r"bert|t5|_ict|retro|vision|vit_|vlm|mamba|hybrid|multimodal|inpaint|dino|biencoder|ernie|"
    r"generat|infer|server|eval|convert|checkpoint|quantiz|prune|export|preprocess|_rl|distill|"
    r"orqa|prompt|validate|mmlu|feature|llava|qwen2_vl|clip|hf2|2hf|detxo",
    re.I,
)
_TASKS = re.compile(r"(?:^|/)(?:tasks|tools)/(?:\w+/)*main\.py$")
"""Megatron-LM's evaluations and fine-tuning tasks; a `main.py` elsewhere may train anything."""
_OF_GPT = re.compile(r"(?:pretrain|finetune)_(?:gpt|mamba|hybrid)\w*\.py$")
"""Programs that build the model of their arguments, in Megatron-LM and its forks."""
_DEGREES = frozenset(
    ("tensor_model_parallel_size", "pipeline_model_parallel_size", "model_parallel_size")
)
_MARKS = frozenset(
    (*COUNTS.values(), *OLDER.values(), "num_layers", "hidden_size", "use_distributed_optimizer")
)
_CLAIMED = ("--tensor-model-parallel-size", "--num-layers", "--micro-batch-size")


_IN_YAML = "--yaml-cfg"
_SOURCES = re.compile(r"^[ \t]*(?:source|\.)[ \t]+[^\s#]", re.M)
_RUNS = re.compile(r"^[^#\n]*\bpretrain_gpt\.py\b", re.M)


def claims(name: str, text: str) -> bool:
    """Whether a file looks like a script with Megatron's arguments, or starts Megatron's program
    with what it sources or with a YAML.
    """
    degrees, layers, batch = (mark in text for mark in _CLAIMED)
    if degrees or (layers and batch):
        return not name.endswith(".py")  # a program that takes the flags is no config
    elsewhere = _SOURCES.search(text) or _IN_YAML in text
    return name.endswith(SCRIPTS) and bool(elsewhere and _RUNS.search(text))


def read(text: str, path: str, start: Start | None = None) -> Reading:
    """The arguments of the launch script `text`, each different launch a case of its own.

    `start`: the environment and the arguments that the script is started with. Raises
    `UnreadableConfig` and `IllegalConfig`.
    """
    if is_test_case(text):
        check_test(path, text, _OTHER_PROGRAMS)
        gpus, notes = gpus_of_test(path)
        cases = [_Command("", {}, flags, of_job=gpus) for flags in runs_of_test(text)]
        return _joined(cases, path, text, notes)
    marks = [mark for mark in _CLAIMED if mark in text]
    environment = start.environment if start else {}
    of_job = None
    if marks and path.endswith(DOCUMENTS):
        job = job_of(text, marks[0])
        text, environment, of_job = job.script, job.variables | dict(environment), job.gpus
    script = read_script(text, environment, path)
    commands = launches(script, _is_mark)
    if not any(set(arguments(words)) & _MARKS for words in commands):
        why = "no Megatron arguments found, such as --tensor-model-parallel-size"
        if _IN_YAML in text:
            why = f"Megatron's arguments are in the file of {_IN_YAML}, which is not read"
        raise UnreadableConfig(why) if marks else NothingToRead(why)
    notes = (*script.notes, *left_open(commands))
    cases = [_command(words, script.inherited_by(words)) for words in commands]
    cases = [
        replace(each, waits=script.waits, files=script.files_of(words), of_job=of_job,
                printed=tuple(said_elsewhere(words, script.missed)),
                program=(kept := needed(each.program, start, _SAID_BY)),
                left=frozenset(each.program.keys() - kept.keys()))
        for each, words in zip(cases, commands, strict=True)
    ]  # fmt: skip
    reading = _joined(cases, path, text, notes)
    return reading if is_launched(script, _is_mark) else _unlaunched(reading, commands[0])


_SAID_BY = {
    "seq_length": "seq_len", "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    **dict.fromkeys(("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads",
                     "num_query_groups", "kv_channels", "max_position_embeddings"), "model"),
}  # fmt: skip
"""Arguments, and the options that say the same."""


def _is_mark(word: str) -> bool:
    return word.lstrip("-").replace("-", "_") in _MARKS


def _unlaunched(reading: Reading, words: list[Fact]) -> Reading:
    """Arguments that a script only keeps in variables: who sources it may add the degrees."""
    alone = "no command of this script takes its arguments"
    if set(arguments(words)) & _DEGREES:
        return replace(reading, notes=(*reading.notes, f"{alone}: read from its variables"))
    why = Fact(f"the degrees ({alone}, which state no --tensor-model-parallel-size)", 1)
    return replace(reading, unread=(*reading.unread, why))


def _joined(cases: list["_Command"], path: str, text: str, notes: tuple[str, ...]) -> Reading:
    """The first case, with the others."""
    judged_cases, more = first_of(cases)
    first, *others = (_reading(case, path, text, (*notes, *more)) for case in judged_cases)
    return replace(first, others=tuple(others))


@dataclass(frozen=True, slots=True)
class _Command:
    """The arguments of the launcher (torchrun, srun, deepspeed) and those of the program.

    waits  what of the script's start decided a condition
    left   what the program takes, and an option says instead
    files  what the script writes by here-documents
    of_job GPUs that the job's document asks for
    printed  arguments that the output of a command says
    words  those behind the program's name
    """

    name: str
    launcher: dict[str, Fact]
    program: dict[str, Fact]
    waits: tuple[str, ...] = ()
    left: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    of_job: Fact | None = None
    printed: tuple[Fact, ...] = ()
    words: tuple[Fact, ...] = ()


def _command(words: list[Fact], inherited: Mapping[str, str]) -> _Command:
    """The program's arguments begin after the first word that is a Python file or a module."""
    starts = [at for at, word in enumerate(words) if _PROGRAM.search(str(word.value))]
    modules = [at + 1 for at, word in enumerate(words[:-1]) if word.value == "-m"]
    at = min(starts or modules, default=-1)
    found = arguments(words[at + 1 :])
    if not set(found) & _MARKS:  # a wrapper's own file came first
        at, found = -1, arguments(words)
    if at < 0:
        return _Command("", launcher_arguments(words), found)
    launcher, own = launcher_arguments(words[: at + 1], inherited), tuple(words[at + 1 :])
    return _Command(str(words[at].value), launcher, found, words=own)


def _check_program(name: str, found: Mapping[str, Fact]) -> None:
    """Refuse a program that takes the same arguments and does not train a GPT, or a hybrid whose
    layers the arguments name.
    """
    last = name.rpartition("/")[2] or name
    last = re.sub("mamba|hybrid", "", last) if has_pattern(found) else last
    other = _TASKS.search(name) or _OTHER_PROGRAMS.search(last)
    if other:
        raise NothingToRead(f"{shown(name)} does not train a GPT ({other[0]}): not modelled")


def _assumed(name: str) -> list[str]:
    """A note of a program of another name, which may build another model of its arguments."""
    if not name or _OF_GPT.search(name):
        return []
    return [f"{shown(name)} is taken to build the model that pretrain_gpt.py builds of the same "
            "arguments"]  # fmt: skip


_SUMS = (
    "bf16 is priced with DeepSpeed's BF16_Optimizer: sums of gradients in 32 bits beside those of "
    "16, masters and moments sharded at stage 0 too"
)


_LEFT = "the script leaves --{} open: priced with the whole shape of the model that is given"


def _reading(command: _Command, path: str, text: str, notes: tuple[str, ...]) -> Reading:
    _check_program(command.name, command.program)
    check_options(command.words)
    values = FlagArguments(command.program, command.waits)
    by_deepspeed = values.on("deepspeed")
    left = _sizes_left(command, values)
    config = model_config_of(values, left)
    facts, placement, recompute, more = layout_facts(values)
    facts |= training_facts(values)
    _apply_defaults(values, facts)
    near = Nearby(Path(path), command.files)
    facts |= launched(FlagArguments(command.launcher), text, command.of_job, near.text)
    in_file, more_notes = deepspeed_facts(values, facts, command.files)
    unread = [*command.printed, *in_file, *optimizer_unread(values, "--optimizer")]
    unread += groups_unread(values, facts)
    _add_default_batch(command, facts)
    if by_deepspeed and facts["precision"].value == "bf16":
        notes = (*notes, _SUMS)
    engine, userbuffers = engine_of(values), values.on("tp_comm_overlap")
    if unfused := keeps_scores(values):
        unread.append(unfused)
    not_understood, noted = judged(_of_megatron(values), MEGATRON, "--{}")
    return Reading(
        framework="megatron",
        engine=engine,
        path=path,
        facts=facts,
        placement=placement,
        recompute=recompute,
        gradient_bytes=gradient_bytes(values),
        loss="" if by_deepspeed else loss_of_flags(values),
        model_config=config,
        expert_tensor_follows=True,
        userbuffers=None if by_deepspeed else userbuffers,
        exposed=() if by_deepspeed else exposed(values, usual=False),
        ignored=values.ignored(),
        notes=(
            *notes, *_assumed(command.name), *more, *more_notes, *noted,
            *scores_of_2023(values, recompute), *ungrouped(values), *routing_assumed(values),
            *other_words(values), *values.suspects(_MARKS),
            *(_LEFT.format(name.replace("_", "-")) for name in left),
        ),
        unread=(*unread, *model_unread(values), *plain_experts(values), *not_understood),
    )  # fmt: skip


def _sizes_left(command: _Command, values: FlagArguments) -> list[str]:
    """The sizes of the model that the script leaves open; of positions only what is learnt."""
    sizes = [name for name in sorted(command.left) if _SAID_BY[name] == "model"]
    idle = () if learns_positions(values) else ("max_position_embeddings",)
    return [name for name in sizes if name not in idle]


def _apply_defaults(values: FlagArguments, facts: dict[str, Fact]) -> None:
    """What the program does where no flag says otherwise."""
    if values.on("deepspeed"):  # Megatron-DeepSpeed's experts are DeepSpeed's
        facts.pop("dispatcher", None)
    elif "cp_comm_type" not in values.found and facts.get("context_parallel", Fact(1, 1)).value > 1:
        put(facts, context_kind=Fact("ring", 1))  # its default, p2p
    facts.setdefault("precision", Fact("fp32", 1))  # no --bf16, --fp16 or --fp8-format


def _of_megatron(values: FlagArguments) -> list[tuple[str, Fact]]:
    """The arguments that nobody read, without those of the launcher, and the one that only counts
    where a checkpoint's arguments are used (megatron/training/arguments.py,
    `parse_and_validate_args`).
    """
    idle = () if "use_checkpoint_args" in values.found else ("use_mp_args_from_checkpoint_args",)
    return [(name, fact) for name, fact in values.unasked() if name not in (*_LAUNCHING, *idle)]


def _add_default_batch(command: _Command, facts: dict[str, Fact]) -> None:
    """One micro-batch where no global batch is stated, and no sharding where none is."""
    if "global_batch_size" not in facts.keys() | command.left:  # then micro-batch x data_parallel
        put(facts, num_micro_batches=Fact(1, facts.get("micro_batch_size", Fact(1, 1)).line))
    if "zero_stage" not in facts:
        put(facts, zero_stage=Fact(0, 1))
