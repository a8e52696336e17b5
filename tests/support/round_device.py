"""A device whose rates are round."""

from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning


def round_device() -> Device:
    """100 units, 100 TFLOP/s bf16, all of it reached, 1 TB/s, 10 us launches, nothing fitted."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    gpu = cluster.gpu.model_copy(
        update={
            "compute_units": 100, "memory_bandwidth_bytes_per_s": 1e12,
            "peak_flops_per_s": {"bf16": 100e12, "fp8": 200e12},
        }
    )  # fmt: skip
    kernels = cluster.kernels.model_copy(
        update={
            "matmul_efficiency": {"bf16": 1.0, "fp8": 1.0}, "grouped_efficiency": {"bf16": 0.5},
            "memory_efficiency": 1.0, "launch_s": 1e-5, "attention_forward": 0.5,
            "attention_backward": 0.4, "matmul_points": (), "attention_points": (),
            "attention_half_forward": 128.0, "attention_half_backward": 128.0,
        }
    )  # fmt: skip
    return Device(gpu, kernels, Tuning(), RECIPES["bf16"])
