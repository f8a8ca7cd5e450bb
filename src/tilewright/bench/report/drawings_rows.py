"""Drawings of softmax, layernorm, batchnorm, elementwise, embedding, pool, rope and sample: rows and elements."""

from tilewright.bench.report.drawing import BLUE, GREEN, ORANGE, Drawing
from tilewright.ops.core.gpu.warp import THREADS, WARP
from tilewright.ops.sample.cpu.workspace import BUCKETS


def passes() -> Drawing:
    """The three-pass and the online algorithm over a row."""
    drawing = Drawing(800, 250, "softmax: three passes over a row, or two with a rescaled sum")
    drawing.text(20, 24, "Three passes: exp once per element", size=15, weight="bold")
    for step, (words, colour) in enumerate((("maximum", BLUE), ("exp, sum", ORANGE), ("divide", GREEN))):
        y = 48 + step * 50
        drawing.grid(20, y, (1, 14), 18, fill=colour)
        drawing.arrow(20, y + 30, 268, y + 30)
        drawing.text(290, y + 15, words)
    drawing.text(20, 214, "A CPU prefers it: a pass over a cached row")
    drawing.text(20, 232, "costs less than a second exp.")
    drawing.text(420, 24, "Online: one pass less, exp twice", size=15, weight="bold")
    for step, (words, colour) in enumerate((("maximum, exp, sum", BLUE), ("exp, divide", GREEN))):
        y = 48 + step * 50
        drawing.grid(420, y, (1, 10), 18, fill=colour)
        drawing.arrow(420, y + 30, 596, y + 30)
        drawing.text(616, y + 15, words)
    drawing.text(420, 158, "When the maximum grows from m to M:", colour=ORANGE)
    drawing.text(420, 176, "sum = sum * exp(m - M)", colour=ORANGE)
    drawing.text(420, 214, "A GPU prefers it: a pass over device")
    drawing.text(420, 232, "memory costs more than exp.")
    return drawing


def who_shares_a_row() -> Drawing:
    """The four ways in which GPU rungs share a row: per thread, per block, per warp, in registers."""
    drawing = Drawing(800, 260, "layernorm: which threads share a row")
    ways = (
        ("naive", "a thread per row", "32 cache lines", "per load"),
        ("shared, shuffles", "a block per row", f"{THREADS} threads,", "barriers"),
        ("warps, vectors", "a warp per row", f"{WARP} threads,", "no barrier"),
        ("tile.registers", "a row in registers", "read once,", "written once"),
    )
    for at, (name, words, first, second) in enumerate(ways):
        x = 20 + at * 195
        drawing.text(x, 24, name, size=15, weight="bold", room=180)
        drawing.text(x, 44, words, room=180)
        marked = {
            0: {(i, 0): ORANGE for i in range(6)},
            1: {(2, j): BLUE for j in range(9)},
            2: {(i, j): (BLUE, GREEN)[i % 2] for i in (2, 3) for j in range(9)},
            3: {(2, j): GREEN for j in range(9)},
        }[at]
        drawing.grid(x, 60, (6, 9), 18, marked=marked)
        drawing.text(x, 196, first, room=180)
        drawing.text(x, 214, second, room=180)
    drawing.text(20, 245, "Each grid is x (rows, C). Coloured: what is read at one moment.")
    return drawing


def texts_of_rows() -> Drawing:
    """The rows of three texts, and where the sums of pool are."""
    drawing = Drawing(800, 250, "pool: the rows of a text become their mean")
    drawing.text(20, 24, "x: the rows of all texts", size=15, weight="bold")
    texts = {(i, j): (BLUE, GREEN, ORANGE)[(i > 1) + (i > 4)] for i in range(9) for j in range(8)}
    drawing.grid(20, 44, (9, 8), 18, marked=texts)
    drawing.arrow(170, 125, 215, 125)
    drawing.grid(220, 98, (3, 8), 18, marked={(i, j): (BLUE, GREEN, ORANGE)[i] for i in range(3) for j in range(8)})
    drawing.text(220, 88, "out")
    drawing.text(20, 234, "Texts have 2, 3 and 4 rows; no row is padding.", room=370)
    drawing.text(420, 24, "Where the sums are", size=15, weight="bold")
    for step, (name, words) in enumerate(
        (
            ("cpu.naive", "one in a register, down a column"),
            ("cpu.rows", "all columns, in L1, row by row"),
            ("cpu.vectors", "a block of columns, in registers"),
            ("tile.rows", "a block of rows is added at once"),
        )
    ):
        drawing.box(420, 44 + step * 46, 120, 34, name, fill=ORANGE)
        drawing.text(556, 66 + step * 46, words, room=240)
    return drawing


def turned_pairs() -> Drawing:
    """The pairs of elements that rope rotates in a head, and how often a cosine is computed."""
    drawing = Drawing(800, 250, "rope: pairs of a head are turned by the angle of the row's position")
    drawing.text(20, 24, "A row: heads, and in each F pairs", size=15, weight="bold")
    pairs = {(0, j): (BLUE, GREEN)[j // 3] for j in range(6)}
    for head in range(2):
        drawing.grid(20 + head * 180, 60, (1, 8), 20, marked=pairs)
        drawing.text(20 + head * 180, 50, f"head {head}")
        for pair in range(3):
            drawing.arrow(30 + head * 180 + pair * 20, 96 + pair * 10, 90 + head * 180 + pair * 20, 96 + pair * 10)
    drawing.text(20, 150, "a: blue, b: green, in white what is not rotated", room=370)
    drawing.text(20, 176, "a' = a cos - b sin", colour=ORANGE)
    drawing.text(20, 196, "b' = b cos + a sin", colour=ORANGE)
    drawing.text(420, 24, "Who computes cos and sin", size=15, weight="bold")
    for step, (name, words) in enumerate(
        (
            ("cpu.naive", "each pair of each head"),
            ("cpu.shared", "each row, for all its heads"),
            ("cpu.table", "each model, for all rows"),
        )
    ):
        drawing.box(420, 44 + step * 50, 120, 34, name, fill=ORANGE)
        drawing.text(556, 66 + step * 50, words, room=240)
    drawing.text(420, 214, "The angle is position x frequency, in float32.", room=370)
    return drawing


def fold() -> Drawing:
    """Two operations that are folded into one."""
    drawing = Drawing(800, 220, "batchnorm: folded into the weights and the bias of the layer before")
    drawing.text(20, 24, "Before: two passes over memory", size=15, weight="bold")
    drawing.box(20, 50, 130, 50, "x @ W + b", fill=BLUE)
    drawing.arrow(150, 75, 205, 75)
    drawing.box(205, 50, 130, 50, "* scale + shift", fill=ORANGE)
    drawing.arrow(335, 75, 390, 75)
    drawing.text(400, 80, "y")
    drawing.text(155, 120, "written and read again", colour=ORANGE)
    drawing.text(460, 24, "After: one operation", size=15, weight="bold")
    drawing.box(460, 50, 220, 50, "x @ (W * scale) + b'", fill=GREEN)
    drawing.arrow(680, 75, 735, 75)
    drawing.text(745, 80, "y")
    drawing.text(460, 120, "b' = b * scale + shift", colour=GREEN)
    drawing.text(20, 170, "Scale and shift belong to output channels, so they multiply columns of W. Both are")
    drawing.text(20, 190, "known when the model is loaded. At run time nothing is left to do.")
    return drawing


def lanes() -> Drawing:
    """One call per element, and one polynomial per vector."""
    drawing = Drawing(800, 230, "elementwise: a call of the C library per element, or one polynomial for all lanes")
    drawing.text(20, 24, "cpu.naive: a call per element", size=15, weight="bold")
    drawing.grid(20, 44, (1, 16), 20, marked={(0, 0): ORANGE})
    drawing.arrow(30, 66, 30, 96)
    drawing.box(20, 100, 120, 34, "tanh(x[0])", fill=ORANGE)
    drawing.text(160, 122, "15 more calls follow")
    drawing.text(420, 24, "cpu.vectors: a polynomial for all", size=15, weight="bold")
    drawing.grid(420, 44, (1, 16), 20, fill=BLUE)
    drawing.arrow(580, 66, 580, 96)
    drawing.box(420, 100, 155, 34, "odd polynomial", fill=GREEN)
    drawing.box(585, 100, 155, 34, "1 - 2/(exp(2x)+1)", fill=GREEN)
    drawing.arrow(580, 136, 580, 166)
    drawing.box(420, 170, 320, 34, "|x| > 0.625 selects, lane by lane", fill=BLUE)
    return drawing


def gather() -> Drawing:
    """Ids, the rows of the table, and the rows of out."""
    drawing = Drawing(800, 260, "embedding: ids name rows of a table; a warp copies a row")
    drawing.text(20, 24, "ids (n,)", weight="bold")
    ids = (5, 1, 5, 7)
    for i, row in enumerate(ids):
        drawing.box(20, 60 + i * 34, 50, 26, str(row), fill=BLUE)
    drawing.text(180, 24, "table (V, C)", weight="bold")
    drawing.grid(180, 44, (9, 12), 20, marked={(row, j): GREEN for row in set(ids) for j in range(12)})
    drawing.text(540, 24, "out (n, C)", weight="bold")
    for i, row in enumerate(ids):
        drawing.grid(540, 62 + i * 34, (1, 12), 20, fill=GREEN)
        drawing.line(72, 73 + i * 34, 178, 54 + row * 20, colour=BLUE)
        drawing.line(422, 54 + row * 20, 538, 73 + i * 34, colour=GREEN)
    drawing.text(440, 238, "two waits: first the id, then its row", colour=ORANGE)
    drawing.text(440, 256, "several ids in flight hide both", colour=ORANGE)
    return drawing


def buckets() -> Drawing:
    """Weights by their distance from the best score, and the bucket that contains the target."""
    drawing = Drawing(800, 280, "sample: weights summed in buckets by distance from the best score")
    drawing.text(20, 24, f"{BUCKETS:,} buckets by distance d from the best score", size=15, weight="bold")
    heights = (150, 128, 104, 84, 66, 48, 34, 22, 13, 7, 4)
    x = 40.0
    for at, height in enumerate(heights):
        wide = 26 + 7 * at
        drawing.box(x, 200 - height, wide, height, fill=ORANGE if at == 3 else BLUE, strength=0.55 if at == 3 else 0.25)
        x += wide + 3
    drawing.line(30, 200, 760, 200)
    drawing.text(40, 218, "d = 0")
    drawing.text(750, 218, "large d", anchor="end")
    drawing.arrow(150, 40, 150, 108, colour=ORANGE)
    drawing.text(165, 60, "the running sum reaches u * sum here:", colour=ORANGE)
    drawing.text(165, 78, "only this bucket's tokens are put in order", colour=ORANGE)
    drawing.text(40, 250, "Height: sum of weights. Width: a bucket is the exponent and six bits of d,")
    drawing.text(40, 268, "so buckets near the best score are narrow.")
    return drawing
