"""DeepSpeed files that trainers bring along: their stages, what is on the host, and whether
exchanges have streams of their own.

    LLaMA-Factory  examples/deepspeed/ds_z3_config.json ...  (hiyouga/LLaMA-Factory@ff6d4d12)
    axolotl        deepspeed_configs/zero3_bf16.json ...     (axolotl-ai-cloud/axolotl@067b021c)

A file of such a name that lies beside the configuration is read itself.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

_CPU = {"device": "cpu"}
_OPTIMIZER, _BOTH = {"offload_optimizer": _CPU}, {"offload_optimizer": _CPU, "offload_param": _CPU}
_COMPILED: dict[str, Any] = {"compile": {"disable": False, "backend": "inductor"}}


def _json(
    stage: int, more: Mapping[str, Any] | None = None, *, overlap: bool, **beside: Any
) -> str:
    """A file of this stage; its formats are the trainer's."""
    formats = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    zero = {"stage": stage, "overlap_comm": overlap, **(more or {})}
    return json.dumps({"zero_optimization": zero, **formats, **beside})


_alone, _beside = partial(_json, overlap=False), partial(_json, overlap=True)

SHIPPED: Mapping[str, Mapping[str, str]] = {
    "llama-factory": {
        f"examples/deepspeed/ds_{name}_config.json": text
        for name, text in (
            ("z0", _alone(0)), ("z2", _alone(2)), ("z2_offload", _alone(2, _OPTIMIZER)),
            ("z2_autotp", _alone(2, tensor_parallel={"autotp_size": 2})),
            ("z3", _alone(3)), ("z3_offload", _alone(3, _BOTH)),
        )
    },
    "axolotl": {
        f"deepspeed_configs/{name}.json": text
        for name, text in (
            ("zero1", _beside(1)), ("zero1_torch_compile", _beside(1, **_COMPILED)),
            ("zero2", _beside(2, _OPTIMIZER)),
            ("zero2_torch_compile", _beside(2, _OPTIMIZER, **_COMPILED)),
            ("zero3", _beside(3)), ("zero3_bf16", _beside(3)),
            ("zero3_bf16_cpuoffload_all", _beside(3, _BOTH)),
            ("zero3_bf16_cpuoffload_params", _beside(3, {"offload_param": _CPU})),
        )
    },
}  # fmt: skip
"""By trainer, and by the end of the path that a configuration states."""
