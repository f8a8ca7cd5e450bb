"""The cases on which every rung of conv_transpose2d is tested."""

import dataclasses

from tilewright.ops.conv_transpose2d.problem import Case


def _epilogues(case: Case) -> list[Case]:
    every = [(True, None), (False, "relu"), (True, "tanh"), (True, "gelu"), (False, "gelu_tanh")]
    return [dataclasses.replace(case, bias=bias, activation=name) for bias, name in every]


def cases() -> list[Case]:
    """One of everything, none of images, primes; kernels larger, smaller and as large as the stride; every crop."""
    none, torch = ((0, 0), (0, 0)), ((1, 1), (1, 1))
    found = [Case(1, 1, 1, 1, 1, (1, 1), (1, 1), none), Case(0, 3, 4, 2, 3), Case(2, 4, 4, 9, 7), Case(3, 5, 3, 16, 33)]
    found += [Case(2, 3, 4, 5, 6, K, s, none) for K, s in [((3, 2), (1, 1)), ((1, 4), (2, 3)), ((2, 2), (3, 2))]]
    found += [Case(2, 4, 3, 7, 5, (2, 3), (2, 2), ((1, 0), (0, 1))), Case(1, 2, 2, 3, 2, (3, 3), (100, 7), none)]
    found += [Case(1, 6, 5, 4, 3, (7, 6), (2, 3), ((3, 4), (5, 2))), Case(1, 3, 9, 4, 20, (4, 4), (2, 2), torch)]
    found += [Case(1, 4, 4, 3, 4, (5, 5), (2, 2), ((9, 0), (0, 10))), Case(2, 6, 7, 12, 40, (3, 3), (1, 1), torch)]
    found += [Case(1, 2, 5, 6, 17, (3, 5), (2, 2), ((0, 1), (1, 0))), Case(1, 1, 3, 2, 48, (5, 4), (3, 2), none)]
    found += [Case(3, 7, 5, 33, 65), Case(17, 4, 4, 40, 32), Case(1, 9, 13, 24, 70), Case(5, 3, 1, 20, 12)]
    found += [Case(1, 4, 4, 803, 35), Case(2, 2, 2, 1601, 4), Case(1, 5, 6, 64, 3), Case(2, 18, 17, 8, 3)]
    # channels of one pixel end within a vector that is not their first: 4, 8 and 16 lanes, phases apart and merged
    found += [Case(1, 2, 3, 4, O, (1, 1), (1, 1), none, bias=True) for O in (5, 7, 9, 15, 17, 25, 31)]
    found += [Case(2, 3, 4, 5, O, (2, 3), (1, 2), ((0, 0), (1, 0))) for O in (3, 6, 9, 13, 15)]
    found += _epilogues(Case(2, 3, 5, 18, 34)) + _epilogues(Case(1, 4, 3, 10, 3))
    found += _epilogues(Case(1, 3, 3, 5, 6, (2, 2), (3, 3), none)) + _epilogues(Case(1, 2, 3, 6, 64))
    found += [Case(2, 4, 5, 20, 19, layout=layout, bias=True) for layout in ("F", "strided", "reversed")]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]
