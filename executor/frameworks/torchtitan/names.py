"""torchtitan's words for ours: schedules, models, and where 0.2 and 0.3 differ.

Source: pytorch/torchtitan v0.2.2 (73a0e697) `torchtitan/config/job_config.py`,
`models/*/__init__.py`, `components/quantization/*.py`; torchtitan 0.3.0
`torchtitan/config/configs.py`, `models/*/config_registry.py`; torch 2.13
`distributed/pipelining/schedules.py` (schedule names).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from meshplan.costmodels.layout import Layout, Schedule
from meshplan.costmodels.training import Precision
from meshplan.executor.frameworks.export_notes import ROTATES
from meshplan.hardware_profiles.engine_schema import Dispatcher
from meshplan.planner.case.reading import CannotSay

Version = Literal["0.2", "0.3"]

SCHEDULE_NAMES: dict[str, Schedule] = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved_1f1b",
    "ZBVZeroBubble": "zb_v",
    "DualPipeV": "dualpipe_v",
}
SINGLE_STAGE = ("1F1B", "GPipe")  # PipelineScheduleSingle; the others default to 2 stages per rank
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
NEAREST = {"InterleavedZeroBubble": "Interleaved1F1B"}  # what a schedule of no price is priced as

COUNTS = {
    "tensor_parallel": "parallelism.tensor_parallel_degree",
    "pipeline_parallel": "parallelism.pipeline_parallel_degree",
    "context_parallel": "parallelism.context_parallel_degree",
    "expert_parallel": "parallelism.expert_parallel_degree",
    "seq_len": "training.seq_len",
}
CONVERTERS: dict[str, Precision] = {
    "quantize.linear.float8": "fp8",
    "float8": "fp8",
    "quantize.linear.mx": "mxfp8",
    "mx": "mxfp8",
    "quantize.grouped_mm.mx": "mxfp8_experts",
}
EXPERTS_CONVERTED = "quantize.grouped_mm.mx.fqns"
"""Which modules with experts 0.2 converts: none unless it is said (pytorch/torchtitan
torchtitan/components/quantization/mx.py, MXGroupedMMConverter)."""
CONVERTER_CLASSES: dict[str, Precision] = {
    "Float8LinearConverter": "fp8",
    "MXFP8LinearConverter": "mxfp8",
    "NVFP4LinearConverter": "nvfp4",
    "MXFP8GroupedExpertsConverter": "mxfp8_experts",
}
BY_NAME = ("MXFP8LinearConverter", "NVFP4LinearConverter")
"""Converters that are told which modules to convert."""
CONVERTED_WHOLE: dict[str, frozenset[str]] = {
    "fqns": frozenset(("layers", "attention", "feed_forward", "shared_experts")),
    "filter_fqns": frozenset(("lm_head", "output", "router.gate")),
}
"""Which modules converters take, or leave: of these all linear layers but the head and the router,
as they are priced."""
CONVERTER_SWITCHES = ("model_compile_enabled", "pad_multiple")
"""Their arguments that leave open which modules, and how many bits."""
HARMLESS_CONVERTERS = ("BatchInvariantFlexConverter", "ModelConfigConverter")
"""Converters that change neither the layers' sizes nor their bytes."""


BACKENDS: dict[str, Dispatcher] = {"standard": "all_to_all", "deepep": "deepep"}
"""`expert_parallel_comm_backend` of 0.2; later ones have "hybridep" too, after 0.3 as an argument
of `model_registry`."""


def joined_format(formats: Sequence[Precision]) -> Precision:
    """That of several converters: experts' converter adds theirs to that of linear layers, which
    all are priced in.
    """
    return next((each for each in formats if each != "mxfp8_experts"), formats[0])


@dataclass(frozen=True, slots=True)
class Flavor:
    """A model that torchtitan ships: its module, its flavor, and 0.3's function for it, if any.

    plain  where there is none, or it converts matrices to 8 bit (torchao): another one of the
           module, of the same vocabulary, to start from
    """

    module: str
    flavor: str
    function: str = ""
    plain: str = ""


MODELS = {
    "llama-3.1-8b": Flavor("llama3", "8B", "llama3_8b"),
    "llama-3.1-70b": Flavor("llama3", "70B", "llama3_70b"),
    "llama-3.1-405b": Flavor("llama3", "405B", "llama3_405b", "llama3_70b"),
    "llama-3.2-1b": Flavor("llama3", "1B", plain="llama3_8b"),
    "llama-3.2-3b": Flavor("llama3", "3B", plain="llama3_8b"),
    "llama-4-scout": Flavor("llama4", "17bx16e"),
    "llama-4-maverick": Flavor("llama4", "17bx128e"),
    "qwen3-0.6b": Flavor("qwen3", "0.6B", "qwen3_0_6b"),
    "qwen3-1.7b": Flavor("qwen3", "1.7B", "qwen3_1_7b"),
    "qwen3-4b": Flavor("qwen3", "4B", plain="qwen3_14b"),
    "qwen3-8b": Flavor("qwen3", "8B", plain="qwen3_14b"),
    "qwen3-14b": Flavor("qwen3", "14B", "qwen3_14b"),
    "qwen3-32b": Flavor("qwen3", "32B", "qwen3_32b"),
    "qwen3-30b-a3b": Flavor("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    "qwen3-235b-a22b": Flavor("qwen3", "235B-A22B", plain="qwen3_30b_a3b"),
    "deepseek-v2-lite": Flavor("deepseek_v3", "16B", "deepseek_v3_16b"),
    "deepseek-v2": Flavor("deepseek_v3", "236B", plain="deepseek_v3_16b"),
    "deepseek-v3": Flavor("deepseek_v3", "671B", "deepseek_v3_671b"),
    "gpt-oss-20b": Flavor("gpt_oss", "20b", "gpt_oss_20b"),
    "gpt-oss-120b": Flavor("gpt_oss", "120b", "gpt_oss_120b"),
}

OLDER = {"7B": "llama-2-7b", "13B": "llama-2-13b", "70B": "llama-2-70b"}
"""Flavors of `llama2`, of torchtitan's first releases (`models/llama/__init__.py`)."""


def model_named(module: object, flavor: object) -> str | None:
    """Our name of torchtitan's `flavor` of `module`, None if we have no such model."""
    base = str(flavor).removesuffix("_flex").removesuffix("_varlen").removesuffix("_irope")
    if module == "llama2":
        return OLDER.get(base)
    for ours, theirs in MODELS.items():
        if (theirs.module, theirs.flavor) == (str(module), base):
            return ours
    return None


def model_of_function(name: str) -> str | None:
    """Our name of the model that 0.3's configuration function `name` builds."""
    return next((ours for ours, flavor in MODELS.items() if flavor.function == name != ""), None)


def module_names(version: Version, counts: tuple[int, ...]) -> list[list[str]]:
    """`module_fqns_per_model_part`: the modules of each stage, `counts` layers in each."""
    parts, at = [], 0
    for count in counts:
        parts.append([f"layers.{layer}" for layer in range(at, at + count)])
        at += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output" if version == "0.2" else "lm_head"]
    return parts


def exchange_words(layout: Layout, version: Version) -> dict[str, str]:
    """The keys of the kinds of exchanges that the layout states."""
    words: dict[str, str] = {}
    for name, kinds, stated in _exchanges(layout, version):
        if stated in kinds.values():
            words[name] = next(word for word, ours in kinds.items() if ours == stated)
    return words


def exchange_unsaid(layout: Layout, version: Version) -> list[CannotSay]:
    """Those of them that torchtitan has no word for."""
    written = exchange_words(layout, version)
    defaults = {"context_parallel_rotate_method": ("context_kind", "all_gather"),
                "expert_parallel_comm_backend": ("dispatcher", "all_to_all")}  # fmt: skip
    return [
        CannotSay(f"layout.{ours}", getattr(layout, ours), f"torchtitan {version} has no word")
        for name, (ours, default) in defaults.items()
        if name not in written and getattr(layout, ours) not in ("", default)
    ]


def _exchanges(layout: Layout, version: Version) -> Iterator[tuple[str, Mapping[str, str], str]]:
    if version == "0.3":  # its ParallelismConfig has neither key
        return
    if layout.context_parallel > 1:
        yield "context_parallel_rotate_method", ROTATES, layout.context_kind
    if layout.expert_parallel > 1:
        yield "expert_parallel_comm_backend", BACKENDS, layout.dispatcher


UNCOMPILED = {"0.2": "torchtitan-eager", "0.3": "torchtitan-eager-chunked-loss"}
"""The engines of a file that switches torch.compile off, which is torchtitan's default: `compile.
enable` is false where nothing is said (pytorch/torchtitan@0014ac2c torchtitan/config/configs.py).
"""
