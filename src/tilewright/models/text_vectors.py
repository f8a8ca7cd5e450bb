"""From the hidden states of a text's tokens to its vector: pooling, dense layers, scaling to length 1.

    mean = sum over tokens of x / tokens;   weightedmean: token t counts t + 1 times;   unit(v) = v / |v|

Sums are in float64 and their order depends on the text alone. Source: Reimers and Gurevych, "Sentence-BERT", 2019; the
names are those of the library sentence-transformers.
"""

from collections.abc import Mapping

import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.embedding_modules import EmbeddingModules
from tilewright.ops.matmul import matmul, prepare

LEAST = 1e-12  # the smallest divisor of a vector, as in PyTorch's normalize


class TextVectors:
    """Computes vectors from hidden states.

    modules: what to compute. width: elements of a hidden state. weights: of the dense layers, float32 or bfloat16, as
    "0.weight" (outputs, inputs) and "0.bias". dtype: accuracy class of their products. Raises InputError for a weight
    that is missing or has another shape.
    """

    def __init__(
        self, modules: EmbeddingModules, width: int, weights: Mapping[str, np.ndarray] | None = None,
        dtype: str = "float32",
    ) -> None:  # fmt: skip
        self.modules, self.size = modules, modules.size(width)
        self.layers = []
        for i, layer in enumerate(modules.layers):
            weight = _checked(weights or {}, f"{i}.weight", (layer.outputs, layer.inputs), layer.path)
            bias = None
            if layer.bias:
                bias = _checked(weights or {}, f"{i}.bias", (layer.outputs,), layer.path).astype(np.float32)
            self.layers.append((prepare(weight.T, dtype=dtype), bias, layer.activation))

    def checked(self, dimensions: int | None) -> int:
        """The number of elements to keep of a vector; None: all. Raises UsageError."""
        return checked_size(dimensions, self.size, "dimensions")

    def pooled(self, x: np.ndarray, starts: np.ndarray, skip: int = 0) -> np.ndarray:
        """Hidden states float32 (R, C) of n texts, whose first rows are `starts`, -> float32 (n, C * poolings).

        skip: number of tokens of the prompt. They are not pooled, except that a text's last token always is.
        """
        ends = np.append(starts[1:], len(x))
        rows = [
            self._of_text(x[first:end], min(skip, end - first - 1)) for first, end in zip(starts, ends, strict=True)
        ]
        return np.stack(rows)

    def _of_text(self, x: np.ndarray, skip: int) -> np.ndarray:
        """float32 (C * poolings,) of one text's rows (T, C)."""
        y, found = x[skip:], []
        for pooling in self.modules.poolings:
            if pooling == "cls":
                found.append(y[0])
            elif pooling == "lasttoken":
                found.append(y[-1])
            elif pooling == "max":
                found.append(y.max(axis=0))
            elif pooling == "weightedmean":
                counts = np.arange(skip + 1, len(x) + 1, dtype=np.float64)
                found.append(np.add.reduce(y * counts[:, None], axis=0) / counts.sum())
            else:
                total = np.add.reduce(y, axis=0, dtype=np.float64)
                found.append(total / (len(y) if pooling == "mean" else np.sqrt(len(y))))
        return np.concatenate(found, dtype=np.float32, casting="same_kind")

    def finished(self, pooled: np.ndarray, dimensions: int | None = None) -> np.ndarray:
        """float32 (n, C * poolings) -> float32 (n, dimensions), see `cut`."""
        x = pooled
        for i, (weight, bias, activation) in enumerate(self.layers):
            x = unit(x) if i in self.modules.normalize else x
            x = matmul(x, weight, bias=bias, activation=activation)
        return self.cut(unit(x) if self.modules.is_normalized else x, dimensions)

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


def unit(x: np.ndarray) -> np.ndarray:
    """Each row of float32 (n, D) divided by its Euclidean length, or by LEAST if that is larger."""
    wide = x.astype(np.float64)
    lengths = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
    return (wide / np.maximum(lengths, LEAST)).astype(np.float32)


def _checked(weights: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], path: str) -> np.ndarray:
    if name not in weights or weights[name].shape != shape:
        found = weights[name].shape if name in weights else "missing"
        raise InputError(f"tensor linear.{name.partition('.')[2]} is {found}; {shape} is wanted", path=path)
    return weights[name]
