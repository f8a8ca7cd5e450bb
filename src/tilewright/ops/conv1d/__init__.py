"""1-D convolution with a fused epilogue: out = max over positions(activation(conv(x, weight) + bias)).

from tilewright.ops.conv1d import conv1d, prepare
y = conv1d(x, weight, bias=b, padding=1)                        # (B, C, L), (O, C, K) -> (B, O, positions)
packed = prepare(weight)                                        # once; then conv1d(x, packed) for every batch
features = conv1d(x, packed, activation="relu", pool="max")     # (B, O)
"""

from typing import overload

import numpy as np

from tilewright.errors import ResourceError, UsageError
from tilewright.ops.conv1d.ladder import ladder
from tilewright.ops.conv1d.operands import ACTIVATIONS, Epilogue, Packed, window_of
from tilewright.ops.conv1d.problem import POOLS, Problem
from tilewright.ops.core.arguments import HOST, arguments_of
from tilewright.ops.core.arrays import Float32, T, Tensor, one_of
from tilewright.ops.matmul.problem import DEVICE_DTYPES, DTYPES

__all__ = ["Packed", "Problem", "conv1d", "ladder", "prepare"]


def prepare(weight, *, dtype: str = "float32") -> Packed:
    """Lay weight (O, C, K) out for the chosen rung; float32 or bfloat16, any strides.

    dtype: the accuracy class, "float32" or "bfloat16"; on a GPU also "float16" or "tf32". The result holds a copy:
    O * C * K * 4 bytes, or 2 in a 16-bit class, rounded up to whole panels; a rung that packs nothing refers to weight
    itself. A second copy may exist for a while. A weight on a GPU stays there, and may also be float16.
    Raises UsageError for a wrong dtype or rank, Refused if a rung forced by `using` does not take it.
    """
    arguments = arguments_of(weight)
    weight = arguments.take("conv1d", "weight", weight)
    if weight.ndim != 3 or 0 in weight.shape:
        raise UsageError(f"conv1d: weight has shape {tuple(weight.shape)}; (O, C, K) is wanted, at least one of each")
    O, C, K = weight.shape
    one_of("conv1d", "dtype", dtype, DTYPES if arguments is HOST else DEVICE_DTYPES)
    rung = ladder.choose(Problem(O, C, K, dtype, arguments.device))
    if rung.lay_out:
        return rung.lay_out(weight, rung.name, dtype)
    return Packed(rung.name, O, C, K, dtype, weight if arguments is HOST else weight.float().contiguous())


@overload
def conv1d(
    x: np.ndarray,
    weight: Tensor | Packed,
    *,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    activation: str | None = None,
    pool: str | None = None,
    dtype: str | None = None,
    out: np.ndarray | None = None,
) -> Float32: ...
@overload
def conv1d(
    x: T,
    weight: Tensor | Packed,
    *,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    activation: str | None = None,
    pool: str | None = None,
    dtype: str | None = None,
    out: T | None = None,
) -> T: ...
def conv1d(x, weight, *, bias=None, stride=1, padding=0, dilation=1, activation=None, pool=None, dtype=None, out=None):
    """Cross-correlation (the kernel is not flipped) with float32 sums, in PyTorch's layout.

    out[b, o, l] = activation(bias[o] + sum over c, t of weight[o, c, t] * x[b, c, l * stride + t * dilation - padding])

    where x is zero outside. x: (B, C, L). weight: (O, C, K), or a result of `prepare`. bias: (O,). Arrays are float32
    or bfloat16 with any strides, of any library with DLPack. activation: None or "relu". pool: None, or "max"
    for the maximum over positions; both propagate NaN. dtype: accuracy class of the products, "float32" (default) or
    "bfloat16" (operands rounded, and those below 2^-126 may count as 0); a prepared weight has its own. out: float32
    array to write to. Arrays on a GPU stay there: x and weight may also be float16, bias is float32, dtype as for
    `prepare`, and out may have the 16-bit dtype of the class.
    Returns float32 (B, O, positions), or (B, O) with pooling, the same kind of array as x;
    positions = (L + 2 * padding - dilation * (K - 1) - 1) // stride + 1.
    Raises UsageError naming the argument that does not fit. A sample's bits depend on that sample, weight and the
    options: not on the other samples, their number, or the number of threads.
    """
    arguments = arguments_of(x)
    array = arguments.take("conv1d", "x", x)
    one_of("conv1d", "activation", activation, ACTIVATIONS)
    one_of("conv1d", "pool", pool, POOLS)
    if isinstance(weight, Packed):
        packed = weight
    else:
        packed = prepare(arguments.take("conv1d", "weight", weight), dtype=dtype or "float32")
    if dtype not in (None, packed.dtype):
        raise UsageError(f"conv1d: dtype is {dtype!r}, but weight was prepared for {packed.dtype}")
    O, C, K = packed.O, packed.C, packed.K
    if array.ndim != 3 or array.shape[1] != C:
        shapes = f"x is {tuple(array.shape)} and weight is {(O, C, K)}"
        raise UsageError(f"conv1d: {shapes}; x must be (B, C, L) with C = {C} channels")
    window = window_of(stride, padding, dilation, array.shape[2], K)
    bias = None if bias is None else arguments.take("conv1d", "bias", bias, ("float32",))
    if bias is not None and tuple(bias.shape) != (O,):
        raise UsageError(f"conv1d: bias has shape {tuple(bias.shape)}; {(O,)} is wanted, one value per output channel")
    weights = packed.memory()
    arguments.same_device("conv1d", "x", array, weight=weights, bias=bias)
    bias = arguments.plain(bias, array)
    shape = (len(array), O) if pool else (len(array), O, window.positions(array.shape[2], K))
    result = arguments.result("conv1d", out, shape, array, arguments.results_in(packed.dtype))
    rung = ladder.choose(Problem(O, C, K, packed.dtype, arguments.device))
    if rung.name != packed.rung:
        raise UsageError(
            f"conv1d: weight was prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare it again"
        )
    if 0 in shape:
        return arguments.finish(x, result, result)
    target = result if out is None else arguments.target(result, array, bias, weights)
    if arguments is HOST and not pool and target.strides[2] != target.itemsize:  # kernels write whole rows of positions
        target = np.empty(shape, np.float32)
    try:
        rung.run(array, packed, target[:, :, None] if pool else target, window, Epilogue(bias, activation, pool))
    except MemoryError as error:
        what = f"x {tuple(array.shape)} with a padding of {window.padding}"
        raise ResourceError(f"conv1d: memory does not hold {what}: {error}") from error
    return arguments.finish(x, result, target)
