"""Starts the SIMT rungs on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.conv_transpose2d.fill import fill
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.simt import matrices, naive
from tilewright.ops.core.gpu.simt import launch

KERNELS = {"gather_tested": naive.gather_tested, "gather": naive.gather, "coalesced": naive.coalesced}


def prepare(weights, rows: Axis, columns: Axis, rung: str) -> Packed:
    """weights (KH, KW, O, C) as the rung wants them."""
    name = rung.partition(".")[2]
    if name == "zero_inserted":
        return matrices.pack_matrix(weights, rows, columns, rung)
    if name == "phases":
        return matrices.pack_phases(weights, rows, columns, rung)
    O, C = weights.shape[2:]
    return Packed(rung, O, C, rows, columns, "float32", weights.float().permute(0, 1, 3, 2).contiguous())


def convolve(name: str, x, weights: Packed, out, epilogue: Epilogue) -> None:
    """The run function of all SIMT rungs; contiguous float32 tensors on one device."""
    rows, columns = weights.rows, weights.columns
    if name in KERNELS:
        tensors = (x, weights.data, epilogue.bias.float(), out)
        window = rows.stride, columns.stride, rows.first, columns.first
        grid = -(-out.numel() // naive.THREADS)
        launch(KERNELS[name](epilogue.activation), grid, naive.THREADS, tensors, *window)
    elif name == "zero_inserted":
        matrices.zero_inserted(x, weights, out, epilogue)
    else:
        fill(out, weights, epilogue)
        matrices.phases(x, weights, out, epilogue)
