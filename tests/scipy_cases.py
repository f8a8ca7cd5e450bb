"""Random calls of scipy.ndimage's filters, and the comparison of what two libraries make of them."""

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.ndimage

MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-mirror", "grid-constant", "grid-wrap")
KINDS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
COMPLEX = ("complex64", "complex128")
FUNCTIONS = (
    "correlate", "convolve", "correlate1d", "convolve1d", "gaussian_filter", "gaussian_filter1d", "uniform_filter",
    "uniform_filter1d", "laplace", "sobel", "prewitt", "gaussian_laplace",
)  # fmt: skip


@dataclass
class Call:
    """One call: the function, its input, what else it is given by name; output: None, a dtype, or "array", "input",
    "strided"."""

    function: str
    input: np.ndarray
    arguments: dict
    output: object = None

    def run(self, module):
        """(result, None), or (None, the exception)."""
        input = self.input.copy(order="K") if self.output == "input" else self.input
        given = dict(self.arguments)
        if self.output == "input":
            given["output"] = input
        elif isinstance(self.output, tuple):
            kind, layout = self.output
            shape = input.shape if layout == "C" else tuple(2 * n for n in input.shape)
            given["output"] = np.full(shape, 3, kind)[(slice(None, None, 1 if layout == "C" else 2),) * input.ndim]
        elif self.output is not None:
            given["output"] = self.output
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return getattr(module, self.function)(input, **given), None
        except (TypeError, ValueError, RuntimeError, IndexError, ZeroDivisionError) as error:
            return None, error

    def __str__(self):
        shape = "x".join(map(str, self.input.shape))
        given = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in self.arguments.items()}
        return f"{self.function}({self.input.dtype} {shape} {self.input.strides}, {given}, output={self.output})"


def random_call(rng: np.random.Generator) -> Call:
    """A valid call: 1 to 4 dimensions of 1 to 12 numbers, any dtype, layout, mode and origin."""
    ndim = int(rng.choice([1, 2, 3, 4], p=[0.25, 0.35, 0.3, 0.1]))
    shape = tuple(int(n) for n in rng.integers(1, 13 if ndim < 4 else 6, ndim))
    if rng.random() < 0.02:
        shape = (*shape[:-1], 0)
    function = str(rng.choice(FUNCTIONS))
    kind = str(rng.choice(KINDS + COMPLEX, p=[0.05] * 9 + [0.25, 0.18] + [0.06] * 2))
    if kind == "float32" and ndim == 3 and rng.random() < 0.3:
        shape = tuple(int(n) for n in rng.integers(16, 24, 3))  # large enough for conv3d
    call = Call(function, laid_out(rng, shape, kind), {})
    given = call.arguments
    given.update(globals()[f"_{ARGUMENTS[function]}"](rng, call))
    if rng.random() < 0.4:
        given["cval"] = float(rng.integers(-3, 4)) if kind not in COMPLEX else complex(*rng.integers(-3, 4, 2))
    call.output = _output(rng, call)
    return call


ARGUMENTS = {
    "correlate": "dense", "convolve": "dense", "correlate1d": "line", "convolve1d": "line", "laplace": "along",
    "gaussian_filter": "gaussian", "gaussian_filter1d": "gaussian1d", "uniform_filter": "uniform",
    "uniform_filter1d": "uniform1d", "sobel": "edge", "prewitt": "edge", "gaussian_laplace": "laplacian",
}  # fmt: skip


def laid_out(rng, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Numbers of a dtype in C or Fortran order, in steps, backwards, or byte-swapped."""
    layout = rng.choice(["C", "F", "strided", "reversed", "swapped"], p=[0.6, 0.1, 0.1, 0.1, 0.1])
    full = tuple(2 * n for n in shape) if layout == "strided" else shape
    x = _numbers(rng, full, kind)
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "strided":
        return x[(slice(None, None, 2),) * x.ndim]
    if layout == "reversed":
        return x[(slice(None, None, -1),) * x.ndim]
    return x.astype(x.dtype.newbyteorder()) if layout == "swapped" else x


def _numbers(rng, shape: tuple[int, ...], kind: str) -> np.ndarray:
    if kind == "bool":
        return rng.random(shape) < 0.5
    if kind in COMPLEX:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    if kind.startswith("float"):
        return (rng.standard_normal(shape) * rng.choice([1.0, 100.0])).astype(kind)
    info = np.iinfo(kind)
    if rng.random() < 0.5:
        return rng.integers(max(info.min, -20), 21, shape).astype(kind)
    return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


def _weights(rng, window: tuple[int, ...], to_complex: bool) -> np.ndarray:
    """Small integers or normal numbers; often symmetric or antisymmetric, some of them zero."""
    whole = rng.random() < 0.4
    w = rng.integers(-3, 4, window).astype(rng.choice(["int64", "float64", "float32"])) if whole else None
    w = rng.standard_normal(window) if w is None else w
    form = rng.random()
    if form < 0.25:
        w = w + np.flip(w)
    elif form < 0.4:
        w = w - np.flip(w)
    if rng.random() < 0.2:
        w = w * (rng.random(window) < 0.6)
    return w + 1j * rng.standard_normal(window) if to_complex and rng.random() < 0.3 else w


def _origin(rng, taps: int) -> int:
    return 0 if rng.random() < 0.5 else int(rng.integers(-(taps // 2), (taps - 1) // 2 + 1))


def _chosen_axes(rng, ndim: int):
    """(None or axes, how many)."""
    if rng.random() < 0.6:
        return None, ndim
    count = int(rng.integers(1, ndim + 1))
    axes = [int(a) for a in rng.permutation(ndim)[:count]]
    return tuple(a - ndim if rng.random() < 0.3 else a for a in axes), count


def _mode(rng) -> str:
    return str(rng.choice(MODES))


def _each(rng, draw, count: int):
    """One value, or a list of `count`."""
    return draw() if rng.random() < 0.6 else [draw() for _ in range(count)]


def _dense(rng, call: Call) -> dict:
    axes, count = _chosen_axes(rng, call.input.ndim)
    window = tuple(int(k) for k in rng.integers(1, 6 if count < 4 else 4, count))
    to_complex = call.input.dtype.kind in "cf"
    weights = _weights(rng, window, to_complex)
    origin = [_origin(rng, k) for k in window]
    return {"weights": weights, "mode": _mode(rng), "origin": origin, "axes": axes}


def _line(rng, call: Call) -> dict:
    weights = _weights(rng, (int(rng.integers(1, 10)),), call.input.dtype.kind in "cf")
    return {"weights": weights, "axis": _axis(rng, call), "mode": _mode(rng), "origin": _origin(rng, len(weights))}


def _axis(rng, call: Call) -> int:
    return int(rng.integers(-call.input.ndim, call.input.ndim))


def _along(rng, call: Call) -> dict:
    axes, count = _chosen_axes(rng, call.input.ndim)
    return {"mode": _each(rng, lambda: _mode(rng), count), "axes": axes}


def _edge(rng, call: Call) -> dict:
    return {"mode": _each(rng, lambda: _mode(rng), call.input.ndim), "axis": _axis(rng, call)}


def _gaussian(rng, call: Call) -> dict:
    axes, count = _chosen_axes(rng, call.input.ndim)
    sigma = _each(rng, lambda: float(rng.choice([0.0, 0.4, 1.0, 1.7])), count)
    order = _each(rng, lambda: int(rng.choice([0, 0, 1, 2, 3])), count)
    given = {"sigma": sigma, "order": order, "mode": _each(rng, lambda: _mode(rng), count), "axes": axes}
    if rng.random() < 0.3:
        given["radius"] = _each(rng, lambda: int(rng.integers(0, 6)), count)
    elif rng.random() < 0.3:
        given["truncate"] = 2.5
    return given


def _gaussian1d(rng, call: Call) -> dict:
    sigma, order = float(rng.choice([0.3, 1.0, 2.2])), int(rng.integers(0, 4))
    return {"sigma": sigma, "axis": _axis(rng, call), "order": order, "mode": _mode(rng)}


def _laplacian(rng, call: Call) -> dict:
    axes, count = _chosen_axes(rng, call.input.ndim)
    sigma = _each(rng, lambda: float(rng.choice([0.5, 1.2])), count)
    return {"sigma": sigma, "axes": axes, "mode": _each(rng, lambda: _mode(rng), count)}


def _uniform(rng, call: Call) -> dict:
    axes, count = _chosen_axes(rng, call.input.ndim)
    size = _each(rng, lambda: int(rng.integers(1, 9)), count)
    sizes = size if isinstance(size, list) else [size] * count
    origin = [_origin(rng, k) for k in sizes]
    return {"size": size, "axes": axes, "origin": origin, "mode": _each(rng, lambda: _mode(rng), count)}


def _uniform1d(rng, call: Call) -> dict:
    size = int(rng.integers(2, 15))  # with a size of 1 scipy adds and takes off for nothing: see test_ndimage.py
    return {"size": size, "axis": _axis(rng, call), "mode": _mode(rng), "origin": _origin(rng, size)}


def _output(rng, call: Call):
    """None, a dtype, an array of some dtype and layout, or the input itself where scipy reads it before it writes."""
    draw = rng.random()
    result_is_complex = call.input.dtype.kind == "c" or np.iscomplexobj(call.arguments.get("weights", 0))
    kind = str(rng.choice(COMPLEX if result_is_complex else KINDS))
    if draw < 0.5 or (result_is_complex and draw < 0.7):
        return None
    if draw < 0.65:
        return np.dtype(kind)
    if draw < 0.85:
        return kind, str(rng.choice(["C", "strided"]))
    in_steps = call.function in ("laplace", "gaussian_laplace")
    swapped = not call.input.dtype.isnative
    return None if in_steps or result_is_complex or swapped else "input"


def difference(call: Call, wanted, error, result, our_error) -> str | None:
    """Why (result, our_error) is not what scipy gave, (wanted, error); None if it is.

    An exception: of scipy's type. A result: its shape and dtype, and its numbers exactly where they are integers, else
    within the bound of `size`.
    """
    if error is not None or our_error is not None:
        same = error is not None and isinstance(our_error, type(error))
        return None if same else f"scipy raises {error!r}, we raise {our_error!r}"
    if (result.shape, result.dtype) != (wanted.shape, wanted.dtype):
        return f"shape and dtype are {result.shape} {result.dtype}, scipy's {wanted.shape} {wanted.dtype}"
    if result.dtype.kind in "biu":
        wrong = result != wanted
        return f"{wrong.sum()} of {wrong.size} integers are not exact" if wrong.any() else None
    eps = np.finfo(result.dtype).eps
    if call.input.dtype in (np.complex64, np.float32) and np.iscomplexobj(call.arguments.get("weights", 0)):
        eps = np.finfo(np.float32).eps  # a product of parts has the input's dtype before it is added
    parts = [(result.real, wanted.real), (result.imag, wanted.imag)] if result.dtype.kind == "c" else [(result, wanted)]
    bound = 4 * eps * np.asarray(size(call)) + np.finfo(result.dtype).tiny
    for ours, theirs in parts:
        with np.errstate(invalid="ignore", over="ignore"):
            wrong = ~((np.abs(ours - theirs) <= bound) | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        if wrong.any():
            return f"{wrong.sum()} of {wrong.size} numbers are beyond the bound: {ours[wrong][:2]}, {theirs[wrong][:2]}"
    return None


def size(call: Call) -> np.ndarray:
    """sqrt(taps) * (|input| corr |weights|), the unit of a sum's rounding, for the chain of passes that a call is."""
    x = np.abs(call.input.real.astype(np.float64)) + np.abs(call.input.imag.astype(np.float64))
    cval = np.abs(np.real(call.arguments.get("cval", 0.0))) + np.abs(np.imag(call.arguments.get("cval", 0.0)))
    if "weights" in call.arguments:
        weights = np.asarray(call.arguments["weights"])
        weights = np.abs(weights.real) + np.abs(weights.imag)
        given = {**call.arguments, "weights": weights, "cval": cval}
        return np.sqrt(weights.size) * getattr(scipy.ndimage, call.function)(x, **given)
    total = np.zeros(x.shape)
    for chain in _chains(call):
        y = x
        for axis, weights, mode, origin in chain:
            y = np.sqrt(weights.size) * scipy.ndimage.correlate1d(y, np.abs(weights), axis, None, mode, cval, origin)
        total += y
    return total


def _chains(call: Call) -> list[list[tuple]]:
    """What is summed: chains of passes (axis, weights, mode, origin)."""
    given, ndim = call.arguments, call.input.ndim
    axes = [given["axis"] % ndim] if "axis" in given else [a % ndim for a in given.get("axes") or range(ndim)]
    if given.get("axes") is None and "axis" not in given:
        axes = list(range(ndim))

    def each(name, default):
        value = given.get(name, default)
        return value if isinstance(value, list) else [value] * ndim

    if call.function in ("sobel", "prewitt"):
        smooth = [1, 2, 1] if call.function == "sobel" else [1, 1, 1]
        modes = each("mode", "reflect")
        return [[(a, np.array([1, 0, 1] if a == axes[0] else smooth), modes[a], 0) for a in range(ndim)]]
    modes, sigmas, orders, radii = each("mode", "reflect"), each("sigma", 0), each("order", 0), each("radius", None)
    if call.function == "laplace":
        return [[(a, np.array([1, 2, 1]), mode, 0)] for a, mode in zip(axes, modes, strict=False)]
    if call.function.startswith("uniform"):
        passes = zip(axes, each("size", 3), modes, each("origin", 0), strict=False)
        return [[(a, np.full(K, 1 / K), mode, origin) for a, K, mode, origin in passes]]
    if call.function == "gaussian_laplace":
        widest = [max(sigmas)] * ndim  # which sigma goes with which axis does not matter for a bound
        derivatives = [
            [(a, _gaussian_kernel(s, 2 if a == b else 0, None), modes[i]) for a, s in enumerate(widest)]
            for i, b in enumerate(axes)
        ]
        return [[(a, weights, mode, 0) for a, weights, mode in chain] for chain in derivatives]
    passes = zip(axes, sigmas, orders, radii, modes, strict=False)
    return [
        [
            (a, _gaussian_kernel(s, order, radius, given.get("truncate", 4.0)), mode, 0)
            for a, s, order, radius, mode in passes
            if s > 0
        ]
    ]


def _gaussian_kernel(sigma, order, radius, truncate=4.0) -> np.ndarray:
    """What scipy makes of an impulse."""
    radius = int(truncate * sigma + 0.5) if radius is None else radius
    impulse = np.zeros(2 * radius + 1)
    impulse[radius] = 1.0
    return scipy.ndimage.gaussian_filter1d(impulse, sigma, order=order, mode="constant", radius=radius)
