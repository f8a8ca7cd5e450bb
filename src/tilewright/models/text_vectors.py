"""From the hidden states of a text's tokens to its vector: pooling, dense layers, scaling to length 1.

    mean = sum over tokens of x / tokens;   weightedmean: token t counts t + 1 times;   unit(v) = v / |v|

Sums are in float64 and their order depends on the text alone. Source: Reimers and Gurevych, "Sentence-BERT", 2019; the
names are those of the library sentence-transformers.
"""

from collections.abc import Mapping

import numpy as np

from tilewright.backends import Backend, backend
from tilewright.backends.pooling import pooled, unit
from tilewright.backends.protocol import Array
from tilewright.errors import InputError, UsageError
from tilewright.formats.embedding_modules import EmbeddingModules
from tilewright.ops.matmul import matmul, prepare


class TextVectors:
    """Computes vectors from hidden states.

    modules: what to compute. width: elements of a hidden state. weights: of the dense layers, float32 or bfloat16, as
    "0.weight" (outputs, inputs) and "0.bias". dtype: accuracy class of their products. device: where the hidden states
    are, "cpu" or a backend. Raises InputError for a weight that is missing or has another shape.
    """

    def __init__(
        self, modules: EmbeddingModules, width: int, weights: Mapping[str, np.ndarray] | None = None,
        dtype: str = "float32", device: str | Backend = "cpu",
    ) -> None:  # fmt: skip
        self.modules, self.size = modules, modules.size(width)
        self.layers, there = [], backend(device, dtype)
        for i, layer in enumerate(modules.layers):
            weight = _checked(weights or {}, f"{i}.weight", (layer.outputs, layer.inputs), layer.path)
            bias = None
            if layer.bias:
                bias = there.vector(_checked(weights or {}, f"{i}.bias", (layer.outputs,), layer.path))
            self.layers.append((prepare(there.array(weight).T, dtype=dtype), bias, layer.activation))

    def checked(self, dimensions: int | None) -> int:
        """The number of elements to keep of a vector; None: all. Raises UsageError."""
        return checked_size(dimensions, self.size, "dimensions")

    def pooled(self, x: Array, bounds: Array, skip: int = 0) -> Array:
        """Hidden states (R, C) of n texts -> float32 (n, C * poolings). bounds, skip: as for `backends.pooling`."""
        found: Array = pooled(x, bounds, self.modules.poolings, skip)
        return found

    def finished(self, pooled: Array) -> Array:
        """(n, C * poolings) -> float32 (n, size), whole vectors."""
        x = pooled
        for i, (weight, bias, activation) in enumerate(self.layers):
            x = unit(x) if i in self.modules.normalize else x
            x = matmul(x, weight, bias=bias, activation=activation)
        return unit(x) if self.modules.is_normalized else x

    def cut(self, vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
        """The first `dimensions` elements of whole vectors float32 (n, size); None: all of them. Shortened vectors are
        scaled to length 1 again, if the model scales its vectors."""
        if (keep := self.checked(dimensions)) == self.size:
            return vectors
        shorter = np.ascontiguousarray(vectors[:, :keep])
        return unit(shorter) if self.modules.is_normalized else shorter


def checked_size(dimensions: int | None, size: int, parameter: str) -> int:
    """The number of elements to keep of a vector of `size`; None: all. parameter: the caller's name for it. Raises
    UsageError."""
    if dimensions is None:
        return size
    if isinstance(dimensions, bool) or not isinstance(dimensions, int | np.integer):
        raise UsageError(parameter=parameter, value=repr(dimensions)[:100], rule="an integer is wanted")
    if not 1 <= dimensions <= size:
        rule = f"the model's vectors have {size}: 1 to {size} are possible"
        raise UsageError(parameter=parameter, value=str(dimensions), rule=rule)
    return int(dimensions)


def _checked(weights: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], path: str) -> np.ndarray:
    if name not in weights or weights[name].shape != shape:
        found = weights[name].shape if name in weights else "missing"
        raise InputError(f"tensor linear.{name.partition('.')[2]} is {found}; {shape} is wanted", path=path)
    return weights[name]
