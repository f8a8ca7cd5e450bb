"""The cases on which every rung of matmul is tested."""

from tilewright.ops.matmul.problem import Case


def cases() -> list[Case]:
    """Adversarial sizes: nothing, one, primes, a tile and its neighbours, long sums; every layout and epilogue."""
    edges = [
        (1, 1, 1),
        (0, 5, 3),
        (3, 0, 5),
        (3, 5, 0),
        (2, 3, 7),
        (12, 32, 8),
        (11, 31, 7),
        (13, 33, 9),
        (17, 70, 129),
    ]
    found = [Case(*size) for size in edges]
    found += [Case(1, 96, 40), Case(200, 33, 65), Case(5, 40, 1537), Case(30, 1, 385), Case(1, 1, 4099)]
    found += [Case(14, 37, 50, layout=layout) for layout in ("F", "strided", "reversed")]
    epilogues = [(True, None, False), (False, "relu", False), (False, None, True), (True, "relu", True)]
    epilogues += [(True, name, False) for name in ("gelu_tanh", "gelu", "tanh")]
    found += [Case(19, 45, 33, bias=b, activation=act, residual=r) for b, act, r in epilogues]
    found += [Case(7, 0, 0, bias=True), Case(4, 6, 0, bias=True, residual=True, activation="relu")]
    found += [Case(6, 20, 31, batch=(3,)), Case(5, 9, 17, batch=(2, 2), bias=True, residual=True, layout="strided")]
    found += [Case(25, 40, 64, gathered=True), Case(9, 33, 30, gathered=True, layout="F", bias=True)]
    return found + [Case(**{**vars(case), "dtype": "bfloat16"}) for case in found]
