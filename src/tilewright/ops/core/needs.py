"""The needs (requirements) of rungs. A need is a function of the problem that returns the reason for a refusal, or
None.

Its docstring describes the need, for `tilewright ladder OP --list`.
"""

from collections.abc import Callable

from tilewright.hardware import cpu, gpus, unavailable


def _described(text: str, need: Callable) -> Callable:
    need.__doc__ = text
    return need


def cpu_feature(name: str):
    """This CPU has LLVM's feature `name`."""
    return _described(f"a CPU with {name}", lambda problem: None if cpu().has(name) else f"this CPU has no {name}")


def fast_pairs(problem) -> str | None:
    """a CPU that multiplies pairs of bfloat16 faster than float32"""
    return None if cpu().multiplies_pairs else "this CPU multiplies float32 faster than pairs of bfloat16"


def fast_bytes(problem) -> str | None:
    """a CPU that multiplies bytes faster than float32: with AVX2, or with AVX-512 if it has avx512vnni"""
    return None if cpu().multiplies_bytes else "this CPU does not multiply bytes faster than float32"


def at_least(field: str, least: int):
    """`problem.field >= least`."""

    def need(problem) -> str | None:
        value = getattr(problem, field)
        return None if value >= least else f"{field} is {value}, it needs {least}"

    return _described(f"{field} >= {least:,}", need)


def at_most(field: str, most: int):
    """`problem.field <= most`."""

    def need(problem) -> str | None:
        value = getattr(problem, field)
        return None if value <= most else f"{field} is {value}, it takes up to {most}"

    return _described(f"{field} <= {most:,}", need)


def divides(field: str, divisor: int):
    """`problem.field` is a multiple of `divisor`."""

    def need(problem) -> str | None:
        value = getattr(problem, field)
        return f"{field} is {value}, it needs a multiple of {divisor}" if value % divisor else None

    return _described(f"{field} a multiple of {divisor}", need)


def amx_tiles(problem) -> str | None:
    """a CPU with AMX bfloat16 tiles and vectors of 16 lanes"""
    from tilewright.simd import amx

    if not amx.available():
        return "this CPU or its operating system offers no AMX bfloat16 tiles"
    lanes = cpu().lanes  # panels are two vectors wide, and tiles read panels of 32 columns
    return None if lanes == 16 else f"this CPU has vectors of {lanes} lanes; kernels on AMX tiles need 16 (AVX-512)"


def on(device: str, *names: str):
    """The arrays are on `device`, and the accuracy class is one of `names`."""

    def need(problem) -> str | None:
        if problem.device != device:
            return f"dtype is {problem.dtype} on {problem.device}, it takes {' or '.join(names)} on {device}"
        return None if problem.dtype in names else f"dtype is {problem.dtype}, it takes {' or '.join(names)}"

    return _described(f"{' or '.join(names)} on {device}", need)


def engine(name: str):
    """The kernels of "simt" or "tile" can run here. Tested for problems on a GPU only: the test starts the driver."""
    libraries = {"simt": "numba-cuda", "tile": "Triton"}[name]
    return _described(f"a GPU and {libraries}", lambda problem: unavailable(name) if problem.device == "cuda" else None)


def hopper(problem) -> str | None:
    """a Hopper GPU (compute capability 9.0)"""
    if problem.device != "cuda" or any(gpu.capability == (9, 0) for gpu in gpus()):
        return None
    return "it needs a Hopper GPU (compute capability 9.0)"
