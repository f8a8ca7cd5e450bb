"""The cases on which every rung of pool is tested."""

from tilewright.ops.pool.problem import Case


def cases() -> list[Case]:
    """One number, blocks of columns and their neighbours, long texts, many, none; gaps; rows that lie apart."""
    sizes = [
        (1, 1, 1), (3, 4, 2), (0, 3, 5), (5, 9, 15), (4, 5, 16), (3, 7, 17), (2, 40, 31), (3, 33, 32), (2, 70, 33),
        (4, 5, 64), (9, 3, 130), (2, 600, 48), (200, 6, 384),
    ]  # fmt: skip
    return [Case(*size) for size in sizes] + [Case(5, 6, 20, gap=3), Case(4, 9, 40, layout="strided")]
