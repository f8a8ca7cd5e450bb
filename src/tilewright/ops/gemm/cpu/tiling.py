"""Sizes of register blocks and panels. Needs no Numba, so that memory can be planned without loading it."""

from dataclasses import dataclass

TILE_WORDS = 16  # words along K in an AMX tile


@dataclass(frozen=True)
class Tiling:
    """The register block for one vector width: NR columns; MR rows, then the smaller heights for the last rows."""

    lanes: int
    vectors: int
    rows: tuple[int, int, int]

    @property
    def NR(self) -> int:
        """Columns of a block."""
        return self.lanes * self.vectors


TILINGS = {
    16: Tiling(16, 2, (12, 4, 1)),  # 24 accumulators + 2 of B + a broadcast, of AVX-512's 32 registers
    8: Tiling(8, 2, (6, 4, 1)),  # 12 + 2 + 1 of AVX2's 16
    4: Tiling(4, 4, (4, 2, 1)),  # 16 + 4 + 1 of NEON's 32
}


def words_of(K: int) -> int:
    """Words along K in a packed operand."""
    return -(-K // (2 * TILE_WORDS)) * TILE_WORDS
