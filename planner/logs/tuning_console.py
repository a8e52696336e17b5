"""Step time and memory out of the lines of three frameworks of fine-tuning.

    AutoModel   step 3 | epoch 0 | loss 1.23 | ... | mem 51.2 GiB | tps 9876.5(1234.6/gpu) | ...
                tps is tokens per second of all GPUs (what is behind it is divided by the replicas
                alone), without the padding at the ends of sequences; mem the allocated peak of
                the step
    torchtune   Step 3 | loss:1.23 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_alloc:9.8
                peak_memory_reserved:12.3; tokens that the loss counts; peaks in GiB
    verl        step:3 - train/loss:0.79 - train/lr(1e-3):0.01 - train/time(s):6.08, or in its
                file {"step":3,"data":{"train/loss":0.79,...}}: of its SFT trainer on FSDP, without
                what lies between two steps
                Epoch 1/2:  12%|#2        | 12/100 [01:02<07:35,  5.18s/it]
                step:3 - perf/max_memory_reserved_gb:14.7 - train/loss:0.79 - ... -
                train/global_tokens:65536: of the one on its engines (since 0.6), which says no
                time: its bar, a new one for each epoch, in entries of 30 s and more; peaks in GiB

AutoModel and torchtune do not count what is masked or padding: a step's time follows from the
tokens of its config where every token counts, which a note says.

Sources: NVIDIA-NeMo/Automodel@36044ad `nemo_automodel/recipes/llm/train_ft.py`
(log_train_metrics); pytorch/torchtune@bd2a0fc `recipes/full_finetune_distributed.py`,
`torchtune/training/metric_logging.py` (DiskLogger, StdoutLogger), `training/memory.py`;
volcengine/verl@b178a3cd `verl/trainer/fsdp_sft_trainer.py`, `verl/utils/tracking.py` (FileLogger),
volcengine/verl@0062357f `verl/trainer/sft_trainer.py`.
"""

import re
from collections.abc import Iterator

from meshplan.costmodels.units import GIB
from meshplan.planner.logs.console import BETWEEN, COUNT, NUMBER, PLAIN
from meshplan.planner.logs.trainer_console import BAR_CLOCK, Clock, clock_seconds, entries
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
_VERL = re.compile(
    rf"\bstep[\"']?: ?(?P<step>{COUNT})\b{BETWEEN}train/time\(s\)[\"']?: ?"
    rf"(?P<taken>{PLAIN}(?:[eE][-+]?\d{{1,4}})?)"
)
_VERL_ENGINES = re.compile(rf"\bstep:{COUNT} - .{{0,400}}?train/global_tokens:")
_VERL_BAR = re.compile(rf"\bEpoch (?P<epoch>\d{{1,6}})/\d{{1,6}}: {{1,9}}{BAR_CLOCK}")
_VERL_PEAK = re.compile(rf"perf/max_memory_(?P<kind>allocated|reserved)_gb:(?P<gib>{PLAIN})")
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


def read_verl(text: str) -> TrainingLog:
    """The log of verl's SFT trainers, printed or in its file."""
    found = (m for line in text.splitlines() if (m := _VERL.search(line)))
    steps = slowest(LoggedStep(int(m["step"]), float(m["taken"]), None) for m in found)
    if steps or not _VERL_ENGINES.search(text):
        return TrainingLog(steps, None, None, notes=(WITHIN_STEPS,) * bool(steps))
    peaks: dict[str, float] = {}
    for m in _VERL_PEAK.finditer(text):
        peaks[m["kind"]] = max(peaks.get(m["kind"], 0.0), float(m["gib"]) * GIB)
    steps = slowest(entries(_verl_clock(text)))
    return TrainingLog(steps, peaks.get("allocated"), peaks.get("reserved"))


def _verl_clock(text: str) -> Iterator[Clock]:
    """The clocks of the epochs' bars, one behind the other."""
    epoch, before_s, clock_s = 0, 0, 0
    for m in _VERL_BAR.finditer(text):
        now = int(m["epoch"])
        if now != epoch:
            epoch, before_s = now, clock_s if now > epoch else 0
        clock_s = before_s + clock_seconds(m)
        yield (now - 1) * int(m["total"]) + int(m["step"]), 0, clock_s


WITHIN_STEPS = "verl's train/time(s): without what lies between two steps"
