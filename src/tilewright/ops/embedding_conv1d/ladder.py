"""The rungs of embedding_conv1d, for all engines.

prepare(table, filters, dtype=, length=, memory=) makes the rung's state; a kernel is called as kernel(ids, prepared,
out). On a GPU they are torch tensors, and ids are rows of the token table for rungs that have one.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import engine, on

LIMBS = 10.0  # constant of the bound on a GPU: that of matmul's limbs, which compute the rows of the token table

CPU = (on("cpu", "float32", "bfloat16"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", "float32", "bfloat16", "float16"), engine("tile"))

# fmt: off
ladder = Ladder(
    "embedding_conv1d",
    Rung("cpu.gather", needs=CPU, calls=("embedding", "conv1d"),
         idea="embedding, then conv1d of its rows, ReLU and maximum fused",
         kernel="embedding_conv1d.cpu.gather:convolve", prepare="embedding_conv1d.cpu.gather:prepare_filters",
         memory="embedding_conv1d.memory:filters"),
    Rung("cpu.table_sums", after="cpu.gather", needs=CPU, calls=("matmul",),
         idea="each pair of token and tap is multiplied once; a window is a sum of table rows",
         kernel="embedding_conv1d.cpu.gather_add:add_from_table", options={"vectors": False},
         prepare="embedding_conv1d.token_table:prepare_table",
         memory="embedding_conv1d.memory:matrices"),
    Rung("cpu.gather_add", after="cpu.table_sums", needs=CPU, chosen=True, calls=("matmul",),
         idea="vectors, the maximum in registers, one slice of the table at a time so that it stays in L3",
         kernel="embedding_conv1d.cpu.gather_add:add_from_table", options={"vectors": True},
         prepare="embedding_conv1d.token_table:prepare_table",
         memory="embedding_conv1d.memory:matrices"),
    Rung("simt.gather", needs=SIMT, calls=("conv1d",),
         idea="embedding, then conv1d of its rows, ReLU and maximum fused",
         kernel="embedding_conv1d.simt.gather:convolve", prepare="embedding_conv1d.simt.gather:prepare_filters",
         memory="embedding_conv1d.memory:device_filters"),
    Rung("simt.table_sums", after="simt.gather", needs=SIMT, c=LIMBS, calls=("matmul",),
         idea="each pair of token and tap is multiplied once; one thread per feature adds table rows",
         kernel="embedding_conv1d.simt.gather_add:add_rows", prepare="embedding_conv1d.device_table:prepare_whole",
         memory="embedding_conv1d.memory:matrix"),
    Rung("simt.quads", after="simt.table_sums", needs=SIMT, c=LIMBS, calls=("matmul",),
         idea="one thread per four adjacent features, 16 bytes per load",
         kernel="embedding_conv1d.simt.gather_add:add_quads", prepare="embedding_conv1d.device_table:prepare_whole",
         memory="embedding_conv1d.memory:matrix"),
    Rung("simt.gather_add", after="simt.quads", needs=SIMT, chosen=True, c=LIMBS, calls=("matmul",),
         idea="all blocks work on one slice of the table at a time, so that it stays in L2",
         kernel="embedding_conv1d.simt.gather_add:add_quads",
         prepare="embedding_conv1d.simt.gather_add:prepare_slices",
         memory="embedding_conv1d.memory:matrix_of_slices"),
    Rung("tile.rows", needs=TILE, c=LIMBS, calls=("matmul",),
         idea="one program per sentence: sums of whole table rows, the maximum in registers",
         kernel="embedding_conv1d.tile.gather_add:add_rows", prepare="embedding_conv1d.device_table:prepare_whole",
         memory="embedding_conv1d.memory:matrix"),
    Rung("tile.gather_add", after="tile.rows", needs=TILE, chosen=True, c=LIMBS, calls=("matmul",),
         idea="all programs work on one slice of the table at a time, so that it stays in L2",
         kernel="embedding_conv1d.tile.gather_add:add_rows", prepare="embedding_conv1d.tile.gather_add:prepare_slices",
         memory="embedding_conv1d.memory:matrix_of_slices"),
)
