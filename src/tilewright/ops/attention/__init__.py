"""Attention: softmax(scale * q @ k.T over the keys that a query may see) @ v, for each head.

from tilewright.ops.attention import attention, attend, append, Cache, span
y = attention(q, k, v)                              # (B, H, Q, D), (B, H, T, D) twice: plain arrays
append(k_rows, v_rows, cache, spans)                # sequences of any lengths, keys kept in a cache
y = attend(q_rows, cache, spans)                    # (rows, H * D): prefill and decode alike

Torch tensors on a GPU stay there: see `tilewright.ops.attention.device`, which has `append_and_attend`, too.
"""

import math

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops._arrays import as_float32, like
from tilewright.ops._device import on_gpu
from tilewright.ops._memory import empty
from tilewright.ops.attention.ladder import ladder
from tilewright.ops.attention.operands import COLUMNS, Cache, Look, Spans, bytes_a_sequence, span
from tilewright.ops.attention.spec import Problem

MOST = 2**31  # rows of a span: its sums stay integers of 64 bits
__all__ = [
    "Cache", "Problem", "Spans", "append", "attend", "attention", "bytes_a_sequence", "checked_spans", "ladder", "span",
]  # fmt: skip

LEAST = (0, 0, 0, 0, -1)  # of a span's columns


def attention(q, k, v, *, causal: bool = True, scale: float | None = None, dtype: str = "float32", out=None):
    """q (B, H, Q, D), k and v (B, H, T, D), float32 or bfloat16 -> float32 (B, H, Q, D), the caller's kind of array.

    The queries stand at the last Q of T positions; causal: each sees the keys up to its own position. scale: None is
    1 / sqrt(D). dtype: of the keys and values as they are kept, "float32" or "bfloat16". out: float32 NumPy array to
    write to. Raises UsageError naming the argument that does not fit. Source: Vaswani et al., "Attention Is All You
    Need", 2017.
    """
    if on_gpu(q):
        from tilewright.ops.attention import device

        return device.attention(q, k, v, causal=causal, scale=scale, dtype=dtype, out=out)
    arrays = {name: as_float32(name, value) for name, value in (("q", q), ("k", k), ("v", v))}
    B, H, Q, D, T = _sizes(**arrays)
    if out is not None and (not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != (B, H, Q, D)):
        raise UsageError(f"attention: out must be a float32 NumPy array of shape {(B, H, Q, D)}")
    result = empty((B, H, Q, D)) if out is None else out
    if result.size == 0:
        return like(q, result)
    cache = Cache.empty(B, H, T, D, dtype)
    append(_rows(arrays["k"]), _rows(arrays["v"]), cache, [span(b, 0, T, b * T) for b in range(B)])
    spans = [span(b, T - Q, Q, b * Q) for b in range(B)]
    found = attend(_rows(arrays["q"]), cache, spans, causal=causal, scale=scale)
    result[...] = found.reshape(B, Q, H, D).swapaxes(1, 2)
    return like(q, result)


def append(k, v, cache: Cache, spans) -> None:
    """Keep the keys and values of new positions: k, v float32 (rows, H * D), contiguous rows.

    spans: n entries of `span`; one that names a source begins with that slot's positions, which are copied before its
    own rows are written, in the order of the spans. Raises UsageError if a span leaves the rows or the cache, or the
    arrays are others.
    """
    if on_gpu(k):
        from tilewright.ops.attention import device

        device.append(k, v, cache, spans)
        return
    from tilewright.ops.attention.cpu.append import append_to

    _check_rows(cache, len(k), k=k, v=v)
    checked = checked_spans(spans, cache, len(k))
    if len(checked.array):
        append_to(k, v, cache, checked.array)


def attend(
    q, cache: Cache, spans, *, causal: bool = True, scale: float | None = None, new=None, out=None
) -> np.ndarray:
    """Queries q float32 (rows, H * D), whose keys are in the cache -> float32 (rows, H * D).

    new: (k, v), rows as far apart as q's: every span keeps its rows first, as `append` would, but while they are looked
    at. Rows that no span names are not written. A query's bits depend on itself and its sequence's cache alone.
    Raises UsageError if a span leaves the rows or the cache, the arrays are others, or scale is not above 0.
    """
    if on_gpu(q):
        from tilewright.ops.attention import device

        return device.attend(q, cache, spans, causal=causal, scale=scale, new=new, out=out)
    out = empty((len(q), cache.heads * cache.D)) if out is None else out
    _check_rows(cache, len(q), q=q, out=out)
    checked = checked_spans(spans, cache, len(q))
    if new is not None:
        _check_rows(cache, len(q), k=new[0], v=new[1])
        if not q.strides[0] == new[0].strides[0] == new[1].strides[0]:
            raise UsageError("attention: the rows of q and of the new keys and values are not equally far apart")
    look = Look(1 / math.sqrt(cache.D) if scale is None else scale, causal, new)
    if not 0 < look.scale < math.inf:
        raise UsageError(f"attention: scale is {scale}; a finite number above 0 is wanted")
    if len(checked.array):
        rung = ladder.choose(Problem(cache.D, cache.dtype))
        rung.run(q, cache, checked.array, look, out)
    return out


def _sizes(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[int, int, int, int, int]:
    """(B, H, Q, D, T) of three arrays that fit each other."""
    if not q.ndim == k.ndim == v.ndim == 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2]:
        raise UsageError(f"attention: q is {q.shape}, k {k.shape}, v {v.shape}; (B, H, Q, D) and twice (B, H, T, D)")
    (B, H, Q, D), T = q.shape, k.shape[2]
    if k.shape[3] != D or not Q <= T or D == 0:
        raise UsageError(f"attention: q is {q.shape} and k {k.shape}: D must agree and be positive, Q be at most T")
    return B, H, Q, D, T


def _rows(array: np.ndarray) -> np.ndarray:
    """(B, H, T, D) as rows (B * T, H * D)."""
    B, H, T, D = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(B * T, H * D)


def _check_rows(cache: Cache, rows: int, **arrays: np.ndarray) -> None:
    """Raises UsageError unless each array is float32 (rows, H * D), its rows contiguous."""
    for name, x in arrays.items():
        fits = x.dtype == np.float32 and x.shape == (rows, cache.heads * cache.D)
        if not fits or (x.size and (x.strides[1] != 4 or x.strides[0] % 4)):
            wanted = f"float32 {(rows, cache.heads * cache.D)} with contiguous rows"
            raise UsageError(f"attention: {name} is {x.dtype} {x.shape}, strides {x.strides}; {wanted} is wanted")


def checked_spans(spans, cache: Cache, rows: int) -> Spans:
    """Spans for every cache of these sizes, so that a model of many layers has them checked once.

    spans: n entries of `span`, or Spans. Raises UsageError if one leaves the rows or the cache.
    """
    slots, length = cache.keys.shape[0], cache.length
    if isinstance(spans, Spans):
        if (spans.slots, spans.length) != (slots, length) or spans.rows > rows:
            raise UsageError(f"attention: spans were checked for {spans.slots} slots of {spans.length} positions and "
                             f"{spans.rows} rows; there are {slots}, {length} and {rows}")  # fmt: skip
        return spans
    array = np.ascontiguousarray(spans, np.int64).reshape(-1, COLUMNS)
    slot, first, count, row, source = array.T
    for name, low, high, limit in (
        ("slot", slot, slot, slots - 1), ("source", source + 1, source, slots - 1),
        ("position", first, first, length), ("count", count, count, MOST), ("row", row, row, rows),
        ("position", first, first + count, length), ("row", row, row + count, rows),
    ):  # fmt: skip
        outside = (low < 0) | (high > limit)
        if outside.any():
            at = int(np.argmax(outside))
            raise UsageError(f"attention: span {at} is {array[at].tolist()}: its {name} leaves 0 to {limit}")
    return Spans(array, slots, length, rows)
