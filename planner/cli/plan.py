"""`meshplan plan`: the question from the command line, the search, the answer in three steps.

What only some answers need (a comparison, tables, what would fit) is imported when they are made.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from meshplan.costmodels.units import counted
from meshplan.planner.answer.answer import TOP, case_at, solve
from meshplan.planner.answer.full_plan import full_plan
from meshplan.planner.answer.question import Arguments, Asked, BadQuestion, ask
from meshplan.planner.answer.ties import ROBUST_CANDIDATES
from meshplan.planner.case.plan_file import Plan, write_plan
from meshplan.planner.case.plan_findings import Sizes
from meshplan.planner.cli.options import panel
from meshplan.planner.cli.progress import SearchLine
from meshplan.planner.report.output import console, print_json
from meshplan.planner.search.search import NoLayoutFits, SearchResult

if TYPE_CHECKING:
    from meshplan.planner.answer.compare import Comparison, Yours
    from meshplan.planner.case.reading import Reading

PINS = "Pins: 8, 1,3, 1..16 or ..4"
job, output = panel("The job"), panel("The answer")
PIN_AXES = {
    "dp": "data_parallel",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_stages",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "zero": "zero_stage",
    "shard_group": "shard_group",
    "micro_batch": "micro_batch_size",
    "schedule": "schedule",
    "recompute": "recompute",
    "recompute_modules": "recompute_modules",
    "sequence_parallel": "sequence_parallel",
    "cp_kind": "context_kind",
    "dispatcher": "dispatcher",
    "modules_apart": "modules_apart",
    "offload_optimizer": "optimizer_offload",
    "offload_activations": "activation_offload",
}
"""The axis that each flag pins."""


def pin(help_text: str, metavar: str = "RANGE") -> Any:
    """An option that pins an axis."""
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=PINS)


def plan(
    model: Annotated[
        str, typer.Argument(help="A name (`meshplan models`), a config.json, or its folder.")
    ],
    gpus: Annotated[
        str, job("Accelerators, or auto: the knee of the scaling curve.", metavar="N|auto")
    ],
    cluster: Annotated[str | None, job("A profile's name (`meshplan profiles`) or file.")] = None,
    gpu: Annotated[str | None, job("Instead of --cluster: the GPU.")] = None,
    gpus_per_node: Annotated[int | None, job("With --gpu.", min=1)] = None,
    network: Annotated[
        str | None, job("With --gpu: 400Gb/s of each GPU, or 8x400Gb/s of a node.")
    ] = None,
    seq_len: Annotated[
        str | None, job("Tokens of a sequence: 8192, 32k; 4096 unless said.")
    ] = None,
    global_batch: Annotated[int | None, job("Sequences per step.", min=1)] = None,
    global_batch_tokens: Annotated[
        str | None, job("Or tokens per step: 4M (x 2**20), 1024x4096.")
    ] = None,
    precision: Annotated[str, job("bf16, fp16, fp8, mxfp8, ...")] = "bf16",
    optimizer: Annotated[str, job("adamw, adamw8bit, muon, sgd.")] = "adamw",
    packed_mean_length: Annotated[
        str | None, job("Tokens of the documents packed in a sequence, each attending to itself.")
    ] = None,
    optimizer_states: Annotated[
        str | None, job("fp32, or bf16 without an fp32 copy of weights.")
    ] = None,
    lora_rank: Annotated[int | None, job("Train LoRA adapters of this rank alone.", min=1)] = None,
    lora_targets: Annotated[str | None, job("Beside what: qkv, attention, all_linear.")] = None,
    base_precision: Annotated[
        str | None, job("Of the frozen weights: bf16, int8, nf4 (QLoRA).")
    ] = None,
    image_tokens: Annotated[
        str | None, job("Tokens of each sequence that its vision tower makes of images.")
    ] = None,
    audio_tokens: Annotated[
        str | None, job("Tokens of each sequence that its audio tower makes of sound.")
    ] = None,
    images: Annotated[int | None, job("Images of a sequence, or clips of sound.", min=1)] = None,
    frozen: Annotated[
        str | None, job("vision or audio: the tower is not trained, its joiner is.")
    ] = None,
    expert_imbalance: Annotated[float, job("Busiest experts over the mean.", min=1.0)] = 1.0,
    engine: Annotated[
        str | None,
        job("megatron-bridge (the default, but for CPUs: native), torchtitan, nanotron..."),
    ] = None,
    headroom: Annotated[
        str | None, job("Memory to leave free on each GPU: 8GiB, 10%; else by the engine's error.")
    ] = None,
    learned: Annotated[Path | None, job("What `meshplan learn` wrote of your own runs.")] = None,
    dp: Annotated[str | None, pin("Data parallel.")] = None,
    tp: Annotated[str | None, pin("Tensor parallel.")] = None,
    pp: Annotated[str | None, pin("Pipeline parallel.")] = None,
    vpp: Annotated[str | None, pin("Virtual stages per pipeline rank.")] = None,
    cp: Annotated[str | None, pin("Context parallel.")] = None,
    ep: Annotated[str | None, pin("Expert parallel.")] = None,
    etp: Annotated[str | None, pin("Expert tensor parallel.")] = None,
    zero: Annotated[str | None, pin("ZeRO stage, 0 to 3.")] = None,
    shard_group: Annotated[str | None, pin("Ranks that ZeRO shards over; 0: all.")] = None,
    micro_batch: Annotated[str | None, pin("Sequences per forward.")] = None,
    schedule: Annotated[str | None, pin("1f1b, interleaved_1f1b, zb_v, ...", "WORDS")] = None,
    recompute: Annotated[str | None, pin("none, selective, full.", "WORDS")] = None,
    recompute_modules: Annotated[
        str | None, pin("What selective recompute replays: mlp,core_attention.", "WORDS")
    ] = None,
    sequence_parallel: Annotated[str | None, pin("on, off.", "WORDS")] = None,
    cp_kind: Annotated[
        str | None, pin("ring, all_gather, all_to_all, hierarchical.", "WORDS")
    ] = None,
    dispatcher: Annotated[str | None, pin("all_to_all, deepep, hybridep.", "WORDS")] = None,
    modules_apart: Annotated[
        str | None, pin("Multi-token prediction apart from the loss: on, off.", "WORDS")
    ] = None,
    offload_optimizer: Annotated[
        str | None, pin("Fraction on the host: 0 (unless said), 0,0.5,1 or on.", "FRACTIONS")
    ] = None,
    offload_activations: Annotated[str | None, pin("The same.", "FRACTIONS")] = None,
    out: Annotated[Path | None, output("Plan file.", "-o", "--out")] = None,
    top: Annotated[int, output("Layouts that differ in kind.", min=1)] = TOP,
    robust: Annotated[
        bool,
        output(
            "Not the fastest: what loses least where a figure is off, of the best kinds.",
            "--robust",
        ),
    ] = False,
    time_limit: Annotated[
        float | None, output("Seconds after which nothing new is searched.", min=0.0)
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, output("Adds what a step and 1e12 tokens cost.", min=0.0)
    ] = None,
    compare: Annotated[
        Path | None, output("A framework's config, to set beside the best layout of its question.")
    ] = None,
    dry_run: Annotated[
        bool, output("Run the fullest rank on fake tensors too (needs torch).", "--dry-run")
    ] = False,
    as_json: Annotated[bool, output("The plan as one JSON document.", "--json")] = False,
) -> None:
    """Find the fastest layout that fits, and prove it.

    Example: meshplan plan llama-3.1-8b --gpus 64 --cluster dgx-h100 --global-batch-tokens 4M
    """
    arguments = _arguments(locals())
    beside = _beside(compare)
    taken = beside.engine if beside and engine is None and learned is None else None
    if taken:
        arguments = replace(arguments, engine=taken)
    sizes = _sizes(arguments, price_per_gpu_hour, time_limit) if gpus == "auto" else None
    asked = ask(replace(arguments, gpus=sizes.knee_gpus if sizes else _count(gpus)))
    if taken:
        note = f"engine {asked.question.engine.name}, that of {compare} (--engine chooses another)"
        asked = replace(asked, notes=(*asked.notes, note))
    yours = None
    if beside:
        from meshplan.planner.answer.compare import yours_of

        yours = yours_of(asked.question, asked.cluster_name, beside)
    try:
        result = searched(asked, max(top, ROBUST_CANDIDATES) if robust else top, time_limit)
    except NoLayoutFits as error:
        _refuse(asked, error, as_json=as_json)
    answer = full_plan(asked, result, robust=robust, top=top).model_copy(update={"sizes": sizes})
    if out:
        write_plan(answer, out)
    found = None
    if yours:
        from meshplan.planner.report.comparison import comparison_document, print_comparison

        found = compared(asked, answer, yours, price_per_gpu_hour)
    if as_json:
        added = {"comparison": comparison_document(str(compare), found)} if found else {}
        print_json({**answer.model_dump(mode="json"), **added})
    else:
        from meshplan.planner.report.plan import print_answer, print_cost

        print_answer(asked, result, answer)
        if price_per_gpu_hour is not None:
            print_cost(answer, price_per_gpu_hour)
        if found:
            print_comparison(console(), str(compare), found)
    if dry_run:
        from meshplan.planner.report.dry_run import dry_run_line

        print(dry_run_line(answer, asked.question), file=sys.stderr if as_json else sys.stdout)
    if out:
        print(f"wrote {out}", file=sys.stderr)


def _arguments(given: Mapping[str, Any]) -> Arguments:
    """What was typed, of the options `given` by name; the number of GPUs apart."""
    names = Arguments.__dataclass_fields__.keys() - {"pins", "gpus"}
    pins = {axis: given[flag] for flag, axis in PIN_AXES.items() if given[flag] is not None}
    return Arguments(**{name: given[name] for name in names}, gpus=1, pins=pins)


def _beside(path: Path | None) -> "Reading | None":
    """The config to compare with."""
    if path is None:
        return None
    from meshplan.planner.report.plan import read_beside

    return read_beside(path)


def compared(asked: Asked, answer: Plan, yours: "Yours", price: float | None) -> "Comparison":
    """The config beside the best layout of its own question: the plan, unless it asks another."""
    from meshplan.planner.answer.compare import compare, same_question, why_not_the_plan

    own = same_question(asked.question, yours.case)
    if own is asked.question:
        return compare(yours, case_at(own, answer.layout), gpu_hour_price=price)
    said = why_not_the_plan(asked.question, yours.case)
    try:
        result = solve(own, 1)
    except NoLayoutFits:
        raise NoLayoutFits(
            f"--compare {yours.path}: no layout fits for its question ({said})"
        ) from None
    best = result.solutions[0].layout
    found = compare(yours, case_at(own, best), gpu_hour_price=price)
    proved = "" if result.status == "OPTIMAL" else f" (not proved: {result.gap:.1%} is open)"
    note = f"{said}: so ours is the best layout of its question{proved}, not the plan above"
    return replace(found, notes=(note, *found.notes))


def _count(text: str) -> int:
    """The number of accelerators; raises `BadQuestion`."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < 1:
        raise BadQuestion(f"--gpus {text!r} is no whole number from 1 on; write 8, or auto")
    return int(text)


def _sizes(arguments: Arguments, price: float | None, time_limit_s: float | None) -> Sizes:
    """The sizes tried for `--gpus auto`, each named on stderr as it is planned."""
    from meshplan.planner.sweep.auto import find_sizes

    ask(arguments)  # what is wrong with the question is said before any size is tried

    def told(number: int) -> None:
        if sys.stderr.isatty():
            print(f"\rplanning {counted(number, 'GPU')} ...", end="\r", file=sys.stderr, flush=True)

    return find_sizes(arguments, price=price, time_limit_s=time_limit_s, told=told)


def searched(asked: Asked, top: int, time_limit_s: float | None) -> SearchResult:
    """The search, with a line on stderr once it takes longer than a second."""
    line = SearchLine()
    try:
        return solve(asked.question, top, time_limit_s, line)
    finally:
        line.close()


def _refuse(asked: Asked, error: NoLayoutFits, *, as_json: bool) -> NoReturn:
    """Say what came closest, what it lacks and what would do; exit code 3."""
    from meshplan.planner.report.fit import fits_fuller, misfit_document, misfit_lines, most_asked
    from meshplan.planner.search.footprint import explain as explain_misfit

    question = asked.question
    why = explain_misfit(question, most_gpus=most_asked(question))
    fuller = fits_fuller(asked)
    if as_json:
        print_json(misfit_document(question, why, fuller))
    lines = [str(error), *misfit_lines(question, why, fuller)]
    print("error: " + "\n  ".join(lines), file=sys.stderr)
    raise typer.Exit(3)
