"""The cases on which every rung of conv3d is tested."""

from tilewright.ops.conv3d.problem import MODES, Case


def cases() -> list[Case]:
    """One, vectors and tiles and their neighbours, kernels of every shape; borders; layouts; channels; separable."""
    found = [Case(1, 1, 1, 1, 1, 1), Case(0, 3, 4, 3, 3, 3), Case(2, 0, 3, 1, 3, 2), Case(7, 5, 3, 3, 3, 3)]
    found += [Case(6, 17, 33, 3, 3, 3), Case(5, 16, 16, 5, 5, 5), Case(9, 35, 50, 5, 5, 5), Case(3, 20, 280, 2, 3, 4)]
    found += [Case(4, 9, 20, 1, 1, 7), Case(4, 9, 20, 7, 1, 1), Case(12, 13, 14, 9, 11, 10), Case(2, 3, 4, 4, 9, 6)]
    borders = [Case(6, 7, 19, 3, 5, 4, mode=mode, origin=(1, -1, -2)) for mode in MODES]
    borders += [Case(2, 3, 1, 5, 9, 7, mode=mode, cval=1.5) for mode in MODES]  # reflected more than once
    borders += [Case(8, 9, 21, 3, 5, 4, mode="valid"), Case(3, 3, 3, 3, 3, 3, mode="valid")]
    layouts = [Case(5, 8, 22, 3, 3, 3, layout=layout) for layout in ("F", "strided", "reversed")]
    channels = [Case(5, 6, 18, 3, 3, 3, O=1, C=1), Case(6, 18, 20, 3, 3, 3, O=4, C=3, mode="wrap")]
    channels += [Case(4, 5, 6, 2, 3, 1, O=2, C=5, kind="symmetric"), Case(7, 9, 11, 5, 5, 5, O=2, C=2, mode="valid")]
    symmetric = [Case(7, 20, 37, *sizes, kind="symmetric") for sizes in ((3, 3, 3), (5, 5, 5), (4, 3, 2), (9, 2, 3))]
    symmetric += [Case(6, 7, 30, 5, 5, 5, O=2, C=2, kind="symmetric", mode="mirror")]
    separable = [Case(21, 40, 50, *sizes, kind="factors") for sizes in ((5, 5, 5), (17, 17, 17), (1, 7, 31), (6, 1, 2))]
    separable += [Case(5, 7, 9, 5, 3, 7, kind="product", mode=mode, cval=-0.5) for mode in (*MODES[:2], "valid")]
    separable += [Case(40, 33, 290, 3, 4, 5, kind="product", mode="nearest", origin=(0, 1, -1))]
    separable += [Case(9, 20, 33, 9, 9, 9, kind="gaussian", mode="wrap")]
    separable += [Case(0, 7, 9, 5, 5, 5, kind="factors"), Case(2, 3, 4, 9, 9, 9, kind="factors", mode="mirror")]
    return [*found, *borders, *layouts, *channels, *symmetric, *separable]
