"""The words with which a rung refuses. Each returns a need: a function of the problem that gives a reason, or None."""

from tilewright.hardware import cpu, gpus, unavailable


def dtype(*names: str):
    """The accuracy class is one of `names`."""
    return lambda problem: (
        None if problem.dtype in names else f"dtype is {problem.dtype}, it takes {' or '.join(names)}"
    )


def cpu_feature(name: str):
    """This CPU has LLVM's feature `name`."""
    return lambda problem: None if cpu().has(name) else f"this CPU has no {name}"


def fast_pairs(problem) -> str | None:
    """Pairs of bfloat16 are multiplied faster than float32 is."""
    return None if cpu().multiplies_pairs else "this CPU multiplies float32 faster than pairs of bfloat16"


def at_least(field: str, least: int):
    """`problem.field >= least`."""
    return lambda problem: (
        None if getattr(problem, field) >= least else f"{field} is {getattr(problem, field)}, it needs {least}"
    )


def at_most(field: str, most: int):
    """`problem.field <= most`."""
    return lambda problem: (
        None if getattr(problem, field) <= most else f"{field} is {getattr(problem, field)}, it takes up to {most}"
    )


def divides(field: str, divisor: int):
    """`problem.field` is a multiple of `divisor`."""
    return lambda problem: (
        f"{field} is {getattr(problem, field)}, it needs a multiple of {divisor}"
        if getattr(problem, field) % divisor
        else None
    )


def amx_tiles(problem) -> str | None:
    """AMX tiles are there and granted to this process."""
    from tilewright.simd import amx

    return None if amx.available() else "this CPU or its operating system offers no AMX bfloat16 tiles"


def on(device: str, *names: str):
    """The arrays are on `device`, and the accuracy class is one of `names`."""

    def need(problem) -> str | None:
        if problem.device != device:
            return f"dtype is {problem.dtype} on {problem.device}, it takes {' or '.join(names)} on {device}"
        return None if problem.dtype in names else f"dtype is {problem.dtype}, it takes {' or '.join(names)}"

    return need


def engine(name: str):
    """The kernels of "simt" or "tile" can run here. Asked for problems on a GPU alone: it starts the driver."""
    return lambda problem: unavailable(name) if problem.device == "cuda" else None


def hopper(problem) -> str | None:
    """The GPU has Hopper's matrix instructions and bulk copies, compute capability 9.0."""
    if problem.device != "cuda" or any(gpu.capability == (9, 0) for gpu in gpus()):
        return None
    return "it needs a Hopper GPU (compute capability 9.0)"
