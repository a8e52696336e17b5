"""What NeMo 1's `trainer` and `model.optim` say that no reader takes.

Apex's distributed Adam of NeMo has switches that change the bytes of gradients and states; a
strategy of Lightning's another sharding. The lists are `keys/nemo_run_keys.toml`.
"""

from collections.abc import Mapping

from meshplan.executor.frameworks.documents.values import Values
from meshplan.executor.frameworks.keys.lists import judged
from meshplan.planner.case.reading import Fact

_LISTS = ("nemo_run_keys.toml",)
_SECTIONS = {"trainer": "trainer.", "model.optim": "optim."}
_NARROW = ("bf16", "bfloat16", "torch.bfloat16", "fp16", "16")


def of_run(found: Mapping[str, Fact]) -> tuple[list[Fact], list[str]]:
    """What is not understood of both sections, and notes of what is priced as usual."""
    sections = {name.rpartition(".")[0] for name in found}
    stated = [
        (_SECTIONS[section] + last, Fact(True, fact.line) if name in sections else fact)
        for name, fact in found.items()
        for section, _, last in [name.rpartition(".")]
        if section in _SECTIONS and (fact.value is not None or name in sections)
    ]
    return judged(stated, _LISTS, "{}")


def sums_narrow(found: Mapping[str, Fact]) -> bool:
    """Whether gradients are exchanged, and kept, in 16 bits."""
    stated = found.get("model.optim.grad_sync_dtype")
    return stated is not None and str(stated.value).lower() in _NARROW


_LONGEST = "model.data.train_ds.max_seq_length"


def tuning_length(found: Mapping[str, Fact], facts: dict[str, Fact]) -> list[str]:
    """Adds the length of samples to fine-tune on, where the file states no other; a note of it."""
    length = None if "seq_len" in facts else Values(found).count(_LONGEST)
    if length is None:
        return []
    facts["seq_len"] = length
    said = "samples are priced with as many tokens each, the most; fewer need less"
    return [f"line {length.line}: train_ds.max_seq_length {length.value}: {said}"]


def keeps_scores(found: Mapping[str, Fact], mode: str) -> list[Fact]:
    """NeMo's own layers, which a file asks for with `transformer_engine: false`, keep the scores of
    attention unless they are recomputed or FlashAttention is asked for (NVIDIA/NeMo@8cfedd72
    nemo/collections/nlp/modules/common/megatron/attention.py, CoreAttention).
    """
    layers = found.get("model.transformer_engine")
    others = (found.get(f"model.{name}") for name in ("mcore_gpt", "use_flash_attention"))
    if layers is None or layers.value is not False or mode != "none":
        return []
    if any(fact is not None and fact.value is True for fact in others):
        return []
    why = "NeMo's own layers keep the scores of attention, which is not modelled"
    return [Fact(f"transformer_engine false ({why})", layers.line)]


def averaged(found: Mapping[str, Fact]) -> list[Fact]:
    """The moving average of the weights, which is a second copy of them on the GPU, or is moved
    there from the host (NVIDIA/NeMo@8cfedd72 nemo/utils/exp_manager.py, EMAParams).
    """
    stated = found.get("exp_manager.ema.enable")
    if stated is None or stated.value is not True:
        return []
    host = found.get("exp_manager.ema.cpu_offload")
    why = "a second copy of the weights is"
    if host is not None and host.value is True:
        why = "moving averages to the host and back is"
    return [Fact(f"exp_manager.ema ({why} not modelled)", stated.line)]
