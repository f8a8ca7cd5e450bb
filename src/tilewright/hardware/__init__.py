"""Facts about this machine: CPU, memory, and which engines import and why not. Probed when asked, then kept."""

from tilewright.hardware.cpu import CPU, available_memory, cpu, machine_name
from tilewright.hardware.engines import engines

__all__ = ["CPU", "available_memory", "cpu", "engines", "machine_name"]
