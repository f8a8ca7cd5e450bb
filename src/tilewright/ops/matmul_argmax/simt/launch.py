"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.core.gpu.simt import launch
from tilewright.ops.matmul import matmul
from tilewright.ops.matmul_argmax.simt import search as kernels

PRODUCTS_BYTES = 256 << 20  # most bytes of products written at a time
ROWS = {"row": kernels.THREADS, "shuffles": kernels.THREADS // kernels.WARP}  # kernel -> rows per block


def search(a, prepared, index, value, *, kernel: str) -> None:
    """index, value (M,) of the largest element of each row of a @ prepared.weights; kernel: a key of ROWS."""
    M, N, function = len(a), prepared.weights.N, getattr(kernels, kernel)
    step = min(M, max(1, PRODUCTS_BYTES // (4 * N)))
    products = value.new_empty(step, N)
    for i in range(0, M, step):
        rows = a[i : i + step]
        part = products[: len(rows)]
        matmul(rows, prepared.weights, out=part)
        results = index[i : i + step], value[i : i + step]
        launch(function, -(-len(rows) // ROWS[kernel]), kernels.THREADS, (part, *results))
