"""conv1d on a GPU: what `conv1d` and `prepare` do when they are handed torch tensors that live there.

The same arguments and the same function; arrays stay on their device, and work is queued on torch's current stream.
"""

from tilewright.errors import UsageError
from tilewright.ops.conv1d.ladder import ladder
from tilewright.ops.conv1d.operands import ACTIVATIONS, Epilogue, Packed, window_of
from tilewright.ops.conv1d.problem import POOLS, Problem
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS, overlaps, result_for, same_device, tensor_of, torch_dtype
from tilewright.ops.matmul.problem import DEVICE_DTYPES


def prepare(weight, *, dtype: str = "float32") -> Packed:
    """Lay weight (O, C, K), a tensor on a GPU, out for the rung that will convolve with it, on that GPU.

    dtype: "float32", "bfloat16", "float16" or "tf32". Raises UsageError for a wrong dtype or rank, Refused if a rung
    forced by `using` does not take it.
    """
    weight = tensor_of("conv1d", "weight", weight)
    if weight.ndim != 3 or not weight.numel():
        raise UsageError(f"conv1d: weight has shape {tuple(weight.shape)}; (O, C, K) is wanted, at least one of each")
    O, C, K = weight.shape
    rung = ladder.choose(Problem(O, C, K, one_of("conv1d", "dtype", dtype, DEVICE_DTYPES), "cuda"))
    if rung.lay_out:
        return rung.lay_out(weight, rung.name, dtype)
    return Packed(rung.name, O, C, K, dtype, weight.float().contiguous())


def conv1d(x, weight, *, bias=None, stride=1, padding=0, dilation=1, activation=None, pool=None, dtype=None, out=None):
    """Cross-correlation with float32 sums; see `tilewright.ops.conv1d.conv1d`.

    All arrays are torch tensors on one GPU: x and weight float32, bfloat16 or float16, bias float32. out: a float32
    tensor, or one of the class's 16-bit dtype; None: a new float32 one. Raises UsageError naming the argument that does
    not fit.
    """
    x = tensor_of("conv1d", "x", x)
    one_of("conv1d", "activation", activation, ACTIVATIONS)
    one_of("conv1d", "pool", pool, POOLS)
    packed = weight if isinstance(weight, Packed) else prepare(weight, dtype=dtype or "float32")
    if dtype not in (None, packed.dtype):
        raise UsageError(f"conv1d: dtype is {dtype!r}, but weight was prepared for {packed.dtype}")
    O, C, K = packed.O, packed.C, packed.K
    if x.ndim != 3 or x.shape[1] != C:
        raise UsageError(
            f"conv1d: x is {tuple(x.shape)} and weight is {(O, C, K)}; x must be (B, C, L) with C = {C} channels"
        )
    window = window_of(stride, padding, dilation, x.shape[2], K)
    if bias is not None and tuple(tensor_of("conv1d", "bias", bias, ("float32",)).shape) != (O,):
        raise UsageError(f"conv1d: bias has shape {tuple(bias.shape)}; {(O,)} is wanted, one number an output channel")
    data = getattr(packed.data, "data", packed.data)
    same_device("conv1d", "x", x, weight=data, bias=bias, out=out)
    bias = x.new_empty(0, dtype=torch_dtype("float32")) if bias is None else bias.contiguous()
    shape = (len(x), O) if pool else (len(x), O, window.positions(x.shape[2], K))
    kinds = ("float32", packed.dtype) if packed.dtype in FLOATS else ("float32",)
    result = result_for("conv1d", out, shape, x, kinds)
    usable = result.is_contiguous() and not overlaps(result, x, bias, data)
    target = result if usable else result.new_empty(shape)
    rung = ladder.choose(Problem(O, C, K, packed.dtype, "cuda"))
    if rung.name != packed.rung:
        raise UsageError(
            f"conv1d: weight was prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare it again"
        )
    if target.numel():
        rung.run(x, packed, target[:, :, None] if pool else target, window, Epilogue(bias, activation, pool))
    if target is not result:
        result.copy_(target)
    return result
