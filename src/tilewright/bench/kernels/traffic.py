"""Memory traffic of matmul's rungs: elements read and written per element of the result, computed from each rung's
tiles.

The formulas count the accesses in the source, for whole tiles. Every access to an array counts; an element that stays
in a register does not. `tests/bench/kernels/test_traffic.py` compares them with the accesses of the kernels themselves.
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
    shared_reads, shared_writes: of a GPU's shared memory; None if a hardware unit reads it."""

    reads: float
    writes: float
    shared_reads: float | None = 0.0
    shared_writes: float | None = 0.0


def _lanes(options: Mapping[str, Any]) -> int:
    """The float32 lanes of a vector: those of this CPU, unless the options give them."""
    lanes: int = options.get("lanes", cpu().lanes)
    return lanes


def in_memory(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """The sum is kept in out: it is set to 0, then read and written K times. Then the epilogue reads and writes it."""
    return Traffic(3 * K + 1, K + 2)


def in_register(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """Each element reads a row of a and a column of b."""
    return Traffic(2 * K, 1)


def along_rows(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """An element of a is multiplied by a row of b. out is read and written K times."""
    return Traffic(2 * K + K / N + 1, K + 2)


def in_blocks(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """As `along_rows`, but with shorter rows."""
    return Traffic(2 * K + K / min(N, BLOCK_COLUMNS) + 1, K + 2)


def vector_strip(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """A vector of b is used for four rows, an element of a for two vectors. The epilogue reads and writes out again."""
    return Traffic(K / STRIP_ROWS + K / (2 * _lanes(options)) + 1, 2)


def packed_block(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """Only the inner loops are counted, with a register block of MR x NR. Packing a reads and writes K / N more."""
    tiling = TILINGS[_lanes(options)]
    return Traffic(K / tiling.rows[0] + K / tiling.NR, 1)


def shared_tiles(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """T x T tiles of both operands in shared memory."""
    T = options["tile"]
    return Traffic(2 * K / T, 1, 2 * K, 2 * K / T)


def strips(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """An element of b in a register is multiplied by wpt elements of a."""
    T, wpt = options["tile"], options["wpt"]
    return Traffic(2 * K / T, 1, K + K / wpt, 2 * K / T)


def register_columns(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """Elements of b go to registers and are used for T sums. T V columns share a's tile."""
    T, V = options["T"], options["V"]
    return Traffic(K / T + K / (T * V), 1, K, K / (T * V))


def outer_products(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """64 x 64 per block, 8 x 8 per thread."""
    return Traffic(2 * K / 64, 1, 2 * K / 8, 2 * K / 64)


def padded_tiles(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """128 x 128 per block, 8 x 16 per thread."""
    return Traffic(2 * K / 128, 1, K / 8 + K / 16, 2 * K / 128)


def buffered_tiles(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """As `padded_tiles`, but the last step loads its tiles of 8 steps once more."""
    return Traffic(2 * (K + 8) / 128, 1, K / 8 + K / 16, 2 * (K + 8) / 128)


def narrow_columns(K: int, N: int, options: Mapping[str, Any]) -> Traffic:
    """A warp reads four rows of a once. An element of b is used for four rows."""
    return Traffic(K / N + K / 4, 1)


def matrix_tiles(columns: int) -> Callable[[int, int, Mapping[str, Any]], Traffic]:
    """Tiles of 128 rows for matrix units, which read shared memory themselves. A pair of limbs counts as one
    element."""

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
    """The counted traffic of a rung of matmul. None for another operation, or for a rung without a formula."""
    formula = FORMULAS.get(rung.name) if op == "matmul" else None
    return formula(case.K, case.N, rung.options) if formula else None
