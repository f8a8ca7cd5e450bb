"""GPUs and their driver, through the driver's own library, so no extra is needed to find out which GPUs exist."""

import ctypes
import functools
import threading
from contextlib import suppress
from dataclasses import dataclass

from tilewright.hardware.engines import missing

MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR = 16, 38, 75, 76  # attributes, by the numbers of cuda.h
WORKS = 0  # CUDA_SUCCESS


@dataclass(frozen=True)
class GPU:
    """One device. memory, l2: bytes. capability: (9, 0) is Hopper. driver: the newest CUDA that the driver supports,
    "13.0"."""

    name: str
    multiprocessors: int
    memory: int
    l2: int
    capability: tuple[int, int]
    driver: str


@functools.cache
def _driver() -> tuple[ctypes.CDLL | None, str]:
    """(the initialised driver library, "") or (None, why there is none)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "this machine has no NVIDIA driver (libcuda.so.1)"
    status = library.cuInit(0)
    return (library, "") if status == WORKS else (None, f"the NVIDIA driver does not start (CUDA error {status})")


@functools.cache
def start_ahead(*, context: bool) -> None:
    """Start the driver in another thread, while the caller imports large libraries; once for each `context`. It takes
    0.2 s.

    context: also create the context in which PyTorch and numba-cuda will compute, if the driver shows a single GPU.
    Errors are ignored here, and raised where the GPU is needed. Python waits for the thread before it exits. Only a
    process that computes on the GPU itself should call this, because a context occupies memory.
    """
    with suppress(RuntimeError):  # the system gives no more threads
        threading.Thread(target=_start, args=(context,), name="tilewright-gpu-start").start()


def _start(context: bool) -> None:
    library, _ = _driver()
    if library is not None and context and len(gpus()) == 1:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)


@functools.cache
def gpus() -> tuple[GPU, ...]:
    """The NVIDIA GPUs of this machine in the driver's order; none if there is no driver."""
    library, _ = _driver()
    count, version = ctypes.c_int(), ctypes.c_int()
    if library is None or library.cuDeviceGetCount(ctypes.byref(count)) != WORKS:
        return ()
    library.cuDriverGetVersion(ctypes.byref(version))
    driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return tuple(_gpu(library, i, driver) for i in range(count.value))


def _gpu(library: ctypes.CDLL, number: int, driver: str) -> GPU:
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    library.cuDeviceGetName(name, len(name), number)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), number)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), which, number)
        return value.value

    capability = attribute(MAJOR), attribute(MINOR)
    l2, multiprocessors = attribute(L2_BYTES), attribute(MULTIPROCESSORS)
    return GPU(name.value.decode(errors="replace"), multiprocessors, memory.value, l2, capability, driver)


def simulated(engine: str) -> bool:
    """True if its kernels run as Python code on the CPU: NUMBA_ENABLE_CUDASIM=1 for simt, TRITON_INTERPRET=1 for
    tile."""
    if engine == "simt":
        from numba import config

        return bool(getattr(config, "ENABLE_CUDASIM", False))
    import triton

    return bool(triton.knobs.runtime.interpret)


def unavailable(engine: str) -> str | None:
    """Why kernels of "simt" or "tile" cannot run here; None if they can."""
    if why := missing(engine):
        return why
    return None if simulated(engine) else no_gpu()


def no_gpu() -> str | None:
    """Why there is no GPU; None if there is one."""
    return None if gpus() else _driver()[1] or "the NVIDIA driver shows no GPU"


def gpu_name() -> str:
    """A folder name for results, "nvidia-h200"; "no-gpu" if there is none."""
    return "-".join(gpus()[0].name.lower().split()) if gpus() else "no-gpu"
