"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

import math
from dataclasses import dataclass

import triton

from tilewright.ops.attention.device_spans import LEAST, DeviceSpans, Steps, block_of
from tilewright.ops.attention.operands import DeviceCache, Look
from tilewright.ops.attention.tile import append as appending
from tilewright.ops.attention.tile import blocks, step, whole

LOG2E = math.log2(math.e)
PROGRAMS = 4096  # of decoding: about three times as many as an H200 runs side by side
LONG_PROGRAMS = 1024  # the same, of sequences of several blocks: an H200 runs nearly as many side by side
LONG_TOGETHER = 6  # heads that such a program takes, at most: what more of them are was not measured
PRECISION = "tf32x3"  # of float32 products: each number as two of 11 bits, three products; 16-bit ones are exact


@dataclass(frozen=True)
class Shape:
    """How queries and keys are cut. BN decides the bits, and follows from D and dtype; the rest does not."""

    BM: int
    BN: int
    warps: int
    stages: int = 2


def shape_for(cache: DeviceCache, BM: int, longest: int) -> tuple[Shape, bool]:
    """(shape for tiles of BM queries, whether no sequence is longer than a block)."""
    BN = block_of(cache)
    short = longest <= BN
    if short:
        BN = min(BN, max(LEAST, triton.next_power_of_2(longest)))
    deep = 3 if cache.D <= 64 else 2  # blocks on their way; with three wider ones fewer programs share a multiprocessor
    return (Shape(BM, BN, 4, deep) if BM >= 64 else Shape(BM, BN, 1)), short


def padded(D: int) -> int:
    """D up to a power of two that matrix units take."""
    return max(LEAST, triton.next_power_of_2(D))


def attend(q, cache: DeviceCache, spans: DeviceSpans | Steps, look: Look, out) -> None:
    """The rung "tile.blocks": new keys are kept first, then every query looks into the cache."""
    if isinstance(spans, Steps):
        tables = [(LEAST, spans.longest, spans.tiles(LEAST))]
        kept = [(1, 0, spans.pieces())]
    else:
        tables, kept = spans.looked, spans.kept
    if look.new is not None:
        append_pieces(*look.new, cache, kept)
    look_at(q, cache, tables, look, out)


def append_pieces(k, v, cache: DeviceCache, tables) -> None:
    """Keep rows as the tables [(positions of a piece, 0, pieces)] say."""
    sizes = (cache.heads, cache.length, k.stride(0), v.stride(0))
    for size, _, pieces in tables:
        grid, shape = (cache.heads * len(pieces),), (size, cache.D, padded(cache.D))
        appending.append[grid]((k, v), (cache.keys, cache.values), pieces, sizes, shape, num_warps=1)


def look_at(q, cache: DeviceCache, tables, look: Look, out, shape: Shape | None = None) -> None:
    """Queries in the tables [(queries of a tile, longest sequence, tiles)] against the cache. shape: other than the
    rung's own, for measurements."""
    sizes = (cache.heads, cache.length, q.stride(0), out.stride(0))
    for BM, longest, tiles in tables:
        s, short = shape_for(cache, BM, longest)
        s = shape or s
        blocks.look[(cache.heads * len(tiles),)](
            q, (cache.keys, cache.values), out, tiles, sizes, look.scale * LOG2E,
            (s.BM, s.BN, cache.D, padded(cache.D)), (look.causal, short, PRECISION),
            num_warps=s.warps, num_stages=s.stages,
        )  # fmt: skip


def attend_kept(q, cache: DeviceCache, spans: DeviceSpans | Steps, look: Look, out) -> None:
    """The rung "tile.kept": new keys of short prompts and of decoding steps are looked at by the program that keeps
    them."""
    if look.new is None:
        attend(q, cache, spans, look, out)
    elif isinstance(spans, Steps):
        alike = q.dtype == look.new[0].dtype == look.new[1].dtype == cache.keys.dtype
        (decode if alike else attend)(q, cache, spans, look, out)
    else:
        append_pieces(*look.new, cache, spans.kept_apart)
        look_at_new(q, cache, spans.whole, look, out)
        look_at(q, cache, spans.looked_apart, look, out)


def look_at_new(q, cache: DeviceCache, tables, look: Look, out) -> None:
    """Whole prompts in the tables [(positions, longest, tiles)]: kept and looked at."""
    k, v = look.new
    sizes = (cache.heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    for BM, _, tiles in tables:
        whole.look_at_new[(cache.heads * len(tiles),)](
            (q, k, v), (cache.keys, cache.values), out, tiles, sizes, look.scale * LOG2E,
            (BM, BM, cache.D, padded(cache.D)), (look.causal, True, PRECISION), num_warps=BM // 16,
        )  # fmt: skip


def heads_together(rows: int, heads: int, short: bool) -> int:
    """Heads that a program of decoding takes one after another, the next on their way: as many as leave PROGRAMS."""
    most, programs = (heads, PROGRAMS) if short else (LONG_TOGETHER, LONG_PROGRAMS)
    fitting = range(1, min(most, heads) + 1)
    return max(n for n in fitting if heads % n == 0 and (n == 1 or rows * heads // n >= programs))


def decode(q, cache: DeviceCache, spans: Steps, look: Look, out, shape: Shape | None = None) -> None:
    """One query a row, its key and value, of the cache's dtype, kept on the way. shape: other than the rung's own, for
    measurements."""
    k, v = look.new
    rows, heads, plain = len(q), cache.heads, cache.dtype == "float32"
    sizes = (heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    s, short = shape_for(cache, LEAST, spans.longest)
    s = shape or s
    together = 1 if plain else heads_together(rows, heads, short)
    several = step.step_in_turn if short else step.step_along
    kernel = step.step_plain if plain else several if together > 1 else step.step
    kernel[(rows * heads // together,)](
        (q, k, v), (cache.keys, cache.values), out, (spans.slots, spans.positions), sizes, look.scale * LOG2E,
        (s.BM, s.BN, cache.D, padded(cache.D), together), (True, short, PRECISION),
        num_warps=s.warps, num_stages=s.stages,
    )  # fmt: skip
