"""The convolution as one matmul: row (b, l) of the left matrix is the window of position l, channels last.

out[b, :, l] = windows[b, l] (K * C,) @ b (K * C, O). On the CPU the matrix of windows is a view of x. Here matmul needs
rows that do not overlap, so the matrix is written, K times as large as x, a piece of the batch at a time. The limit is
matrix units. It is slow where C * K or O is small: then writing the matrix takes longer than the product.
"""

from tilewright.ops.conv1d.operands import Epilogue, Packed, Window
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.matmul import matmul, prepare

PIECE = 1 << 28  # elements of the matrix that exist at a time: 1 GiB in float32


def pack_matrix(weight, rung: str, dtype: str) -> Packed:
    """weight (O, C, K) as matmul's b (K * C, O); row t * C + c is tap t of channel c."""
    O, C, K = weight.shape
    return Packed(rung, O, C, K, dtype, prepare(weight.permute(0, 2, 1).reshape(O, K * C).T, dtype=dtype))


def convolve(x, weights: Packed, out, window: Window, epilogue: Epilogue) -> None:
    """x (B, C, L) convolved into out (B, O, positions), or (B, O, 1) with pooling."""
    B, C, L = x.shape
    K, positions = weights.K, window.positions(L, weights.K)
    bias = epilogue.bias if epilogue.bias.numel() else None
    count = max(PIECE // (positions * K * C), 1)
    padded = x.new_zeros((min(B, count), L + 2 * window.padding, C), dtype=torch_dtype(weights.dtype))
    row = padded.shape[1] * C
    for first in range(0, B, count):
        some = x[first : first + count]
        padded[: len(some), window.padding : window.padding + L] = some.transpose(1, 2)
        shape = (len(some), positions, K, C)
        windows = padded.as_strided(shape, (row, window.stride * C, window.dilation * C, 1)).reshape(-1, K * C)
        y = out.new_empty(len(windows), weights.O)  # of out's dtype: rounding does not change which is the maximum
        y = matmul(windows, weights.data, bias=bias, activation=epilogue.activation, out=y)
        y = y.view(len(some), positions, weights.O).transpose(1, 2)
        target = out[first : first + count]
        target.copy_(y.amax(2, keepdim=True) if epilogue.pool else y)
