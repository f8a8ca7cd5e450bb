"""conv3d's problems: their choice key, costs, tolerances, and the sizes at which they are tested and timed."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

EPS32 = float(np.finfo(np.float32).eps)
MODES = ("reflect", "constant", "nearest", "mirror", "wrap")  # scipy.ndimage's; "valid" stands beside them
PROBE_ROWS = 16  # planes that tell whether a slow rung takes too long
SEPARABLE = ("factors", "product", "gaussian")  # kinds of weights in a case


@dataclass(frozen=True)
class Problem:
    """All that the choice of a rung may look at: channels, taps, and what the weights have in common; never the volume.

    separable: the weights are an outer product of three vectors. symmetric: they are the same read backwards along z.
    """

    O: int
    C: int
    KD: int
    KH: int
    KW: int
    separable: bool = False
    symmetric: bool = False
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One convolution to test or to time; without channels O and C are 0.

    kind: of weights: "random", "symmetric" along z, "factors" as `prepare_separable` takes them, "product" of such,
    "gaussian" factors, which end at 4 sigma as scipy's.
    layout: of x: "C", "F", "strided", "reversed".
    """

    D: int
    H: int
    W: int
    KD: int
    KH: int
    KW: int
    O: int = 0
    C: int = 0
    kind: str = "random"
    mode: str = "constant"
    cval: float = 0.0
    origin: int | tuple[int, int, int] = 0
    layout: str = "C"
    dtype: str = "float32"
    label: str = ""
    device: str = "cpu"

    @property
    def name(self) -> str:
        """For test ids and result rows."""
        channels = (f"{self.C}x", f"{self.O}x{self.C}x") if self.C else ("", "")
        size = f"{channels[0]}{self.D}x{self.H}x{self.W}-{channels[1]}{self.KD}x{self.KH}x{self.KW}"
        origin = f"origin{self.origin}".replace(" ", "") if self.origin else ""
        mode = f"{self.mode}{self.cval:g}" if self.cval else self.mode
        words = [size, self.kind if self.kind != "random" else "", mode, origin]
        return "-".join(w for w in [*words, self.layout if self.layout != "C" else ""] if w)

    @property
    def problem(self) -> Problem:
        """What the ladder sees."""
        separable, symmetric = self.kind in SEPARABLE, self.kind in ("symmetric", "gaussian")
        sizes = (max(self.O, 1), max(self.C, 1), self.KD, self.KH, self.KW)
        return Problem(*sizes, separable, symmetric, device=self.device)

    @property
    def taps(self) -> int:
        """Products in a sum."""
        return max(self.C, 1) * self.KD * self.KH * self.KW

    @property
    def outputs(self) -> int:
        """Numbers of the result."""
        shrink = 1 if self.mode == "valid" else 0
        sizes = ((self.D, self.KD), (self.H, self.KH), (self.W, self.KW))
        return max(self.O, 1) * math.prod(n - shrink * (K - 1) for n, K in sizes)


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `conv3d`; weights of kind "factors" are a tuple."""
    x = _volume(rng, (case.D, case.H, case.W), case.layout)
    if case.C:
        x = np.stack([x, *(_volume(rng, x.shape, "C") for _ in range(case.C - 1))])
    sizes = (case.KD, case.KH, case.KW)
    weights: np.ndarray | tuple[np.ndarray, ...]
    if case.kind == "gaussian":
        weights = tuple(_gaussian(K) for K in sizes)
    elif case.kind in SEPARABLE:
        factors = tuple(rng.standard_normal(K, dtype=np.float32) for K in sizes)
        product = np.einsum("a,b,c->abc", *factors, dtype=np.float64).astype(np.float32)
        weights = factors if case.kind == "factors" else product
    else:
        numbers = rng.standard_normal((case.O, case.C, *sizes) if case.C else sizes, dtype=np.float32)
        weights = numbers + numbers[..., ::-1, :, :] if case.kind == "symmetric" else numbers
    return {"x": x, "weights": weights, "mode": case.mode, "cval": case.cval, "origin": case.origin}


def _gaussian(K: int) -> np.ndarray:
    """float32 (K,): the normal distribution from -4 to 4 sigma, its sum 1."""
    density = np.exp(-0.5 * (np.arange(-(K // 2), K - K // 2) * 4 / (K // 2)) ** 2)
    return (density / density.sum()).astype(np.float32)


def _volume(rng, shape: tuple[int, ...], layout: str) -> np.ndarray:
    """Normal numbers with the strides that `layout` names."""
    normal = lambda sizes: rng.standard_normal(sizes, dtype=np.float32)  # noqa: E731
    if layout == "F":
        return normal(shape[::-1]).T
    if layout == "strided":
        return normal([2 * n for n in shape])[::2, 1::2, ::2]
    if layout == "reversed":
        return normal(shape)[::-1, ::-1, ::-1]
    return normal(shape)


def rows(case: Case) -> int:
    """How many planes the volume has."""
    return case.D


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of planes."""
    return dataclasses.replace(case, D=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    from tilewright.ops.conv3d import conv3d, prepare, prepare_separable

    rest = {name: value for name, value in inputs.items() if name != "weights"}
    weights = inputs["weights"]
    packed = prepare_separable(weights) if isinstance(weights, tuple) else prepare(weights)
    return lambda out=None: conv3d(weights=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.conv3d.reference import conv3d

    return conv3d(**inputs)


def cost(case: Case) -> tuple[float, float]:
    """(floating-point operations: of three passes where weights are separable; bytes: every operand touched once)."""
    separable = case.kind in SEPARABLE
    taps = case.KD + case.KH + case.KW if separable else case.taps
    volume = max(case.C, 1) * case.D * case.H * case.W
    weights = taps if separable else case.taps * max(case.O, 1)
    return 2.0 * taps * case.outputs, 4.0 * (volume + weights + case.outputs)


def bound(case: Case, inputs: dict, result: np.ndarray, c: float = 1.0) -> np.ndarray:
    """c * eps32 * sqrt(taps) * (|x| conv |weights|), elementwise, taps = C * KD * KH * KW."""
    from tilewright.ops.conv3d.reference import conv3d

    weights = inputs["weights"]
    sizes = tuple(map(np.abs, weights)) if isinstance(weights, tuple) else np.abs(weights)
    border = {"mode": case.mode, "cval": abs(case.cval), "origin": case.origin}
    return c * EPS32 * math.sqrt(case.taps) * conv3d(np.abs(inputs["x"]), sizes, **border) + np.finfo(np.float32).tiny


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


def sizes() -> list[Case]:
    """The course's largest; a short kernel, which memory limits; its symmetric and separable kin; a layer of a net."""
    return [
        Case(128, 128, 128, 5, 5, 5, label="course case 3"),
        Case(256, 256, 256, 3, 3, 3, label="memory-bound"),
        Case(128, 128, 128, 5, 5, 5, kind="symmetric", label="symmetric"),
        Case(256, 256, 256, 17, 17, 17, kind="gaussian", mode="reflect", label="gaussian, sigma 2"),
        Case(64, 64, 64, 3, 3, 3, O=32, C=16, label="channels"),
    ]


def device_sizes() -> list[Case]:
    """On a GPU: volumes that fill one, and two of the course's, which are little there; a layer of a net."""
    large = [Case(512, 512, 512, K, K, K, label=f"large, K {K}") for K in (3, 5)]
    large += [Case(512, 512, 512, 5, 5, 5, mode="reflect", label="large, K 5, reflect")]
    large += [Case(512, 512, 512, 9, 9, 9, kind="gaussian", mode="reflect", label="large, gaussian, sigma 1")]
    small = [case for case in sizes() if case.kind != "symmetric"]
    return [dataclasses.replace(case, device="cuda") for case in [*large, *small]]
