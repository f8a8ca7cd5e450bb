"""How a result is cut into tasks. It changes no result bit: an output's sum is the same in any tile.

A task is a tile of YT rows x XT columns x ZT planes of outputs. It marches along z, with the planes under its window in
a ring buffer in scratch. Each step loads one plane, so a tile reads each element once. Only the halo is read again, by
neighbouring tiles.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.hardware import cpu
from tilewright.ops.conv3d.problem import Problem
from tilewright.ops.core.launch import SCRATCH_BYTES
from tilewright.ops.core.memory import LINE

# The CPU's lanes: rows and columns of outputs in registers. 16 sums, or 10, cover the latency of two FMAs a cycle. With
# 8 lanes there are 16 registers, for 5 x 2 sums, the taps and two vectors of x. 16 columns are a cache line, because
# half a line must not be streamed: 256^3 with K 3 took 39 ms instead of 18 (Zen 3, one thread)
ROWS = {16: 16, 8: 5, 4: 8}
COLUMNS = {16: 16, 8: 16, 4: 4}
ROWS_OF_GROUPS = {**ROWS, 8: 4}  # where taps are added in groups of 4, which do not fit in registers beside 10 sums
HEIGHTS = 64, 32, 16  # rows of a tile, the most first
# The CPU's lanes: rows and columns of a tile of `separable`, the first that fits and leaves each thread a task, or the
# last. On Zen 3 a ring that is read from L3 costs less than the larger halo of smaller tiles: with K 17, tiles of 10
# rows take 1.07 times as long, with K 33 1.2 times. Tiles of 128 columns take 1.2 times as long
FUSED = {
    16: ((64, 256), (32, 256), (64, 128), (32, 128), (32, 64), (16, 64)),
    8: ((30, 256), (15, 256), (15, 64), (5, 64)),
    4: ((32, 256), (16, 256), (32, 128), (16, 128), (16, 64), (8, 64)),
}
SHARE = {16: 0.75, 8: 2.5, 4: 0.75}  # of L2, which the scratch of such a tile may fill
L1, L2 = 32 << 10, 1 << 20  # bytes, where the system does not say
WIDEST = 512  # columns of a tile: 2 KiB, so that rows are read in long runs
STREAMED = 16 << 20  # bytes of out from which it goes past the caches, which could not hold it beside the input; more
# than `memo.LARGEST`
TASKS = 4  # per thread at least, so that threads finish together


class March(NamedTuple):
    """Parameters of the kernels of `rows` and `folded`: the result (O, D, H, W), the kernel (O, C, KD, KH, KW), the
    tile (ZT, YT, XT), and the layout of scratch. A word is a float32."""

    D: int
    H: int
    W: int
    O: int
    C: int
    KD: int
    KH: int
    KW: int
    half: int  # planes of the kernel that are sums of two
    ZT: int
    YT: int
    XT: int
    pitch: int  # words from row to row
    plane: int  # words from plane to plane
    pad: int  # words of a row before its first column; see `pad_of`
    y_map: int  # offsets of the maps of y and x in `Border.maps`
    x_map: int
    left: int  # padded columns before the volume's first
    shift: int = 0  # columns before the first that is streamed
    stream: int = 0  # 1 if rows may be streamed past the caches from there on


@dataclass(frozen=True)
class Tiling:
    """ZT, YT, XT: outputs of a tile. pitch: words from row to row in scratch. rows: of a plane in scratch."""

    ZT: int
    YT: int
    XT: int
    pitch: int
    rows: int

    @property
    def plane(self) -> int:
        """Words of a plane in scratch."""
        return self.rows * self.pitch

    def tasks(self, sizes: tuple[int, int, int]) -> int:
        """Tiles in a result of these sizes."""
        D, H, W = sizes
        return -(-D // self.ZT) * -(-H // self.YT) * -(-W // self.XT)


def rows_of(lanes: int, H: int, taps: int) -> int:
    """Rows of outputs in a block: 4 if H is at most 4, 1 if H is 1. taps: as a kernel is compiled for, or 0."""
    return next((rows for rows in (1, 4) if rows >= H), (ROWS if taps else ROWS_OF_GROUPS)[lanes])


def pitch_of(columns: int, KW: int, lanes: int) -> int:
    """Words from row to row in scratch: an odd multiple of 16. It leaves a vector before the first column, and the
    window of the last vector after it."""
    return (-(-(columns + KW - 1 + 2 * lanes) // 16) | 1) * 16


def pad_of(problem: Problem, rows: int, left: int) -> int:
    """Words before a row's first column in scratch, so that the volume's first column is aligned to a vector.

    No copied vector then crosses a cache line. But a block's windows touch three lines of a row, not two. This pays
    while these lines stay in L1.
    """
    lines = problem.C * problem.KD * (rows + problem.KH - 1) * 3
    return -left % COLUMNS[cpu().lanes] if lines * LINE <= (cpu().l1d or L1) // 3 else 0


def tiling(problem: Problem, sizes: tuple[int, int, int], planes: int, rows: int, threads: int) -> Tiling:
    """Tiles of up to 64 rows, in blocks of `rows`. Their `planes` planes in scratch fill at most half of L2.

    A small volume has tiles of fewer rows, if otherwise there were fewer tasks than threads.
    """
    (D, H, W), columns, lowest = sizes, COLUMNS[cpu().lanes], HEIGHTS[-1]
    words, most = (cpu().l2 or L2) // 2 // 4, max(1, D // (8 * problem.KD))
    for height, widest in (*((height, WIDEST) for height in HEIGHTS), (lowest, 256), (lowest, 128), (lowest, 64)):
        pieces = -(-W // widest)
        XT = -(-W // (pieces * columns)) * columns
        strips = -(-H // height)
        YT = -(-H // (strips * rows)) * rows
        pitch, high = pitch_of(XT, problem.KW, columns), YT + problem.KH - 1
        if planes * high * pitch <= words and (strips * pieces * most >= threads or height == lowest):
            break
    whole = max(H // YT, 1) * max(W // XT, 1)  # tiles at the ends may be much smaller
    cuts = min(-(-TASKS * threads // whole), most)
    return Tiling(-(-D // cuts), YT, XT, pitch, high)


def plane_of(ring: Tiling) -> int:
    """Words from plane to plane of the ring of `separable`: an odd number of cache lines, because the pass along z
    reads the same column of all its planes."""
    return (ring.plane // 16 | 1) * 16


def fused_tiling(problem: Problem, sizes: tuple[int, int, int], rows: int, threads: int) -> tuple[Tiling, Tiling]:
    """(Tiling of the planes of `separable`, Tiling of its ring).

    Whole rows of 256 columns come before tiles of more rows: they are read in longer runs.
    """
    (D, H, W), lanes = sizes, COLUMNS[cpu().lanes]
    most = max(1, D // (4 * problem.KD))
    words = min(int(SHARE[cpu().lanes] * (cpu().l2 or L2)), SCRATCH_BYTES) // 4
    for height, widest in FUSED[cpu().lanes]:
        pieces, strips = -(-W // widest), -(-H // height)
        XT, YT = -(-W // (pieces * lanes)) * lanes, -(-H // (strips * rows)) * rows
        pitch, ring_pitch = pitch_of(XT, problem.KW, lanes), (-(-(XT + lanes) // 16) | 1) * 16
        needed = (problem.KD - 1 + rows) * (YT * ring_pitch + 16) + (YT + problem.KH + rows) * pitch
        if needed <= words and strips * pieces * most >= threads:
            break
    cuts = min(-(-TASKS * threads // (strips * pieces)), most)
    ZT = -(-D // (cuts * rows)) * rows
    return Tiling(ZT, YT, XT, pitch, YT + problem.KH - 1), Tiling(ZT, YT, XT, ring_pitch, YT)


def streaming(out: np.ndarray, lanes: int) -> tuple[int, bool]:
    """(columns before the first that is aligned to a vector, whether rows may be streamed from there on)."""
    if any(stride % (4 * lanes) for stride in out.strides[:3]) or out.nbytes < STREAMED:
        return 0, False
    return -(out.__array_interface__["data"][0] // 4) % lanes, True
