"""Transposed 2-D convolution with bias and activation fused, channels last.

from tilewright.ops.conv_transpose2d import conv_transpose2d, prepare
y = conv_transpose2d(x, weights, stride=2, padding=((1, 2), (1, 2)))    # (B, H, W, C), (5, 5, O, C) -> (B, 2H, 2W, O)
packed = prepare(weights, stride=2, padding=((1, 2), (1, 2)))           # once; then conv_transpose2d(x, packed)
"""

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.ops.conv_transpose2d.arguments import axes, check_padding, same_window
from tilewright.ops.conv_transpose2d.ladder import ladder
from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed
from tilewright.ops.conv_transpose2d.problem import ACTIVATIONS, DTYPES, Problem
from tilewright.ops.core.arrays import as_float32, like, one_of, put_back, result_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu

__all__ = ["Packed", "Problem", "conv_transpose2d", "ladder", "prepare"]

NO_BIAS = np.empty(0, np.float32)


def prepare(weights, *, stride=1, padding=0, dtype: str = "float32") -> Packed:
    """Lay weights (KH, KW, O, C) out for the rung that will use them; float32 or bfloat16, any strides.

    stride: an integer or (down, across). padding: what is cropped off the full result, an integer or ((top, bottom),
    (left, right)). dtype: the accuracy class, "float32" or "bfloat16". The result holds KH * KW * O * C numbers of 4
    bytes, or 2 in bfloat16, up to four times as many for small kernels; a rung that packs nothing keeps weights itself.
    Raises UsageError for a wrong dtype, rank, stride or padding, Refused if a rung forced by `using` does not take it.
    """
    if on_gpu(weights):
        from tilewright.ops.conv_transpose2d import device

        return device.prepare(weights, stride=stride, padding=padding, dtype=dtype)
    weights = as_float32("weights", weights)
    if weights.ndim != 4 or not weights.size:
        raise UsageError(
            f"conv_transpose2d: weights has shape {weights.shape}; (KH, KW, O, C) is wanted, at least one of each"
        )
    KH, KW, O, C = weights.shape
    rows, columns = axes((KH, KW), stride, padding)
    problem = Problem(O, C, rows, columns, one_of("conv_transpose2d", "dtype", dtype, DTYPES))
    rung = ladder.choose(problem)
    if rung.lay_out:
        return rung.lay_out(weights, rows, columns, rung.name, dtype)
    return Packed(rung.name, O, C, rows, columns, dtype, weights)


def conv_transpose2d(x, weights, *, stride=None, padding=None, bias=None, activation=None, out=None, dtype=None):
    """activation(bias + the sum of each pixel's kernels), cropped, with float32 sums.

    full[b, s * h + a, t * w + c, o] += x[b, h, w, i] * weights[a, c, o, i], (s, t) the stride; the result is full
    without its first `top` and last `bottom` rows, and so for columns. x: (B, H, W, C). weights: (KH, KW, O, C), or
    what `prepare` gave, which has its own stride, padding and dtype. stride: an integer or a pair, 1 unless given.
    padding: an integer or ((top, bottom), (left, right)), 0 unless given. bias: (O,). activation: None, "relu", "tanh",
    "gelu" (exact) or "gelu_tanh". Arrays are float32 or bfloat16 with any strides, NumPy or anything that speaks
    DLPack. dtype: accuracy class of the products, "float32" (default) or "bfloat16" (operands rounded, and those
    below 2^-126 may count as 0). out: float32 array to write to. Returns float32 (B, (H - 1) * s + KH - top - bottom,
    (W - 1) * t + KW - left - right, O), the same kind of array as x. Raises UsageError naming the argument that does
    not fit. An image's bits depend on that image, weights and the options: not on the other images, their number, or
    the number of threads. Where neighbouring outputs share products (`cpu.winograd`), an infinity or NaN in x reaches
    the tile of outputs around it.
    """
    if on_gpu(x):
        from tilewright.ops.conv_transpose2d import device

        options = {"bias": bias, "activation": activation, "out": out, "dtype": dtype}
        return device.conv_transpose2d(x, weights, stride=stride, padding=padding, **options)
    array = as_float32("x", x)
    one_of("conv_transpose2d", "activation", activation, ACTIVATIONS)
    packed = _packed(weights, stride, padding, dtype)
    O, C, rows, columns = packed.O, packed.C, packed.rows, packed.columns
    if array.ndim != 4 or array.shape[3] != C or 0 in array.shape[1:3]:
        raise UsageError(
            f"conv_transpose2d: x is {array.shape} and weights {(rows.K, columns.K, O, C)}; x must be (B, H, W, C) "
            f"with C = {C} channels and at least one pixel"
        )
    bias = NO_BIAS if bias is None else np.ascontiguousarray(as_float32("bias", bias))
    if bias is not NO_BIAS and bias.shape != (O,):
        raise UsageError(
            f"conv_transpose2d: bias has shape {bias.shape}; {(O,)} is wanted, one number an output channel"
        )
    B, H, W, _ = array.shape
    size = check_padding(rows, columns, H, W)
    result = result_for("conv_transpose2d", out, (B, *size, O))
    target = result if out is None else target_for(result, array, bias, *packed.arrays())
    try:
        _run(array, packed, target, Epilogue(bias, activation))
    except MemoryError as error:
        raise ResourceError(f"conv_transpose2d: memory does not hold what x {array.shape} needs: {error}") from error
    put_back(result, target)
    return like(x, result)


def _packed(weights, stride, padding, dtype) -> Packed:
    """What `prepare` gives. Raises UsageError if it was given another stride, padding or dtype than is asked for."""
    if not isinstance(weights, Packed):
        stride, padding = 1 if stride is None else stride, 0 if padding is None else padding
        return prepare(weights, stride=stride, padding=padding, dtype=dtype or "float32")
    same_window(weights, stride, padding, dtype)
    return weights


def _run(x: np.ndarray, packed: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """The chosen rung, on x without gaps and out with contiguous channels."""
    rung = ladder.choose(Problem(packed.O, packed.C, packed.rows, packed.columns, packed.dtype))
    if rung.name != packed.rung:
        raise UsageError(
            f"conv_transpose2d: weights was prepared for rung {packed.rung}, and {rung.name} is chosen now: "
            "prepare it again"
        )
    if out.size == 0:
        return
    target = out if out.strides[3] == 4 else np.empty(out.shape, np.float32)
    rung.run(np.ascontiguousarray(x), packed, target, epilogue)
    put_back(out, target)
