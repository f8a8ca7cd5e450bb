"""Random valid problems of every operation, as the `Case` of its `problem.py`: sizes beside every vector and tile,
windows of every kind, layouts and epilogues. `RANDOM[op](rng, dtype)` gives one."""

import importlib

from tilewright.ops.conv3d.problem import MODES, SEPARABLE
from tilewright.ops.elementwise.reference import FUNCTIONS
from tilewright.ops.matmul.problem import ACTIVATIONS

LANES = (4, 8, 16, 32)
LAYOUTS = ("C", "C", "C", "F", "strided", "reversed")
ROW_LAYOUTS = ("C", "C", "F", "strided")
EPSILONS = (1e-5, 1e-5, 1e-3, 0.1)  # of norms


def extent(rng, most: int, least: int = 1) -> int:
    """A size from `least` to `most`: often a few, else any remainder by a vector's lanes."""
    if rng.random() < 0.4:
        return int(rng.integers(least, min(most, 9) + 1))
    lanes = int(rng.choice(LANES))
    size = lanes * int(rng.integers(0, most // lanes + 1)) + int(rng.integers(-1, lanes))
    return min(max(size, least), most)


def rows_of(rng, most: int) -> int:
    """A number of rows: none once in twenty."""
    return 0 if rng.random() < 0.05 else extent(rng, most)


def pick(rng, values):
    """One of the values as it is: NumPy's `choice` would make an array of them."""
    return values[int(rng.integers(len(values)))]


def maybe(rng, share: float = 0.5) -> bool:
    return bool(rng.random() < share)


def spec_of(op: str):
    """The sizes, inputs and results of an operation."""
    return importlib.import_module(f"tilewright.bench.sizes.{op}")


def matmul(rng, dtype):
    spec = spec_of("matmul")
    M, N = rows_of(rng, 60), rows_of(rng, 100)
    K = rows_of(rng, 130) if maybe(rng, 0.9) else extent(rng, 900)
    gathered = maybe(rng, 0.15)
    batch = () if gathered or maybe(rng, 0.8) else tuple(int(n) for n in rng.integers(1, 4, rng.integers(1, 3)))
    extras = {"bias": maybe(rng), "activation": pick(rng, ACTIVATIONS), "residual": not gathered and maybe(rng)}
    return spec.Case(M, N, K, dtype, batch, **extras, gathered=gathered, layout=pick(rng, LAYOUTS))


def matmul_argmax(rng, dtype):
    N = extent(rng, 100) if maybe(rng, 0.8) else extent(rng, 5000)
    return spec_of("matmul_argmax").Case(extent(rng, 40), N, extent(rng, 130), dtype, alike=maybe(rng, 0.2))


def rope(rng, dtype):
    """Heads of any width and number, rotated whole or in part, at any position."""
    rest = extent(rng, 40) if maybe(rng) else 0
    sizes = extent(rng, 60), int(rng.integers(1, 9)), extent(rng, 40), rest
    return spec_of("rope").Case(*sizes, extent(rng, 3000), pick(rng, ("C", "strided")), dtype)


def pool(rng, dtype):
    """Texts of any length, with rows between them or without."""
    sizes = extent(rng, 30), extent(rng, 40), extent(rng, 100)
    return spec_of("pool").Case(*sizes, pick(rng, (0, 0, 2)), pick(rng, ("C", "strided")), dtype)


def logprob(rng, dtype):
    N = extent(rng, 100) if maybe(rng, 0.8) else extent(rng, 5000)
    spread = pick(rng, (3.0, 0.01, 40.0))
    return spec_of("logprob").Case(extent(rng, 40), N, extent(rng, 130), dtype, spread, bias=maybe(rng))


def conv_transpose2d(rng, dtype):
    """Kernels of 1 to 7, strides of 1 to 4 and beyond the kernel, crops up to more than the kernel."""
    spec = spec_of("conv_transpose2d")
    while True:
        H, W = (int(n) if maybe(rng, 0.95) else extent(rng, 50) for n in rng.integers(1, 8, 2))
        K = tuple(int(n) for n in rng.integers(1, 8, 2))
        stride = tuple(int(n) if maybe(rng, 0.9) else 9 for n in rng.integers(1, 5, 2))
        if maybe(rng, 0.4):
            stride = (int(rng.integers(1, 3)), 1)
        crops = tuple(tuple(int(n) for n in rng.integers(0, k + 3, 2)) for k in K) if maybe(rng) else ((0, 0), (0, 0))
        B = int(rng.integers(0, 5)) if maybe(rng, 0.9) else int(rng.integers(5, 40))
        options = {"dtype": dtype, "bias": maybe(rng), "activation": pick(rng, ACTIVATIONS)}
        C, O = extent(rng, 70), extent(rng, 70) if maybe(rng) else extent(rng, 32)
        case = spec.Case(B, H, W, C, O, K, stride, crops, **options, layout=pick(rng, LAYOUTS))
        if min(axis.size(n) for axis, n in zip(case.axes, (H, W), strict=True)) >= 1:
            return case


def conv1d(rng, dtype):
    """Kernels of 1 to 7, strides of 1 to 4 and beyond the kernel, dilation, padding up to more than the kernel."""
    spec = spec_of("conv1d")
    while True:
        K, L = int(rng.integers(1, 8)), extent(rng, 60)
        window = {
            "stride": int(rng.integers(1, 5)) if maybe(rng, 0.9) else 11,
            "padding": int(rng.integers(0, K + 3)) if maybe(rng) else 0,
            "dilation": int(rng.integers(1, 5)) if maybe(rng, 0.3) else 1,
        }
        options = {"bias": maybe(rng), "activation": pick(rng, (None, "relu")), "pool": pick(rng, (None, "max"))}
        B = rows_of(rng, 5)
        case = spec.Case(B, L, extent(rng, 80), extent(rng, 70), K, **window, **options, dtype=dtype)
        if case.positions >= 1:
            return spec.Case(**{**vars(case), "layout": pick(rng, LAYOUTS)})


def conv3d(rng, dtype):
    spec = spec_of("conv3d")
    kind = pick(rng, ("random", "random", "symmetric", *SEPARABLE))
    sizes = [int(n) for n in rng.integers(1, 8, 3)]
    if kind == "gaussian":
        sizes = [pick(rng, (3, 5, 7, 9)) for _ in sizes]
    elif maybe(rng):
        sizes = [pick(rng, (1, 3, 5))] * 3
    if kind in ("symmetric", "product"):  # one tap is not called either
        sizes = [max(K, 2) for K in sizes]
    mode = pick(rng, (*MODES, "valid"))
    volume = [extent(rng, most) for most in (12, 24, 50)]
    if mode == "valid":
        volume = [max(n, K) for n, K in zip(volume, sizes, strict=True)]
    channels = kind in ("random", "symmetric") and maybe(rng, 0.3)
    O, C = (int(n) for n in rng.integers(1, 5, 2)) if channels else (0, 0)
    origin = 0 if mode == "valid" or maybe(rng) else tuple(int(rng.integers(-(K // 2), (K + 1) // 2)) for K in sizes)
    options = {"mode": mode, "origin": origin, "cval": 1.5 if mode == "constant" and maybe(rng) else 0.0}
    return spec.Case(*volume, *sizes, O, C, kind, **options, layout=pick(rng, LAYOUTS))


def correlate(rng, dtype):
    spec = spec_of("correlate")
    kinds = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
    rank = int(rng.integers(1, 5))
    shape = tuple(extent(rng, (3000, 90, 30, 10)[rank - 1]) for _ in range(rank))
    form = pick(rng, ("dense", "dense", "line", "even", "odd", "mean"))
    window = [int(n) for n in rng.integers(1, 8 if rank < 3 else 4, rank)]
    if form != "dense":
        axis = int(rng.integers(rank))
        window = [int(rng.integers(1, 12)) if a == axis else 1 for a in range(rank)]
    options = {"mode": pick(rng, ("reflect", "constant", "nearest", "mirror", "wrap")), "layout": pick(rng, LAYOUTS)}
    shift, kind = int(rng.integers(-2, 3)), pick(rng, kinds)
    return spec.Case(shape, tuple(window), form, **options, kind=kind, shift=shift, cval=float(rng.integers(3)))


def stack(rng, most: int) -> tuple[int, ...]:
    """Shape of rows: up to three dimensions before the last."""
    return (*(rows_of(rng, 12) for _ in range(int(rng.integers(0, 4)))), extent(rng, most))


def elementwise(rng, dtype):
    spec = spec_of("elementwise")
    shape, spread = stack(rng, 300), pick(rng, (3.0, 3.0, 1e-30, 1e30))
    layout = pick(rng, ROW_LAYOUTS) if len(shape) > 1 else "C"
    return spec.Case(pick(rng, list(FUNCTIONS)), shape, layout, spread, dtype)


def softmax(rng, dtype):
    shape = stack(rng, 300)
    layout = pick(rng, ROW_LAYOUTS) if len(shape) > 1 else "C"
    spread, masked = pick(rng, (3.0, 3.0, 1e-3, 60.0)), pick(rng, (0.0, 0.0, 0.5))
    return spec_of("softmax").Case(shape, layout, dtype, spread=spread, masked=masked)


def layernorm(rng, dtype):
    shape = stack(rng, 300)
    layout = pick(rng, ROW_LAYOUTS) if len(shape) > 1 else "C"
    offset, eps = pick(rng, (0.0, 0.0, 100.0)), pick(rng, EPSILONS)
    return spec_of("layernorm").Case(shape, layout, dtype, offset=offset, eps=eps)


def batchnorm(rng, dtype):
    spec, shape = spec_of("batchnorm"), stack(rng, 300)
    layout = pick(rng, ROW_LAYOUTS) if len(shape) > 1 else "C"
    activation, offset, eps = pick(rng, ACTIVATIONS), pick(rng, (0.0, 0.0, 100.0)), pick(rng, EPSILONS)
    return spec.Case(shape, layout, dtype, offset=offset, activation=activation, eps=eps)


def embedding(rng, dtype):
    shape = tuple(rows_of(rng, 12) for _ in range(int(rng.integers(1, 4))))
    layout, positions = pick(rng, ("C", "C", "strided")), extent(rng, 9) if maybe(rng) else 0
    return spec_of("embedding").Case(shape, extent(rng, 40), extent(rng, 140), layout, dtype=dtype, positions=positions)


def embedding_conv1d(rng, dtype):
    kernels = tuple(int(n) for n in rng.integers(1, 8, int(rng.integers(1, 4))))
    L, V, C, O = max(kernels) + extent(rng, 12) - 1, extent(rng, 90), extent(rng, 70), extent(rng, 70)
    case = spec_of("embedding_conv1d").Case(rows_of(rng, 30), L, V, C, O, kernels, dtype)
    if maybe(rng, 0.7):
        return case
    row = -(-O // 32) * 128  # bytes: whole slices of 32 numbers
    sentence = sum(K * (L - K + 1) for K in kernels)  # rows that one may need
    few = row * max(sentence, sum(kernels) * V // 3)
    return spec_of("embedding_conv1d").Case(**{**vars(case), "memory": few})


def attention(rng, dtype):
    T = extent(rng, 90) if maybe(rng, 0.95) else extent(rng, 700)
    Q = T if maybe(rng, 0.4) else int(rng.integers(1, T + 1))
    B, H, D = rows_of(rng, 4), int(rng.integers(1, 5)), pick(rng, (extent(rng, 90), 16, 32, 64))
    return spec_of("attention").Case(B, H, Q, T, D, causal=maybe(rng, 0.8), dtype=dtype)


def sample(rng, dtype):
    V = extent(rng, 300) if maybe(rng, 0.8) else extent(rng, 5000)
    top_k = int(rng.integers(1, V + 1)) if maybe(rng) else 0
    limits = (top_k, pick(rng, (1.0, 0.9, 0.5)), pick(rng, (0.0, 0.0, 0.05)))
    options = {"temperature": pick(rng, (1.0, 1.0, 0.0, 0.7, 2.0)), "edits": V > 3 and maybe(rng, 0.3)}
    options["shifts"] = V > 3 and maybe(rng, 0.3)
    kind = pick(rng, ("", "", "ties", "one"))
    return spec_of("sample").Case(rows_of(rng, 20), V, pick(rng, (3.0, 0.1)), **options, limits=limits, kind=kind)


RANDOM = {
    function.__name__: function
    for function in (
        matmul, matmul_argmax, conv_transpose2d, conv1d, conv3d, correlate, elementwise, softmax, layernorm, batchnorm,
        embedding, embedding_conv1d, attention, sample, rope, logprob, pool,
    )
}  # fmt: skip
