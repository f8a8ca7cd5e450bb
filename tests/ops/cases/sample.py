"""The cases on which every rung of sample is tested."""

from tilewright.ops.sample.problem import Case


def cases() -> list[Case]:
    """One of everything: vectors and their neighbours, each limit, alone and together, ties, edits, extremes."""
    found = [
        Case(M, V) for M, V in ((0, 5), (1, 1), (3, 2), (5, 15), (4, 16), (3, 17), (9, 257), (3, 4000), (40, 3000))
    ]
    found += [Case(2, 50257), Case(2, 50257, 0.02), Case(2, 50257, limits=(50, 0.9, 0.01))]
    for limits in ((1, 1.0, 0.0), (7, 1.0, 0.0), (700, 1.0, 0.0), (0, 0.9, 0.0), (0, 1e-9, 0.0), (0, 1.0, 0.05)):
        found += [Case(6, 1000, limits=limits, kind=kind) for kind in ("", "ties", "one")]
    found += [Case(6, 1000, limits=(300, 0.8, 0.02)), Case(6, 1000, 0.1, limits=(999, 1 - 1e-16, 1e-3))]
    found += [Case(8, 300, temperature=t) for t in (0.0, 5e-324, 1e-3, 0.7, 2.0)]
    found += [Case(30, 200, shifts=True), Case(30, 999, edits=True, shifts=True, limits=(20, 0.9, 0.0))]
    found += [Case(30, 200, edits=True), Case(30, 999, edits=True, limits=(20, 0.9, 0.0)), Case(6, 500, 300.0)]
    return found
