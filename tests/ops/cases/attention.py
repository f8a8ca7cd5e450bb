"""The cases on which every rung of attention is tested."""

import dataclasses

from tilewright.ops.attention.problem import Case


def cases() -> list[Case]:
    """One position, a panel and its neighbours, decode and prefill, odd widths, everything visible."""
    sizes = [
        (1, 1, 1, 1, 1), (1, 2, 1, 7, 16), (2, 3, 5, 5, 8), (1, 2, 16, 16, 64), (3, 2, 1, 33, 64), (2, 2, 9, 31, 20),
        (1, 2, 8, 32, 33), (2, 1, 3, 65, 80), (1, 1, 130, 130, 64), (1, 1, 2, 700, 48), (0, 2, 3, 4, 8),
    ]  # fmt: skip
    found = [Case(*size) for size in sizes] + [Case(2, 2, 5, 40, 32, causal=False)]
    return found + [dataclasses.replace(case, dtype="bfloat16") for case in found]
