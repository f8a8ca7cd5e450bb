"""The CPU and its memory."""

import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from tilewright.hardware import cgroup


@dataclass(frozen=True)
class CPU:
    """What kernels and users need to know about a processor. Sizes are in bytes, None if the system does not state
    them."""

    name: str
    cores: int  # that this process may use: affinity and control group counted in
    features: frozenset[str]  # in LLVM's spelling: "avx512f", "avx512bf16", "amx-bf16"
    l1d: int | None
    l2: int | None
    l3: int | None
    memory: int  # of the machine, or the control group's limit where that is less

    def has(self, feature: str) -> bool:
        """Whether the CPU has LLVM's feature of that name."""
        return feature in self.features

    @property
    def lanes(self) -> int:
        """The float32 lanes of a vector register: 16 with AVX-512, 8 with AVX2 and FMA, otherwise 4."""
        if self.has("avx512f") and self.has("avx512vl"):
            return 16
        return 8 if self.has("avx2") and self.has("fma") else 4

    @property
    def multiplies_pairs(self) -> bool:
        """True if VDPBF16PS exists and takes less time than the two float32 multiply-adds that it replaces.

        On Intel's cores it takes more (Emerald Rapids: 83 GFLOP/s per core with it, 142 without); they have AMX for
        this.
        """
        return self.has("avx512bf16") and "Intel" not in self.name

    @property
    def multiplies_bytes(self) -> bool:
        """True if products of bytes take less time than those of float32: by VPDPBUSD in AVX-512, or by AVX2."""
        return self.has("avx512vnni") if self.lanes == 16 else self.lanes == 8


@functools.cache
def cpu() -> CPU:
    """This machine's CPU."""
    import llvmlite.binding
    import psutil

    flags = llvmlite.binding.get_host_cpu_features()
    return CPU(
        name=_cpu_name(),
        cores=_usable_cores(),
        features=frozenset(name for name, present in flags.items() if present),
        l1d=_cache("L1d"),
        l2=_cache("L2"),
        l3=_cache("L3"),
        memory=min(psutil.virtual_memory().total, cgroup.memory_limit() or 1 << 62),
    )


def available_memory() -> int:
    """Bytes that can be allocated now without swapping, within the control group's limit."""
    import psutil

    free = psutil.virtual_memory().available
    left = cgroup.memory_left()
    return free if left is None else min(free, left)


WITH_AMX = {"sapphirerapids", "emeraldrapids", "graniterapids"}  # LLVM's names of CPUs that have AMX


def machine_name() -> str:
    """A folder name for results: the CPU's model and its usable cores, "amd-epyc-zen5-2c".

    A virtual machine may hide the matrix units (AMX) of an Intel CPU. For the kernels it is then another machine:
    "intel-xeon-emeraldrapids-noamx-2c".
    """
    import llvmlite.binding

    words = re.sub(r"\((r|tm)\)|cpu|processor|@.*|\d+-core", " ", _cpu_name().lower())
    slug = "-".join(re.findall(r"[a-z0-9]+", words)) or platform.machine()
    core = re.sub(r"[^a-z0-9]", "", llvmlite.binding.get_host_cpu_name().replace("znver", "zen"))
    hidden = core in WITH_AMX and not llvmlite.binding.get_host_cpu_features().get("amx-bf16")
    vague = not re.search(r"\d", slug)  # virtual machines often state only "AMD EPYC"
    return "-".join([slug, *[core] * vague, *["noamx"] * hidden, f"{_usable_cores()}c"])


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.cores()
    return cores if quota is None else max(min(cores, round(quota)), 1)


def _cache(level: str) -> int | None:
    """Bytes of one cache of core 0."""
    wanted = {"L1d": ("1", "Data"), "L2": ("2", "Unified"), "L3": ("3", "Unified")}[level]
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            found = (folder / "level").read_text().strip(), (folder / "type").read_text().strip()
            if found == wanted:
                size = (folder / "size").read_text().strip()
                return int(size.rstrip("KM")) * {"K": 1024, "M": 1024**2}.get(size[-1], 1)
        except (OSError, ValueError):
            continue
    return None
