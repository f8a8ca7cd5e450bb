"""The cases on which every rung of rope is tested."""

from tilewright.ops.rope.problem import Case


def cases() -> list[Case]:
    """One pair, vectors and their neighbours, whole and partly rotated heads, many rows, none; layouts; 16 bits."""
    sizes = [
        (1, 1, 1), (3, 2, 1, 5), (0, 2, 4), (2, 3, 4, 2), (5, 1, 7, 1), (4, 4, 8), (2, 3, 8, 16), (3, 2, 15),
        (2, 2, 16, 33), (2, 3, 17), (3, 2, 32), (40, 6, 16, 48), (300, 5, 12, 9),
    ]  # fmt: skip
    found = [Case(*size) for size in sizes]
    found += [Case(6, 3, 5, 4, layout="strided"), Case(9, 2, 16, length=3), Case(1, 1, 1, length=1)]
    short = [(1, 1, 1), (3, 2, 5, 3), (4, 3, 16, 8), (2, 2, 17), (90, 4, 8, 24)]
    return found + [Case(*size, dtype="bfloat16") for size in short] + [Case(5, 2, 6, 3, 64, "strided", "bfloat16")]
