"""AMX tiles: eight registers of 16 rows x 64 bytes, and a product of two of them in 16 cycles.

    configure(tiles, 16)                        # tiles: float32 (9, 16, 16), one array per thread; 16 rows of A
    zero(tiles, 0)
    load(tiles, 4, a, at, stride)               # 16 rows of 16 words, `stride` words apart
    load(tiles, 6, b, at, stride)
    dot(tiles, 0, 4, 6)                         # tile 0 += tile 4 @ tile 6: 32 bfloat16 along k, float32 sums
    store(tiles, 0, c, at, stride)
    release(tiles)

Words and addresses are those of `simd.bfloat16`. Tile numbers are compile-time constants. `Hardware` has these six
functions where `available()` is true. `Emulated` has them on plain memory, so a kernel's tile logic is tested on any
machine. Linux only: the process must request the registers first (arch_prctl ARCH_REQ_XCOMP_PERM, Linux
"Documentation/arch/x86/xstate.rst").
"""

import ctypes
import functools
import platform

import numpy as np
from llvmlite import ir
from numba import types

from tilewright.simd.instruction import instruction
from tilewright.simd.kernel import inline
from tilewright.simd.types import I8, I64, call
from tilewright.simd.vectors import load, splat, store

SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18
ROWS = 16  # of a tile
WORDS = 16  # 32-bit words in a row: 32 bfloat16 or 16 float32
CONFIGURATION = 8  # its index in `tiles`


@functools.cache
def available() -> bool:
    """True if this CPU has bfloat16 tiles and the operating system grants them to this process."""
    import llvmlite.binding

    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    if not llvmlite.binding.get_host_cpu_features().get("amx-bf16"):
        return False
    return ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0


@inline
def _write_configuration(tiles, rows):
    """The 64 bytes that LDTILECFG reads, after the eight tiles: palette 1, all tiles with rows of 64 bytes.

    Tiles 0 to 5, for results and A, have `rows` rows, because a product takes one cycle per row. Tiles 6 and 7, for B,
    have 16.
    """
    config = tiles[CONFIGURATION].reshape(-1).view(np.uint8)
    config[:64] = 0
    config[0] = 1
    for tile in range(8):
        config[16 + 2 * tile] = 4 * WORDS
        config[48 + tile] = rows if tile < 6 else ROWS


def _instruction(builder, name: str, *operands) -> None:
    call(builder, f"llvm.x86.{name}", ir.VoidType(), *operands)


def _bytes_at(builder, array, index):
    return builder.bitcast(array.at(index), I8.as_pointer())


@instruction(lambda tiles: types.void(tiles))
def _load_configuration(builder, tiles):
    _instruction(builder, "ldtilecfg", _bytes_at(builder, tiles, I64(CONFIGURATION * ROWS * WORDS)))


@inline
def _configure(tiles, rows):
    _write_configuration(tiles, rows)
    _load_configuration(tiles)


@instruction(lambda tiles: types.void(tiles))
def _release(builder, tiles):
    _instruction(builder, "tilerelease")


@instruction(lambda tiles, tile: types.void(tiles, tile))
def _zero(builder, tiles, tile):
    _instruction(builder, "tilezero", I8(tile))


def _transfer(name: str):
    """A tile load or store; `stride` counts words of 4 bytes."""

    def emit(builder, tiles, tile, array, at, stride):
        _instruction(builder, name, I8(tile), _bytes_at(builder, array, at), builder.mul(stride, I64(4)))

    def signature(tiles, tile, array, at, stride):
        return types.void(tiles, tile, array, types.intp, types.intp)

    return instruction(signature, name)(emit)


@instruction(lambda tiles, c, a, b: types.void(tiles, c, a, b))
def _dot(builder, tiles, c, a, b):
    _instruction(builder, "tdpbf16ps", I8(c), I8(a), I8(b))


@inline
def _fill(tiles, first, end, value):
    for row in range(first * ROWS, end * ROWS):
        store(tiles, row * WORDS, splat(value, WORDS))


@inline
def _emulated_configure(tiles, rows):
    _fill(tiles, 0, 8, np.float32(0))  # the emulation computes all 16 rows: nobody reads the others


@inline
def _emulated_release(tiles):
    _fill(tiles, 0, 8, np.float32(np.nan))  # a kernel that reads a tile after the release gets NaN


@inline
def _emulated_zero(tiles, tile):
    _fill(tiles, tile, tile + 1, np.float32(0))


@inline
def _emulated_load(tiles, tile, array, at, stride):
    for row in range(ROWS):
        store(tiles, (tile * ROWS + row) * WORDS, load(array, at + row * stride, WORDS))


@inline
def _emulated_store(tiles, tile, array, at, stride):
    for row in range(ROWS):
        store(array, at + row * stride, load(tiles, (tile * ROWS + row) * WORDS, WORDS))


@inline
def _emulated_dot(tiles, c, a, b):
    """In the order of the instruction: one sum of the low halves' products, one of the high halves'. A product of two
    bfloat16 is exact in float32, so multiplying and then adding rounds as a fused multiply-add does."""
    bits = tiles.view(np.uint32)
    pair, value = bits[CONFIGURATION, -1], tiles[CONFIGURATION, -1]  # unused memory after the configuration
    for row in range(ROWS):
        for column in range(WORDS):
            low = high = np.float32(0)
            for p in range(WORDS):
                left, right = bits[a, row, p], bits[b, p, column]
                pair[0], pair[1] = left << np.uint32(16), right << np.uint32(16)
                pair[2], pair[3] = left & np.uint32(0xFFFF0000), right & np.uint32(0xFFFF0000)
                low += value[0] * value[1]
                high += value[2] * value[3]
            tiles[c, row, column] += low + high


class Hardware:
    """The tile instructions themselves."""

    configure, release, zero, dot = _configure, _release, _zero, _dot
    load, store = _transfer("tileloadd64"), _transfer("tilestored64")


class Emulated:
    """The same functions on memory, thousands of times slower: for tests."""

    configure, release, zero, dot = _emulated_configure, _emulated_release, _emulated_zero, _emulated_dot
    load, store = _emulated_load, _emulated_store
