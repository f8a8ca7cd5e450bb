"""The cases on which every rung of embedding is tested."""

from tilewright.ops.embedding.problem import Case


def cases() -> list[Case]:
    """Nothing, one, odd widths, many dimensions, a strided table; with positions."""
    return [
        Case((1,), 1, 1), Case((2, 3), 5, 8), Case((5,), 4, 8, positions=2), Case((0,), 5, 7),
        Case((3, 5), 11, 17), Case((2, 3, 4), 50, 64), Case((100,), 7, 33),
        Case((9, 4), 30, 16, layout="strided"), Case((3, 6), 20, 48, positions=6),
        Case((40,), 9, 17, layout="strided", positions=3), Case((0,), 5, 7, positions=2),
    ]  # fmt: skip
