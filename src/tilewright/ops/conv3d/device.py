"""conv3d on a GPU: what `conv3d` and `prepare` do when they are handed torch tensors that live there.

The same arguments and the same function; arrays stay on their device, and work is queued on torch's current stream.
"""

from tilewright.ops.conv3d.arguments import check_rung, pack, pack_factors, volume_shape, window_for
from tilewright.ops.conv3d.operands import Packed
from tilewright.ops.core.arrays import as_numpy
from tilewright.ops.core.gpu.tensors import overlaps, result_for, same_device, tensor_of

ALIGNMENT = 16  # bytes, of an output: kernels store so many at a time


def prepare(weights, *, device=None) -> Packed:
    """Lay weights (KD, KH, KW) or (O, C, KD, KH, KW) out for the rung that will convolve with them on a GPU.

    weights: an array or a tensor, wherever it is; numbers on a GPU are fetched, which waits for it. device: "cuda" or
    a torch device; None: the weights' own. Raises UsageError for a wrong dtype or rank, Refused if a rung forced by
    `using` does not take it.
    """
    import torch

    if isinstance(weights, torch.Tensor):
        return pack(weights.detach().cpu().float().numpy(), "cuda", device or weights.device)
    return pack(weights, "cuda", device or "cuda")


def prepare_separable(factors, *, device="cuda") -> Packed:
    """The same for three vectors whose outer product the kernel is; see `tilewright.ops.conv3d.prepare_separable`."""
    return pack_factors([as_numpy("factors", factor) for factor in factors], "cuda", device)


def conv3d(x, weights, *, mode="constant", cval=0.0, origin=0, out=None):
    """Cross-correlation of x, a torch tensor on a GPU; see `tilewright.ops.conv3d.conv3d`.

    x: (D, H, W) or (C, D, H, W) in float32, bfloat16 or float16. weights: what `prepare` gave for this GPU, or an array
    or tensor of them, which is prepared anew each time. out: a float32 tensor beside x; None: a new one.
    Raises UsageError naming the argument that does not fit.
    """
    x = tensor_of("conv3d", "x", x)
    packed = weights if isinstance(weights, Packed) else prepare(weights, device=x.device)
    volume = volume_shape(x.shape, packed)
    window = window_for(volume, packed.sizes, mode, cval, origin)
    shrink = [K - 1 if window.mode == "valid" else 0 for K in packed.sizes]
    shape = tuple(n - less for n, less in zip(volume, shrink, strict=True))
    shape = (packed.problem.O, *shape) if packed.channels else shape
    result = result_for("conv3d", out, shape, x)
    rung = check_rung(packed, "cuda")
    on_device = packed.data if isinstance(packed.data, list) else [packed.data]
    for weights in (data for data in on_device if hasattr(data, "device")):
        same_device("conv3d", "x", x, weights=weights)
    if result.numel():
        usable = result.is_contiguous() and result.data_ptr() % ALIGNMENT == 0 and not overlaps(result, x)
        target = result if usable else result.new_empty(shape)
        whole = slice(None) if packed.channels else None
        rung.run(x.float().contiguous()[whole], packed, target[whole], window)
        if target is not result:
            result.copy_(target)
    return result
