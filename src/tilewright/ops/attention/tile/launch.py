"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

import math
from dataclasses import dataclass

import triton

from tilewright.ops.attention.device_spans import LEAST, DeviceSpans, Steps, block_of
from tilewright.ops.attention.operands import DeviceCache, Look
from tilewright.ops.attention.tile import append as appending
from tilewright.ops.attention.tile import blocks, step, whole
from tilewright.ops.attention.tile.records import AppendSizes, At, Block, Cache, CacheSizes, Form, New, Rows, RowSizes

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
    deep = 3 if cache.D <= 64 else 2  # blocks in flight; three wider ones leave fewer programs per multiprocessor
    return (Shape(BM, BN, 4, deep) if BM >= 64 else Shape(BM, BN, 1)), short


def padded(D: int) -> int:
    """D up to a power of two that matrix units take."""
    return max(LEAST, triton.next_power_of_2(D))


def attend(q, cache: DeviceCache, spans: DeviceSpans | Steps, look: Look, out) -> None:
    """The rung "tile.blocks": append the new keys, then attend from every query to the cache."""
    if isinstance(spans, Steps):
        tables = [(LEAST, spans.longest, spans.tiles(LEAST))]
        kept = [(1, 0, spans.pieces())]
    else:
        tables, kept = spans.looked, spans.kept
    if look.new is not None:
        append_pieces(*look.new, cache, kept)
    look_at(q, cache, tables, look, out)


def append_pieces(k, v, cache: DeviceCache, tables) -> None:
    """Append rows to the cache as the tables [(positions of a piece, 0, pieces)] say."""
    sizes = AppendSizes(cache.heads, cache.length, k.stride(0), v.stride(0))
    for size, _, pieces in tables:
        grid, block = (cache.heads * len(pieces),), Block(size, size, cache.D, padded(cache.D))
        appending.append[grid](New(k, v), Cache(cache.keys, cache.values), pieces, sizes, block, num_warps=1)


def look_at(q, cache: DeviceCache, tables, look: Look, out, shape: Shape | None = None) -> None:
    """Queries in the tables [(queries of a tile, longest sequence, tiles)] against the cache. shape: other than the
    rung's own, for measurements."""
    sizes = CacheSizes(cache.heads, cache.length, q.stride(0), out.stride(0))
    for BM, longest, tiles in tables:
        s, short = shape_for(cache, BM, longest)
        s = shape or s
        blocks.look[(cache.heads * len(tiles),)](
            q, Cache(cache.keys, cache.values), out, tiles, sizes, look.scale * LOG2E,
            Block(s.BM, s.BN, cache.D, padded(cache.D)), Form(look.causal, short, PRECISION),
            num_warps=s.warps, num_stages=s.stages,
        )  # fmt: skip


def attend_kept(q, cache: DeviceCache, spans: DeviceSpans | Steps, look: Look, out) -> None:
    """The rung "tile.kept": one kernel appends the new keys of short prompts and decoding steps and attends to them."""
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
    """Append whole prompts in the tables [(positions, longest, tiles)] to the cache and attend to them."""
    k, v = look.new
    sizes = RowSizes(cache.heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    for BM, _, tiles in tables:
        whole.look_at_new[(cache.heads * len(tiles),)](
            Rows(q, k, v), Cache(cache.keys, cache.values), out, tiles, sizes, look.scale * LOG2E,
            Block(BM, BM, cache.D, padded(cache.D)), Form(look.causal, True, PRECISION), num_warps=BM // 16,
        )  # fmt: skip


def heads_together(rows: int, heads: int, short: bool) -> int:
    """Heads that a decoding program takes one after another, prefetching the next: as many as leave PROGRAMS."""
    most, programs = (heads, PROGRAMS) if short else (LONG_TOGETHER, LONG_PROGRAMS)
    fitting = range(1, min(most, heads) + 1)
    return max(n for n in fitting if heads % n == 0 and (n == 1 or rows * heads // n >= programs))


def decode(q, cache: DeviceCache, spans: Steps, look: Look, out, shape: Shape | None = None) -> None:
    """Attend from one query per row, and append its key and value, of the cache's dtype. shape: other than the rung's
    own, for measurements."""
    k, v = look.new
    rows, heads, plain = len(q), cache.heads, cache.dtype == "float32"
    sizes = RowSizes(heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    s, short = shape_for(cache, LEAST, spans.longest)
    s = shape or s
    together = 1 if plain else heads_together(rows, heads, short)
    several = step.step_in_turn if short else step.step_along
    kernel = step.step_plain if plain else several if together > 1 else step.step
    kernel[(rows * heads // together,)](
        Rows(q, k, v), Cache(cache.keys, cache.values), out, At(spans.slots, spans.positions), sizes,
        look.scale * LOG2E, Block(s.BM, s.BN, cache.D, padded(cache.D), together), Form(True, short, PRECISION),
        num_warps=s.warps, num_stages=s.stages,
    )  # fmt: skip
