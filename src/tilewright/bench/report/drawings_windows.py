"""Drawings of the convolutions: conv1d, conv3d, conv_transpose2d, correlate, embedding_conv1d."""

from tilewright.bench.report.drawing import BLUE, GREEN, ORANGE, PURPLE, Drawing
from tilewright.ops.conv1d.cpu.channel_tiles import TILES
from tilewright.ops.conv3d.cpu.tiles import ROWS
from tilewright.ops.embedding_conv1d.cpu.gather_add import SLICE

COLOURS = (BLUE, GREEN, ORANGE, PURPLE)


def overlapping_windows() -> Drawing:
    """The rows of the im2col matrix as views of x, and the tile of `cpu.channel_tiles`."""
    drawing = Drawing(800, 300, "conv1d: windows of x overlap, so the im2col matrix can be a view")
    drawing.text(20, 24, "cpu.matmul: the matrix is a view", size=15, weight="bold")
    drawing.text(20, 52, "x, channels last: position 0 .. 6, each C elements")
    drawing.grid(20, 62, (1, 7), 42, fill="")
    for l in range(4):
        drawing.box(20 + l * 42, 126 + l * 30, 126, 24, f"row {l}: K * C", fill=COLOURS[l])
    drawing.text(20, 268, "Row l begins C elements after row l - 1.")
    drawing.text(20, 286, "Nothing is copied.")
    (channels, vectors), lanes = TILES[16][0], 16
    drawing.text(420, 24, "cpu.channel_tiles: sums in registers", size=15, weight="bold")
    for i in range(channels):
        for v in range(vectors):
            drawing.box(500 + v * 132, 60 + i * 22, 128, 19, fill=GREEN, strength=0.45)
        drawing.box(420, 60 + i * 22, 60, 19, f"w[{i}]", fill=ORANGE)
    drawing.text(500, 256, f"{channels} channels x {vectors} vectors of {lanes} positions")
    drawing.text(500, 52, "x[c, l + t ...]: two loads for 16 products", size=12)
    drawing.text(420, 280, "A tap is an offset: one element further.")
    return drawing


def march() -> Drawing:
    """Rows in registers, and planes in a ring buffer."""
    drawing = Drawing(800, 330, "conv3d: a loaded vector feeds KH rows of sums; planes march through a ring")
    drawing.text(20, 24, "cpu.rows: one load feeds KH sums", size=15, weight="bold")
    rows, taps = 8, 3
    for j in range(rows + taps - 1):
        drawing.box(20, 44 + j * 24, 90, 20, f"x row {j}", fill=BLUE, strength=0.6 if j == 4 else 0.2)
    for i in range(rows):
        drawing.box(230, 68 + i * 24, 110, 20, f"sum row {i}", fill=GREEN, strength=0.6 if 2 <= i <= 4 else 0.2)
    for i in (2, 3, 4):
        drawing.arrow(112, 44 + 4 * 24 + 10, 228, 68 + i * 24 + 10, colour=ORANGE)
    drawing.text(130, 280, "KH = 3 products", colour=ORANGE)
    drawing.text(20, 304, f"With AVX-512 a block has {ROWS[16]} rows of sums,")
    drawing.text(20, 322, "each one vector of 16 lanes.")
    drawing.text(440, 24, "The march: KD + 1 planes in L2", size=15, weight="bold")
    for plane in range(6):
        in_ring, arriving = 1 <= plane <= 3, plane == 4
        fill = BLUE if in_ring else ORANGE if arriving else ""
        drawing.box(440 + plane * 46, 70 + plane * 22, 100, 60, fill=fill, strength=0.4)
    drawing.text(440, 62, "z", anchor="middle")
    drawing.text(440, 268, "blue: the KD planes under the window", colour=BLUE)
    drawing.text(440, 288, "orange: copied in while the blue ones are used", colour=ORANGE)
    drawing.text(440, 308, "Each plane is read from memory once.")
    return drawing


def cube_with_halo(sizes: tuple[int, ...], default: int, K: int) -> Drawing:
    """One plane of a cube of outputs with its halo, for each tile size, and for a window of K x K x K."""
    cell, x = 18, 20
    drawing = Drawing(800, 270, "conv3d: cubes of outputs with their halo, one plane of each")
    drawing.text(20, 24, f"simt.cubes: one plane of a block, K = {K}", size=15, weight="bold")
    for tile in sizes:
        side = tile + K - 1
        outputs = {(i, j): BLUE for i in range(K // 2, K // 2 + tile) for j in range(K // 2, K // 2 + tile)}
        drawing.text(x, 52, f"T = {tile}{' (default)' if tile == default else ''}")
        drawing.grid(x, 62, (side, side), cell, marked=outputs)
        drawing.text(x, 210, f"threads: {side**3}", size=12)
        drawing.text(x, 228, f"outputs: {tile**3}", size=12)
        x += max(side * cell, 92) + 34
    drawing.text(20, 256, "blue: one output per element; white: the halo. One thread loads each element.")
    return drawing


def phases(K: int, stride: int) -> Drawing:
    """The taps of a K x K kernel, by the phase that uses them, for a stride of 2."""
    drawing = Drawing(800, 290, f"conv_transpose2d: the phases of a {K} x {K} kernel at stride {stride}")
    drawing.text(20, 24, f"The {K * K} taps by phase", size=15, weight="bold")
    marked = {(a, c): COLOURS[a % stride * stride + c % stride] for a in range(K) for c in range(K)}
    drawing.grid(20, 50, (K, K), 170 / K, marked=marked)
    drawing.text(20, 246, "Every second tap belongs to the same phase.")
    drawing.text(270, 24, f"{stride * stride} convolutions of x", size=15, weight="bold")
    most = -(-K // stride)
    for phase in range(stride * stride):
        high, wide = (-(-(K - at) // stride) for at in divmod(phase, stride))
        x, y = 270 + phase % stride * 120, 56 + phase // stride * 100
        drawing.grid(x, y, (high, wide), 72 / most, fill=COLOURS[phase])
        drawing.text(x, y + 18 + high * 72 / most, f"{high} x {wide}")
    drawing.text(550, 24, "Where the outputs go", size=15, weight="bold")
    out = {(i, j): COLOURS[i % stride * stride + j % stride] for i in range(8) for j in range(8)}
    drawing.grid(550, 50, (8, 8), 21, marked=out)
    drawing.text(550, 246, f"out[{stride} j + i] belongs to phase i")
    products = f"Zeros inserted between pixels take {K * K} products per output; "
    drawing.text(20, 278, f"{products}the phases take {K * K} per {stride * stride} outputs.")
    return drawing


def tile_with_halo() -> Drawing:
    """A tile in scratch memory, and how results replace its elements."""
    drawing = Drawing(800, 280, "correlate: a tile with its halo, in which a tap is a constant distance")
    drawing.text(20, 24, "A tile with its halo, as float64", size=15, weight="bold")
    rows, columns, K = 8, 12, 3
    marked = {(i, j): BLUE for i in range(rows - K + 1) for j in range(columns - K + 1)}
    marked |= {(i + 2, j + 4): ORANGE for i in range(K) for j in range(K)}
    marked[2, 4] = GREEN
    drawing.grid(20, 44, (rows, columns), 24, marked=marked)
    drawing.text(20, 262, "blue: outputs; white: the halo that their windows reach")
    drawing.text(360, 80, "orange: the window of one output", colour=ORANGE)
    drawing.text(360, 104, "green: its first element. The output overwrites it,", colour=GREEN)
    drawing.text(360, 124, "because no later window reaches it.", colour=GREEN)
    drawing.text(360, 164, "A tap is a constant distance in the tile, so one loop")
    drawing.text(360, 184, "serves one to four dimensions and every border.")
    return drawing


def token_table() -> Drawing:
    """A window as a sum of rows of the token table, and the order of the work."""
    drawing = Drawing(800, 300, "embedding_conv1d: a window is a sum of table rows; work goes slice by slice")
    drawing.text(20, 24, "A window is a sum of K rows", size=15, weight="bold")
    for p, token in enumerate(("the", "film", "was", "good")):
        drawing.box(20 + p * 84, 44, 76, 28, token, fill=BLUE if p < 3 else "")
    for t in range(3):
        drawing.arrow(58 + t * 84, 74, 58 + t * 84, 100)
        drawing.box(20 + t * 84, 104, 76, 28, f"R[., {t}]", fill=GREEN)
    drawing.text(20, 160, "y = bias + R[the, 0] + R[film, 1] + R[was, 2]")
    drawing.text(20, 196, "Each row is a product that is computed once,")
    drawing.text(20, 214, "however often its word occurs.")
    drawing.text(440, 24, "gather_add: a slice of all rows", size=15, weight="bold")
    drawing.grid(440, 50, (10, 16), 20, marked={(i, j): ORANGE for i in range(10) for j in range(3, 5)})
    drawing.text(440, 272, f"orange: {SLICE} columns, {4 * SLICE} bytes of every row.", colour=ORANGE)
    drawing.text(440, 290, "All sentences use it while it is in cache.", colour=ORANGE)
    return drawing
