"""Operations and bytes of a generation on a GPU, by operation, for the rates of `gpt2_profile.gpu_profile`.

A CUDA graph calls its functions once, when it is captured. So a model without graphs runs the same prompts, and its
calls are counted. It computes the same rows with the same kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tilewright.ops.attention.operands import SPAN, Cache
from tilewright.ops.gemm.operands import Packed

MATMUL, HEAD, PROMPTS, ONE = "matmul", "LM head and argmax", "attention, prompts", "attention, one position"


class Work(NamedTuple):
    """Operations, and bytes if each operand is read or written once."""

    flops: float = 0.0
    nbytes: float = 0.0

    def plus(self, flops: float, nbytes: float) -> Work:
        """The sum."""
        return Work(self.flops + flops, self.nbytes + nbytes)


Counted = tuple[str, float, float]  # operation, operations, bytes


def _size(x: Any) -> int:
    """Elements of a tensor or an array."""
    return int(x.numel()) if hasattr(x, "numel") else int(x.size)


def _weights(b: Any) -> tuple[int, float]:
    """(columns, bytes) of a prepared matrix, or of a tensor."""
    return (b.N if isinstance(b, Packed) else b.shape[1]), float(b.nbytes)


def _matmul(result: Any, a: Any, b: Any, **options: Any) -> Counted:
    N, nbytes = _weights(b)
    residual = options.get("residual")
    beside = 0 if residual is None else residual.nbytes
    return MATMUL, 2.0 * _size(a) * N, a.nbytes + nbytes + beside + result.nbytes


def _matmul_argmax(result: Any, a: Any, b: Any, **options: Any) -> Counted:
    N, nbytes = _weights(getattr(b, "weights", b))
    return HEAD, 2.0 * _size(a) * N, a.nbytes + nbytes


def _attend(result: Any, q: Any, cache: Cache, spans: Any, **options: Any) -> Counted:
    rows = np.asarray(getattr(spans, "array", spans))
    first, count = rows[:, SPAN.first].astype(float), rows[:, SPAN.length].astype(float)
    seen = (count * first + count * (count + 1) / 2).sum()
    width = q.shape[1]
    cached = 2 * width * (first + count).sum() * _word(cache)
    return PROMPTS, 4.0 * width * seen, cached + q.nbytes + result.nbytes


def _append_and_attend(
    result: Any, q: Any, k: Any, v: Any, cache: Cache, slots: Any, positions: Any, **options: Any
) -> Counted:
    used = slots >= 0
    seen, width = float((positions[used] + 1).sum()), q.shape[1]
    return ONE, 4.0 * width * seen, 2 * width * seen * _word(cache) + q.nbytes + k.nbytes + v.nbytes + result.nbytes


def _append(result: Any, k: Any, v: Any, cache: Cache, spans: Any) -> Counted:
    return "append", 0.0, k.nbytes + v.nbytes + 2.0 * _size(k) * _word(cache)


def _layernorm(result: Any, x: Any, *rest: Any, **options: Any) -> Counted:
    return "layernorm", 0.0, float(x.nbytes + result.nbytes)


def _embedding(result: Any, ids: Any, table: Any, **options: Any) -> Counted:
    tables = 1 + (options.get("position_table") is not None)
    return "embedding", 0.0, float(tables * _size(result) * table.element_size() + result.nbytes)


def _word(cache: Cache) -> int:
    """Bytes of a cached element."""
    return 4 if cache.dtype == "float32" else 2


COSTS: dict[str, Callable[..., Counted]] = {
    "matmul": _matmul, "matmul_argmax": _matmul_argmax, "attend": _attend, "append_and_attend": _append_and_attend,
    "append": _append, "layernorm": _layernorm, "embedding": _embedding,
}  # fmt: skip


@contextmanager
def counting() -> Iterator[dict[str, Work]]:
    """Operation -> Work of all that a decoder on a GPU calls inside the block. The model must run without graphs."""
    from tilewright.generation.cuda import attention
    from tilewright.models import decoder

    found: dict[str, Work] = defaultdict(Work)

    def counted(name: str, function: Callable) -> Callable:
        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            label, flops, nbytes = COSTS[name](result, *args, **options)
            found[label] = found[label].plus(flops, nbytes)
            return result

        return call

    originals = [(module, name, vars(module)[name]) for module in (decoder, attention) for name in COSTS
                 if name in vars(module)]  # fmt: skip
    for module, name, function in originals:
        setattr(module, name, counted(name, function))
    try:
        yield found
    finally:
        for module, name, function in originals:
            setattr(module, name, function)
