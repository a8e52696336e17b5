"""`meshplan plan`: its options; what answers is imported when it is asked, so not for `--help`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from meshplan.planner.answer.sizes import TOP
from meshplan.planner.cli.options import panel
from meshplan.planner.cli.start_up import import_numpy, importing

PINS = "Pins: 8, 1,3, 1..16 or ..4"
job, output = panel("The job"), panel("The answer")


def pin(help_text: str, metavar: str = "RANGE") -> Any:
    """An option that pins an axis."""
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=PINS)


def plan(
    model: Annotated[
        str, typer.Argument(help="A name (`meshplan models`), a config.json, or its folder.")
    ],
    gpus: Annotated[str, job("GPUs, or auto: the knee of the scaling curve.", metavar="N|auto")],
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
    lora_targets: Annotated[
        str | None,
        job("Beside what: qkv, attention, all_linear; qv, attention_but_key, all_but_key."),
    ] = None,
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
        float | None,
        output("Seconds after which nothing new is searched; no plan by then: exit 3.", min=0.0),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, output("Adds what a step and 1e12 tokens cost.", min=0.0)
    ] = None,
    compare: Annotated[
        Path | None,
        output("A framework's config or a plan file, to set beside the best of its question."),
    ] = None,
    dry_run: Annotated[
        bool, output("Run the fullest rank on fake tensors too (needs torch).", "--dry-run")
    ] = False,
    as_json: Annotated[bool, output("The plan as one JSON document.", "--json")] = False,
) -> None:
    """Find the fastest layout that fits, and prove it.

    Example: meshplan plan llama-3.1-8b --gpus 64 --cluster dgx-h100 --global-batch-tokens 4M
    """
    given = locals()
    import_numpy()
    with importing():
        from meshplan.planner.cli.planned import Wanted, answer, arguments_of

    wanted = Wanted(**{name: given[name] for name in Wanted.__dataclass_fields__})
    answer(arguments_of(given), gpus, wanted)
