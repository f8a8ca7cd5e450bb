"""1-D convolution with what may be fused into it: out = max over positions(activation(conv(x, weight) + bias)).

from tilewright.ops.conv1d import conv1d, prepare
y = conv1d(x, weight, bias=b, padding=1)                        # (B, C, L), (O, C, K) -> (B, O, positions)
packed = prepare(weight)                                        # once; then conv1d(x, packed) for every batch
features = conv1d(x, packed, activation="relu", pool="max")     # (B, O)
"""

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.ops.conv1d.ladder import ladder
from tilewright.ops.conv1d.operands import ACTIVATIONS, Epilogue, Packed, Window, window_of
from tilewright.ops.conv1d.problem import POOLS, Problem
from tilewright.ops.core.arrays import as_float32, like, one_of, put_back, result_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.matmul.problem import DTYPES

__all__ = ["Packed", "Problem", "conv1d", "ladder", "prepare"]

NO_BIAS = np.empty(0, np.float32)


def prepare(weight, *, dtype: str = "float32") -> Packed:
    """Lay weight (O, C, K) out for the rung that will convolve with it; float32 or bfloat16, any strides.

    dtype: the accuracy class, "float32" or "bfloat16". The result holds a copy: O * C * K * 4 bytes, or 2 in bfloat16,
    rounded up to whole panels; a rung that packs nothing keeps weight itself. While it is made a second copy may exist.
    Raises UsageError for a wrong dtype or rank, Refused if a rung forced by `using` does not take it.
    """
    if on_gpu(weight):
        from tilewright.ops.conv1d import device

        return device.prepare(weight, dtype=dtype)
    weight = as_float32("weight", weight)
    if weight.ndim != 3 or not weight.size:
        raise UsageError(f"conv1d: weight has shape {weight.shape}; (O, C, K) is wanted, at least one of each")
    O, C, K = weight.shape
    rung = ladder.choose(Problem(O, C, K, one_of("conv1d", "dtype", dtype, DTYPES)))
    return rung.lay_out(weight, rung.name, dtype) if rung.lay_out else Packed(rung.name, O, C, K, dtype, weight)


def conv1d(x, weight, *, bias=None, stride=1, padding=0, dilation=1, activation=None, pool=None, dtype=None, out=None):
    """Cross-correlation (the kernel is not flipped) with float32 sums, in PyTorch's layout.

    out[b, o, l] = activation(bias[o] + sum over c, t of weight[o, c, t] * x[b, c, l * stride + t * dilation - padding])

    where x is zero outside. x: (B, C, L). weight: (O, C, K), or what `prepare` gave. bias: (O,). Arrays are float32 or
    bfloat16 with any strides, NumPy or anything that speaks DLPack. activation: None or "relu". pool: None, or "max"
    for the maximum over positions; both keep a NaN. dtype: accuracy class of the products, "float32" (default) or
    "bfloat16" (operands rounded, and those below 2^-126 may count as 0); a prepared weight has its own. out: float32
    array to write to.
    Returns float32 (B, O, positions), or (B, O) with pooling, the same kind of array as x;
    positions = (L + 2 * padding - dilation * (K - 1) - 1) // stride + 1.
    Raises UsageError naming the argument that does not fit. A sample's bits depend on that sample, weight and the
    options: not on the other samples, their number, or the number of threads.
    """
    if on_gpu(x):
        from tilewright.ops.conv1d import device

        window = {"stride": stride, "padding": padding, "dilation": dilation}
        fused = {"bias": bias, "activation": activation, "pool": pool}
        return device.conv1d(x, weight, **window, **fused, dtype=dtype, out=out)
    array = as_float32("x", x)
    one_of("conv1d", "activation", activation, ACTIVATIONS)
    one_of("conv1d", "pool", pool, POOLS)
    packed = weight if isinstance(weight, Packed) else prepare(weight, dtype=dtype or "float32")
    if dtype not in (None, packed.dtype):
        raise UsageError(f"conv1d: dtype is {dtype!r}, but weight was prepared for {packed.dtype}")
    O, C, K = packed.O, packed.C, packed.K
    if array.ndim != 3 or array.shape[1] != C:
        raise UsageError(
            f"conv1d: x is {array.shape} and weight is {(O, C, K)}; x must be (B, C, L) with C = {C} channels"
        )
    window = window_of(stride, padding, dilation, array.shape[2], K)
    bias = NO_BIAS if bias is None else np.ascontiguousarray(as_float32("bias", bias))
    if bias is not NO_BIAS and bias.shape != (O,):
        raise UsageError(f"conv1d: bias has shape {bias.shape}; {(O,)} is wanted, one number an output channel")
    shape = (len(array), O) if pool else (len(array), O, window.positions(array.shape[2], K))
    result = result_for("conv1d", out, shape)
    plain = (packed.data,) if isinstance(packed.data, np.ndarray) else ()
    target = result if out is None else target_for(result, array, bias, *plain)
    try:
        _run(array, packed, target[:, :, None] if pool else target, window, Epilogue(bias, activation, pool))
    except MemoryError as error:
        raise ResourceError(
            f"conv1d: memory does not hold x {array.shape} with a padding of {window.padding}: {error}"
        ) from error
    put_back(result, target)
    return like(x, result)


def _run(x: np.ndarray, packed: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """The chosen rung, on out (B, O, positions or 1), positions contiguous."""
    rung = ladder.choose(Problem(packed.O, packed.C, packed.K, packed.dtype))
    if rung.name != packed.rung:
        raise UsageError(
            f"conv1d: weight was prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare it again"
        )
    if out.size == 0:
        return
    target = out if out.strides[2] == 4 or epilogue.pool else np.empty(out.shape, np.float32)
    rung.run(x, packed, target, window, epilogue)
    put_back(out, target)
