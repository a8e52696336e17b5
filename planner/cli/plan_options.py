"""The options of `meshplan plan`: each with its help, under the heading that lists it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from meshplan.planner.cli.options import panel

PINS = "Pins, which fix or limit an axis: 8, 1,3, 1..16 or ..4"
cluster_of, job, output = panel("The cluster"), panel("The job"), panel("The answer")
special = panel("Fine-tuning, images and sound")


def pin(help_text: str, metavar: str = "RANGE") -> Any:
    """An option that pins an axis."""
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=PINS)


Model = Annotated[
    str, typer.Argument(help="A name (`meshplan models`), a config.json, or its folder.")
]
Gpus = Annotated[str, cluster_of("Number; auto: the knee of the scaling curve.", metavar="N|auto")]
Cluster = Annotated[str | None, cluster_of("Profile: a name (`meshplan profiles`) or a file.")]
Gpu = Annotated[str | None, cluster_of("Instead of --cluster: a GPU by name.")]
GpusPerNode = Annotated[int | None, cluster_of("With --gpu: GPUs per node.", min=1)]
Network = Annotated[str | None, cluster_of("With --gpu: 400Gb/s per GPU, or 8x400Gb/s per node.")]
SeqLen = Annotated[str | None, job("Tokens per sequence: 8192, 32k; default 4096.")]
GlobalBatch = Annotated[int | None, job("Sequences per optimizer step.", min=1)]
GlobalBatchTokens = Annotated[str | None, job("Or tokens per step: 4M (M is 2**20), 1024x4096.")]
Precision = Annotated[str, job("bf16, fp16, fp32, fp8, mxfp8, nvfp4; mxfp8_experts: theirs alone.")]
Optimizer = Annotated[str, job("adamw, adamw8bit, muon, sgd.")]
PackedMeanLength = Annotated[
    str | None, job("Mean tokens of documents packed in a sequence, each attending to itself.")
]
OptimizerStates = Annotated[
    str | None, job("Their precision: fp32, or bf16 without an fp32 copy of the weights.")
]
LoraRank = Annotated[int | None, special("Train only LoRA adapters of this rank.", min=1)]
LoraTargets = Annotated[
    str | None,
    special(
        "Layers that get them: qkv, qv, attention, all_linear, attention_but_key, all_but_key."
    ),
]
BasePrecision = Annotated[
    str | None, special("Precision of frozen weights: bf16, int8, nf4 (QLoRA).")
]
ImageTokens = Annotated[
    str | None, special("Tokens per sequence that the vision tower makes of images.")
]
AudioTokens = Annotated[
    str | None, special("Tokens per sequence that the audio tower makes of sound.")
]
Images = Annotated[int | None, special("Images, or clips of sound, per sequence.", min=1)]
Frozen = Annotated[str | None, special("vision or audio: train its projector, but not the tower.")]
ExpertImbalance = Annotated[float, job("Tokens of the busiest experts over the mean.", min=1.0)]
Engine = Annotated[
    str | None,
    job("Framework: torchtitan, nanotron, ...; default megatron-bridge, on CPUs native."),
]
Headroom = Annotated[
    str | None,
    cluster_of("Memory left free per GPU: 8GiB, 10%; default: what the engine's runs need."),
]
Learned = Annotated[Path | None, job("File that `meshplan learn` wrote.")]
Dp = Annotated[str | None, pin("Data-parallel replicas.")]
Tp = Annotated[str | None, pin("Tensor-parallel ranks.")]
Pp = Annotated[str | None, pin("Pipeline ranks.")]
Vpp = Annotated[str | None, pin("Virtual stages per pipeline rank.")]
Cp = Annotated[str | None, pin("Context-parallel ranks.")]
Ep = Annotated[str | None, pin("Expert-parallel ranks.")]
Etp = Annotated[str | None, pin("Tensor-parallel ranks of each expert.")]
Zero = Annotated[str | None, pin("ZeRO stage, 0 to 3.")]
ShardGroup = Annotated[str | None, pin("Ranks per ZeRO shard group; 0: all.")]
MicroBatch = Annotated[str | None, pin("Sequences per micro-batch.")]
Schedule = Annotated[str | None, pin("1f1b, interleaved_1f1b, zb_v, ...", "WORDS")]
Recompute = Annotated[str | None, pin("none, selective, full.", "WORDS")]
RecomputeModules = Annotated[
    str | None, pin("What selective recompute replays: mlp,core_attention.", "WORDS")
]
SequenceParallel = Annotated[str | None, pin("on, off.", "WORDS")]
CpKind = Annotated[str | None, pin("ring, all_gather, all_to_all, hierarchical.", "WORDS")]
Dispatcher = Annotated[str | None, pin("all_to_all, deepep, hybridep.", "WORDS")]
ModulesApart = Annotated[
    str | None, pin("Multi-token prediction on a stage before the loss: on, off.", "WORDS")
]
OffloadOptimizer = Annotated[
    str | None, pin("Optimizer states on the host: 0 (default), 0,0.5,1 or on.", "FRACTIONS")
]
OffloadActivations = Annotated[
    str | None, pin("Saved activations on the host, likewise.", "FRACTIONS")
]
Out = Annotated[Path | None, output("Plan file to write.", "-o", "--out")]
Top = Annotated[int, output("Layouts to show, of different degrees.", min=1)]
Robust = Annotated[
    bool,
    output(
        "Not the fastest, but what loses least if a rate of the cost model is off.",
        "--robust",
    ),
]
TimeLimit = Annotated[
    float | None,
    output("Seconds until the search stops; without a plan by then: exit 3.", min=0.0),
]
PricePerGpuHour = Annotated[
    float | None, output("Adds the cost of a step and of 1e12 tokens.", min=0.0)
]
Compare = Annotated[
    Path | None,
    output("A framework's config or a plan file to set beside the best layout."),
]
DryRun = Annotated[
    bool, output("Also run the fullest rank on fake tensors (needs torch).", "--dry-run")
]
AsJson = Annotated[bool, output("The plan as one JSON document.", "--json")]
