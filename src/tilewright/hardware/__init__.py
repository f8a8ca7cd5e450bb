"""Facts about this machine: CPU, GPUs, memory, and which engines can be imported and why not. Each is found out
once."""

from tilewright.hardware.cpu import CPU, available_memory, cpu, machine_name
from tilewright.hardware.engines import engines
from tilewright.hardware.gpu import GPU, gpu_name, gpus, no_gpu, unavailable

__all__ = [
    "CPU",
    "GPU",
    "available_memory",
    "cpu",
    "engines",
    "gpu_name",
    "gpus",
    "machine_name",
    "no_gpu",
    "unavailable",
]
