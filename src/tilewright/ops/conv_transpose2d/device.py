"""conv_transpose2d on a GPU: what its public functions do when they are handed torch tensors that live there.

The same arguments and the same function; arrays stay on their device, and work is queued on torch's current stream.
"""

from tilewright.errors import UsageError
from tilewright.ops.conv_transpose2d.arguments import axes, check_padding, same_window
from tilewright.ops.conv_transpose2d.ladder import ladder
from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed
from tilewright.ops.conv_transpose2d.problem import ACTIVATIONS, DEVICE_DTYPES, Problem
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS, overlaps, result_for, same_device, tensor_of, torch_dtype

OP = "conv_transpose2d"


def prepare(weights, *, stride=1, padding=0, dtype: str = "float32") -> Packed:
    """Lay weights (KH, KW, O, C), a tensor on a GPU, out for the rung that will use them, on that GPU.

    stride, padding: as on the CPU. dtype: "float32", "bfloat16", "float16" or "tf32". Raises UsageError for a wrong
    dtype, rank, stride or padding, Refused if a rung forced by `using` does not take it.
    """
    weights = tensor_of(OP, "weights", weights)
    if weights.ndim != 4 or not weights.numel():
        raise UsageError(
            f"{OP}: weights has shape {tuple(weights.shape)}; (KH, KW, O, C) is wanted, at least one of each"
        )
    KH, KW, O, C = weights.shape
    rows, columns = axes((KH, KW), stride, padding)
    rung = ladder.choose(Problem(O, C, rows, columns, one_of(OP, "dtype", dtype, DEVICE_DTYPES), "cuda"))
    if rung.lay_out:
        return rung.lay_out(weights, rows, columns, rung.name, dtype)
    return Packed(rung.name, O, C, rows, columns, dtype, weights.float().contiguous())


def conv_transpose2d(x, weights, *, stride=None, padding=None, bias=None, activation=None, out=None, dtype=None):
    """activation(bias + the sum of each pixel's kernels), cropped; see `tilewright.ops.conv_transpose2d`.

    All arrays are torch tensors on one GPU: x and weights float32, bfloat16 or float16, bias float32 or 16 bits wide.
    dtype: "float32" (default), "bfloat16", "float16" or "tf32". out: a float32 tensor, or one of the class's 16-bit
    dtype; None: a new float32 one. Raises UsageError naming the argument that does not fit.
    """
    x = tensor_of(OP, "x", x)
    one_of(OP, "activation", activation, ACTIVATIONS)
    if isinstance(weights, Packed):
        same_window(weights, stride, padding, dtype)
        packed = weights
    else:
        stride, padding = 1 if stride is None else stride, 0 if padding is None else padding
        packed = prepare(weights, stride=stride, padding=padding, dtype=dtype or "float32")
    O, C, rows, columns = packed.O, packed.C, packed.rows, packed.columns
    if x.ndim != 4 or x.shape[3] != C or 0 in x.shape[1:3]:
        raise UsageError(
            f"{OP}: x is {tuple(x.shape)} and weights {(rows.K, columns.K, O, C)}; x must be (B, H, W, C) with C = {C} "
            "channels and at least one pixel"
        )
    if bias is not None and tuple(tensor_of(OP, "bias", bias).shape) != (O,):
        raise UsageError(f"{OP}: bias has shape {tuple(bias.shape)}; {(O,)} is wanted, one number an output channel")
    plain = None if packed is weights else weights
    same_device(OP, "x", x, weights=plain, bias=bias, out=out)
    B, H, W, _ = x.shape
    shape = (B, *check_padding(rows, columns, H, W), O)
    kinds = ("float32", packed.dtype) if packed.dtype in FLOATS else ("float32",)
    result = result_for(OP, out, shape, x, kinds)
    bias = x.new_empty(0) if bias is None else bias.contiguous()
    target = result if result.is_contiguous() and not overlaps(result, x, bias) else result.new_empty(shape)
    _run(x.to(torch_dtype(packed.dtype)).contiguous(), packed, target, Epilogue(bias, activation))
    if target is not result:
        result.copy_(target)
    return result


def _run(x, packed: Packed, out, epilogue: Epilogue) -> None:
    """The chosen rung, on contiguous tensors; x is of the class's dtype."""
    rung = ladder.choose(Problem(packed.O, packed.C, packed.rows, packed.columns, packed.dtype, "cuda"))
    if rung.name != packed.rung:
        raise UsageError(
            f"{OP}: weights was prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare it again"
        )
    if out.numel():
        rung.run(x, packed, out, epilogue)


def pixels(images, *, out=None, spoiled=None):
    """8-bit pixels of images, float32 (n, height, width, channels) of numbers from -1 to 1: int((x + 1) / 2 * 255).

    out: uint8 like images; spoiled: uint8 (n,), becomes 1 for an image with a NaN, whose pixels are then 0. Both are
    new if None; returns them. Raises UsageError naming the argument that does not fit.
    """
    from tilewright.ops.conv_transpose2d.tile.pixels import convert

    images = tensor_of("pixels", "images", images, ("float32",))
    if images.ndim != 4:
        raise UsageError(f"pixels: images has shape {tuple(images.shape)}; (n, height, width, channels) is wanted")
    import torch

    out = images.new_empty(images.shape, dtype=torch.uint8) if out is None else out
    spoiled = images.new_empty(len(images), dtype=torch.uint8) if spoiled is None else spoiled
    for name, value, shape in (("out", out, images.shape), ("spoiled", spoiled, images.shape[:1])):
        if value.dtype != torch.uint8 or value.shape != shape or not value.is_contiguous():
            what = f"{value.dtype} {tuple(value.shape)}; contiguous uint8 {tuple(shape)} is wanted"
            raise UsageError(f"pixels: {name} is {what}")
    same_device("pixels", "images", images, out=out, spoiled=spoiled)
    convert(images.contiguous(), out, spoiled)
    return out, spoiled
