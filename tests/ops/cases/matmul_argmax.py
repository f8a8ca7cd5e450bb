"""The cases on which every rung of matmul_argmax is tested."""

import dataclasses

from tilewright.ops.matmul_argmax.problem import Case


def cases() -> list[Case]:
    """One of everything, a tile and its neighbours, columns alike, more candidates than are kept."""
    sizes = [(1, 1, 16), (3, 5, 7), (13, 33, 48), (30, 1000, 64), (5, 4099, 96), (200, 70, 31), (2, 300, 901)]
    found = [Case(*size) for size in sizes] + [Case(6, 500, 64, alike=True), Case(17, 5000, 32, alike=True)]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]
