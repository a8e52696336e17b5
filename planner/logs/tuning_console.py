"""Step time and memory out of the lines of two frameworks of fine-tuning.

    AutoModel   step 3 | epoch 0 | loss 1.23 | ... | mem 51.2 GiB | tps 9876.5(1234.6/gpu) | ...
                tps is tokens per second of all GPUs (what is behind it is divided by the replicas
                alone), without the padding at the ends of sequences; mem the allocated peak of
                the step
    torchtune   Step 3 | loss:1.23 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_alloc:9.8
                peak_memory_reserved:12.3; tokens that the loss counts; peaks in GiB

Neither counts what is masked or padding: a step's time follows from the tokens of its config where
every token counts, which a note says.

Sources: NVIDIA-NeMo/Automodel@36044ad `nemo_automodel/recipes/llm/train_ft.py`
(log_train_metrics); pytorch/torchtune@bd2a0fc `recipes/full_finetune_distributed.py`,
`torchtune/training/metric_logging.py` (DiskLogger, StdoutLogger), `training/memory.py`.
"""

import re

from meshplan.costmodels.units import GIB
from meshplan.planner.logs.console import BETWEEN, COUNT, NUMBER, PLAIN
from meshplan.planner.logs.training_log import LoggedStep, TrainingLog, slowest

_AUTOMODEL = re.compile(
    rf"step (?P<step>{COUNT}) \| epoch {COUNT} \| loss (?P<loss>{NUMBER}) \|{BETWEEN}"
    rf"\| mem (?P<gib>{PLAIN}) GiB \| tps (?P<tps>{PLAIN})\({PLAIN}/gpu\)"
)
_TORCHTUNE = re.compile(
    rf"Step (?P<step>{COUNT}) \| loss:(?P<loss>{NUMBER}) {BETWEEN}"
    rf"tokens_per_second_per_gpu:(?P<rate>{PLAIN}(?:[eE][-+]?\d{{1,4}})?)"
)
_PEAKS = re.compile(
    rf"peak_memory_alloc:(?P<allocated>{PLAIN})(?: peak_memory_reserved:(?P<reserved>{PLAIN}))?"
)
COUNTED = "right where every token counts: {} leaves out {}"


def read_automodel(text: str, tokens: float) -> TrainingLog:
    """AutoModel's own log; `tokens`: of a step, over all GPUs."""
    found = [m for m in _AUTOMODEL.finditer(text) if float(m["tps"])]
    steps = (LoggedStep(int(m["step"]), tokens / float(m["tps"]), float(m["loss"])) for m in found)
    allocated = max((float(m["gib"]) * GIB for m in found), default=0.0)
    said = (COUNTED.format("tps", "padding"),) * bool(found)
    return TrainingLog(slowest(steps), allocated or None, None, notes=said)


def read_torchtune(text: str, tokens_per_gpu: float) -> TrainingLog:
    """What torchtune writes to disk as text, or prints; `tokens_per_gpu`: of a step."""
    found = [m for m in _TORCHTUNE.finditer(text) if float(m["rate"])]
    steps = (
        LoggedStep(int(m["step"]), tokens_per_gpu / float(m["rate"]), float(m["loss"]))
        for m in found
    )
    allocated, reserved = (
        max((float(m[name]) * GIB for m in _PEAKS.finditer(text) if m[name]), default=0.0) or None
        for name in ("allocated", "reserved")
    )
    said = (COUNTED.format("tokens_per_second_per_gpu", "padding and masked tokens"),) * bool(found)
    return TrainingLog(slowest(steps), allocated, reserved, notes=said)
