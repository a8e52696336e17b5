"""Options that Megatron's parser refuses: argparse, which takes an option as it is declared, with
dashes, and no word that belongs to none.

Only sizes and switches that a price depends on are looked at. Leaves out: prefixes of an option,
which argparse takes where only one option begins so; to a reader they are unknown arguments.

Source: NVIDIA/Megatron-LM@d98e8a64 `megatron/training/arguments.py`; Python's `argparse`.
"""

from collections.abc import Sequence

from meshplan.executor.frameworks.documents.values import shown
from meshplan.executor.frameworks.megatron.settings import COUNTS, OLDER
from meshplan.executor.frameworks.shell.launching.arguments import options_of
from meshplan.planner.case.reading import Fact, IllegalConfig

_SIZES = frozenset(
    (*COUNTS.values(), *OLDER.values(), "num_layers", "hidden_size", "ffn_hidden_size",
     "num_attention_heads", "num_query_groups", "kv_channels", "max_position_embeddings")
)  # fmt: skip
"""Arguments of one whole number."""
_SWITCHES = frozenset(
    ("bf16", "fp16", "swiglu", "sequence_parallel", "group_query_attention", "tp_comm_overlap",
     "use_distributed_optimizer", "use_megatron_fsdp", "recompute_activations",
     "overlap_grad_reduce", "overlap_param_gather", "disable_bias_linear",
     "untie_embeddings_and_output_weights", "cross_entropy_loss_fusion")
)  # fmt: skip
"""Arguments without a value (`store_true`, `store_false`)."""


def check_options(words: Sequence[Fact]) -> None:
    """Raise `IllegalConfig` for the first size or switch that the parser refuses."""
    for option, values in options_of(words):
        written = str(option.value)
        name = written[2:].replace("-", "_")
        if name not in _SIZES | _SWITCHES:
            continue
        declared, most = f"--{name.replace('_', '-')}", int(name in _SIZES)
        takes = "one value" if most else "no value"
        if written != declared:
            raise IllegalConfig(
                f"{written} is refused by Megatron's parser, whose option is {declared}",
                option.line,
            )
        if len(values) > most:
            raise IllegalConfig(
                f"{declared} takes {takes}, and {shown(values[most].value)} stands behind it, "
                "which Megatron's parser refuses", values[most].line,
            )  # fmt: skip
