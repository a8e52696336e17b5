"""Kinds of training whose steps the cost model does not price: a log of them teaches nothing.

Sources: huggingface/trl `trl/trainer/grpo_trainer.py`, `dpo_trainer.py` (names of metrics);
volcengine/verl@b178a3cd `verl/trainer/ppo/ray_trainer.py` (timing_s); deepspeedai/DeepSpeedExamples
`applications/DeepSpeed-Chat` (print_throughput_step3; `training/step2_*/main.py`: evaluations of
reward models and of DPO).
"""

import re

_KINDS = {
    "reinforcement learning: a step of it is mostly generation": re.compile(
        r"\bcompletions/(?:mean|min|max)_length\b|\btiming_s/gen\b|\|Generate time="
    ),
    "training by preferences: pairs of sequences, and a reference model beside them": re.compile(
        r"\brewards/chosen\b|\*{5} Evaluating rewards, Epoch \d"
    ),
    "a reward model's training: pairs of sequences, and a score instead of next tokens": re.compile(
        r"\*{5} Evaluating reward, Epoch \d"
    ),
}


_WORDS = ("completions/", "timing_s/gen", "|Generate time=", "rewards/chosen", "Evaluating reward")
"""One of these is in any such log: looked for first, in a fraction of a pattern's time."""


def not_priced(text: str) -> str | None:
    """What the log is of, where its steps are not priced."""
    if not any(word in text for word in _WORDS):
        return None
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(text)), None)
