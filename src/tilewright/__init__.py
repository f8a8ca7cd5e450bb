"""tilewright: batch inference from the kernel up.

    import tilewright as tw
    model = tw.load("critic")                       # a name, a model directory, or a file of the course
    model.classify(["A warm, funny film.", ...])    # [{"label", "score", "logits"}]
    tw.matmul(a, b, bias=b, activation="relu")

Importing this package loads nothing heavy: a name is imported when it is first used.
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:  # for type checkers and editors, which do not run `__getattr__`
    from tilewright import ndimage as ndimage
    from tilewright.errors import TilewrightError as TilewrightError
    from tilewright.generation.sampling import SamplingParams as SamplingParams
    from tilewright.models.dcgan import DCGAN as DCGAN
    from tilewright.models.gpt2 import GPT2 as GPT2
    from tilewright.models.textcnn import TextCNN as TextCNN
    from tilewright.ops.conv1d import conv1d as conv1d
    from tilewright.ops.conv3d import conv3d as conv3d
    from tilewright.ops.conv_transpose2d import conv_transpose2d as conv_transpose2d
    from tilewright.ops.core.ladder import using as using
    from tilewright.ops.core.launch import threads as threads
    from tilewright.ops.embedding import embedding as embedding
    from tilewright.ops.matmul import matmul as matmul
    from tilewright.runtime.load import load as load
else:
    _MODULES = {
        "DCGAN": "models.dcgan",
        "GPT2": "models.gpt2",
        "SamplingParams": "generation.sampling",
        "TextCNN": "models.textcnn",
        "TilewrightError": "errors",
        "conv1d": "ops.conv1d",
        "conv3d": "ops.conv3d",
        "conv_transpose2d": "ops.conv_transpose2d",
        "embedding": "ops.embedding",
        "load": "runtime.load",
        "matmul": "ops.matmul",
        "threads": "ops.core.launch",
        "using": "ops.core.ladder",
    }
    __all__ = [*_MODULES, "ndimage"]

    def __getattr__(name: str):
        from importlib import import_module

        if name == "ndimage":
            return import_module("tilewright.ndimage")
        if name not in _MODULES:
            raise AttributeError(f"module 'tilewright' has no attribute {name!r}; it has {', '.join(__all__)}")
        return getattr(import_module(f"tilewright.{_MODULES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted([*__all__, "__version__"])
