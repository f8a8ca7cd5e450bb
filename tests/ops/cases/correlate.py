"""The cases on which every rung of correlate is tested."""

from tilewright.ops.correlate.problem import Case


def cases() -> list[Case]:
    """1 to 4 dimensions, every mode, dtype and layout; kernels of one tap, even ones, larger than x; several tiles."""
    found = [Case((1,), (1,)), Case((5,), (2,), shift=-1), Case((0, 4), (3, 3)), Case((7, 9), (3, 4), shift=1)]
    found += [Case((4, 5, 6), (3, 2, 5), mode=m, shift=1) for m in ("reflect", "nearest", "mirror", "wrap")]
    found += [Case((3, 4, 2, 5), (2, 3, 1, 4), mode="mirror"), Case((3, 2, 5, 3), (3, 3, 3, 3), mode="wrap", shift=-1)]
    found += [Case((2, 3), (9, 8), mode=m, cval=2.5) for m in ("reflect", "constant", "nearest", "mirror", "wrap")]
    kinds = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64")
    found += [Case((6, 37), (3, 3), kind=k, mode="nearest") for k in kinds]
    for layout in ("F", "strided", "reversed"):
        found += [Case((5, 6, 19), (3, 1, 2), layout=layout), Case((9, 21), (1, 5), "even", layout=layout)]
    found += [Case((1, 1, 3), (3, 1, 5), mode="reflect", cval=1.0), Case((40, 33, 70), (3, 3, 3), mode="reflect")]
    for form, K in (
        ("line", 4),
        ("line", 5),
        ("even", 5),
        ("odd", 7),
        ("even", 1),
        ("mean", 4),
        ("mean", 5),
        ("mean", 1),
    ):
        found += [Case((3, 12), (1, K), form, mode="wrap"), Case((11, 5, 2), (1, K, 1), form, shift=1, cval=3.0)]
        found += [Case((300, 70), (K, 1), form, mode="mirror"), Case((2, 3000), (1, K), form, mode="reflect", shift=-1)]
    found += [Case((9000,), (K,), form) for form, K in (("even", 31), ("mean", 40), ("line", 6))]
    found += [Case((30, 20, 3), (5, 1, 1), "even", kind="uint8"), Case((30, 20, 3), (1, 5, 1), "mean", kind="uint8")]
    return found
