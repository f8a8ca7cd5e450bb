"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

import math
from dataclasses import dataclass

import triton

from tilewright.ops.attention.operands import AttendOptions, DeviceCache
from tilewright.ops.attention.spans import LEAST, DeviceSpans, Steps, block_of
from tilewright.ops.attention.tile import append as appending
from tilewright.ops.attention.tile import blocks, direct, step, whole
from tilewright.ops.attention.tile.records import (
    AppendSizes,
    Block,
    Cache,
    CacheSizes,
    Form,
    New,
    Rows,
    RowSizes,
    Targets,
)
from tilewright.ops.core.gpu.early import early
from tilewright.ops.gemm.tile.start import forms, start

LOG2E = math.log2(math.e)
PROGRAMS = 4096  # least programs of a decode step: about three times as many as an H200 runs side by side
LONG_PROGRAMS = 1024  # the same for sequences of several blocks: an H200 runs nearly as many side by side
LONG_HEADS = 6  # most heads of such a program: more were not measured


@dataclass(frozen=True)
class Shape:
    """BM queries of a tile, BN keys of a block. BN alone decides the bits; it depends on D and dtype alone."""

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


def attend(q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out) -> None:
    """The rung "tile.blocks": append the new keys, then attend from every query to the cache."""
    if isinstance(spans, Steps):
        tables = [(LEAST, spans.longest, spans.tiles(LEAST))]
        new = [(1, 0, spans.pieces())]
    else:
        tables, new = spans.all_tiles, spans.all_pieces
    if options.new is not None:
        append(*options.new, cache, new)
    attend_tiles(q, cache, tables, options, out)


def append(k, v, cache: DeviceCache, tables) -> None:
    """Append rows to the cache as the tables [(positions of a piece, 0, pieces)] say."""
    sizes = AppendSizes(cache.heads, cache.length, k.stride(0), v.stride(0))
    for size, _, pieces in tables:
        grid, block = (cache.heads * len(pieces),), Block(size, size, cache.D, padded(cache.D))
        appending.append[grid](New(k, v), Cache(cache.keys, cache.values), pieces, sizes, block, num_warps=1)


def attend_tiles(q, cache: DeviceCache, tables, options: AttendOptions, out, shape: Shape | None = None) -> None:
    """Queries in the tables [(queries of a tile, longest sequence, tiles)] against the cache. shape: other than the
    rung's own, for measurements."""
    sizes = CacheSizes(cache.heads, cache.length, q.stride(0), out.stride(0))
    for BM, longest, tiles in tables:
        s, short = shape_for(cache, BM, longest)
        s = shape or s
        blocks.attend[(cache.heads * len(tiles),)](
            q, Cache(cache.keys, cache.values), out, tiles, sizes, options.scale * LOG2E,
            Block(s.BM, s.BN, cache.D, padded(cache.D)), Form(options.causal, short),
            num_warps=s.warps, num_stages=s.stages,
        )  # fmt: skip


def attend_and_append(q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out) -> None:
    """The rung "tile.kept": one kernel appends the new keys of short prompts and decoding steps and attends to them."""
    if options.new is None:
        attend(q, cache, spans, options, out)
    elif isinstance(spans, Steps):
        alike = q.dtype == options.new[0].dtype == options.new[1].dtype == cache.keys.dtype
        (decode if alike else attend)(q, cache, spans, options, out)
    else:
        append(*options.new, cache, spans.other_pieces)
        attend_whole(q, cache, spans.whole_tiles, options, out)
        attend_tiles(q, cache, spans.other_tiles, options, out)


def attend_directly(q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out) -> None:
    """The rung "tile.direct": texts that are whole in the batch, and whose keys nobody reads again, need no cache."""
    if options.keep or options.new is None or isinstance(spans, Steps) or not spans.fresh:
        attend_and_append(q, cache, spans, options, out)
        return
    k, v = options.new
    sizes = RowSizes(cache.heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    shapes = [(Shape(BM, BM, BM // 16, 1), True, tiles) for BM, _, tiles in spans.whole_tiles]
    shapes += [(*shape_for(cache, BM, longest), tiles) for BM, longest, tiles in spans.other_tiles]
    rows, unused = Rows(q, k, v), Cache(cache.keys, cache.values)
    for s, short, tiles in shapes:
        block, form = Block(s.BM, s.BN, cache.D, padded(cache.D)), Form(options.causal, short)
        key = ("attend_directly", q.device, *forms((*rows, *unused, out, tiles), sizes), s, block, form)
        arguments = rows, unused, out, tiles, sizes, options.scale * LOG2E, block, form
        start(direct.attend, key, (cache.heads * len(tiles), 1), arguments, num_warps=s.warps, num_stages=s.stages)


def attend_whole(q, cache: DeviceCache, tables, options: AttendOptions, out) -> None:
    """Append whole prompts in the tables [(positions, longest, tiles)] to the cache and attend to them."""
    k, v = options.new
    sizes = RowSizes(cache.heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    for BM, _, tiles in tables:
        whole.append_and_attend[(cache.heads * len(tiles),)](
            Rows(q, k, v), Cache(cache.keys, cache.values), out, tiles, sizes, options.scale * LOG2E,
            Block(BM, BM, cache.D, padded(cache.D)), Form(options.causal, True), num_warps=BM // 16,
        )  # fmt: skip


def heads_together(rows: int, heads: int, short: bool) -> int:
    """Heads that a decoding program takes one after another, prefetching the next: as many as leave enough programs."""
    most, programs = (heads, PROGRAMS) if short else (LONG_HEADS, LONG_PROGRAMS)
    fitting = range(1, min(most, heads) + 1)
    return max(n for n in fitting if heads % n == 0 and (n == 1 or rows * heads // n >= programs))


def decode(q, cache: DeviceCache, spans: Steps, options: AttendOptions, out, shape: Shape | None = None) -> None:
    """Attend from one query per row, and append its key and value, of the cache's dtype. shape: other than the rung's
    own, for measurements."""
    k, v = options.new
    rows, heads, plain = len(q), cache.heads, cache.dtype == "float32"
    sizes = RowSizes(heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    s, short = shape_for(cache, LEAST, spans.longest)
    s = shape or s
    together = 1 if plain else heads_together(rows, heads, short)
    several = step.step_heads if short else step.step_blocks
    kernel = step.step_plain if plain else several if together > 1 else step.step
    kernel[(rows * heads // together,)](
        Rows(q, k, v), Cache(cache.keys, cache.values), out, Targets(spans.slots, spans.positions), sizes,
        options.scale * LOG2E, Block(s.BM, s.BN, cache.D, padded(cache.D), together), Form(True, short),
        num_warps=s.warps, num_stages=s.stages, **early(rows),
    )  # fmt: skip
