"""What a measured run's PyTorch ran, from its framework's name and year: the update of the weights,
and attention on AMD's GPUs.
"""

from meshplan.planner.runs.rows import Row

UPDATED_BY_OPERATOR = {"torchtitan": 2024, "transformers": 2025}
"""The last year in which a framework left torch.optim.AdamW to its default, multi-tensor operators
(foreach): torchtitan's `optimizer.fused` was off until 2025, whose `implementation` is "fused"
(pytorch/torchtitan torchtitan/config_manager.py); transformers' `optim` is adamw_torch, and
adamw_torch_fused where PyTorch is 2.8 or later (src/transformers/training_args.py, default_optim).
"""
OWN_LOOP = "own loop"
"""The source's own loop calls torch.optim.AdamW as it comes, unless its row says fused_step."""


def update_said(row: Row) -> dict[str, bool]:
    """Whether PyTorch's AdamW updated the weights operator by operator."""
    words = row.framework.lower()
    own = OWN_LOOP in words
    years = (last for name, last in UPDATED_BY_OPERATOR.items() if name in words)
    old = row.year is not None and any(row.year <= last for last in years)
    elsewhere = "deepspeed" in words  # its own fused Adam
    return {"updates_by_operator": True} if (own or old) and not elsewhere else {}


LAST_BY_TRITON = 2025
"""The last year whose runs on AMD's GPUs are taken to have Triton's backward of attention: PyTorch
2.9, the first with AITER's, is of October 2025 (pytorch pull request 161754).
"""


def assembly_said(row: Row) -> dict[str, bool]:
    """Whether PyTorch's attention was not AITER's yet, or FlexAttention over packed samples
    (torchtune/modules/attention_utils.py), which Triton compiles.
    """
    old = row.year is not None and row.year <= LAST_BY_TRITON
    packed = "torchtune" in row.framework.lower()
    return {"sdpa_by_assembly": False} if old or packed else {}
