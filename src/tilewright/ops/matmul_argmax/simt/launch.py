"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.ops.core.gpu.simt import launch
from tilewright.ops.matmul.device import matmul
from tilewright.ops.matmul_argmax.simt import search as kernels

PRODUCTS_BYTES = 256 << 20  # of products that are kept at once
ROWS = {"row": kernels.THREADS, "shuffles": kernels.THREADS // kernels.WARP}  # of a block


def search(name: str, a, prepared, index, value) -> None:
    """index, value (M,) = the largest of each row of a @ prepared.weights, written for some rows at a time."""
    M, N, kernel = len(a), prepared.weights.N, getattr(kernels, name)
    step = min(M, max(1, PRODUCTS_BYTES // (4 * N)))
    products = value.new_empty(step, N)
    for i in range(0, M, step):
        rows = a[i : i + step]
        part = products[: len(rows)]
        matmul(rows, prepared.weights, out=part)
        launch(kernel, -(-len(rows) // ROWS[name]), kernels.THREADS, (part, index[i : i + step], value[i : i + step]))
