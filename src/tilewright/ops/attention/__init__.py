"""Attention: softmax(scale * q @ k.T over the keys that a query may attend to) @ v, for each head.

from tilewright.ops.attention import attention, attend, append, Cache, span
y = attention(q, k, v)                              # (B, H, Q, D), (B, H, T, D) twice: plain arrays
append(k_rows, v_rows, cache, spans)                # sequences of any lengths, keys and values cached
y = attend(q_rows, cache, spans)                    # (rows, H * D): prefill and decode alike
y = append_and_attend(q, k, v, cache, slots, positions, longest=length)     # decode: one new position per row

With a cache on a GPU, rows are tensors there; work is queued on torch's current stream. With `checked_spans` made
before, nothing waits for the device.
"""

import math
from importlib import import_module

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.attention.ladder import ladder
from tilewright.ops.attention.operands import AttendOptions, Cache, DeviceCache, bytes_a_sequence, span
from tilewright.ops.attention.problem import DEVICE_DTYPES, DTYPES, Problem
from tilewright.ops.attention.spans import DeviceSpans, Spans, Steps, checked_spans
from tilewright.ops.core.arguments import DEVICE, HOST, Arguments, arguments_of
from tilewright.ops.core.arrays import BFLOAT16, one_of
from tilewright.ops.core.gpu.tensors import kind
from tilewright.ops.core.memory import empty

__all__ = [
    "Cache", "DeviceCache", "Problem", "Spans", "append", "append_and_attend", "attend", "attention",
    "bytes_a_sequence", "checked_spans", "ladder", "span",
]  # fmt: skip


def attention(q, k, v, *, causal: bool = True, scale: float | None = None, dtype: str = "float32", out=None):
    """q (B, H, Q, D), k and v (B, H, T, D), float32 or bfloat16 -> float32 (B, H, Q, D), the caller's kind of array.

    The queries are the last Q of T positions; causal: each attends to the keys up to its own position. scale: None is
    1 / sqrt(D). dtype: accuracy class of queries, keys and values, "float32" or "bfloat16"; in bfloat16, elements below
    2^-126 may count as 0. out: float32 NumPy array to write to. Arrays on a GPU stay there. There
    float16 is allowed, too, and out may have the class's 16-bit dtype. Raises UsageError naming a wrong argument.
    Source: Vaswani et al., "Attention Is All You Need", 2017.
    """
    arguments = arguments_of(q)
    one_of("attention", "dtype", dtype, DTYPES if arguments is HOST else DEVICE_DTYPES)
    query, keys, values = (arguments.take("attention", name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    arguments.same_device("attention", "q", query, k=keys, v=values, out=out)
    (B, H, Q, D), T = _sizes(query, keys, values)
    result = arguments.result("attention", out, (B, H, Q, D), query, arguments.results_in(dtype))
    if 0 in result.shape:
        return arguments.finish(q, result, result)
    cache = Cache.empty(B, H, T, D, dtype, "cpu" if arguments is HOST else query.device)
    query, keys, values = (
        arguments.plain(x.swapaxes(1, 2), x).reshape(-1, H * D) for x in (query, keys, values)
    )  # rows (B * T, H * D)
    append(keys, values, cache, [span(b, 0, T, b * T) for b in range(B)])
    found = attend(query, cache, [span(b, T - Q, Q, b * Q) for b in range(B)], causal=causal, scale=scale)
    result[...] = found.reshape(B, Q, H, D).swapaxes(1, 2)
    return arguments.finish(q, result, result)


def append(k, v, cache: Cache, spans) -> None:
    """Write the keys and values of new positions to the cache: k, v (rows, H * D) with contiguous rows, float32 or the
    cache's dtype; on a GPU each float dtype.

    spans: n entries of `span`, or `checked_spans`. A span that names a source starts with a copy of that slot's first
    positions; spans are applied in order. Raises UsageError if a span leaves the rows or the cache, or an array does
    not fit.
    """
    k, v = _checked_rows(cache, len(k), k=k, v=v)
    checked = checked_spans(spans, cache, len(k))
    if not len(checked.array):
        return
    if isinstance(checked, DeviceSpans):
        engine, _, _ = _rung(cache).name.partition(".")
        import_module(f"tilewright.ops.attention.{engine}.launch").append(k, v, cache, checked.all_pieces)
    else:
        from tilewright.ops.attention.cpu.append import append as append_rows

        append_rows(*_as_cached(cache, k, v), cache, checked.array)


def attend(
    q, cache: Cache, spans, *, causal: bool = True, scale: float | None = None, new=None, keep: bool = True, out=None
):
    """Queries q (rows, H * D), whose keys are in the cache -> float32 (rows, H * D).

    q: float32 or the cache's dtype, to which it is rounded; then softmax weights are rounded, too. On a GPU it may have
    each float dtype. new: (k, v), rows that every span appends first, as `append` would, in the same kernel where the
    rung can; on the CPU they have q's dtype and row stride. keep: False leaves the cache of these spans undefined,
    where nobody reads it again. out: float32 or the cache's dtype, contiguous rows; rows
    that no span names are not written. A query's bits depend on itself and its sequence's cache alone. Raises
    UsageError if a span leaves the rows or the cache, an array does not fit, or scale is not above 0.
    """
    rows, options, result = _operands(q, cache, causal, scale, new, out, keep)
    checked = checked_spans(spans, cache, len(rows))
    if len(checked.array):
        if _arguments(cache) is HOST:
            _run(rows, cache, checked.array, options, result)
        else:
            _rung(cache).run(rows, cache, checked, options, result)
    return _arguments(cache).finish(q, result, result)


def append_and_attend(q, k, v, cache: Cache, slots, positions, *, longest: int, scale: float | None = None, out=None):
    """Append one new position per row and attend from it: q, k, v (n, H * D) -> (n, H * D), see `attend`.

    slots, positions: int32 (n,), on the cache's device. Slot -1 is a row of no sequence: its result is 0, and nothing
    is appended. longest: upper bound of positions + 1. On a GPU the kernel reads slots and positions, and nothing waits
    for it; the caller must pass different slots, and positions inside the cache. Raises UsageError for an argument that
    does not fit.
    """
    rows, options, result = _operands(q, cache, True, scale, (k, v), out)
    arguments = _arguments(cache)
    for name, x in (("slots", slots), ("positions", positions)):
        if not hasattr(x, "dtype") or kind(x) != "int32" or tuple(x.shape) != (len(rows),) or not _contiguous(x):
            raise UsageError(f"attention: {name} is {arguments.name(x)}; contiguous int32 {(len(rows),)} is wanted")
    arguments.same_device("attention", "q", rows, slots=slots, positions=positions)
    if not 1 <= longest <= cache.length:
        raise UsageError(f"attention: longest is {longest}; 1 to the cache's {cache.length} are wanted")
    if arguments is DEVICE and len(rows):
        _rung(cache).run(rows, cache, Steps(slots, positions, longest), options, result)
    elif len(rows):
        slots, positions = (cache.take(name, x) for name, x in (("slots", slots), ("positions", positions)))
        used = np.flatnonzero(slots >= 0)
        result[slots < 0] = 0
        steps = zip(slots[used].tolist(), positions[used].tolist(), used.tolist(), strict=True)
        spans = [span(slot, first, 1, row) for slot, first, row in steps]
        checked = checked_spans(spans, cache, len(rows))
        if len(used):
            _run(rows, cache, checked.array, options, result)
    return arguments.finish(q, result, result)


def _arguments(cache: Cache) -> Arguments:
    return DEVICE if isinstance(cache, DeviceCache) else HOST


def _rung(cache: Cache):
    return ladder.choose(Problem(cache.D, cache.dtype, _arguments(cache).device))


def _run(q: np.ndarray, cache: Cache, spans: np.ndarray, options: AttendOptions, out: np.ndarray) -> None:
    """The chosen rung of the CPU, on rows of the cache's dtype."""
    rung, width = _rung(cache), q.shape[1]
    q, *new = _as_cached(cache, q, *(options.new or ()))
    options = AttendOptions(options.scale, options.causal, (new[0], new[1]) if new else None)
    if q.shape[1] == width:
        rung.run(q, cache, spans, options, out)
        return
    wide = empty(q.shape, out.dtype)  # heads of an odd width are padded to whole words
    wide[...] = _in_words(cache, out)
    rung.run(q, cache, spans, options, wide)
    out[...] = wide.reshape(len(q), cache.heads, -1)[:, :, : cache.D].reshape(out.shape)


def _as_cached(cache: Cache, *arrays: np.ndarray) -> list[np.ndarray]:
    """Rows of the cache's dtype; in bfloat16 heads have an even width and start at a whole word."""
    if cache.dtype == "float32":
        return list(arrays)
    whole = all(x.dtype == BFLOAT16 and not (x.ctypes.data % 4 or x.strides[0] % 4) for x in arrays)
    return list(arrays) if whole and cache.D % 2 == 0 else [_in_words(cache, x.astype(BFLOAT16)) for x in arrays]


def _in_words(cache: Cache, x: np.ndarray) -> np.ndarray:
    """A copy of (rows, H * D) with heads of an even width."""
    result = np.zeros((len(x), cache.heads, cache.D + cache.D % 2), x.dtype)
    result[:, :, : cache.D] = x.reshape(len(x), cache.heads, cache.D)
    return result.reshape(len(x), -1)


def _sizes(q, k, v) -> tuple[tuple[int, int, int, int], int]:
    """((B, H, Q, D), T). Raises UsageError unless the arrays fit each other."""
    shape, keys, values = (tuple(x.shape) for x in (q, k, v))
    if not len(shape) == len(keys) == 4 or keys != values or shape[:2] != keys[:2]:
        raise UsageError(
            f"attention: q is {shape}, k {keys}, v {values}; (B, H, Q, D), (B, H, T, D) and (B, H, T, D) are wanted"
        )
    if keys[3] != shape[3] or not shape[2] <= keys[2] or shape[3] == 0:
        raise UsageError(f"attention: q is {shape} and k {keys}: D must agree and be positive, Q be at most T")
    return shape, keys[2]


def _operands(q, cache: Cache, causal: bool, scale: float | None, new, out, keep: bool = True) -> tuple:
    """(q, options, out), checked; a new out is float32."""
    (rows,) = _checked_rows(cache, len(q), q=q)
    if new is not None:
        k, v = new
        new = tuple(_checked_rows(cache, len(rows), k=k, v=v))
        if _arguments(cache) is HOST and len({(x.dtype, x.strides[0]) for x in (rows, *new)}) > 1:
            raise UsageError(
                "attention: q, new keys and new values differ in dtype or row stride; they must have the same"
            )
    result = _arguments(cache).result("attention", out, tuple(rows.shape), rows, ("float32", cache.dtype))
    if out is not None:
        _checked_rows(cache, len(rows), out=result)
    options = AttendOptions(1 / math.sqrt(cache.D) if scale is None else scale, causal, new, keep)
    if not 0 < options.scale < math.inf:
        raise UsageError(f"attention: scale is {scale}; a finite number above 0 is wanted")
    return rows, options, result


def _checked_rows(cache: Cache, count: int, **arrays) -> list:
    """The arrays. Raises UsageError unless each is (count, H * D), rows contiguous, of a dtype that fits the cache."""
    shape, dtypes, found = (count, cache.heads * cache.D), cache.row_dtypes, []
    for name, value in arrays.items():
        x = cache.take(name, value)
        if x.dtype not in dtypes or tuple(x.shape) != shape or not _contiguous(x):
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            wanted = f"{names} {shape} with contiguous rows"
            raise UsageError(f"attention: {name} is {_arguments(cache).name(x)}; {wanted} is wanted")
        found.append(x)
    return found


def _contiguous(x) -> bool:
    """Rows, or a vector, whose elements are neighbours in memory, with strides of whole elements."""
    if isinstance(x, np.ndarray):
        return not x.size or (x.strides[-1] == x.itemsize and x.strides[0] % x.itemsize == 0)
    return not x.numel() or x.stride(-1) == 1 or x.shape[-1] == 1
