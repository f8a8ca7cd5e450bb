"""attention on a GPU: what `Cache`, `append`, `attend` and `attention` do with torch tensors that live there.

The same functions, and `append_and_attend` for decoding. Work is queued on torch's current stream; with `spans_of` made
before, nothing waits for the device.
"""

import math

from tilewright.errors import UsageError
from tilewright.ops.attention.device_spans import DeviceSpans, Steps, spans_of
from tilewright.ops.attention.ladder import ladder
from tilewright.ops.attention.operands import Cache, DeviceCache, Look, span
from tilewright.ops.attention.problem import DEVICE_DTYPES, Problem
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS, kind, result_for, same_device, tensor_of, torch_dtype

__all__ = ["DeviceCache", "DeviceSpans", "append", "append_and_attend", "attend", "attention", "spans_of"]


def attention(q, k, v, *, causal: bool = True, scale: float | None = None, dtype: str = "float32", out=None):
    """q (B, H, Q, D), k and v (B, H, T, D) -> float32 (B, H, Q, D); see `tilewright.ops.attention.attention`.

    Torch tensors on one device, float32, bfloat16 or float16. dtype: the accuracy class, "float32", "bfloat16" or
    "float16"; in a 16-bit one q, k and v are rounded to it. out: a tensor, float32 or of the class's 16-bit dtype.
    Raises UsageError naming the argument that does not fit.
    """
    one_of("attention", "dtype", dtype, DEVICE_DTYPES)
    for name, x in (("q", q), ("k", k), ("v", v)):
        tensor_of("attention", name, x)
    same_device("attention", "q", q, k=k, v=v, out=out)
    if not q.ndim == k.ndim == v.ndim == 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2]:
        what = f"q is {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        raise UsageError(f"attention: {what}; (B, H, Q, D) and twice (B, H, T, D)")
    (B, H, Q, D), T = q.shape, k.shape[2]
    if k.shape[3] != D or not Q <= T or D == 0:
        what = f"q is {tuple(q.shape)} and k {tuple(k.shape)}"
        raise UsageError(f"attention: {what}: D must agree and be positive, Q be at most T")
    result = result_for("attention", out, (B, H, Q, D), q, ("float32", dtype))
    if result.numel() == 0:
        return result
    cache = DeviceCache.on(q.device, B, H, T, D, dtype)
    append(_rows(k), _rows(v), cache, [span(b, 0, T, b * T) for b in range(B)])
    spans = spans_of([span(b, T - Q, Q, b * Q) for b in range(B)], cache)
    found = attend(_rows(q), cache, spans, causal=causal, scale=scale)
    return result.copy_(found.view(B, Q, H, D).transpose(1, 2))


def append(k, v, cache: Cache, spans) -> None:
    """Keep the keys and values of new positions: k, v (rows, H * D), contiguous rows of any distance.

    spans: DeviceSpans, or n entries of `span`, which are then checked and copied here. Raises UsageError if a span
    leaves the rows or the cache, or the arrays are others.
    """
    _check_rows(cache, k.shape[0], k=k, v=v)
    checked = _checked(spans, cache, len(k))
    if len(checked.array):
        _engine(cache).append_pieces(k, v, cache, checked.kept)


def attend(q, cache: Cache, spans, *, causal: bool = True, scale: float | None = None, new=None, out=None):
    """Queries q (rows, H * D), whose keys are in the cache -> (rows, H * D).

    new: (k, v), rows that all spans keep first, as `append` would, where that can be done on the way. out: contiguous
    rows, float32 or of the cache's dtype; None: new, float32. Rows that no span names are not written. A query's bits
    depend on itself and its sequence's cache alone. Raises UsageError if a span leaves the rows or the cache, the
    arrays are others, or scale is not above 0.
    """
    out = _check_all(q, cache, new, out)
    checked = _checked(spans, cache, len(q))
    if len(checked.array):
        _rung(cache).run(q, cache, checked, _look(cache, scale, causal, new), out)
    return out


def append_and_attend(q, k, v, cache: Cache, slots, positions, *, longest: int, scale: float | None = None, out=None):
    """One new position a sequence, kept and looked from: q, k, v (n, H * D) -> (n, H * D), see `attend`.

    slots, positions: int32 tensors (n,), on the device; -1 is nobody's slot: that row's result is 0, and nothing is
    kept. longest: no position is at or behind it. They are not looked at here, so nothing waits: who calls answers for
    slots that differ, and for positions inside the cache. Raises UsageError for what else does not fit.
    """
    out = _check_all(q, cache, (k, v), out)
    for name, x in (("slots", slots), ("positions", positions)):
        if not hasattr(x, "data_ptr") or kind(x) != "int32" or tuple(x.shape) != (len(q),) or x.stride(0) != 1:
            what = f"{kind(x)} {tuple(x.shape)}" if hasattr(x, "data_ptr") else f"a {type(x).__name__}"
            raise UsageError(f"attention: {name} is {what}; a contiguous int32 tensor {(len(q),)} is wanted")
    same_device("attention", "q", q, slots=slots, positions=positions)
    if not 1 <= longest <= cache.length:
        raise UsageError(f"attention: longest is {longest}; 1 to the cache's {cache.length} are wanted")
    if len(q):
        _rung(cache).run(q, cache, Steps(slots, positions, longest), _look(cache, scale, True, (k, v)), out)
    return out


def _rung(cache: Cache):
    return ladder.choose(Problem(cache.D, cache.dtype, "cuda"))


def _engine(cache: Cache):
    """The module that starts the kernels of the rung's engine."""
    if _rung(cache).name.startswith("simt."):
        from tilewright.ops.attention.simt import launch as simt

        return simt
    from tilewright.ops.attention.tile import launch as tile

    return tile


def _look(cache: Cache, scale: float | None, causal: bool, new) -> Look:
    look = Look(1 / math.sqrt(cache.D) if scale is None else scale, causal, new)
    if not 0 < look.scale < math.inf:
        raise UsageError(f"attention: scale is {scale}; a finite number above 0 is wanted")
    return look


def _checked(spans, cache: Cache, rows: int) -> DeviceSpans:
    checked = spans if isinstance(spans, DeviceSpans) else spans_of(spans, cache)
    if (checked.slots, checked.length) != (cache.keys.shape[0], cache.length) or checked.rows > rows:
        what = f"spans are of {checked.slots} slots of {checked.length} positions and {checked.rows} rows"
        raise UsageError(f"attention: {what}; there are {cache.keys.shape[0]}, {cache.length} and {rows}")
    return checked


def _check_all(q, cache: Cache, new, out):
    """`out`, or a new float32 tensor. Raises UsageError unless all fit the cache."""
    _check_rows(cache, q.shape[0], q=q)
    if new is not None:
        _check_rows(cache, q.shape[0], k=new[0], v=new[1])
    out = q.new_empty(q.shape, dtype=torch_dtype("float32")) if out is None else out
    _check_rows(cache, q.shape[0], kinds=("float32", cache.dtype), out=out)
    return out


def _check_rows(cache: Cache, rows: int, kinds: tuple[str, ...] = FLOATS, **tensors) -> None:
    """Raises UsageError unless each is a tensor (rows, H * D) of one of the dtypes, its rows contiguous."""
    shape = (rows, cache.heads * cache.D)
    for name, x in tensors.items():
        tensor_of("attention", name, x)
        if kind(x) not in kinds or tuple(x.shape) != shape or (x.numel() and x.stride(1) != 1 and shape[1] > 1):
            wanted = f"{' or '.join(dict.fromkeys(kinds))} {shape} with contiguous rows"
            what = f"{kind(x)} {tuple(x.shape)}, strides {tuple(x.stride())}"
            raise UsageError(f"attention: {name} is {what}; {wanted} is wanted")
        same_device("attention", "cache", cache.keys, **{name: x})


def _rows(x):
    """(B, H, T, D) as rows (B * T, H * D)."""
    B, H, T, D = x.shape
    return x.transpose(1, 2).reshape(B * T, H * D)
