"""The cases on which every rung of logprob is tested."""

import dataclasses

from tilewright.ops.logprob.problem import Case


def cases() -> list[Case]:
    """One of everything, a tile, a group of columns and their neighbours, steep and flat distributions, a bias."""
    sizes = [(1, 1, 16), (3, 5, 7), (13, 33, 48), (30, 1000, 64), (5, 4099, 96), (200, 70, 31), (2, 300, 901)]
    found = [Case(*size, bias=i % 2 == 1) for i, size in enumerate(sizes)]
    found += [Case(6, 2049, 64, spread=40.0, bias=True), Case(17, 2048, 32, spread=0.01)]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]
