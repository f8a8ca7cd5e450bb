"""Drawings of matmul, matmul_argmax, logprob and attention."""

from tilewright.bench.report.drawing import BLUE, GREEN, ORANGE, PURPLE, Drawing
from tilewright.ops.attention.cpu.blocks import ROWS as QUERIES
from tilewright.ops.attention.operands import PANEL_VECTORS
from tilewright.ops.gemm.cpu.loops import KC, MC, PANELS
from tilewright.ops.gemm.cpu.tiling import TILINGS
from tilewright.ops.logprob.cpu.fused import WIDTH
from tilewright.ops.matmul_argmax.cpu.screened import LEVELS

WIDE = TILINGS[16]  # the register block of AVX-512


def loop_orders() -> Drawing:
    """Which elements one inner loop accesses, before and after the loops are reordered."""
    drawing = Drawing(800, 300, "matmul: what the inner loop reads, down a column of b or along its rows")
    for left, title, order in (
        (20, "memory, register: loops i, j, p", "down"),
        (420, "reordered: loops i, p, j", "along"),
    ):
        down = order == "down"
        drawing.text(left, 24, title, size=15, weight="bold")
        row, column = 2, 3
        line, file = {(row, j): BLUE for j in range(6)}, {(i, column): BLUE for i in range(6)}
        single = {(row, column): BLUE}
        drawing.grid(left, 160, (5, 6), 18, marked=line if down else single)
        drawing.grid(left + 150, 40, (6, 9), 18, marked=file if down else {(3, j): ORANGE for j in range(9)})
        drawing.grid(
            left + 150, 160, (5, 9), 18, marked={(row, 3): GREEN} if down else {(row, j): GREEN for j in range(9)}
        )
        drawing.text(left + 54, 272, "a (M, K)", anchor="middle")
        drawing.text(left + 231, 272, "out (M, N)", anchor="middle")
        drawing.text(left + 320, 94, "b (K, N)")
        words = "one element per cache line of b" if down else "whole cache lines, in vectors"
        drawing.text(left, 292, words, colour=ORANGE)
        if down:
            drawing.arrow(left + 150 + 63, 44, left + 150 + 63, 144, colour=ORANGE)
        else:
            drawing.arrow(left + 154, 103, left + 306, 103, colour=ORANGE)
    return drawing


def five_loops() -> Drawing:
    """The cache blocks of `cpu.packed` and its register block."""
    drawing = Drawing(800, 400, "matmul, cpu.packed: which block of each operand stays in which cache")
    MR, NR = WIDE.rows[0], WIDE.NR
    drawing.text(20, 24, "cpu.packed: every block has a cache that it fits", size=15, weight="bold")
    drawing.box(20, 130, 170, 200)
    drawing.box(20, 170, 90, 90, fill=BLUE)
    drawing.box(20, 170, 90, 16, fill=BLUE, strength=0.6)
    drawing.text(20, 122, "A (M, K)")
    drawing.text(28, 218, f"{MC} rows x", room=82)
    drawing.text(28, 236, f"{KC} of K", room=82)
    drawing.text(28, 254, "in L2", room=82)
    drawing.box(230, 40, 250, 80)
    for panel in range(PANELS):
        drawing.box(300 + panel * 22, 40, 22, 80, fill=ORANGE, strength=0.5 if panel == 0 else 0.25)
    drawing.text(490, 60, "B (K, N), packed once")
    drawing.text(490, 80, f"{PANELS} panels of {NR} columns in L2")
    drawing.box(230, 130, 250, 200)
    drawing.box(300, 170, 22 * PANELS, 90, fill=GREEN)
    drawing.box(300, 170, 22, 16, fill=GREEN, strength=0.8)
    drawing.text(230, 350, "out (M, N)")
    drawing.line(322, 178, 560, 130)
    drawing.line(322, 186, 560, 322)
    drawing.text(560, 120, f"register block: {MR} x {NR} sums", weight="bold")
    for i in range(MR):
        for vector in range(WIDE.vectors):
            drawing.box(560 + vector * 90, 130 + i * 16, 88, 14, fill=GREEN, strength=0.5)
    drawing.text(560, 340, f"{MR} rows x {WIDE.vectors} vectors of {WIDE.lanes} lanes")
    drawing.text(560, 358, f"{MR * WIDE.vectors} of 32 vector registers")
    drawing.text(20, 366, f"dark: one panel of {MR} rows, in L1", colour=BLUE)
    drawing.text(20, 385, f"One step along K: load {WIDE.vectors} vectors of B, broadcast {MR} elements of A, "
                 f"{MR * WIDE.vectors} multiply-adds.")  # fmt: skip
    return drawing


def simt_tile() -> Drawing:
    """The tiles of a block, a warp and a thread in `simt.warps`."""
    from tilewright.ops.matmul.simt import warps

    drawing = Drawing(800, 330, "matmul, simt.warps: a block's tile, a warp's part, a thread's sums")
    tile, (down, right) = warps.TILE, warps.APART
    drawing.text(20, 24, "simt.warps: from the block to the thread", size=15, weight="bold")
    for warp in range(4):
        fill = BLUE if warp == 1 else ""
        drawing.box(20 + warp % 2 * 110, 50 + warp // 2 * 110, 110, 110, f"warp {warp}", fill=fill)
    drawing.text(20, 292, f"a block: {tile} x {tile} of out,")
    drawing.text(20, 310, f"{warps.THREADS} threads, 4 warps")
    drawing.line(240, 50, 290, 50)
    drawing.line(240, 160, 290, 270)
    cell = 220 / 16
    marked = {(i, j): BLUE for i in (0, down // 4) for j in range(0, 16, right // 4)}
    drawing.grid(290, 50, (16, 16), cell, marked=marked)
    drawing.text(290, 292, f"a warp: {tile // 2} x {tile // 2}, in quads of 4 x 4")
    drawing.text(290, 310, "blue: the 8 quads of thread 0", colour=BLUE)
    drawing.line(290 + cell, 50, 560, 50)
    drawing.line(290 + cell, 50 + cell, 560, 130)
    drawing.grid(560, 50, (4, 4), 20, fill=GREEN)
    drawing.text(655, 80, "a quad in registers")
    drawing.text(560, 160, "One step along K, per thread:")
    drawing.text(560, 182, "2 quads loaded from a's tile", colour=ORANGE)
    drawing.text(560, 204, "4 quads loaded from b's tile", colour=ORANGE)
    drawing.text(560, 226, "128 multiply-adds in registers", colour=GREEN)
    drawing.text(560, 258, "Neighbours read neighbours,")
    drawing.text(560, 276, "so no two loads of a warp")
    drawing.text(560, 294, "meet in one bank.")
    return drawing


def specialized() -> Drawing:
    """The pipeline of `tile.specialized` over time."""
    drawing = Drawing(800, 250, "matmul, tile.specialized: two warps load, two warpgroups multiply")
    drawing.text(20, 24, "tile.specialized: who does what, over time", size=15, weight="bold")
    names = ("loading warps", "warpgroup 0", "warpgroup 1")
    for lane, name in enumerate(names):
        drawing.text(20, 72 + lane * 56, name)
    for step in range(8):
        drawing.box(140 + step * 72, 50, 68, 34, f"load {step}", fill=ORANGE)
    for half in range(2):
        y = 106 + half * 56
        for step in range(5):
            drawing.box(230 + half * 72 + step * 72, y, 68, 34, f"x {step}", fill=BLUE)
        drawing.box(230 + half * 72 + 5 * 72, y, 80, 34, "write", fill=GREEN)
    drawing.box(230 + 5 * 72 + 84, 106, 68, 34, "x 5", fill=BLUE)
    drawing.arrow(120, 218, 740, 218)
    drawing.text(740, 240, "time", anchor="end")
    drawing.text(140, 240, "full and empty barriers in shared memory hand each stage over")
    return drawing


def best_of_a_tile() -> Drawing:
    """What is written of the product, and which columns remain after the screening."""
    drawing = Drawing(800, 300, "matmul_argmax: what is written, and which columns may be the largest")
    drawing.text(20, 24, "fused: a tile leaves one value", size=15, weight="bold")
    drawing.text(20, 42, "and one column per row")
    for tile in range(4):
        drawing.box(20 + tile * 80, 60, 76, 110, "sums", fill=BLUE)
        drawing.arrow(58 + tile * 80, 174, 58 + tile * 80, 205)
        drawing.box(20 + tile * 80, 210, 76, 26, "max, j", fill=GREEN)
    drawing.text(20, 262, "The sums stay in registers. Then the")
    drawing.text(20, 280, "results of all tiles are compared.")
    drawing.text(400, 24, f"screened: bounds from {LEVELS} levels decide", size=15, weight="bold")
    bounds = ((70, 120), (105, 140), (130, 205), (85, 150), (165, 228), (60, 110), (150, 192))
    largest_lower = max(low for low, _ in bounds)
    for at, (low, high) in enumerate(bounds):
        x, survives = 420 + at * 40, high >= largest_lower
        drawing.box(
            x, 290 - high, 26, high - low, fill=ORANGE if survives else PURPLE, strength=0.6 if survives else 0.2
        )
    drawing.line(410, 290 - largest_lower, 780, 290 - largest_lower)
    drawing.text(420, 255, "below the line: ruled out")
    drawing.text(420, 275, "orange: computed as matmul does", colour=ORANGE)
    drawing.text(706, 284 - largest_lower, "largest", size=12)
    drawing.text(706, 306 - largest_lower, "lower bound", size=12)
    return drawing


def sums_of_a_tile() -> Drawing:
    """What is stored of a tile of logits, and how the sum is rescaled."""
    drawing = Drawing(800, 300, "logprob: a tile of logits leaves four numbers per row")
    drawing.text(20, 24, "One task: some rows, one group of columns", size=15, weight="bold")
    drawing.text(20, 42, f"A group is {WIDTH:,} columns, for any number of rows.")
    for tile in range(4):
        drawing.box(20 + tile * 80, 60, 76, 100, "logits", fill=BLUE)
    drawing.arrow(20, 176, 336, 176)
    for y, name in ((190, "largest, column"), (220, "sum of exps"), (250, "target's logit")):
        drawing.box(20, y, 150, 26, name, fill=GREEN)
    drawing.text(185, 208, "The tiles of a group meet")
    drawing.text(185, 226, "these numbers one after")
    drawing.text(185, 244, "the other. No logit is stored.")
    drawing.text(420, 24, "A tile has a larger logit M", size=15, weight="bold")
    drawing.text(420, 50, "so far: largest m, sum S")
    drawing.box(420, 62, 330, 34, "S = S * exp(m - M)", fill=ORANGE)
    drawing.box(420, 102, 330, 34, "S = S + sum of exp(x - M)", fill=BLUE)
    drawing.text(420, 176, "At the end", size=15, weight="bold")
    drawing.text(420, 200, "All groups are scaled to one maximum and added.")
    drawing.box(420, 214, 330, 34, "logprob = x[target] - M - log(S)", fill=GREEN)
    return drawing


def attention_blocks() -> Drawing:
    """A block of queries, the blocks of keys, and the state that is kept between them."""
    drawing = Drawing(800, 320, "attention: a block of queries meets block after block of keys")
    drawing.text(20, 24, "Scores of one head, causal", size=15, weight="bold")
    cell, queries, keys = 13, 16, 24
    marked = {}
    for i in range(queries):
        for t in range(keys):
            if t <= i + 8:
                in_block = 8 <= i < 12
                marked[i, t] = (GREEN if 8 <= t < 16 else BLUE) if in_block else PURPLE
    drawing.grid(60, 56, (queries, keys), cell, marked=marked)
    drawing.text(216, 48, "keys, position 0 first", anchor="middle")
    drawing.text(20, 290, "blue and green: one block of queries; green: the keys of this step")
    drawing.text(20, 308, "white: masked, never computed as a whole block")
    drawing.text(10, 170, "queries", size=12)
    drawing.text(420, 24, "What a block of queries carries along", size=15, weight="bold")
    for y, name, words in ((50, "maximum", "largest score so far"), (94, "total", "sum of weights so far"),
                           (138, "sums (D)", "weights times values")):  # fmt: skip
        drawing.box(420, y, 110, 34, name, fill=GREEN)
        drawing.text(545, y + 22, words)
    drawing.text(420, 200, "A larger score s arrives: multiply total and")
    drawing.text(420, 220, "sums by exp(maximum - s), then go on.")
    drawing.text(420, 250, f"CPU, AVX-512: {QUERIES[16][0]} queries share a loaded key,")
    drawing.text(420, 270, f"keys lie in panels of {16 * PANEL_VECTORS}.")
    return drawing
