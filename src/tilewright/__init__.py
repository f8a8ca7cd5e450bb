"""tilewright: batch inference from the kernel up.

    import tilewright as tw
    model = tw.load("critic")                       # a name, a model directory, or a file of the course
    model.classify(["A warm, funny film.", ...])    # [{"label", "score", "logits"}]
    tw.matmul(a, b, bias=b, activation="relu")

Importing this package loads nothing heavy; each name brings what it needs when it is first used.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "load": "tilewright.runtime.load",
    "SamplingParams": "tilewright.generation.sampling",
    "matmul": "tilewright.ops.matmul",
    "conv3d": "tilewright.ops.conv3d",
    "conv_transpose2d": "tilewright.ops.conv_transpose2d",
    "conv1d": "tilewright.ops.conv1d",
    "embedding": "tilewright.ops.embedding",
    "using": "tilewright.ops.core.ladder",
    "threads": "tilewright.ops.core.launch",
    "TilewrightError": "tilewright.errors",
}
__all__ = [*_PUBLIC, "ndimage"]


def __getattr__(name: str) -> Any:
    if name == "ndimage":
        return import_module("tilewright.ndimage")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
