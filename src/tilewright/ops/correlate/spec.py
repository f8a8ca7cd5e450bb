"""correlate's problems, costs, tolerances and sizes."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

EPS32, EPS64 = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: how many taps, whether they are a mean or pairs, the device."""

    taps: int
    mean: bool = False
    paired: bool = False
    dtype: str = "float64"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One correlation into float32: shape of x and of the kernel, where the kernel has one extent at most unless it is
    "dense".

    form: "dense", "line", "even" or "odd" (a symmetric or antisymmetric line), "mean". layout: "C", "F", "strided",
    "reversed". kind: x's dtype. shift: the origin along the axes whose extent allows it.
    """

    shape: tuple[int, ...]
    window: tuple[int, ...]
    form: str = "dense"
    mode: str = "constant"
    kind: str = "float32"
    layout: str = "C"
    shift: int = 0
    cval: float = 0.0
    label: str = ""
    dtype: str = "float64"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        sizes = ["x".join(map(str, extents)) for extents in (self.shape, self.window)]
        rest = [self.form, self.mode, self.kind, self.layout if self.layout != "C" else ""]
        return "-".join(w for w in [*sizes, *rest, f"shift{self.shift}" if self.shift else ""] if w)

    @property
    def axis(self) -> int:
        """The axis of a kernel with one extent."""
        return max(range(len(self.window)), key=lambda a: self.window[a])

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        K = math.prod(self.window)
        paired = self.form in ("even", "odd") and K > 1
        return Problem(K // 2 + 1 if paired else K, self.form == "mean", paired)

    @property
    def origins(self) -> list[int]:
        """`shift` where the kernel allows it."""
        return [min(max(self.shift, -(K // 2)), (K - 1) // 2) for K in self.window]


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `correlate`: x, weights (of x's dimensions), mode, cval, origin."""
    if case.layout == "F":
        x = numbers(rng, case.shape[::-1], case.kind).T
    elif case.layout == "strided":
        x = numbers(rng, tuple(3 * n for n in case.shape), case.kind)[(slice(1, None, 3),) * len(case.shape)]
    else:
        x = numbers(rng, case.shape, case.kind)
        x = x[(slice(None, None, -1),) * x.ndim] if case.layout == "reversed" else x
    weights = rng.standard_normal(case.window)
    if case.form in ("even", "odd"):
        weights = weights + (1 if case.form == "even" else -1) * np.flip(weights)
    elif case.form == "mean":
        weights = np.full(case.window, 1 / math.prod(case.window))
    return {"x": x, "weights": weights, "mode": case.mode, "cval": case.cval, "origin": case.origins}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Normal numbers, or integers of the whole range up to 2**40."""
    if kind.startswith("float"):
        return rng.standard_normal(shape).astype(kind)
    if kind == "bool":
        return rng.random(shape) < 0.5
    info = np.iinfo(kind)
    return rng.integers(max(info.min, -(2**40)), min(info.max, 2**40), shape, dtype=kind, endpoint=True)


def rows(case: Case) -> int:
    """How many rows there are along the first axis."""
    return case.shape[0]


def with_rows(case: Case, count: int) -> Case:
    """Another number of rows along the first axis."""
    return dataclasses.replace(case, shape=(count, *case.shape[1:]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung; float32 where out is None."""
    from tilewright.ops.correlate import correlate, correlate1d, uniform1d

    x, weights, axis, origin = inputs["x"], inputs["weights"], case.axis, inputs["origin"]
    beyond = {"mode": inputs["mode"], "cval": inputs["cval"]}

    def call(out=None):
        out = np.empty(x.shape, np.float32) if out is None else out
        if case.form == "dense":
            return correlate(x, weights, origin=origin, out=out, **beyond)
        if case.form == "mean":
            return uniform1d(x, weights.size, axis, origin=origin[axis], out=out, **beyond)
        return correlate1d(x, weights.ravel(), axis, origin=origin[axis], out=out, **beyond)

    return call


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.correlate.reference import correlate

    return correlate(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(a product and a sum a tap, two sums and a division for a mean; bytes: in and out once)."""
    outputs = math.prod(case.shape)
    work = 3.0 if case.form == "mean" else 2.0 * math.prod(case.window)
    return work * outputs, float(outputs) * (np.dtype(case.kind).itemsize + 4)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The rounding to float32, and c * eps64 * sqrt(taps) * (|x| corr |weights|); elementwise.

    A running sum has added and taken off every number of its line: there it is the line's largest instead.
    """
    from tilewright.ops.correlate.reference import correlate

    if not result.size:
        return np.zeros_like(result)
    sizes = {**inputs, "x": np.abs(inputs["x"].astype(np.float64)), "weights": np.abs(inputs["weights"])}
    size = correlate(**{**sizes, "cval": abs(case.cval)})
    chain = math.prod(case.window)
    if case.form == "mean":
        size, chain = np.full_like(size, size.max()), chain + case.shape[case.axis]
    return EPS32 / 2 * np.abs(result) + EPS64 * c * math.sqrt(chain) * size + 2.0**-149


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


def sizes() -> list[Case]:
    """Volumes and images: dense kernels, lines along each axis, means."""
    cube = (128, 128, 128)
    found = [Case(cube, (3, 3, 3), kind="float64", mode="reflect", label="volume")]
    found += [Case(cube, (5, 5, 5), kind="uint8", mode="reflect", label="volume of bytes")]
    found += [Case((2048, 2048), (7, 7), kind="uint16", mode="nearest", label="image")]
    for axis, name in enumerate(("z", "y", "x")):
        window = tuple(17 if a == axis else 1 for a in range(3))
        found += [Case(cube, window, "even", kind="float64", mode="reflect", label=f"gaussian along {name}")]
        found += [Case(cube, window, "mean", kind="float64", mode="reflect", label=f"mean along {name}")]
    return found
