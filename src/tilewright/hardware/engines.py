"""Which engines can run here. A missing one is a line with its reason, not an absence."""

import importlib.util

MODULES = {"cpu": "numba", "simt": "numba_cuda", "tile": "triton", "torch": "torch", "mpi": "mpi4py"}


def engines() -> dict[str, str | None]:
    """Engine -> None if its module can be found, else why not; nothing is imported."""
    found = {}
    for engine, module in MODULES.items():
        found[engine] = None if importlib.util.find_spec(module) else f"No module named {module!r}"
    return found
