"""Which engines can run here. A missing one is listed with the reason."""

import importlib.util

MODULES = {"cpu": "numba", "simt": "numba_cuda", "tile": "triton", "torch": "torch", "mpi": "mpi4py"}


def engines() -> dict[str, str | None]:
    """Engine -> None if its module can be found, otherwise the reason why not. Nothing is imported."""
    return {engine: missing(engine) for engine in MODULES}


def missing(engine: str) -> str | None:
    """None if the engine's module can be found, otherwise the reason why not."""
    module = MODULES[engine]
    return None if importlib.util.find_spec(module) else f"No module named {module!r}"
