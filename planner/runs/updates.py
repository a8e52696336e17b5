"""How a measured run's framework updates the weights, from its name and year."""

from meshplan.planner.runs.rows import Row

UPDATED_BY_OPERATOR = {"torchtitan": 2024, "transformers": 2025, "prime-rl": 2026}
"""The last year in which a framework left torch.optim.AdamW to its default, multi-tensor operators
(foreach): torchtitan's `optimizer.fused` was off until 2025, whose `implementation` is "fused"
(pytorch/torchtitan torchtitan/config_manager.py); transformers' `optim` is adamw_torch, and
adamw_torch_fused where PyTorch is 2.8 or later (src/transformers/training_args.py, default_optim);
prime-rl says nothing of `fused` until August 2026 (PrimeIntellect-ai/prime-rl@2cc5c550b
src/prime_rl/trainer/optim.py).
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
