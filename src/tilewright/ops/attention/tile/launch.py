"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

import math
from dataclasses import dataclass

import triton

from tilewright.ops.attention.operands import MOST_ROWS, AttendOptions, DeviceCache
from tilewright.ops.attention.spans import LEAST, WIDE, DeviceSpans, Queues, Steps, block_of
from tilewright.ops.attention.tile import append as appending
from tilewright.ops.attention.tile import blocks, direct, step, whole
from tilewright.ops.attention.tile.records import (
    AppendSizes,
    Block,
    Cache,
    CacheSizes,
    Form,
    LongForm,
    New,
    Rows,
    RowSizes,
    Targets,
    TileSizes,
)
from tilewright.ops.core.gpu.early import ROWS, early
from tilewright.ops.core.gpu.tensors import multiprocessors
from tilewright.ops.gemm.tile.start import ALIGNMENT, describe, forms, hopper_descriptor, start

LOG2E = math.log2(math.e)
PROGRAMS = 4096  # least programs of a decode step: about three times as many as an H200 runs side by side
LONG_PROGRAMS = 1024  # the same for sequences of several blocks: an H200 runs nearly as many side by side
PLAIN_WARPS = 2  # of `step.step_plain`: with one it decodes one prompt 3 % slower
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


def attend(
    q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out, queues: Queues | None = None
) -> None:
    """The rung "tile.blocks": append the new keys, then attend from every query to the cache. queues: as for
    `attend_directly`."""
    if isinstance(spans, Steps):
        tables = [(LEAST, spans.longest, spans.tiles(LEAST))]
        new = [(1, 0, spans.pieces())]
    else:
        tables, new = spans.all_tiles(queues), spans.all_pieces
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
        if BM == WIDE:
            rows = Rows(q, cache.keys.view(-1, cache.D), cache.values.view(-1, cache.D))
            attend_long(rows, cache, tiles, options, out, cached=True)
            continue
        s, short = shape_for(cache, BM, longest)
        s = shape or s
        blocks.attend[(cache.heads * len(tiles),)](
            q, Cache(cache.keys, cache.values), out, tiles, sizes, options.scale * LOG2E,
            Block(s.BM, s.BN, cache.D, padded(cache.D)), Form(options.causal, short),
            num_warps=s.warps, num_stages=s.stages,
        )  # fmt: skip


def attend_and_append(
    q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out, queues: Queues | None = None
) -> None:
    """The rung "tile.kept": one kernel appends the new keys of short prompts and decoding steps and attends to them.
    queues: as for `attend_directly`."""
    if options.new is None:
        attend(q, cache, spans, options, out, queues)
    elif isinstance(spans, Steps):
        alike = q.dtype == options.new[0].dtype == options.new[1].dtype == cache.keys.dtype
        (decode if alike else attend)(q, cache, spans, options, out)
    else:
        append(*options.new, cache, spans.other_pieces)
        attend_whole(q, cache, spans.whole_tiles, options, out)
        attend_tiles(q, cache, spans.other_tiles(queues), options, out)


def attend_directly(
    q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out, queues: Queues | None = None
) -> None:
    """The rung "tile.direct": texts that are whole in the batch, and whose keys nobody reads again, need no cache.
    queues: of tiles of long spans, if the kernel in `hopper` takes these."""
    if options.keep or options.new is None or isinstance(spans, Steps) or not spans.fresh:
        attend_and_append(q, cache, spans, options, out, queues)
        return
    k, v = options.new
    sizes = RowSizes(cache.heads, cache.length, q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    shapes = [(Shape(BM, BM, BM // 16, 1), True, tiles) for BM, _, tiles in spans.whole_tiles]
    shapes += [(*shape_for(cache, BM, longest), tiles) for BM, longest, tiles in spans.other_tiles(queues)]
    rows, unused = Rows(q, k, v), Cache(cache.keys, cache.values)
    for s, short, tiles in shapes:
        if s.BM == WIDE:
            attend_long(rows, cache, tiles, options, out, cached=False)
            continue
        block, form = Block(s.BM, s.BN, cache.D, padded(cache.D)), Form(options.causal, short)
        key = ("attend_directly", q.device, *forms((*rows, *unused, out, tiles), sizes), s, block, form)
        arguments = rows, unused, out, tiles, sizes, options.scale * LOG2E, block, form
        start(direct.attend, key, (cache.heads * len(tiles), 1), arguments, num_warps=s.warps, num_stages=s.stages)


def attend_specialized(q, cache: DeviceCache, spans: DeviceSpans | Steps, options: AttendOptions, out) -> None:
    """The rung "tile.specialized": `attend_directly`, and the kernel in `hopper` takes long spans if all arrays have
    the cache's dtype and bulk copies can read the rows, which begin at multiples of 16 bytes; 32 bits count them."""
    rows, dtype = (q, *(options.new or ())), cache.keys.dtype
    wide = all(
        x.dtype == dtype and x.data_ptr() % ALIGNMENT == 0 and x.stride(0) * x.element_size() % ALIGNMENT == 0
        for x in rows
    )
    wide = wide and out.dtype == dtype and cache.slots * cache.heads * cache.length < MOST_ROWS
    attend_directly(q, cache, spans, options, out, Queues(queues_of(cache), options.causal) if wide else None)


def queues_of(cache: DeviceCache) -> int:
    """Queues of tiles for the kernel in `hopper`. One program per head takes a queue, and a multiprocessor runs two
    programs, so all run at once."""
    return max(1, 2 * multiprocessors() // cache.heads)


def attend_long(rows: Rows, cache: DeviceCache, tiles, options: AttendOptions, out, *, cached: bool) -> None:
    """Queries in queues of tiles of WIDE against keys and values. cached: these are rows of D elements of the cache."""
    from tilewright.ops.attention.tile import hopper

    D, queues = cache.D, min(queues_of(cache), len(tiles))
    sizes = TileSizes(cache.heads, cache.length, out.stride(0), cache.heads * len(tiles))
    form, boxes = LongForm(options.causal, cached), (describe(x, [block_of(cache), D]) for x in rows)
    key = ("attend_long", out.device, D, *forms((*rows, out, tiles), sizes), form)
    arguments, grid = (*boxes, out, tiles, sizes, options.scale * LOG2E, form), (cache.heads * queues, 1)
    start(hopper.attend, key, grid, arguments, hopper_descriptor, num_warps=4, maxnreg=hopper.REGISTERS)


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
    if plain:  # one kernel whatever the longest sequence is: a smaller block could be rounded or added differently
        s, short = Shape(LEAST, block_of(cache), PLAIN_WARPS), False
    s = shape or s
    form = Form(True, short, ahead=plain and rows <= ROWS)
    together = 1 if plain else heads_together(rows, heads, short)
    several = step.step_heads if short else step.step_blocks
    kernel = step.step_plain if plain else several if together > 1 else step.step
    kernel[(rows * heads // together,)](
        Rows(q, k, v), Cache(cache.keys, cache.values), out, Targets(spans.slots, spans.positions), sizes,
        options.scale * LOG2E, Block(s.BM, s.BN, cache.D, padded(cache.D), together), form,
        num_warps=s.warps, num_stages=s.stages, **early(rows),
    )  # fmt: skip
