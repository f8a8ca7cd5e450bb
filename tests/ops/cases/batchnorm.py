"""The cases on which every rung of batchnorm is tested."""

from tilewright.ops.batchnorm.problem import Case
from tilewright.ops.matmul.problem import ACTIVATIONS


def cases() -> list[Case]:
    """One number, vectors and their neighbours, images, none; layouts; channels far from zero; activations."""
    shapes = [
        (1, 1),
        (3, 8),
        (5, 7),
        (2, 4, 4, 3),
        (7, 17),
        (3, 63),
        (2, 5, 64),
        (700, 129),
        (2, 10_007),
        (0, 5),
        (19,),
    ]
    layouts = [Case((6, 5, 40), layout) for layout in ("F", "strided")]
    functions = [Case((3, 5, 36), activation=name) for name in ACTIVATIONS if name]
    return [Case(s) for s in shapes] + layouts + functions + [Case((90, 300), offset=100.0)]
