"""The cases on which every rung of embedding_conv1d is tested."""

from tilewright.ops.embedding_conv1d.problem import Case


def cases() -> list[Case]:
    """One of everything, widths off every vector length, kernels as long as the sentence, a table with room for
    little."""
    found = [
        Case(1, 1, 1, 1, 1, (1,)),
        Case(0, 4, 5, 6, 7, (2,)),
        Case(1, 9, 30, 20, 33, (3, 9)),
        Case(40, 16, 200, 64, 48, (3, 5, 7, 9)),
        Case(17, 8, 50, 31, 160, (2, 4), memory=160 * 4 * 60),
        Case(64, 16, 500, 40, 32, (3, 5), memory=32 * 4 * 150),
    ]
    return found + [Case(**{**vars(case), "dtype": "bfloat16"}) for case in found[2:5]]
