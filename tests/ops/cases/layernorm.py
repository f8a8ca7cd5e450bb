"""The cases on which every rung of layernorm is tested."""

from tilewright.ops.layernorm.problem import Case


def cases() -> list[Case]:
    """One number, vectors and their neighbours, long and many rows, none; layouts; rows far from zero."""
    shapes = [
        (1, 1), (3, 2), (5, 7), (2, 3, 15), (4, 16), (7, 17), (3, 63), (2, 64), (5, 65), (1, 768), (130, 768),
        (33, 1600), (2, 10_007), (0, 5), (19,), (700, 129),
    ]  # fmt: skip
    layouts = [Case((6, 5, 40), layout) for layout in ("F", "strided")]
    return [Case(s) for s in shapes] + layouts + [Case((9, 768), offset=100.0), Case((4, 50), eps=0.0)]
