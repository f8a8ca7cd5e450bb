"""The cases on which every rung of conv1d is tested."""

import dataclasses

from tilewright.ops.conv1d.problem import Case


def cases() -> list[Case]:
    """Nothing, one, primes, tiles and their neighbours; windows of every kind; layouts; epilogues."""
    small = [(1, 1, 1, 1, 1), (0, 9, 5, 3, 3), (2, 5, 3, 7, 5), (1, 40, 12, 3, 9), (2, 33, 13, 2, 2), (3, 31, 11, 5, 1)]
    large = [(1, 70, 17, 1, 19), (2, 23, 29, 31, 7), (1, 2500, 5, 1, 3), (4, 16, 35, 67, 5)]
    found = [Case(*size) for size in small + large]
    found += [
        Case(1, 49, 3, 4, 1, stride=4),
        Case(2, 37, 6, 5, 3, stride=5),
        Case(2, 41, 14, 3, 4, stride=3),
        Case(2, 4, 3, 2, 2, stride=100),
    ]
    found += [Case(2, 50, 7, 3, 4, dilation=3), Case(1, 45, 16, 4, 17, dilation=2), Case(1, 5, 3, 2, 1, dilation=9)]
    found += [Case(1, 3, 4, 2, 3, padding=7), Case(1, 1, 2, 3, 9, padding=4)]
    found += [Case(1, 64, 12, 4, 5, stride=2, padding=2), Case(2, 61, 9, 3, 3, stride=4, padding=5, dilation=6)]
    found += [Case(2, 40, 15, 24, 3, padding=1, layout=layout) for layout in ("F", "strided", "reversed")]
    found += [Case(3, 12, 20, 32, 3, layout="F")]  # channels already last: nothing to copy
    epilogues = [(True, None, None), (False, "relu", None), (False, None, "max"), (True, "relu", "max")]
    sizes = [(2, 16, 18, 30, 5), (1, 75, 5, 3, 4), (2, 1100, 3, 1, 2)]
    found += [Case(*size, bias=b, activation=a, pool=p) for size in sizes for b, a, p in epilogues]
    found += [
        Case(2, 50, 19, 40, 3, stride=2, padding=3, dilation=2, bias=True, activation="relu", pool="max", layout="F")
    ]
    found += [Case(1, 30, 33, 420, 3, bias=True)]  # longer than one block of matmul's sum
    # deep and wide enough for matmul in float32
    found += [Case(2, 6, 130, 2731, 3, bias=True, activation="relu", pool="max"), Case(3, 4, 128, 4097, 2, pool="max")]
    found += [Case(1, 7, 128, 1639, 5, padding=1, layout="strided"), Case(2, 8, 140, 2050, 4, layout="F", bias=True)]
    found += [Case(2, 9, 131, 4096, 2, stride=2, padding=2, dilation=3), Case(1, 20, 128, 8192, 1, activation="relu")]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]
