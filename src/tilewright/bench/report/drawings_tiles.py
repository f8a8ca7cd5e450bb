"""Drawings of the tiles of a matrix product, each from the options of a kernel: block, thread, registers, limbs."""

from tilewright.bench.report.drawing import BLUE, GREEN, ORANGE, PURPLE, Drawing
from tilewright.errors import counted

WARP = 32  # threads
MOST = 16  # the most cells across a grid: in a larger tile one cell stands for several elements


def one_thread_per_element(rows: int, columns: int, *, along: str) -> Drawing:
    """A block of rows x columns threads, and what its first warp reads at one step of K. along: "rows" if neighbouring
    threads compute neighbouring elements of a row of out, "columns" if of a column."""
    drawing = Drawing(800, 370, f"matmul: one thread per element of out, a warp along {along}")
    drawing.text(20, 24, f"One thread per element, a warp along {along}", size=15, weight="bold")
    ahead = range(min(WARP, rows * columns))
    warp = [divmod(i, columns) if along == "rows" else divmod(i, rows)[::-1] for i in ahead]  # row, column of each
    read, wide = len({row for row, _ in warp}), len({column for _, column in warp})
    cell, left, top = min(12, 192 / max(rows, columns)), 330, 126
    drawing.grid(left, top, (rows, columns), cell, marked=dict.fromkeys(warp, BLUE))
    drawing.text(left, top + rows * cell + 20, f"out: a block of {rows} x {columns} threads")
    drawing.text(left, top + rows * cell + 38, "blue: the first warp", colour=BLUE)
    drawing.grid(110, top, (rows, 12), cell, marked={(i, 5): ORANGE for i in range(read)})
    drawing.text(110, top + rows * cell + 20, "a: one element")
    drawing.text(110, top + rows * cell + 38, f"of {counted(read, 'row')}", colour=ORANGE)
    drawing.grid(left, 40, (6, columns), cell, marked={(3, j): ORANGE for j in range(wide)})
    drawing.text(left - 10, 60, "b: one row,", anchor="end")
    drawing.text(left - 10, 78, counted(wide, "element"), anchor="end", colour=ORANGE)
    drawing.text(560, 150, "One step of K, per thread:", weight="bold")
    drawing.text(560, 174, "2 loads, 1 multiply-add")
    drawing.text(560, 206, "One load of the warp touches", weight="bold")
    drawing.text(560, 230, f"{counted(read, 'row')} of a: {counted(read, 'memory segment')}")
    drawing.text(560, 250, f"{wide} neighbours in b: 1 segment" if wide > 1 else "1 element of b: 1 segment")
    return drawing


def shared_tile(tile: int) -> Drawing:
    """A block of tile x tile threads, with a tile of a and a tile of b in shared memory."""
    drawing = Drawing(800, 350, f"matmul: a tile of {tile} x {tile} of each operand in shared memory")
    drawing.text(20, 24, f"Tiles of {tile} x {tile} in shared memory", size=15, weight="bold")
    side = 90
    drawing.box(20, 180, 270, side)
    drawing.box(20 + side, 180, side, side, "tile of a", fill=BLUE)
    drawing.text(20, 290, "rows of a (M, K)")
    drawing.arrow(20 + side * 2 + 8, 225, 20 + side * 2 + 70, 225, colour=BLUE)
    drawing.box(320, 40, side, 130)
    drawing.box(320, 62, side, side, "tile of b", fill=ORANGE)
    drawing.text(420, 60, "columns of b (K, N)")
    drawing.arrow(365, 152, 365, 168, colour=ORANGE)
    drawing.box(320, 180, side, side, "out", fill=GREEN)
    drawing.text(320, 290, f"{tile * tile} threads")
    words = [
        (f"For each {tile} of K:", "currentColor"),
        ("each thread loads one element of each tile", "currentColor"),
        ("barrier", PURPLE),
        (f"each thread adds {tile} products of shared elements", "currentColor"),
        ("barrier", PURPLE),
    ]
    for at, (line, colour) in enumerate(words):
        drawing.text(450, 110 + at * 22, line, colour=colour)
    drawing.text(450, 240, f"A loaded element serves {tile} threads.", weight="bold")
    drawing.text(450, 262, f"2 / {tile} loads from memory per multiply-add,")
    drawing.text(450, 280, "2 loads from shared memory.")
    drawing.text(20, 330, f"Shared memory: 2 x {tile} x {tile} x 4 bytes = {8 * tile * tile:,} bytes per block")
    return drawing


def strip(tile: int, wpt: int, depth: int) -> Drawing:
    """One thread with wpt elements of a column of a tile x tile block. Tiles have `depth` elements along K."""
    drawing = Drawing(800, 330, f"matmul: strips of {wpt} elements in a block of {tile} x {tile}")
    drawing.text(20, 24, f"A thread has a strip of {wpt} in a block of {tile} x {tile}", size=15, weight="bold")
    rows, cell = min(tile, MOST), 12
    own, first = min(wpt, rows), min(wpt, rows) if 2 * wpt <= rows else 0
    mine = {(first + i, 5): GREEN for i in range(own)}
    drawing.grid(170, 110, (rows, rows), cell, marked=mine)
    drawing.grid(40, 110, (rows, min(depth, 8)), cell, marked={(first + i, 2): BLUE for i in range(own)})
    drawing.grid(170, 40, (min(depth, 5), rows), cell, marked={(2, 5): ORANGE})
    below = 110 + rows * cell + 18
    drawing.text(40, below, "a's tile", colour=BLUE)
    drawing.text(170, below, "out: one corner of the block" if tile > MOST else "out: the block")
    drawing.text(375, 76, "b's tile", colour=ORANGE)
    drawing.text(440, 130, "One step of K, per thread:", weight="bold")
    drawing.text(440, 154, "1 element of b into a register", colour=ORANGE)
    drawing.text(440, 176, f"{wpt} element{'s' * (wpt > 1)} of a", colour=BLUE)
    drawing.text(440, 198, f"{wpt} multiply-add{'s' * (wpt > 1)}", colour=GREEN)
    drawing.text(440, 230, f"{(wpt + 1) / wpt:.4g} shared loads per multiply-add", weight="bold")
    drawing.text(440, 252, f"{tile * tile // wpt} threads, tiles {depth} long along K")
    return drawing


def registers(T: int, V: int) -> Drawing:
    """A block of T * V threads, each with a column of T sums. Only the tile of a is in shared memory."""
    drawing = Drawing(800, 330, f"matmul: {T} sums per thread, {T * V} threads side by side")
    drawing.text(20, 24, f"T x TV: {T} sums per thread, T V = {T * V} threads", size=15, weight="bold")
    rows, columns, cell = min(T, MOST), 24, 11
    drawing.grid(40, 110, (rows, rows), cell, marked={(i, 4): BLUE for i in range(rows)})
    drawing.grid(250, 110, (rows, columns), cell, marked={(i, 7): GREEN for i in range(rows)})
    drawing.grid(250, 46, (4, columns), cell, marked={(2, 7): ORANGE})
    below = 110 + rows * cell + 20
    drawing.text(40, below, f"a's tile, {T} x {T}", colour=BLUE)
    drawing.text(40, below + 18, "transposed, shared")
    drawing.text(250, below, f"out: {T} rows, {columns} of {T * V} columns" if columns < T * V else f"out: {T} rows")
    drawing.text(250, below + 18, "green: one thread", colour=GREEN)
    drawing.text(240, 70, "b, not shared", anchor="end", colour=ORANGE)
    drawing.text(530, 120, "One step of K, per thread:", weight="bold")
    drawing.text(530, 144, "1 element of b from memory,", colour=ORANGE)
    drawing.text(530, 162, "straight to a register", colour=ORANGE)
    drawing.text(530, 184, f"{T} elements of a, the same", colour=BLUE)
    drawing.text(530, 202, "for all threads: a broadcast", colour=BLUE)
    drawing.text(530, 224, f"{T} multiply-adds", colour=GREEN)
    drawing.text(530, 256, "No other thread needs this b.")
    return drawing


def outer_product(tile: int, block: int) -> Drawing:
    """A thread with block x block sums of a tile x tile block. It adds outer products of a column of a and a row of
    b."""
    drawing = Drawing(800, 330, f"matmul: {block} x {block} sums per thread in a block of {tile} x {tile}")
    drawing.text(20, 24, f"A thread has {block} x {block} sums: outer products", size=15, weight="bold")
    cell, many = 22, min(block, 8)
    drawing.grid(170, 100, (many, many), cell, fill=GREEN)
    drawing.grid(110, 100, (many, 1), cell, fill=BLUE)
    drawing.grid(170, 50, (1, many), cell, fill=ORANGE)
    drawing.text(20, 190, "column", colour=BLUE)
    drawing.text(20, 208, "of a", colour=BLUE)
    drawing.text(170 + many * cell + 10, 66, "row of b", colour=ORANGE)
    drawing.text(170, 100 + many * cell + 20, "sums in registers", colour=GREEN)
    drawing.text(440, 110, "One step of K, per thread:", weight="bold")
    drawing.text(440, 134, f"{block} elements of a's tile into registers", colour=BLUE)
    drawing.text(440, 156, f"{block} elements of b's tile into registers", colour=ORANGE)
    drawing.text(440, 178, f"{block * block} multiply-adds", colour=GREEN)
    each = 2 / block
    drawing.text(440, 210, f"{each:.3g} shared loads per multiply-add", weight="bold")
    drawing.text(440, 232, f"{tile * tile // block**2} threads for {tile} x {tile} of out")
    return drawing


def register_block(rows: int, vectors: int, lanes: int) -> Drawing:
    """rows x vectors sums in vector registers. One step loads `vectors` vectors of b and broadcasts `rows` elements of
    a."""
    drawing = Drawing(800, 260, f"matmul: {rows} rows x {vectors} vectors of sums in registers")
    drawing.text(20, 24, f"{rows} rows x {vectors} vectors of {lanes} lanes stay in registers", size=15, weight="bold")
    wide = 120
    for v in range(vectors):
        drawing.box(150 + v * (wide + 8), 46, wide, 24, "vector of b", fill=ORANGE)
    for i in range(rows):
        drawing.box(40, 86 + i * 30, 90, 24, f"a[{i}, p]", fill=BLUE)
        for v in range(vectors):
            drawing.box(150 + v * (wide + 8), 86 + i * 30, wide, 24, "sum", fill=GREEN)
    x = 150 + vectors * (wide + 8) + 30
    drawing.text(x, 80, "One step of K:", weight="bold")
    drawing.text(x, 104, f"{vectors} loads of b, used {rows} times each", colour=ORANGE)
    drawing.text(x, 126, f"{rows} broadcasts of a", colour=BLUE)
    drawing.text(x, 148, f"{rows * vectors} multiply-adds of {lanes} lanes", colour=GREEN)
    drawing.text(x, 180, f"{rows * vectors} sums hide the latency of")
    drawing.text(x, 198, f"{rows * vectors / 2:g} cycles at two per cycle")
    return drawing


def limbs(products: int) -> Drawing:
    """A float32 as two bfloat16 limbs, and the 3 or 4 products of two such numbers."""
    drawing = Drawing(800, 310, f"matmul: float32 as two bfloat16 limbs, {products} products")
    drawing.text(20, 24, "A float32 as two bfloat16 limbs", size=15, weight="bold")
    drawing.text(20, 62, "float32")
    parts = (("sign", 44, PURPLE), ("exponent, 8 bits", 130, ORANGE), ("fraction, 23 bits", 250, BLUE))
    x = 100.0
    for words, wide, colour in parts:
        drawing.box(x, 42, wide, 30, words, fill=colour)
        x += wide
    for y, name, words in ((100, "high", "the nearest bfloat16"), (148, "low", "the rest, as bfloat16")):
        drawing.text(20, y + 20, name)
        drawing.box(100, y, 44, 30, "sign", fill=PURPLE)
        drawing.box(144, y, 130, 30, "exponent, 8 bits", fill=ORANGE)
        drawing.box(274, y, 90, 30, "7 bits", fill=BLUE)
        drawing.text(380, y + 20, words)
    drawing.text(20, 214, "x = high + low, to 16 bits of fraction. Each limb has float32's")
    drawing.text(20, 232, "exponent, so nothing overflows.")
    drawing.text(580, 24, "Products of limbs", size=15, weight="bold")
    for i, left in enumerate(("high", "low")):
        for j, right in enumerate(("high", "low")):
            used = products == 4 or not (i and j)
            fill = GREEN if used else ""
            drawing.box(580 + j * 100, 60 + i * 60, 94, 50, f"{left} x {right}", fill=fill)
    if products == 3:
        drawing.text(580, 196, "low x low is left out:", colour=GREEN)
        drawing.text(580, 214, "2^-16 of the product", size=12)
    drawing.text(20, 272, f"A matrix unit multiplies {products} pairs of bfloat16 in place of one pair of float32.")
    drawing.text(20, 294, "The sums are float32.")
    return drawing


def convolution_taps(window: tuple[int, int, int], lanes: int) -> Drawing:
    """The taps of a 3-D window as a sequence of vectors, which is added up once at the end."""
    KD, KH, KW = window
    count = KD * KH * KW
    vectors = -(-count // lanes)
    drawing = Drawing(800, 310, f"conv3d: a window of {KD} x {KH} x {KW} as {vectors} vectors of {lanes} lanes")
    drawing.text(20, 24, f"A window of {KD} x {KH} x {KW} = {count} taps as one run of vectors", size=15, weight="bold")
    cell = 18
    for plane in range(min(KD, 5)):
        drawing.grid(20 + plane * (KW * cell + 20), 44, (KH, KW), cell, fill=BLUE)
    y = 44 + KH * cell + 28
    drawing.text(20, y, f"{KD} planes of the window, gathered into scratch:")
    shown = min(vectors, 3)
    for v in range(shown):
        left = 20 + v * (lanes * 14 + 12)
        used = min(lanes, count - v * lanes)
        drawing.grid(left, y + 14, (1, lanes), 14, marked={(0, i): BLUE for i in range(used)})
        drawing.grid(left, y + 40, (1, lanes), 14, marked={(0, i): ORANGE for i in range(used)})
    drawing.text(20, y + 78, "blue: elements of x; orange: weights, padded with zeros to whole vectors")
    more = f" (of {vectors} vectors, {shown} are drawn)" if vectors > shown else ""
    drawing.text(20, y + 98, f"{vectors} multiply-adds of {lanes} lanes per output{more},")
    drawing.text(20, y + 116, "then the lanes are added once.")
    return drawing
