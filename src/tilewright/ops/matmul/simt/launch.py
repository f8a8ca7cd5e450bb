"""Starts the SIMT kernels on torch tensors: on the current stream of a GPU, or in numba-cuda's simulator on the CPU."""

from tilewright.errors import Refused
from tilewright.ops.core.gpu.limits import check_block
from tilewright.ops.core.gpu.simt import launch
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows
from tilewright.ops.matmul.simt import blocks, naive, narrow, shared, warps

# One thread per element, for an activation. In ALONG_COLUMNS the threads of a warp run along a column of out.
ELEMENTS = {"memory": naive.memory, "register": naive.register, "coalesced": naive.coalesced}
ALONG_COLUMNS = ("memory", "register")
TILED = {"shared": shared.shared, "unrolled": shared.unrolled}  # kernels for an activation and a tile
WORD = 4  # bytes of a float32
BLOCKS_ACROSS = 65535  # the maximum of a grid in its second dimension
PADDED = {"vectors": warps.vectors, "warps": warps.warps, "buffered": warps.buffered}  # for padded operands


def pad_tiles(b, rung: str, dtype: str) -> Packed:
    """b (K, N) as float32, padded with zeros to whole tiles: kernels load 16 bytes without checking for b's end."""
    K, N = b.shape
    data = b.new_zeros(-(-K // warps.DEPTH) * warps.DEPTH, -(-N // warps.TILE) * warps.TILE)
    data[:K, :N] = b
    return Packed(rung, K, N, "float32", data)


def transpose(b, rung: str, dtype: str) -> Packed:
    """b (K, N) as float32 (N, K): the threads of a warp read adjacent elements of a column."""
    K, N = b.shape
    return Packed(rung, K, N, "float32", b.T.float().contiguous())


def multiply_narrow(rows: Rows, weights: Packed, out, epilogue: Epilogue) -> None:
    """As `multiply`, for few columns."""
    arrays = (rows.plain().float().contiguous(), weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    create = narrow.narrow(epilogue.activation, weights.N)
    launch(create, -(-len(out) // narrow.TILE), narrow.THREADS, arrays)


def multiply(
    rows: Rows, weights: Packed, out, epilogue: Epilogue, *, kernel: str, block_rows: int, block_columns: int
) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias); contiguous float32 tensors on one device.

    One thread per element. kernel: a key of ELEMENTS. "memory" keeps its sums in out, which then must not be the
    residual. block_rows, block_columns: rows and columns of out per block, so also of its threads. They change no bits.
    Raises Refused if so many threads do not fit in a block, or if out needs too many blocks across.
    """
    check_block({"block_rows": block_rows, "block_columns": block_columns}, threads=block_rows * block_columns)
    if kernel == "memory" and epilogue.residual.data_ptr() == out.data_ptr():
        epilogue = Epilogue(epilogue.bias, epilogue.residual.clone(), epilogue.activation)
    tile = block_rows, block_columns
    threads = tile if kernel in ALONG_COLUMNS else tile[::-1]  # the first axis is the one along which a warp runs
    _start(ELEMENTS[kernel](epilogue.activation), threads, tile, _operands(rows, weights, out, epilogue))


def multiply_outer(rows: Rows, weights: Packed, out, epilogue: Epilogue) -> None:
    """As `multiply`, by `blocks.outer`."""
    tile = blocks.TILE, blocks.TILE
    _start(blocks.outer(epilogue.activation), (64,), tile, _operands(rows, weights, out, epilogue))


def multiply_tiles(rows: Rows, weights: Packed, out, epilogue: Epilogue, *, kernel: str, tile: int) -> None:
    """As `multiply`, by a kernel of TILED. tile: rows and columns of a tile, and of the threads of a block.

    Raises Refused for a tile that does not fit in a block.
    """
    check_block({"tile": tile}, threads=tile * tile, shared=2 * tile * tile * WORD)
    create = TILED[kernel](epilogue.activation, tile)
    _start(create, (tile, tile), (tile, tile), _operands(rows, weights, out, epilogue))


def multiply_strips(rows: Rows, weights: Packed, out, epilogue: Epilogue, *, tile: int, wpt: int) -> None:
    """As `multiply`, by `blocks.strip`. tile: rows and columns of out per block. wpt: work per thread, elements of out.

    Raises Refused unless wpt divides tile, and if the tile does not fit in a block.
    """
    check_block({"tile": tile, "wpt": wpt})
    if tile % wpt:
        raise Refused(f"tile={tile}, wpt={wpt}: wpt must divide tile")
    threads = tile * tile // wpt
    check_block({"tile": tile, "wpt": wpt}, threads=threads, shared=2 * tile * blocks.STRIP_DEPTH * WORD)
    create = blocks.strip(epilogue.activation, tile, wpt)
    _start(create, (threads,), (tile, tile), _operands(rows, weights, out, epilogue))


def multiply_registers(rows: Rows, weights: Packed, out, epilogue: Epilogue, *, T: int, V: int) -> None:
    """As `multiply`, by `blocks.registers`. T: sums per thread, rows of out per block. V: a block has T * V columns.

    Raises Refused if T * V threads or a T x T tile do not fit in a block.
    """
    check_block({"T": T, "V": V}, threads=T * V, shared=T * (T + 1) * WORD)
    create = blocks.registers(epilogue.activation, T, V)
    _start(create, (T * V,), (T, T * V), _operands(rows, weights, out, epilogue))


def multiply_padded(rows: Rows, weights: Packed, out, epilogue: Epilogue, *, kernel: str) -> None:
    """As `multiply`, by a kernel of PADDED, with weights from `pad_tiles`."""
    depth, width = weights.data.shape
    a = _padded(rows.plain().float().contiguous(), depth)
    arrays = (a, weights.data, out, epilogue.bias.float(), epilogue.residual.float())
    launch(
        PADDED[kernel](epilogue.activation), _grid(out, warps.TILE, warps.TILE), (warps.THREADS,), arrays, depth, width
    )


def _operands(rows: Rows, weights: Packed, out, epilogue: Epilogue) -> tuple:
    """The kernels' arguments: a, b, out, bias, residual."""
    a = rows.plain().float().contiguous()
    return a, weights.data, out, epilogue.bias.float(), epilogue.residual.float()


def _start(kernel, threads: tuple[int, ...], tile: tuple[int, int], arrays: tuple) -> None:
    """Launch a kernel on `_operands`, one block for each tile of out. tile: its rows and columns.

    Raises Refused if the tile is so narrow that a grid has too few blocks.
    """
    _, _, out, *_ = arrays
    down, across = _grid(out, *tile)
    if across > BLOCKS_ACROSS:
        width = tile[-1]
        raise Refused(
            f"out has {out.shape[1]:,} columns: a block with {width} of them needs {across:,} blocks across; "
            f"the maximum is {BLOCKS_ACROSS:,}"
        )
    launch(kernel, (down, across), threads, arrays)


def _grid(out, height: int, width: int) -> tuple[int, int]:
    """Blocks of height x width elements down and across out."""
    return -(-out.shape[0] // height), -(-out.shape[1] // width)


def _padded(a, depth: int):
    """a padded with zeros to `depth` columns."""
    if a.shape[1] == depth:
        return a
    wide = a.new_zeros(len(a), depth)
    wide[:, : a.shape[1]] = a
    return wide
