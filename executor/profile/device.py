"""Which of the GPUs we have a datasheet for this device is."""

import torch

from meshplan.executor.profile.write import Measured, measured_gpu
from meshplan.hardware_profiles.built_in import gpu_names, load_gpu
from meshplan.hardware_profiles.local_cpu import detect_cpu
from meshplan.hardware_profiles.schema import Gpu

MEMORY_TOLERANCE = 0.03  # drivers reserve a little more or less


def found_gpu(device: torch.device, ranks_per_node: int, measured: Measured) -> Gpu:
    """The datasheet of `device`, or for a CPU or an unknown device what was measured."""
    if device.type == "cpu":
        return measured_gpu(detect_cpu(ranks_per_node), measured)
    properties = torch.cuda.get_device_properties(device)
    known = recognise(properties.name, properties.total_memory, properties.multi_processor_count)
    if known is not None:
        return known
    unknown = Gpu(
        name="-".join(properties.name.lower().split()),
        title=properties.name,
        vendor="amd" if torch.version.hip else "nvidia",
        memory_bytes=properties.total_memory,
        memory_bandwidth_bytes_per_s=max(measured.bandwidths.values()),
        peak_flops_per_s={},
        compute_units=properties.multi_processor_count,
        sources={"memory_bytes": "the device", "compute_units": "the device"},
    )
    return measured_gpu(unknown, measured)


def recognise(title: str, memory_bytes: float, compute_units: int) -> Gpu | None:
    """The GPU whose model number, memory and compute units are those of the device, if one is.

    Where several agree, the form (SXM, PCIe) in the driver's name decides; if it says none, the one
    whose own name says none, or SXM.
    """
    words = set(title.lower().replace("-", " ").split())
    fitting = [
        gpu
        for gpu in map(load_gpu, gpu_names())
        if gpu.name.split("-")[0] in words
        and gpu.compute_units == compute_units
        and abs(gpu.memory_bytes / memory_bytes - 1) < MEMORY_TOLERANCE
    ]
    if len(fitting) == 1:
        return fitting[0]
    said = next((form for form in FORMS if any(form in word for word in words)), "")
    for form in (said,) if said else ("", "sxm"):
        named = [gpu for gpu in fitting if _form(gpu.name) == form]
        if named:
            return named[0] if len(named) == 1 else None
    return None


FORMS = ("pcie", "sxm", "nvl")


def _form(name: str) -> str:
    return next((form for form in FORMS if form in name), "")
