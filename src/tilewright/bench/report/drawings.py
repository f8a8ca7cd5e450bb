"""The table of drawings: which drawing shows the idea of a rung, with the rung's own options; and the files of
docs/learn."""

from collections.abc import Callable
from importlib import import_module

from tilewright.bench.report import drawings_products as products
from tilewright.bench.report import drawings_rows as rows
from tilewright.bench.report import drawings_tiles as tiles
from tilewright.bench.report import drawings_windows as windows
from tilewright.bench.report.drawing import Drawing
from tilewright.ops.core.ladder import Ladder, Rung

Draw = Callable[[Rung], Drawing]
LANES = 16  # lanes of the vectors in the drawings: AVX-512


def _strip(rung: Rung) -> Drawing:
    from tilewright.ops.matmul.simt.blocks import STRIP_DEPTH

    return tiles.strip(rung.options["tile"], rung.options["wpt"], STRIP_DEPTH)


def _outer(rung: Rung) -> Drawing:
    from tilewright.ops.matmul.simt.blocks import BLOCK, TILE

    return tiles.outer_product(TILE, BLOCK)


def _naive(along: str) -> Draw:
    return lambda rung: tiles.one_thread_per_element(
        rung.options["block_rows"], rung.options["block_columns"], along=along
    )


def _shared(rung: Rung) -> Drawing:
    return tiles.shared_tile(rung.options["tile"])


def _fixed(draw: Callable[[], Drawing]) -> Draw:
    """A drawing that depends on no option."""
    return lambda rung: draw()


DRAWN: dict[str, dict[str, Draw]] = {  # operation -> rung -> its drawing; "" for the operation's other rungs
    "matmul": {
        "cpu.memory": _fixed(products.loop_orders),
        "cpu.register": _fixed(products.loop_orders),
        "cpu.reordered": _fixed(products.loop_orders),
        "cpu.vectors": _fixed(lambda: tiles.register_block(4, 2, LANES)),
        "cpu.packed": _fixed(products.five_loops),
        "cpu.limbs": _fixed(lambda: tiles.limbs(3)),
        "simt.memory": _naive("columns"),
        "simt.register": _naive("columns"),
        "simt.coalesced": _naive("rows"),
        "simt.shared": _shared,
        "simt.unrolled": _shared,
        "simt.strip": _strip,
        "simt.registers": lambda rung: tiles.registers(rung.options["T"], rung.options["V"]),
        "simt.outer": _outer,
        "simt.vectors": _fixed(products.simt_tile),
        "simt.warps": _fixed(products.simt_tile),
        "simt.buffered": _fixed(products.simt_tile),
        "tile.specialized": _fixed(products.specialized),
        "tile.limbs": _fixed(lambda: tiles.limbs(3)),
        "tile.specialized_limbs": _fixed(lambda: tiles.limbs(3)),
    },
    "matmul_argmax": {"": _fixed(products.best_of_a_tile)},
    "logprob": {"": _fixed(products.sums_of_a_tile)},
    "attention": {"": _fixed(products.attention_blocks)},
    "softmax": {"": _fixed(rows.passes)},
    "layernorm": {"": _fixed(rows.who_shares_a_row)},
    "batchnorm": {"": _fixed(rows.fold)},
    "elementwise": {"": _fixed(rows.lanes)},
    "embedding": {"": _fixed(rows.gather)},
    "pool": {"": _fixed(rows.texts_of_rows)},
    "rope": {"": _fixed(rows.turned_pairs)},
    "sample": {"": _fixed(rows.buckets)},
    "conv1d": {"": _fixed(windows.overlapping_windows)},
    "conv3d": {
        "cpu.taps": _fixed(lambda: tiles.convolution_taps((3, 3, 3), LANES)),
        "cpu.rows": _fixed(windows.march),
        "simt.cubes": lambda rung: windows.cube_with_halo(rung.swept["tile"], rung.options["tile"], 3),
        "simt.march": _fixed(windows.march),
        "tile.march": _fixed(windows.march),
    },
    "conv_transpose2d": {"": _fixed(lambda: windows.phases(5, 2))},
    "correlate": {"": _fixed(windows.tile_with_halo)},
    "embedding_conv1d": {"": _fixed(windows.token_table)},
}
PICTURES = {  # file of docs/learn/img -> the rung whose drawing it is
    "attention": ("attention", "tile.blocks"),
    "batchnorm": ("batchnorm", "cpu.vectors"),
    "conv1d": ("conv1d", "cpu.matmul"),
    "conv3d": ("conv3d", "cpu.rows"),
    "conv3d-cubes": ("conv3d", "simt.cubes"),
    "conv3d-taps": ("conv3d", "cpu.taps"),
    "conv_transpose2d": ("conv_transpose2d", "cpu.phases"),
    "correlate": ("correlate", "cpu.tiles"),
    "elementwise": ("elementwise", "cpu.vectors"),
    "embedding": ("embedding", "simt.warps"),
    "embedding_conv1d": ("embedding_conv1d", "cpu.gather_add"),
    "layernorm": ("layernorm", "simt.warps"),
    "logprob": ("logprob", "cpu.online"),
    "matmul-blocks": ("matmul", "cpu.packed"),
    "matmul-coalesced": ("matmul", "simt.coalesced"),
    "matmul-limbs": ("matmul", "cpu.limbs"),
    "matmul-naive": ("matmul", "simt.memory"),
    "matmul-orders": ("matmul", "cpu.reordered"),
    "matmul-outer": ("matmul", "simt.outer"),
    "matmul-registers": ("matmul", "simt.registers"),
    "matmul-shared": ("matmul", "simt.shared"),
    "matmul-simt": ("matmul", "simt.warps"),
    "matmul-specialized": ("matmul", "tile.specialized"),
    "matmul-strip": ("matmul", "simt.strip"),
    "matmul-vectors": ("matmul", "cpu.vectors"),
    "matmul_argmax": ("matmul_argmax", "tile.fused"),
    "pool": ("pool", "cpu.vectors"),
    "rope": ("rope", "cpu.table"),
    "sample": ("sample", "cpu.buckets"),
    "softmax": ("softmax", "tile.online"),
}


def drawing_of(op: str, rung: Rung) -> Drawing | None:
    """The drawing of a rung, made with its options. None if it has none."""
    own = DRAWN.get(op, {})
    draw = own.get(rung.name) or own.get("")
    return draw(rung) if draw else None


def files() -> dict[str, Drawing]:
    """Name of a file in docs/learn/img, without its suffix -> its drawing."""
    found = {}
    for name, (op, rung) in PICTURES.items():
        ladder: Ladder = import_module(f"tilewright.ops.{op}.ladder").ladder
        if drawing := drawing_of(op, ladder.rungs[rung]):
            found[name] = drawing
    return found
