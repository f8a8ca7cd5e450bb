"""AMX tiles: eight registers of 16 rows x 64 bytes, and a product of two of them in 16 cycles.

    configure(tiles, 16)                        # tiles: float32 (9, 16, 16), one array a thread; rows of 0 to 5
    zero(tiles, 0)
    load(tiles, 4, a, at, stride)               # 16 rows of 16 words, `stride` words apart
    load(tiles, 6, b, at, stride)
    dot(tiles, 0, 4, 6)                         # tile 0 += tile 4 @ tile 6: 32 bfloat16 along k, float32 sums
    store(tiles, 0, c, at, stride)
    release(tiles)

Words and addresses are those of `simd.bfloat16`. Tile numbers are compile-time constants. The functions are
`Hardware`'s, if `available()`; `Emulated` has the same six on plain memory, so that a kernel's tile logic is tested on
any machine. Linux only: the process asks for the registers first (arch_prctl ARCH_REQ_XCOMP_PERM, Linux
"Documentation/arch/x86/xstate.rst").
"""

import ctypes
import functools
import platform

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.simd.kernel import inline
from tilewright.simd.types import I64, call, pointer
from tilewright.simd.vectors import load, splat, store

SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18
ROWS = 16  # of a tile
WORDS = 16  # 32-bit words in a row: 32 bfloat16 or 16 float32
I8 = ir.IntType(8)


@functools.cache
def available() -> bool:
    """Has this CPU bfloat16 tiles, and does the kernel grant them to this process?"""
    import llvmlite.binding

    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    if not llvmlite.binding.get_host_cpu_features().get("amx-bf16"):
        return False
    return ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0


@inline
def _write_configuration(tiles, rows):
    """Row 8 of the state: the 64 bytes that LDTILECFG reads: palette 1, eight tiles of 64-byte rows.

    Tiles 0 to 5, for results and A, have `rows` rows, for a product takes a cycle a row; 6 and 7, for B, have 16.
    """
    config = tiles[8].reshape(-1).view(np.uint8)
    config[:64] = 0
    config[0] = 1
    for tile in range(8):
        config[16 + 2 * tile] = 4 * WORDS
        config[48 + tile] = rows if tile < 6 else ROWS


def _tile(literal) -> ir.Constant:
    return I8(literal.literal_value)


def _bytes_at(context, builder, array_type, array, index):
    return builder.bitcast(pointer(context, builder, array_type, array, index), I8.as_pointer())


def _void(builder, context, name, *args):
    call(builder, f"llvm.x86.{name}", ir.VoidType(), *args)
    return context.get_dummy_value()


@intrinsic
def _load_configuration(typingctx, tiles):
    def codegen(context, builder, sig, args):
        return _void(
            builder, context, "ldtilecfg", _bytes_at(context, builder, sig.args[0], args[0], I64(8 * ROWS * WORDS))
        )

    return types.void(tiles), codegen


@inline
def _configure(tiles, rows):
    _write_configuration(tiles, rows)
    _load_configuration(tiles)


@intrinsic
def _release(typingctx, tiles):
    return types.void(tiles), lambda context, builder, sig, args: _void(builder, context, "tilerelease")


@intrinsic(prefer_literal=True)
def _zero(typingctx, tiles, tile):
    def codegen(context, builder, sig, args):
        return _void(builder, context, "tilezero", _tile(tile))

    return types.void(tiles, tile), codegen


def _moved(instruction: str):
    """The typing function of a tile load or store."""

    def typing(typingctx, tiles, tile, array, at, stride):
        def codegen(context, builder, sig, args):
            start = _bytes_at(context, builder, sig.args[2], args[2], args[3])
            return _void(builder, context, instruction, _tile(tile), start, builder.mul(args[4], I64(4)))

        return types.void(tiles, tile, array, types.intp, types.intp), codegen

    return intrinsic(prefer_literal=True)(typing)


@intrinsic(prefer_literal=True)
def _dot(typingctx, tiles, c, a, b):
    def codegen(context, builder, sig, args):
        return _void(builder, context, "tdpbf16ps", _tile(c), _tile(a), _tile(b))

    return types.void(tiles, c, a, b), codegen


@inline
def _fill(tiles, first, end, number):
    for row in range(first * ROWS, end * ROWS):
        store(tiles, row * WORDS, splat(number, WORDS))


@inline
def _emulated_configure(tiles, rows):
    _fill(tiles, 0, 8, np.float32(0))  # all 16 rows are computed: a row more is never looked at


@inline
def _emulated_release(tiles):
    _fill(tiles, 0, 8, np.float32(np.nan))  # what a kernel reads after the release is not what it stored


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
    """In the order of the instruction: the low halves' products in one sum, the high halves' in another. A product of
    two bfloat16 is a float32, so that multiplying and adding rounds as a fused multiply-add does."""
    bits = tiles.view(np.uint32)
    pair, value = bits[8, -1], tiles[8, -1]  # behind the configuration
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
    load, store = _moved("tileloadd64"), _moved("tilestored64")


class Emulated:
    """The same functions on memory, thousands of times slower: for tests."""

    configure, release, zero, dot = _emulated_configure, _emulated_release, _emulated_zero, _emulated_dot
    load, store = _emulated_load, _emulated_store
