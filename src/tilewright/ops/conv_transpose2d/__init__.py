"""Transposed 2-D convolution with bias and activation fused, channels last.

from tilewright.ops.conv_transpose2d import conv_transpose2d, prepare
y = conv_transpose2d(x, weights, stride=2, padding=((1, 2), (1, 2)))    # (B, H, W, C), (5, 5, O, C) -> (B, 2H, 2W, O)
packed = prepare(weights, stride=2, padding=((1, 2), (1, 2)))           # once; then conv_transpose2d(x, packed)
"""

from collections.abc import Sequence

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.ops.conv_transpose2d.arguments import axes, check_window, output_size
from tilewright.ops.conv_transpose2d.ladder import LIMBED, ladder, takes_limbs
from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed
from tilewright.ops.conv_transpose2d.problem import ACTIVATIONS, DEVICE_DTYPES, DTYPES, Problem
from tilewright.ops.core.arguments import HOST, Arguments, arguments_of
from tilewright.ops.core.arrays import T, Tensor, one_of
from tilewright.ops.core.ladder import Rung

__all__ = ["Packed", "Problem", "conv_transpose2d", "ladder", "prepare"]

OP = "conv_transpose2d"


def prepare(weights, *, stride=1, padding=0, dtype: str = "float32") -> Packed:
    """Rearrange weights (KH, KW, O, C) for the rung that will use them; float32 or bfloat16, any strides.

    stride: an integer or (down, across). padding: how much to crop off the full result, an integer or ((top, bottom),
    (left, right)). dtype: the accuracy class, "float32" or "bfloat16"; on a GPU also "float16" or "tf32". The result
    holds KH * KW * O * C elements of 4 bytes, or 2 in a 16-bit class, and up to twelve times as many for small kernels;
    a rung that packs nothing refers to weights itself. Weights on a GPU stay there, and may also be float16.
    Raises UsageError for a wrong dtype, rank, stride or padding, Refused if a rung forced by `using` does not take it.
    """
    arguments = arguments_of(weights)
    weights = arguments.take(OP, "weights", weights)
    if weights.ndim != 4 or 0 in weights.shape:
        raise UsageError(
            f"{OP}: weights has shape {tuple(weights.shape)}; (KH, KW, O, C) is wanted, at least one of each"
        )
    KH, KW, O, C = weights.shape
    rows, columns = axes((KH, KW), stride, padding)
    one_of(OP, "dtype", dtype, DTYPES if arguments is HOST else DEVICE_DTYPES)
    rung = ladder.choose(Problem(O, C, rows, columns, dtype, arguments.device))
    if rung.lay_out:
        data = rung.lay_out(weights, rows, columns, dtype)
    else:
        data = weights if arguments is HOST else weights.float().contiguous()
    limbs = takes_limbs(rung.name, C), rung.name in LIMBED
    return Packed(rung.name, O, C, rows, columns, dtype, data, *limbs)


def conv_transpose2d(
    x: T,
    weights: Tensor | Packed,
    *,
    stride: int | tuple[int, int] | None = None,
    padding: int | Sequence[Sequence[int]] | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    out: T | None = None,
    dtype: str | None = None,
) -> T:
    """Transposed convolution with float32 sums, cropped, then bias and activation.

    full[b, s * h + a, t * w + c, o] = sum over h, w, i of x[b, h, w, i] * weights[a, c, o, i]        (s, t) the stride
    out = activation(full[:, top : size - bottom, left : size - right] + bias)

    x: (B, H, W, C). weights: (KH, KW, O, C), or what `prepare` returned, with its own stride, padding and dtype.
    stride: an integer or a pair, by default 1. padding: an integer or ((top, bottom), (left, right)), by default 0.
    bias: (O,). activation: None, "relu", "tanh", "gelu" (exact) or "gelu_tanh". Arrays are float32 or bfloat16 with any
    strides, NumPy or anything that supports DLPack. dtype: accuracy class of the products, "float32" (default) or
    "bfloat16" (operands are rounded, and those below 2^-126 may count as 0). out: float32 array to write to.
    Arrays on a GPU stay there: they may also be float16, dtype is as for `prepare`, and out may have the 16-bit dtype
    of the class. Returns float32 (B, (H - 1) * s + KH - top - bottom, (W - 1) * t + KW - left - right, O), the same
    kind of array as x. Raises UsageError naming the argument that does not fit.

    Some float32 rungs split x into limbs: high = bfloat16(x), low = bfloat16(x - high). Layers that follow each other
    may exchange these on a GPU; no bits change. If `Packed.takes_limbs` is true, x may be bfloat16 (B, H, W, 2, C): all
    high limbs of a pixel, then the low ones. If `writes_limbs` is true, out may be like that.

    An image's bits depend on that image, weights and the options: not on the other images, their number, or the number
    of threads. Some rungs compute neighbouring outputs together, with factors of zero. There an infinity or NaN in x
    makes neighbours of its image NaN, too: those of the tile with `cpu.winograd`, of adjacent positions on a GPU.
    """
    arguments = arguments_of(x)
    array = arguments.take(OP, "x", x)
    one_of(OP, "activation", activation, ACTIVATIONS)
    packed = _packed(arguments, array, weights, stride, padding, dtype)
    O = packed.O
    _check_x(arguments, array, packed)
    bias = None if bias is None else arguments.take(OP, "bias", bias)
    if bias is not None and tuple(bias.shape) != (O,):
        raise UsageError(f"{OP}: bias has shape {tuple(bias.shape)}; {(O,)} is wanted, one element per output channel")
    arguments.same_device(OP, "x", array, bias=bias)
    shape: tuple[int, ...] = (len(array), *output_size(packed.rows, packed.columns, *array.shape[1:3]), O)
    kinds = arguments.results_in(packed.dtype)
    if packed.writes_limbs and getattr(out, "ndim", 4) == 5:
        shape, kinds = (*shape[:3], 2, O), ("bfloat16",)
    result = arguments.result(OP, out, shape, array, kinds)
    rung = _rung(arguments, packed)
    if 0 in shape:
        return arguments.finish(x, result, result)
    epilogue = Epilogue(arguments.plain(bias, array), activation)
    try:
        target = result if out is None else arguments.target(result, array, epilogue.bias, *packed.arrays())
        if arguments is HOST and target.strides[3] != target.itemsize:  # kernels write whole vectors of channels
            target = np.empty(shape, np.float32)
        rung.run(array if array.ndim == 5 else arguments.contiguous(array, packed.dtype), packed, target, epilogue)
    except MemoryError as error:
        raise ResourceError(f"{OP}: memory does not hold what x {tuple(array.shape)} needs: {error}") from error
    return arguments.finish(x, result, target)


def _rung(arguments: Arguments, weights: Packed) -> Rung:
    """The rung that runs. Raises UsageError if weights was prepared for another one."""
    rung = ladder.choose(Problem(weights.O, weights.C, weights.rows, weights.columns, weights.dtype, arguments.device))
    if rung.name != weights.rung:
        prepared = f"weights was prepared for rung {weights.rung}, and {rung.name} is chosen now"
        raise UsageError(f"{OP}: {prepared}: prepare it again")
    return rung


def _check_x(arguments: Arguments, x, weights: Packed) -> None:
    """Raises UsageError unless x is (B, H, W, C) with pixels, or limbs (B, H, W, 2, C) that the rung takes."""
    C, shape = weights.C, tuple(x.shape)
    if x.ndim == 5 and shape[3:] == (2, C) and 0 not in shape[1:3]:
        if weights.takes_limbs and str(x.dtype).endswith("bfloat16"):
            return
        what = f"x is {arguments.name(x)}, limbs, and weights was prepared for rung {weights.rung}"
        raise UsageError(f"{OP}: {what}; limbs are bfloat16, for weights whose takes_limbs is true")
    if x.ndim != 4 or shape[3] != C or 0 in shape[1:3]:
        given = f"x is {shape} and weights {(weights.rows.K, weights.columns.K, weights.O, C)}"
        raise UsageError(f"{OP}: {given}; x must be (B, H, W, C) with C = {C} channels and at least one pixel")


def _packed(arguments: Arguments, x, weights, stride, padding, dtype: str | None) -> Packed:
    """What `prepare` returned, or prepared weights on x's device. Raises UsageError if the options do not fit."""
    if isinstance(weights, Packed):
        check_window(weights, stride, padding, dtype)
        return weights
    weights = arguments.take(OP, "weights", weights)
    arguments.same_device(OP, "x", x, weights=weights)
    stride, padding = 1 if stride is None else stride, 0 if padding is None else padding
    return prepare(weights, stride=stride, padding=padding, dtype=dtype or "float32")
