"""The cases on which every rung of softmax is tested."""

from tilewright.ops.softmax.problem import Case


def cases() -> list[Case]:
    """One number, vectors and their neighbours, long and many rows, none; layouts; masks; shares that underflow."""
    shapes = [
        (1, 1), (3, 2), (5, 7), (2, 3, 15), (4, 16), (7, 17), (3, 63), (2, 64), (5, 65), (2, 20_011), (1, 100_000),
        (0, 5), (19,), (700, 129),
    ]  # fmt: skip
    layouts = [Case((6, 5, 40), layout) for layout in ("F", "strided")]
    masks = [Case((9, 200), masked=0.9), Case((40, 6), masked=0.7), Case((3, 50), masked=1.0)]
    return [Case(s) for s in shapes] + layouts + masks + [Case((8, 300), spread=s) for s in (1e-3, 30.0, 60.0, 1e30)]
