"""Register blocks: the tile of C that a matrix micro-kernel keeps in registers from the first k to the last.

    block = simd.block_zeros(12, 2, 16)              # 12 x 32 of C: 24 of AVX-512's 32 registers
    for p in range(K):
        block = simd.block_rank1(block, a, p * 12, b, p * 32)
    simd.block_store(block, c, 0, ldc, 32)

Two vectors of B, one broadcast of A and 24 accumulators are 27 registers. LLVM needs no spill, and the loop runs at the
machine's FMA rate (253 GFLOP/s on a Zen 5 core of 256, measured November 2026). Source of the outer-product kernel:
Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.
"""

import functools

from llvmlite import ir
from numba import types

from tilewright.simd.instruction import Registers, instruction, offset_by
from tilewright.simd.types import I32, I64, Block, broadcast_lane, filled, lanewise, vector_of
from tilewright.simd.vectors import WORD, load_some, load_vector, store_some, store_vector

SIZE = types.intp  # an index, a stride or a count


@instruction(lambda *sizes: Block(*[size.literal_value for size in sizes])(*sizes))
def block_zeros(builder, rows, vectors, lanes):
    """A register block of zeros, `rows x (vectors * lanes)`; all three are compile-time constants."""
    return Registers(rows, vectors, lanes, [filled(vector_of(lanes), 0.0)] * (rows * vectors))


def load_column(builder, at, count: int) -> list:
    """`count` scalars of 4 bytes from the pointer `at`."""
    return [builder.load(offset_by(builder, at, i), align=WORD) for i in range(count)]


def load_row(builder, at, block: Registers) -> list:
    """The vectors of one row of a block from the pointer `at`."""
    return [load_vector(builder, offset_by(builder, at, j * block.lanes), block.lanes) for j in range(block.vectors)]


def add_outer(builder, block: Registers, column: list, row: list, product=None) -> Registers:
    """block[i, j] = product(column[i] in every lane, row[j], block[i, j]). The default product is fma.

    The loops run at compile time: the kernel gets rows x vectors products without a branch.
    """
    product = product or functools.partial(lanewise, builder, "fma")
    for i, scalar in enumerate(column):
        everywhere = broadcast_lane(builder, scalar, block.lanes)
        for j, vector in enumerate(row):
            block[i, j] = product(everywhere, vector, block[i, j])
    return block


def step_of(block, a, a_at, b, b_at):
    """The signature of a step along K."""
    return block(block, a, SIZE, b, SIZE)


@instruction(step_of)
def block_rank1(builder, block, a, a_at, b, b_at):
    """block += outer(a.flat[a_at : + rows], b.flat[b_at : + vectors * lanes]): one step along K."""
    row = load_row(builder, b.at(b_at), block)
    return add_outer(builder, block, load_column(builder, a.at(a_at), block.rows), row)


def rank1_rows(name: str, doc: str, convert=lambda builder, vector: vector):
    """An instruction as `block_rank1_rows`; `convert(builder, vector)` is applied to the vectors of b."""

    def emit(builder, block, a, a_at, a_stride, b, b_at, b_stride):
        a_start, b_start = a.at(a_at), b.at(b_at)
        for i in range(block.rows):
            scalar = builder.load(builder.gep(a_start, [builder.mul(a_stride, I64(i))]), align=WORD)
            scalar = broadcast_lane(builder, scalar, block.lanes)
            row = builder.gep(b_start, [builder.mul(b_stride, I64(i))])
            for j in range(block.vectors):
                vector = convert(builder, load_vector(builder, offset_by(builder, row, j * block.lanes), block.lanes))
                block[i, j] = lanewise(builder, "fma", scalar, vector, block[i, j])
        return block

    def signature(block, a, a_at, a_stride, b, b_at, b_stride):
        return block(block, a, SIZE, SIZE, b, SIZE, SIZE)

    return instruction(signature, name, doc)(emit)


block_rank1_rows = rank1_rows(
    "block_rank1_rows",
    """Row i of block += a.flat[a_at + i * a_stride] * b.flat[b_at + i * b_stride : + vectors * lanes].

    `block_rank1` for a matrix A that is not packed. With b_stride 0 all rows share their vectors of b, which are loaded
    once; otherwise each row has its own.
    """,
)


def each_vector(builder, block: Registers, start, stride, columns, transfer) -> Registers | None:
    """transfer(block[i, j], pointer to its memory, count) for each vector, and a block of the results if it has any.

    Rows are `stride` elements apart in memory. The code exists twice: with count None for blocks whose full width is
    inside the matrix, and with the number of lanes that are inside, for masks at the right edge.
    """

    def emit(masked: bool) -> list:
        results = []
        for i in range(block.rows):
            row = builder.gep(start, [builder.mul(stride, I64(i))])
            for j in range(block.vectors):
                count = builder.sub(columns, I64(j * block.lanes)) if masked else None
                results.append(transfer(block[i, j], offset_by(builder, row, j * block.lanes), count))
        return results

    inside = builder.icmp_signed(">=", columns, I64(block.vectors * block.lanes))
    with builder.if_else(inside, likely=True) as (then, otherwise):
        with then:
            whole, whole_end = emit(masked=False), builder.block
        with otherwise:
            part, part_end = emit(masked=True), builder.block
    if None in whole:
        return None
    merged = []
    for from_whole, from_part in zip(whole, part, strict=True):
        merged.append(builder.phi(from_whole.type))
        merged[-1].add_incoming(from_whole, whole_end)
        merged[-1].add_incoming(from_part, part_end)
    return Registers(block.rows, block.vectors, block.lanes, merged)


def stored(builder, value, at, count) -> None:
    """Store a vector, or its first `count` lanes unless count is None."""
    if count is None:
        store_vector(builder, value, at)
    else:
        store_some(builder, value, at, count)


@instruction(lambda block, c, c_at, stride, columns: types.void(block, c, SIZE, SIZE, SIZE))
def block_store(builder, block, c, c_at, stride, columns):
    """The first `columns` columns of the block to c: row i goes to `c.flat[c_at + i * stride : + columns]`."""
    each_vector(builder, block, c.at(c_at), stride, columns, functools.partial(stored, builder))


@instruction(lambda block, c, c_at, stride, columns: block(block, c, SIZE, SIZE, SIZE))
def block_add(builder, block, c, c_at, stride, columns):
    """block + c's first `columns` columns, laid out as in `block_store`; the other columns are unchanged."""

    def add(value, at, count):
        lanes = block.lanes
        loaded = load_vector(builder, at, lanes) if count is None else load_some(builder, at, count, lanes)
        return builder.fadd(loaded, value)

    return each_vector(builder, block, c.at(c_at), stride, columns, add)


def gathered_row(builder, array, starts, first, last, offset):
    """The pointer to `array.flat[starts[min(first, last)] + offset]`."""
    row = builder.select(builder.icmp_signed("<", first, last), first, last)
    return array.at(builder.add(builder.load(starts.at(row)), offset))


@instruction(lambda block, array, starts, first, last, offset: block(block, array, starts, SIZE, SIZE, SIZE))
def block_gather(builder, block, array, starts, first, last, offset):
    """A block whose row i is `array.flat[starts[min(first + i, last)] + offset :]`, for rows anywhere in memory.

    `block` gives the shape only; `starts` is an int64 array of element offsets.
    """
    for i in range(block.rows):
        at = gathered_row(builder, array, starts, builder.add(first, I64(i)), last, offset)
        for j, vector in enumerate(load_row(builder, at, block)):
            block[i, j] = vector
    return block


@instruction(lambda block, array, at, stride, rows: block(block, array, SIZE, SIZE, SIZE))
def block_load(builder, block, array, at, stride, rows):
    """A block whose row i is `array.flat[at + min(i, rows - 1) * stride :]`; `block` gives the shape only."""
    start, last = array.at(at), builder.sub(rows, I64(1))
    for i in range(block.rows):
        row = builder.select(builder.icmp_signed("<", I64(i), last), I64(i), last)
        for j, vector in enumerate(load_row(builder, builder.gep(start, [builder.mul(row, stride)]), block)):
            block[i, j] = vector
    return block


@instruction(lambda block: block(block) if (block.vectors, block.rows) == (1, block.lanes) else None)
def block_transpose(builder, block):
    """The transpose of a square block (rows == lanes, one vector per row), by log2(lanes) rounds of two-register
    shuffles.

    The round of distance d swaps the off-diagonal d x d squares of each 2d x 2d square.
    """
    n = block.lanes
    distance = n // 2
    while distance:
        upper = [i for i in range(n) if not i & distance]
        low = [i if not i & distance else n + i - distance for i in range(n)]
        high = [i + distance if not i & distance else n + i for i in range(n)]
        for i in upper:
            a, b = block[i, 0], block[i + distance, 0]
            block[i, 0] = builder.shuffle_vector(a, b, ir.Constant(vector_of(n, I32), low))
            block[i + distance, 0] = builder.shuffle_vector(a, b, ir.Constant(vector_of(n, I32), high))
        distance //= 2
    return block


@instruction(lambda total, block, a, a_at: total(total, block, a, SIZE) if block.vectors == 1 else None)
def block_dot_rows(builder, total, block, a, a_at):
    """total += block[0] * a.flat[a_at] + block[1] * a.flat[a_at + 1] + ..., FMA after FMA; one vector per row."""
    for i, scalar in enumerate(load_column(builder, a.at(a_at), block.rows)):
        total = lanewise(builder, "fma", broadcast_lane(builder, scalar, block.lanes), block[i, 0], total)
    return total


def _of_two(name: str, doc: str, combine):
    """An instruction of two equal blocks; `combine(builder, one, other)` computes one vector of the result."""

    def emit(builder, a, b):
        for at in a.positions:
            a[at] = combine(builder, a[at], b[at])
        return a

    return instruction(lambda a, b: a(a, b) if a == b and isinstance(a, Block) else None, name, doc)(emit)


block_maximum = _of_two(
    "block_maximum",
    "The larger of two equal blocks lane by lane, NaN if either is.",
    lambda builder, one, other: lanewise(builder, "maximum", one, other),
)
block_sum = _of_two("block_sum", "The sum of two equal blocks.", lambda builder, one, other: builder.fadd(one, other))


@instruction(lambda block, a, a_at: block(block, a, SIZE) if isinstance(block, Block) else None)
def block_scale_rows(builder, block, a, a_at):
    """Row i of the block times a.flat[a_at + i]."""
    scalars = load_column(builder, a.at(a_at), block.rows)
    for i, j in block.positions:
        block[i, j] = builder.fmul(block[i, j], broadcast_lane(builder, scalars[i], block.lanes))
    return block
