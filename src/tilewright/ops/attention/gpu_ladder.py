"""attention's rungs on a GPU: SIMT kernels in numba-cuda (`simt/`), tile kernels in Triton (`tile/`).

run(q, cache, spans, look, out) as on the CPU, with torch tensors, a DeviceCache, and DeviceSpans or Steps.
"""

from functools import partial

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import at_most, engine, on

PREFER = ("tile.kept", "tile.blocks", "simt.fused")
WIDEST = 128  # numbers of a head; a block of queries of twice as many would leave the registers

# name, the rung it stands on, what changes
SIMT = (
    ("unfused", None, "four kernels: keep, scores with the mask, softmax, values; all scores in memory"),
    ("fused", "unfused", "one kernel, a warp a query: no score leaves its registers"),
)

# Matrix units truncate where they add, and float32 products of two parts each leave the smallest out: so c is 4 there.
TILE = (
    ("blocks", None, "a block of queries shares each loaded key and value, on matrix units"),
    ("kept", "blocks", "what is new is kept by the program that looks at it, not written and read back"),
)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before one of them runs."""
    simt = (on("cuda", "float32"), engine("simt"))
    for name, after, idea in SIMT:
        below = None if after is None else f"simt.{after}"
        ladder.rung(f"simt.{name}", after=below, needs=simt, idea=idea)(partial(_simt, name))
    tile = (on("cuda", "float32", "bfloat16", "float16"), at_most("D", WIDEST), engine("tile"))
    for name, after, idea in TILE:
        below = None if after is None else f"tile.{after}"
        ladder.rung(f"tile.{name}", after=below, needs=tile, idea=idea, c=4.0)(partial(_tile, name))


def _simt(name: str, q, cache, spans, look, out) -> None:
    from tilewright.ops.attention.simt import launch

    launch.attend(name, q, cache, spans, look, out)


def _tile(name: str, q, cache, spans, look, out) -> None:
    from tilewright.ops.attention.tile import launch

    (launch.attend_kept if name == "kept" else launch.attend)(q, cache, spans, look, out)
