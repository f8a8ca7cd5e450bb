"""Register blocks against NumPy: the rank-1 chain bit for bit, edges, gathers, transposes."""

import ml_dtypes
import numpy as np
import pytest
from numba import types

from compare import Guarded
from tilewright import simd

SHAPES = [(12, 2, 16), (6, 2, 8), (4, 4, 4), (1, 2, 16)]
KERNELS: dict = {}


def kernels(rows, vectors, lanes):
    if (rows, vectors, lanes) in KERNELS:
        return KERNELS[rows, vectors, lanes]
    NR = vectors * lanes
    signature = types.void(simd.INPUT, simd.INPUT, simd.OUTPUT_2D, types.int64, types.int64, types.boolean)

    @simd.kernel(signature, name=f"test.block.{rows}.{vectors}.{lanes}")
    def product(a, b, c, depth, columns, add):
        block = simd.block_zeros(rows, vectors, lanes)
        for p in range(depth):
            block = simd.block_rank1(block, a, p * rows, b, p * NR)
        stride = c.strides[0] // 4
        if add:
            block = simd.block_add(block, c, 0, stride, columns)
        simd.block_store(block, c, 0, stride, columns)

    @simd.kernel(types.void(simd.INPUT, simd.INPUT, simd.OUTPUT_2D), name=f"test.maximum.{rows}.{vectors}.{lanes}")
    def larger(a, b, c):
        zero = simd.block_zeros(rows, vectors, lanes)
        x, y = simd.block_add(zero, a, 0, NR, NR), simd.block_add(zero, b, 0, NR, NR)
        simd.block_store(simd.block_maximum(x, y), c, 0, c.strides[0] // 4, NR)

    KERNELS[rows, vectors, lanes] = product, larger
    return product, larger


def fma_chain(a, b):
    """(depth, rows), (depth, NR) -> the sums as a chain of fused multiply-adds."""
    total = np.zeros((a.shape[1], b.shape[1]), np.float32)
    for x, y in zip(a.astype(np.longdouble), b.astype(np.longdouble), strict=True):
        total = (np.outer(x, y) + total).astype(np.float32)  # exact in 64 bits of mantissa, then rounded once
    return total


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("depth", [0, 1, 5, 40])
def test_rank1_is_a_chain_of_fma(shape, depth, rng):
    rows, vectors, lanes = shape
    a = rng.standard_normal((depth, rows), dtype=np.float32)
    b = rng.standard_normal((depth, vectors * lanes), dtype=np.float32)
    out = Guarded((rows, vectors * lanes))
    kernels(*shape)[0](a.reshape(-1), b.reshape(-1), out.array, depth, vectors * lanes, False)
    out.check()
    assert np.ascontiguousarray(out.array).tobytes() == fma_chain(a, b).tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_of_columns(shape, rng):
    """Only the first columns are stored or added to; the guard between rows detects any other write."""
    rows, vectors, lanes = shape
    NR = vectors * lanes
    a, b = rng.standard_normal((1, rows), dtype=np.float32), rng.standard_normal((1, NR), dtype=np.float32)
    for columns in (1, lanes - 1, lanes, NR - 1, NR, NR + 5):
        for add in (False, True):
            out = Guarded((rows, min(columns, NR)))
            out.array[...] = 2
            kernels(*shape)[0](a.reshape(-1), b.reshape(-1), out.array, 1, columns, add)
            out.check()
            expected = np.outer(a[0], b[0])[:, :columns] + np.float32(2 * add)
            assert (out.array == expected.astype(np.float32)).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_maximum_keeps_a_nan(shape, rng):
    rows, vectors, lanes = shape
    a, b = rng.standard_normal((2, rows * vectors * lanes), dtype=np.float32)
    a[1], b[2] = np.nan, np.nan
    out = np.zeros((rows, vectors * lanes), np.float32)
    kernels(*shape)[1](a, b, out)
    assert out.reshape(-1).tobytes() == np.maximum(a, b).tobytes()


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_gather_and_transpose(lanes, rng):
    signature = types.void(simd.INPUT, simd.INDICES, simd.OUTPUT_2D, types.int64, types.int64, types.int64)

    @simd.kernel(signature, name=f"test.transpose.{lanes}")
    def transposed(array, starts, out, first, last, offset):
        square = simd.block_gather(simd.block_zeros(lanes, 1, lanes), array, starts, first, last, offset)
        simd.block_store(simd.block_transpose(square), out, 0, out.strides[0] // 4, lanes)

    memory = rng.standard_normal(5000, dtype=np.float32)
    starts = rng.integers(0, 4000, lanes + 3)
    for first, last in ((0, lanes - 1), (2, lanes + 1), (1, 2)):
        out = Guarded((lanes, lanes))
        transposed(memory, starts, out.array, first, last, 7)
        out.check()
        picked = [starts[min(first + i, last)] + 7 for i in range(lanes)]
        assert (out.array == np.stack([memory[at : at + lanes] for at in picked]).T).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_rows_a_stride_apart_are_transposed_into_part_of_an_array(lanes, dtype, rng):
    """`block_load` repeats the last row; `block_put` writes the first columns only, in the dtype of the array."""
    element = types.float32 if dtype == "float32" else types.uint16
    signature = types.void(simd.INPUT, types.Array(element, 2, "A"), types.int64, types.int64)

    @simd.kernel(signature, name=f"test.transposed.{lanes}.{dtype}")
    def transposed(array, out, stride, count):
        square = simd.block_load(simd.block_zeros(lanes, 1, lanes), array, 3, stride, count)
        simd.block_put(simd.block_transpose(square), out, 0, out.strides[0] // out.itemsize, count)

    memory = rng.standard_normal(lanes * 40 + 3, dtype=np.float32)
    for count in range(1, lanes + 1):
        out = np.full((lanes, 24), 7, ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
        transposed(memory, out if dtype == "float32" else out.view(np.uint16), 40, count)
        rows = np.stack([memory[3 + 40 * i : 3 + 40 * i + lanes] for i in range(count)])
        assert (out[:, :count] == rows.T.astype(out.dtype)).all()
        assert (out[:, count:] == 7).all()
