"""The rungs of matmul, for all engines.

A kernel is called as kernel(rows, weights, out, epilogue), with the records of `gemm.operands`: it writes out (M, N) =
activation(rows @ weights + residual + bias). Arrays are NumPy's on the CPU, torch tensors on a GPU. A function that
lays weights out is called with b (K, N) and the rung's name; on a GPU with the accuracy class, too.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import amx_tiles, at_least, at_most, cpu_feature, engine, fast_pairs, hopper, on

LIMB_DEPTH = 768  # K from which limbs are used; they hold the float32 bound from 656 on, see gemm/cpu/amx.py
TILE_LIMB_DEPTH = 192  # on a GPU, where a short K gets a fourth limb product: the bound holds from 164 on
NARROW = 16  # columns whose sums of four rows one thread holds in registers
COLUMNS = 65535 * 8  # a grid has at most 65,535 blocks side by side, and the smallest block has 8 columns
ROUNDED = ("bfloat16", "float16", "tf32")  # accuracy classes that matrix units multiply as they are

# Constants of the bounds. Matrix units truncate where they add: on an H200 sums of one sign were off by 1.7 units of
# the bound at K = 1,024 and by 6.5 at 16,384. Limbs leave them after 64 elements and were off by 0.2; but three limb
# products may be off by 255 eps32 |a| |b|, and four by 128.
TRUNCATED, LIMBS = 8.0, 10.0

CPU = (on("cpu", "float32"),)
CPU_BFLOAT16 = (on("cpu", "bfloat16"),)
SIMT = (on("cuda", "float32"), at_most("N", COLUMNS), engine("simt"))
TILE = (on("cuda", *ROUNDED), engine("tile"))
TILE_LIMBS = (on("cuda", "float32"), engine("tile"), at_least("K", TILE_LIMB_DEPTH))

ladder = Ladder(
    "matmul",
    Rung(
        "cpu.memory",
        idea="three loops; the sum of an element is kept in memory",
        needs=CPU,
        kernel="matmul.cpu.naive:multiply",
        options={"loops": "memory"},
    ),
    Rung(
        "cpu.register",
        after="cpu.memory",
        idea="the sum stays in a register until it is complete",
        needs=CPU,
        kernel="matmul.cpu.naive:multiply",
        options={"loops": "register"},
    ),
    Rung(
        "cpu.reordered",
        after="cpu.register",
        idea="the inner loop runs along rows of b and out, not down b's columns",
        needs=CPU,
        kernel="matmul.cpu.naive:multiply",
        options={"loops": "reordered"},
    ),
    Rung(
        "cpu.blocked",
        after="cpu.reordered",
        idea="a block of b stays in cache while all rows of a pass",
        needs=CPU,
        kernel="matmul.cpu.naive:multiply",
        options={"loops": "blocked"},
    ),
    Rung(
        "cpu.vectors",
        after="cpu.blocked",
        idea="explicit vectors: four rows x two vectors of out stay in registers along all of K",
        needs=CPU,
        kernel="matmul.cpu.vectors:multiply",
    ),
    Rung(
        "cpu.packed",
        after="cpu.vectors",
        idea="operands packed in the order of use, a block of out in registers; threads draw blocks",
        needs=CPU,
        kernel="gemm.cpu.loops:multiply",
        options={"kind": "float32"},
        prepare="gemm.cpu.pack:pack_panels",
        chosen=True,
    ),
    Rung(
        "cpu.widened",
        after="cpu.packed",
        idea="b packed as bfloat16, half the bytes; widened in registers, a when it is packed",
        needs=CPU_BFLOAT16,
        kernel="gemm.cpu.loops:multiply",
        options={"kind": "widen_b"},
        prepare="gemm.cpu.words:pack_words",
        chosen=True,
    ),
    Rung(
        "cpu.dot_pairs",
        after="cpu.widened",
        idea="one instruction multiplies and adds a pair of bfloat16 in each lane",
        needs=(*CPU_BFLOAT16, cpu_feature("avx512bf16")),
        slow=(fast_pairs,),
        kernel="gemm.cpu.loops:multiply",
        options={"kind": "dot_pairs"},
        prepare="gemm.cpu.words:pack_words",
        chosen=True,
    ),
    Rung(
        "cpu.amx",
        after="cpu.dot_pairs",
        idea="one instruction multiplies 16 x 32 by 32 x 16: AMX tile registers",
        needs=(*CPU_BFLOAT16, amx_tiles),
        kernel="gemm.cpu.amx:multiply",
        prepare="gemm.cpu.words:pack_words",
        chosen=True,
    ),
    Rung(
        "cpu.limbs",
        after="cpu.amx",
        idea="each float32 split in two bfloat16 limbs, three tile products of them",
        needs=(*CPU, amx_tiles, at_least("K", LIMB_DEPTH)),
        kernel="gemm.cpu.amx:multiply",
        prepare="gemm.cpu.words:pack_limbs",
        chosen=True,
        c=LIMBS,
    ),
    Rung(
        "simt.memory",
        idea="one thread per element of out; its sum is kept in device memory",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "memory"},
    ),
    Rung(
        "simt.register",
        after="simt.memory",
        idea="the sum stays in a register until it is complete",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "register"},
    ),
    Rung(
        "simt.coalesced",
        after="simt.register",
        idea="the threads of a warp lie along a row of out and read adjacent elements",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "coalesced"},
    ),
    Rung(
        "simt.shared8",
        after="simt.coalesced",
        idea="a block keeps one 8 x 8 tile of each operand in shared memory",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "shared8"},
    ),
    Rung(
        "simt.shared16",
        after="simt.shared8",
        idea="tiles of 16 x 16 in shared memory",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "shared16"},
    ),
    Rung(
        "simt.shared32",
        after="simt.shared16",
        idea="tiles of 32 x 32 in shared memory",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "shared32"},
    ),
    Rung(
        "simt.unrolled",
        after="simt.shared32",
        idea="the inner loop is unrolled",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "unrolled"},
    ),
    Rung(
        "simt.strip",
        after="simt.unrolled",
        idea="one thread per 8 elements of a column: an element of b serves all from a register",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "strip"},
    ),
    Rung(
        "simt.outer",
        after="simt.strip",
        idea="one thread per 8 x 8 elements, sums of outer products; a's tile is transposed",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply",
        options={"kernel": "outer"},
    ),
    Rung(
        "simt.vectors",
        after="simt.outer",
        idea="16 bytes per load, from padded operands; one thread per 8 x 16 elements",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply_padded",
        options={"kernel": "vectors"},
        prepare="matmul.simt.launch:pad_tiles",
    ),
    Rung(
        "simt.warps",
        after="simt.vectors",
        idea="one warp per 64 x 64 of the tile: its loads have no bank conflicts in shared memory",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply_padded",
        options={"kernel": "warps"},
        prepare="matmul.simt.launch:pad_tiles",
    ),
    Rung(
        "simt.buffered",
        after="simt.warps",
        idea="the next tiles are loaded while these are multiplied",
        needs=SIMT,
        kernel="matmul.simt.launch:multiply_padded",
        options={"kernel": "buffered"},
        prepare="matmul.simt.launch:pad_tiles",
        chosen=True,
    ),
    Rung(
        "tile.persistent",
        idea="matrix units; one program per multiprocessor takes tile after tile",
        needs=TILE,
        kernel="gemm.tile.launch:multiply",
        prepare="gemm.tile.launch:transpose",
        chosen=True,
        c=TRUNCATED,
    ),
    Rung(
        "tile.specialized",
        after="tile.persistent",
        idea="one warp copies tiles in, two warpgroups multiply them",
        needs=(*TILE, hopper),
        kernel="gemm.tile.launch:multiply",
        options={"specialized": True},
        prepare="gemm.tile.launch:transpose",
        chosen=True,
        c=TRUNCATED,
    ),
    Rung(
        "tile.limbs",
        idea="float32 as two bfloat16 limbs, three or four products of them on matrix units",
        needs=TILE_LIMBS,
        kernel="gemm.tile.launch:multiply",
        prepare="gemm.tile.launch:transpose_limbs",
        chosen=True,
        c=LIMBS,
    ),
    Rung(
        "tile.specialized_limbs",
        after="tile.limbs",
        idea="one warp copies limbs in, two warpgroups multiply",
        needs=(*TILE_LIMBS, hopper),
        kernel="gemm.tile.launch:multiply",
        options={"specialized": True},
        prepare="gemm.tile.launch:transpose_limbs",
        chosen=True,
        c=LIMBS,
    ),
    Rung(
        "simt.narrow",
        after="simt.coalesced",
        idea="for few columns: one warp per four rows; threads share K and add their sums by shuffles",
        needs=(*SIMT, at_least("N", 1), at_most("N", NARROW)),
        kernel="matmul.simt.launch:multiply_narrow",
        prepare="matmul.simt.launch:transpose",
        chosen=True,
    ),
)
