"""The rungs of embedding, for all engines.

CPU: kernel(ids, table, out), int64 (n,), float32 (V, C), float32 (n, C). GPU: kernel(ids, table, positional, out),
contiguous tensors, not empty; ids (n,) of int32 or int64; positional: the pair positions (n,), position_table (P, C),
whose rows are added, or None. `simt` takes float32, `tile` any of the three dtypes.
"""

from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.needs import divides, engine, on
from tilewright.ops.embedding.problem import DEVICE_DTYPES

CPU = (on("cpu", "float32"),)
SIMT = (on("cuda", "float32"), engine("simt"))
TILE = (on("cuda", *DEVICE_DTYPES), engine("tile"))

# fmt: off
ladder = Ladder(
    "embedding",
    Rung("cpu.naive", needs=CPU,
         idea="one element after the other",
         kernel="embedding.cpu.naive:gather"),
    Rung("cpu.rows", after="cpu.naive", needs=CPU, chosen=True,
         idea="whole rows as vectors; threads take rows and prefetch the next ones",
         kernel="embedding.cpu.rows:copy_rows"),
    Rung("simt.naive", needs=SIMT,
         idea="one thread per element of out, and each reads its row's id",
         kernel="embedding.simt.rows:run", options={"kernel": "naive"}),
    Rung("simt.warps", after="simt.naive", needs=SIMT, chosen=True,
         idea="one warp per row: an id is read once for 32 elements at a time",
         kernel="embedding.simt.rows:run", options={"kernel": "warps"}),
    Rung("simt.vectors", after="simt.warps", needs=(*SIMT, divides("C", 4)), chosen=True,
         idea="loads and stores of 16 bytes",
         kernel="embedding.simt.rows:run", options={"kernel": "vectors"}),
    Rung("tile.rows", needs=TILE, chosen=True,
         idea="a block of several rows, up to 256 columns wide, per program; 16 bytes per load",
         kernel="embedding.tile.rows:run"),
)
