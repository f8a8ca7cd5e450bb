"""The cases on which every rung of elementwise is tested."""

from tilewright.ops.elementwise.problem import Case
from tilewright.ops.elementwise.reference import FUNCTIONS


def cases() -> list[Case]:
    """For each function: one number, vectors and their neighbours, several tasks, none; layouts; wide spreads."""
    shapes = [(1,), (5, 7), (2, 3, 15), (4, 16), (7, 17), (3, 8191), (2, 20_011), (0, 5), (700, 129)]
    found = [Case(function, shape) for function in FUNCTIONS for shape in shapes]
    found += [Case(function, (6, 5, 40), layout) for function in FUNCTIONS for layout in ("F", "strided")]
    return found + [Case(function, (40, 100), spread=s) for function in FUNCTIONS for s in (1e-30, 1e30)]
