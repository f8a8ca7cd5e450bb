"""Memory traffic of matmul's rungs: elements read and written per element of the result, from each rung's tiles.

The counts are those of the source for whole tiles: every access to an array counts, an element that stays in a register
does not. `tests/bench/kernels/test_traffic.py` counts the accesses of the kernels themselves.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tilewright.hardware import cpu
from tilewright.ops.core.ladder import Rung
from tilewright.ops.gemm.cpu.tiling import TILINGS

TILE_ROWS, TILE_COLUMNS, LIMB_COLUMNS = 128, 256, 128  # of the widest tiles in `gemm.tile.launch`
BLOCK_COLUMNS = 256  # of `cpu.blocked`
STRIP_ROWS = 4  # of `cpu.vectors`, two vectors wide


class Traffic(NamedTuple):
    """Elements per element of the result. reads, writes: of device memory on a GPU, loads and stores on a CPU.
    shared_reads, shared_writes: of a GPU's shared memory; None where a unit of the hardware reads it."""

    reads: float
    writes: float
    shared_reads: float | None = 0.0
    shared_writes: float | None = 0.0


def _lanes(options: Mapping[str, Any]) -> int:
    """float32 lanes of a vector: of this CPU, unless the options name them."""
    lanes: int = options.get("lanes", cpu().lanes)
    return lanes


def in_memory(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """The sum is kept in out: it is cleared, read and written K times, then read and written by the epilogue."""
    return Traffic(3 * K + 1, K + 2)


def in_register(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """A row of a and a column of b for each element."""
    return Traffic(2 * K, 1)


def along_rows(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """An element of a serves a row of b; out is read and written K times."""
    return Traffic(2 * K + K / N + 1, K + 2)


def in_blocks(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """As `along_rows`, with shorter rows."""
    return Traffic(2 * K + K / min(N, BLOCK_COLUMNS) + 1, K + 2)


def vector_strip(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """A vector of b serves four rows, an element of a two vectors; the epilogue reads and writes out again."""
    return Traffic(K / STRIP_ROWS + K / (2 * _lanes(options)) + 1, 2)


def packed_block(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """The inner loops alone: a register block of MR x NR. Packing a reads and writes K / N more."""
    tiling = TILINGS[_lanes(options)]
    return Traffic(K / tiling.rows[0] + K / tiling.NR, 1)


def shared_tiles(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """T x T tiles of both operands in shared memory."""
    T = options["tile"]
    return Traffic(2 * K / T, 1, 2 * K, 2 * K / T)


def strips(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """An element of b in a register serves wpt elements of a."""
    T, wpt = options["tile"], options["wpt"]
    return Traffic(2 * K / T, 1, K + K / wpt, 2 * K / T)


def register_columns(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """b goes to registers and serves T sums; a's tile is shared by T V columns."""
    T, V = options["T"], options["V"]
    return Traffic(K / T + K / (T * V), 1, K, K / (T * V))


def outer_products(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """64 x 64 per block, 8 x 8 per thread."""
    return Traffic(2 * K / 64, 1, 2 * K / 8, 2 * K / 64)


def padded_tiles(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """128 x 128 per block, 8 x 16 per thread."""
    return Traffic(2 * K / 128, 1, K / 8 + K / 16, 2 * K / 128)


def buffered_tiles(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """As `padded_tiles`; the last step loads its tiles of 8 steps once more."""
    return Traffic(2 * (K + 8) / 128, 1, K / 8 + K / 16, 2 * (K + 8) / 128)


def narrow_columns(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """A warp reads four rows of a once, and an element of b serves four rows."""
    return Traffic(K / N + K / 4, 1)


def matrix_tiles(columns: int) -> Callable[[int, int, Mapping[str, Any]], Traffic]:
    """Tiles of 128 rows for matrix units, which read shared memory themselves. Two limbs count as one element."""

    def traffic(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
        loaded = K / TILE_ROWS + K / columns
        return Traffic(loaded, 1, None, loaded)

    return traffic


FORMULAS: dict[str, Callable[[int, int, Mapping[str, Any]], Traffic]] = {
    "cpu.memory": in_memory,
    "cpu.register": in_register,
    "cpu.reordered": along_rows,
    "cpu.blocked": in_blocks,
    "cpu.vectors": vector_strip,
    "cpu.packed": packed_block,
    "simt.memory": in_memory,
    "simt.register": in_register,
    "simt.coalesced": in_register,
    "simt.shared": shared_tiles,
    "simt.unrolled": shared_tiles,
    "simt.strip": strips,
    "simt.registers": register_columns,
    "simt.outer": outer_products,
    "simt.vectors": padded_tiles,
    "simt.warps": padded_tiles,
    "simt.buffered": buffered_tiles,
    "tile.persistent": matrix_tiles(TILE_COLUMNS),
    "tile.specialized": matrix_tiles(TILE_COLUMNS),
    "tile.limbs": matrix_tiles(LIMB_COLUMNS),
    "tile.specialized_limbs": matrix_tiles(LIMB_COLUMNS),
    "simt.narrow": narrow_columns,
}


def traffic_of(op: str, rung: Rung, case: Any) -> Traffic | None:
    """Counted traffic of a rung of matmul; None for another operation and for a rung without a formula."""
    formula = FORMULAS.get(rung.name) if op == "matmul" else None
    return formula(case.K, case.N, rung.options) if formula else None
