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
from tilewright.ops.attention.ladder import ladder
from tilewright.ops.attention.operands import Cache, Look, Spans, bytes_a_sequence, checked_spans, span
from tilewright.ops.attention.problem import Problem
from tilewright.ops.core.arrays import BFLOAT16, as_float32, like
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.core.memory import empty

__all__ = [
    "Cache", "Problem", "Spans", "append", "attend", "attention", "bytes_a_sequence", "checked_spans", "ladder", "span",
]  # fmt: skip

LEAST = (0, 0, 0, 0, -1)  # of a span's columns


def attention(q, k, v, *, causal: bool = True, scale: float | None = None, dtype: str = "float32", out=None):
    """q (B, H, Q, D), k and v (B, H, T, D), float32 or bfloat16 -> float32 (B, H, Q, D), the caller's kind of array.

    The queries stand at the last Q of T positions; causal: each sees the keys up to its own position. scale: None is
    1 / sqrt(D). dtype: of the keys and values as they are kept, "float32" or "bfloat16"; in bfloat16, numbers below
    2^-126 may count as 0. out: float32 NumPy array to write to. Raises UsageError naming the argument that does not
    fit. Source: Vaswani et al., "Attention Is All You Need", 2017.
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
    """Keep the keys and values of new positions: k, v float32 or, for a cache of bfloat16, bfloat16 (rows, H * D),
    contiguous rows.

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
        append_to(*_as_kept(cache, k, v), cache, checked.array)


def attend(
    q, cache: Cache, spans, *, causal: bool = True, scale: float | None = None, new=None, out=None
) -> np.ndarray:
    """Queries q (rows, H * D), whose keys are in the cache -> float32 (rows, H * D).

    q: float32; where the cache keeps bfloat16, it is rounded to that, or comes in it, and shares are rounded, too. new:
    (k, v) of q's dtype, rows as far apart as q's: every span keeps its rows first, as `append` would, but while they
    are looked at. out: float32, or bfloat16 where the cache is; rows that no span names are not written. A query's bits
    depend on itself and its sequence's cache alone. Raises UsageError if a span leaves the rows or the cache, the
    arrays are others, or scale is not above 0.
    """
    if on_gpu(q):
        from tilewright.ops.attention import device

        return device.attend(q, cache, spans, causal=causal, scale=scale, new=new, out=out)
    out = empty((len(q), cache.heads * cache.D)) if out is None else out
    _check_rows(cache, len(q), q=q, out=out)
    checked = checked_spans(spans, cache, len(q))
    if new is not None:
        _check_rows(cache, len(q), k=new[0], v=new[1])
        if len({(x.dtype, x.strides[0]) for x in (q, *new)}) > 1:
            raise UsageError("attention: q, new keys and new values are not of one dtype with rows equally far apart")
    look = Look(1 / math.sqrt(cache.D) if scale is None else scale, causal, new)
    if not 0 < look.scale < math.inf:
        raise UsageError(f"attention: scale is {scale}; a finite number above 0 is wanted")
    if len(checked.array):
        _run(q, cache, checked.array, look, out)
    return out


def _run(q: np.ndarray, cache: Cache, spans: np.ndarray, look: Look, out: np.ndarray) -> None:
    """The chosen rung, on arrays as it takes them."""
    rung, width = ladder.choose(Problem(cache.D, cache.dtype)), q.shape[1]
    q, *new = _as_kept(cache, q, *(look.new or ()))
    look = Look(look.scale, look.causal, (new[0], new[1]) if new else None)
    if q.shape[1] == width:
        rung.run(q, cache, spans, look, out)
        return
    wide = empty(q.shape, out.dtype)  # heads of an odd width are filled up to whole words
    wide[...] = _in_words(cache, out)
    rung.run(q, cache, spans, look, wide)
    out[...] = wide.reshape(len(q), cache.heads, -1)[:, :, : cache.D].reshape(out.shape)


def _as_kept(cache: Cache, *arrays: np.ndarray) -> list[np.ndarray]:
    """Rows of the cache's dtype, where that is bfloat16 as whole words: heads of an even width that begin at one."""
    if cache.dtype == "float32":
        return list(arrays)
    whole = all(x.dtype == BFLOAT16 and not (x.ctypes.data % 4 or x.strides[0] % 4) for x in arrays)
    return list(arrays) if whole and cache.D % 2 == 0 else [_in_words(cache, x.astype(BFLOAT16)) for x in arrays]


def _in_words(cache: Cache, x: np.ndarray) -> np.ndarray:
    """A copy of (rows, H * D) with heads of an even width."""
    result = np.zeros((len(x), cache.heads, cache.D + cache.D % 2), x.dtype)
    result[:, :, : cache.D] = x.reshape(len(x), cache.heads, cache.D)
    return result.reshape(len(x), -1)


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
    """Raises UsageError unless each array is (rows, H * D), rows contiguous, of a dtype that goes with the cache."""
    kinds = [np.dtype(np.float32)] if cache.dtype == "float32" else [np.dtype(np.float32), BFLOAT16]
    for name, x in arrays.items():
        fits = x.dtype in kinds and x.shape == (rows, cache.heads * cache.D)
        if not fits or (x.size and (x.strides[1] != x.itemsize or x.strides[0] % x.itemsize)):
            wanted = f"{' or '.join(map(str, kinds))} {(rows, cache.heads * cache.D)} with contiguous rows"
            raise UsageError(f"attention: {name} is {x.dtype} {x.shape}, strides {x.strides}; {wanted} is wanted")
