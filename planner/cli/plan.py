"""`meshplan plan`: its options; what answers is imported when it is asked, so not for `--help`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from meshplan.planner.answer.sizes import TOP
from meshplan.planner.cli.options import panel
from meshplan.planner.cli.start_up import import_numpy, importing

PINS = "Pins, which fix or limit an axis: 8, 1,3, 1..16 or ..4"
cluster_of, job, output = panel("The cluster"), panel("The job"), panel("The answer")
special = panel("Fine-tuning, images and sound")


def pin(help_text: str, metavar: str = "RANGE") -> Any:
    """An option that pins an axis."""
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=PINS)


def plan(
    model: Annotated[
        str, typer.Argument(help="A name (`meshplan models`), a config.json, or its folder.")
    ],
    gpus: Annotated[
        str, cluster_of("Number; auto: the knee of the scaling curve.", metavar="N|auto")
    ],
    cluster: Annotated[
        str | None, cluster_of("Profile: a name (`meshplan profiles`) or a file.")
    ] = None,
    gpu: Annotated[str | None, cluster_of("Instead of --cluster: a GPU by name.")] = None,
    gpus_per_node: Annotated[int | None, cluster_of("With --gpu: GPUs per node.", min=1)] = None,
    network: Annotated[
        str | None, cluster_of("With --gpu: 400Gb/s per GPU, or 8x400Gb/s per node.")
    ] = None,
    seq_len: Annotated[str | None, job("Tokens per sequence: 8192, 32k; default 4096.")] = None,
    global_batch: Annotated[int | None, job("Sequences per optimizer step.", min=1)] = None,
    global_batch_tokens: Annotated[
        str | None, job("Or tokens per step: 4M (M is 2**20), 1024x4096.")
    ] = None,
    precision: Annotated[str, job("bf16, fp16, fp32, fp8, mxfp8, nvfp4.")] = "bf16",
    optimizer: Annotated[str, job("adamw, adamw8bit, muon, sgd.")] = "adamw",
    packed_mean_length: Annotated[
        str | None, job("Mean tokens of documents packed in a sequence, each attending to itself.")
    ] = None,
    optimizer_states: Annotated[
        str | None, job("Their precision: fp32, or bf16 without an fp32 copy of the weights.")
    ] = None,
    lora_rank: Annotated[
        int | None, special("Train only LoRA adapters of this rank.", min=1)
    ] = None,
    lora_targets: Annotated[
        str | None,
        special(
            "Layers that get them: qkv, qv, attention, all_linear, attention_but_key, all_but_key."
        ),
    ] = None,
    base_precision: Annotated[
        str | None, special("Precision of frozen weights: bf16, int8, nf4 (QLoRA).")
    ] = None,
    image_tokens: Annotated[
        str | None, special("Tokens per sequence that the vision tower makes of images.")
    ] = None,
    audio_tokens: Annotated[
        str | None, special("Tokens per sequence that the audio tower makes of sound.")
    ] = None,
    images: Annotated[
        int | None, special("Images, or clips of sound, per sequence.", min=1)
    ] = None,
    frozen: Annotated[
        str | None, special("vision or audio: train its projector, but not the tower.")
    ] = None,
    expert_imbalance: Annotated[
        float, job("Tokens of the busiest experts over the mean.", min=1.0)
    ] = 1.0,
    engine: Annotated[
        str | None,
        job("Framework: torchtitan, nanotron, ...; default megatron-bridge, on CPUs native."),
    ] = None,
    headroom: Annotated[
        str | None,
        cluster_of("Memory left free per GPU: 8GiB, 10%; default by the engine's error."),
    ] = None,
    learned: Annotated[Path | None, job("File that `meshplan learn` wrote.")] = None,
    dp: Annotated[str | None, pin("Data-parallel replicas.")] = None,
    tp: Annotated[str | None, pin("Tensor-parallel ranks.")] = None,
    pp: Annotated[str | None, pin("Pipeline ranks.")] = None,
    vpp: Annotated[str | None, pin("Virtual stages per pipeline rank.")] = None,
    cp: Annotated[str | None, pin("Context-parallel ranks.")] = None,
    ep: Annotated[str | None, pin("Expert-parallel ranks.")] = None,
    etp: Annotated[str | None, pin("Tensor-parallel ranks of each expert.")] = None,
    zero: Annotated[str | None, pin("ZeRO stage, 0 to 3.")] = None,
    shard_group: Annotated[str | None, pin("Ranks per ZeRO shard group; 0: all.")] = None,
    micro_batch: Annotated[str | None, pin("Sequences per micro-batch.")] = None,
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
        str | None, pin("Multi-token prediction on a stage before the loss: on, off.", "WORDS")
    ] = None,
    offload_optimizer: Annotated[
        str | None, pin("Optimizer states on the host: 0 (default), 0,0.5,1 or on.", "FRACTIONS")
    ] = None,
    offload_activations: Annotated[
        str | None, pin("Saved activations on the host, likewise.", "FRACTIONS")
    ] = None,
    out: Annotated[Path | None, output("Plan file to write.", "-o", "--out")] = None,
    top: Annotated[int, output("Layouts to show, of different degrees.", min=1)] = TOP,
    robust: Annotated[
        bool,
        output(
            "Not the fastest, but what loses least if a rate of the cost model is off.",
            "--robust",
        ),
    ] = False,
    time_limit: Annotated[
        float | None,
        output("Seconds until the search stops; without a plan by then: exit 3.", min=0.0),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, output("Adds the cost of a step and of 1e12 tokens.", min=0.0)
    ] = None,
    compare: Annotated[
        Path | None,
        output("A framework's config or a plan file to set beside the best layout."),
    ] = None,
    dry_run: Annotated[
        bool, output("Also run the fullest rank on fake tensors (needs torch).", "--dry-run")
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
