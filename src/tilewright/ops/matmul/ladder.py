"""The rungs of matmul, for all engines.

A kernel is called as kernel(rows, weights, out, epilogue), with the records of `gemm.operands`: it writes out (M, N) =
activation(rows @ weights + residual + bias). Arrays are NumPy's on the CPU, torch tensors on a GPU. A function that
rearranges weights is called with b (K, N) and the rung's name; on a GPU with the accuracy class, too.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import amx_tiles, at_least, at_most, cpu_feature, engine, fast_pairs, hopper, on

LIMB_DEPTH = 768  # K from which limbs are used; they hold the float32 bound from 656 on, see gemm/cpu/amx.py
TILE_LIMB_DEPTH = 192  # on a GPU, where a short K gets a fourth limb product: the bound holds from 164 on
NARROW = 16  # columns whose sums of four rows one thread holds in registers
COLUMNS = 65535 * 8  # a grid has at most 65,535 blocks side by side, and the smallest block has 8 columns
SHAPE = {"block_rows": 16, "block_columns": 16}  # the shape of a block with one thread per element
SHAPES = dict.fromkeys(SHAPE, (8, 16, 32))  # what a sweep tries: square, tall and wide blocks
TILED = "tile.persistent", "tile.specialized", "tile.limbs", "tile.specialized_limbs"  # kernels in gemm.tile
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

# fmt: off
ladder = Ladder(
    "matmul",
    Rung("cpu.memory", needs=CPU,
         idea="three loops; the sum of an element is kept in memory",
         kernel="matmul.cpu.naive:multiply", options={"loops": "memory"}),
    Rung("cpu.register", after="cpu.memory", needs=CPU,
         idea="the sum stays in a register until it is complete",
         kernel="matmul.cpu.naive:multiply", options={"loops": "register"}),
    Rung("cpu.reordered", after="cpu.register", needs=CPU,
         idea="the inner loop runs along rows of b and out, not down b's columns",
         kernel="matmul.cpu.naive:multiply", options={"loops": "reordered"}),
    Rung("cpu.blocked", after="cpu.reordered", needs=CPU,
         idea="a block of b stays in cache while all rows of a pass",
         kernel="matmul.cpu.naive:multiply", options={"loops": "blocked"}),
    Rung("cpu.vectors", after="cpu.blocked", needs=CPU,
         idea="explicit vectors: four rows x two vectors of out stay in registers along all of K",
         kernel="matmul.cpu.vectors:multiply"),
    Rung("cpu.packed", after="cpu.vectors", needs=CPU, chosen=True,
         idea="operands packed in the order of use, a block of out in registers; threads take blocks",
         kernel="gemm.cpu.loops:multiply", options={"kind": "float32"}, prepare="gemm.cpu.pack:pack_panels",
         memory="gemm.memory:panels"),
    Rung("cpu.widened", after="cpu.packed", needs=CPU_BFLOAT16, chosen=True,
         idea="b packed as bfloat16, half the bytes; widened in registers, a when it is packed",
         kernel="gemm.cpu.loops:multiply", options={"kind": "widen_b"}, prepare="gemm.cpu.words:pack_words",
         memory="gemm.memory:words"),
    Rung("cpu.dot_pairs", after="cpu.widened", needs=(*CPU_BFLOAT16, cpu_feature("avx512bf16")),
         slow=(fast_pairs,), chosen=True,
         idea="one instruction multiplies and adds a pair of bfloat16 in each lane",
         kernel="gemm.cpu.loops:multiply", options={"kind": "dot_pairs"}, prepare="gemm.cpu.words:pack_words",
         memory="gemm.memory:words"),
    Rung("cpu.amx", after="cpu.dot_pairs", needs=(*CPU_BFLOAT16, amx_tiles), chosen=True,
         idea="one instruction multiplies 16 x 32 by 32 x 16: AMX tile registers",
         kernel="gemm.cpu.amx:multiply", prepare="gemm.cpu.words:pack_words",
         memory="gemm.memory:words"),
    Rung("cpu.limbs", after="cpu.amx", needs=(*CPU, amx_tiles, at_least("K", LIMB_DEPTH)), chosen=True, c=LIMBS,
         idea="each float32 split in two bfloat16 limbs, three tile products of them",
         kernel="gemm.cpu.amx:multiply", prepare="gemm.cpu.words:pack_limbs",
         memory="gemm.memory:limbs"),
    Rung("simt.memory", needs=SIMT,
         idea="one thread per element of out; its sum is kept in device memory",
         kernel="matmul.simt.launch:multiply", options={"kernel": "memory", **SHAPE}, swept=SHAPES),
    Rung("simt.register", after="simt.memory", needs=SIMT,
         idea="the sum stays in a register until it is complete",
         kernel="matmul.simt.launch:multiply", options={"kernel": "register", **SHAPE}, swept=SHAPES),
    Rung("simt.coalesced", after="simt.register", needs=SIMT,
         idea="the threads of a warp lie along a row of out and read adjacent elements",
         kernel="matmul.simt.launch:multiply", options={"kernel": "coalesced", **SHAPE}, swept=SHAPES),
    Rung("simt.shared", after="simt.coalesced", needs=SIMT,
         idea="a block keeps one tile of each operand in shared memory",
         kernel="matmul.simt.launch:multiply_tiles", options={"kernel": "shared", "tile": 32},
         swept={"tile": (8, 16, 32)}),
    Rung("simt.unrolled", after="simt.shared", needs=SIMT,
         idea="the tile is a compile-time constant, so the inner loop is unrolled",
         kernel="matmul.simt.launch:multiply_tiles", options={"kernel": "unrolled", "tile": 32},
         swept={"tile": (8, 16, 32)}),
    Rung("simt.strip", after="simt.unrolled", needs=SIMT,
         idea="one thread per 4 elements of a column: an element of b serves all from a register",
         kernel="matmul.simt.launch:multiply_strips", options={"tile": 32, "wpt": 4},
         swept={"tile": (16, 32, 64), "wpt": (2, 4, 8)}),
    Rung("simt.registers", after="simt.strip", needs=SIMT,
         idea="b goes straight to registers, one thread per 16 elements of a column; only a's tile is shared",
         kernel="matmul.simt.launch:multiply_registers", options={"T": 16, "V": 8},
         swept={"T": (8, 16, 32), "V": (2, 4, 8)}),
    Rung("simt.outer", after="simt.strip", needs=SIMT,
         idea="one thread per 8 x 8 elements, sums of outer products; a's tile is transposed",
         kernel="matmul.simt.launch:multiply_outer"),
    Rung("simt.vectors", after="simt.outer", needs=SIMT,
         idea="16 bytes per load, from padded operands; one thread per 8 x 16 elements",
         kernel="matmul.simt.launch:multiply_padded", options={"kernel": "vectors"},
         prepare="matmul.simt.launch:pad_tiles",
         memory="gemm.memory:tiles"),
    Rung("simt.warps", after="simt.vectors", needs=SIMT,
         idea="one warp per 64 x 64 of the tile: its loads have no bank conflicts in shared memory",
         kernel="matmul.simt.launch:multiply_padded", options={"kernel": "warps"},
         prepare="matmul.simt.launch:pad_tiles",
         memory="gemm.memory:tiles"),
    Rung("simt.buffered", after="simt.warps", needs=SIMT, chosen=True,
         idea="the next tiles are loaded while these are multiplied",
         kernel="matmul.simt.launch:multiply_padded", options={"kernel": "buffered"},
         prepare="matmul.simt.launch:pad_tiles",
         memory="gemm.memory:tiles"),
    Rung("tile.persistent", needs=TILE, chosen=True, c=TRUNCATED,
         idea="matrix units; one program per multiprocessor takes tile after tile",
         kernel="gemm.tile.launch:multiply", prepare="gemm.tile.launch:transpose",
         memory="gemm.memory:rounded"),
    Rung("tile.specialized", after="tile.persistent", needs=(*TILE, hopper), chosen=True, c=TRUNCATED,
         idea="two warps copy tiles in, two warpgroups multiply them",
         kernel="gemm.tile.launch:multiply", options={"specialized": True}, prepare="gemm.tile.launch:transpose",
         memory="gemm.memory:rounded"),
    Rung("tile.limbs", needs=TILE_LIMBS, chosen=True, c=LIMBS,
         idea="float32 as two bfloat16 limbs, three or four products of them on matrix units",
         kernel="gemm.tile.launch:multiply", prepare="gemm.tile.launch:transpose_limbs",
         memory="gemm.memory:rounded_limbs"),
    Rung("tile.specialized_limbs", after="tile.limbs", needs=(*TILE_LIMBS, hopper), chosen=True, c=LIMBS,
         idea="two warps copy limbs in, two warpgroups multiply",
         kernel="gemm.tile.launch:multiply", options={"specialized": True}, prepare="gemm.tile.launch:transpose_limbs",
         memory="gemm.memory:rounded_limbs"),
    Rung("simt.narrow", after="simt.coalesced", needs=(*SIMT, at_least("N", 1), at_most("N", NARROW)), chosen=True,
         idea="for few columns: one warp per four rows; threads share K and add their sums by shuffles",
         kernel="matmul.simt.launch:multiply_narrow", prepare="matmul.simt.launch:transpose",
         memory="gemm.memory:transposed"),
)
