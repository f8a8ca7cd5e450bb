"""The words with which a rung refuses. Each returns a need: a function of the problem that gives a reason, or None."""

from tilewright.hardware import cpu


def dtype(*names: str):
    """The accuracy class is one of `names`."""
    return lambda problem: (
        None if problem.dtype in names else f"dtype is {problem.dtype}, it takes {' or '.join(names)}"
    )


def cpu_feature(name: str):
    """This CPU has LLVM's feature `name`."""
    return lambda problem: None if cpu().has(name) else f"this CPU has no {name}"


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
